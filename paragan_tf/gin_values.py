"""Compares the values of a gin config with the types of what they are for.

Gin binds anything to anything; a wrong kind of value would fail later, far from
its cause. Here each binding is compared with the annotation of its parameter,
when the config has been read.
"""

import collections.abc
import contextlib
import inspect
import types
import typing
from typing import Any, Callable, Dict, Iterator, Tuple, Union

from gin import config as gin_config

_NUMBERS: Dict[type, Tuple[type, ...]] = {
  int: (int,),
  float: (int, float),
  complex: (int, float, complex),
}
_WORDS = {
  int: "a whole number",
  float: "a number",
  bool: "True or False",
  str: "a text",
  type(None): "None",
}
_LISTS = (collections.abc.Sequence, collections.abc.Iterable, list, tuple, set)
_MAPPINGS = (collections.abc.Mapping, dict)
_EXAMPLE = "a function or class, as @module.name"
# The most that numbers may be which make a program, a net or a buffer larger:
# far more than anyone wants, and less than takes all memory.
_LIMITS = {
  "batch_size": 1 << 24,
  "cache_depth": 1 << 12,
  "depth": 1 << 10,
  "embedding_dim": 1 << 16,
  "g_batch_size": 1 << 24,
  "num_d_steps": 1 << 10,
  "num_g_steps": 1 << 10,
  "num_standing": 1 << 16,
  "num_workers": 1 << 12,
  "period": 1 << 12,
  "prefetch": 1 << 12,
  "rounds": 1 << 10,
  "shared_dim": 1 << 16,
  "width": 1 << 14,
  "z_dim": 1 << 16,
}


def check() -> None:
  """Raises a `ValueError` for the first binding of a wrong kind."""
  for name, value, kind in _bindings():
    if not fits(value, kind):
      raise ValueError(
        f"`{name}` must be {describe(kind)}, got {_show(value)}: correct it; "
        "docs/config.md lists what can be chosen."
      )
    _check_size(name, value)


def _check_size(name: str, value: Any) -> None:
  limit = _LIMITS.get(name.rpartition(".")[2])
  if limit is not None and isinstance(value, int) and value > limit:
    raise ValueError(
      f"`{name}` must be at most {limit:,}, got {_show(value)}: a larger one "
      "would take all memory."
    )


def fits(value: Any, kind: Any) -> bool:
  """Returns whether a gin value may be what an annotation asks for."""
  if kind is inspect.Parameter.empty or isinstance(kind, typing.TypeVar):
    return True
  origin, parts = typing.get_origin(kind), typing.get_args(kind)
  if origin is Union:
    return any(fits(value, part) for part in parts)
  if isinstance(value, gin_config.ConfigurableReference):
    return _reference_fits(value, kind, origin, parts)
  if kind in (Any, object):
    return True
  if origin in _LISTS or kind in _LISTS:
    return _list_fits(value, origin or kind, parts)
  if origin in _MAPPINGS or kind in _MAPPINGS:
    return isinstance(value, dict)
  if kind is None:
    return value is None
  if kind in _NUMBERS:
    return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
  if isinstance(kind, type):
    return isinstance(value, kind) if kind in _WORDS else False
  return origin is not collections.abc.Callable


def _list_fits(value: Any, kind: Any, parts: Tuple[Any, ...]) -> bool:
  if not isinstance(value, (list, tuple)):
    return False
  if kind is tuple and parts and parts[-1] is not Ellipsis:
    return len(value) == len(parts) and all(map(fits, value, parts))
  return not parts or all(fits(item, parts[0]) for item in value)


def _reference_fits(value: Any, kind: Any, origin: Any, parts: Any) -> bool:
  """Compares `@name`, a function or class, or `@name()`, what it returns."""
  target = value.configurable.wrapped
  if value.configurable.selector.startswith("gin."):  # A macro, say.
    return True
  if value.evaluate:
    return kind in (Any, object) or _returns(target, kind, origin)
  if origin is collections.abc.Callable:
    return len(parts) < 2 or _returns(target, parts[1], None)
  return kind in (Any, object) or not isinstance(kind, type) or _is_role(kind)


def _returns(target: Callable, kind: Any, origin: Any) -> bool:
  """Returns whether a class or function may make something of a kind."""
  if kind in (Any, object):  # From Python 3.11 on, `Any` is a class.
    return True
  if isinstance(target, type):
    made: Any = target
  else:
    made = _hints(target).get("return")
  if not isinstance(made, type) or made is object:
    return True
  if origin is collections.abc.Callable:
    return any("__call__" in base.__dict__ for base in made.__mro__)
  if origin is not None:
    wanted = (list, tuple) if origin in _LISTS else origin
    return not isinstance(wanted, (type, tuple)) or issubclass(made, wanted)
  if not isinstance(kind, type) or _is_role(kind):
    return True
  return issubclass(made, kind) or (kind is float and issubclass(made, int))


def _is_role(kind: type) -> bool:
  return bool(getattr(kind, "_is_protocol", False))


def describe(kind: Any) -> str:
  """Returns what an annotation asks for, in words."""
  origin, parts = typing.get_origin(kind), typing.get_args(kind)
  if origin is Union:
    return " or ".join(dict.fromkeys(describe(part) for part in parts))
  if origin in _LISTS or kind in _LISTS:
    of = [describe(x) for x in parts if x is not Ellipsis]
    return f"a list, each {of[0]}" if of else "a list"
  if origin in _MAPPINGS or kind in _MAPPINGS:
    return "a dict"
  if origin is collections.abc.Callable:
    made = getattr(parts[1], "__name__", "") if len(parts) > 1 else ""
    is_ours = isinstance(parts[1], type) and parts[1] not in _WORDS
    return f"{_EXAMPLE}, that makes {_name(made)}" if is_ours else _EXAMPLE
  if isinstance(kind, type) and kind not in _WORDS:
    return f"{_name(kind.__name__)}, as @module.name()"
  return _WORDS.get(kind, "of another kind")


def _name(kind: str) -> str:
  return f"an {kind}" if kind[:1] in "AEIOU" else f"a {kind}"


def _show(value: Any) -> str:
  text = " ".join(repr(value).split())
  return text if len(text) <= 100 else f"{text[:100]}..."


def _bindings() -> Iterator[Tuple[str, Any, Any]]:
  """Yields the name, the value and the annotation of each binding."""
  for (scope, selector), values in gin_config._CONFIG.items():
    configurable = gin_config._REGISTRY.get_match(selector)
    if configurable is None or selector.startswith("gin."):
      continue
    hints = _hints(configurable.wrapped)
    short = ".".join(configurable.selector.split(".")[-2:])
    for name, value in values.items():
      where = f"{scope}/{short}" if scope else short
      yield f"{where}.{name}", value, hints.get(name, inspect.Parameter.empty)


def _hints(target: Any) -> Dict[str, Any]:
  """Returns the annotations of a function, or of what makes a class."""
  if isinstance(target, type):
    found: Dict[str, Any] = {}
    for base in reversed(target.__mro__):  # Dataclasses and named tuples, too.
      for maker in (base, base.__dict__.get("__init__")):
        found.update(_hints_of_one(maker))
    return found
  return _hints_of_one(target)


def _hints_of_one(target: Any) -> Dict[str, Any]:
  try:
    return typing.get_type_hints(target)
  except (AttributeError, NameError, TypeError):  # Of one parameter.
    return _hints_one_by_one(target)


def _hints_one_by_one(target: Any) -> Dict[str, Any]:
  found: Dict[str, Any] = {}
  for name, kind in getattr(target, "__annotations__", {}).items():
    one = types.SimpleNamespace(__annotations__={name: kind})
    with contextlib.suppress(AttributeError, NameError, TypeError):
      found.update(
        typing.get_type_hints(one, getattr(target, "__globals__", None))
      )
  return found
