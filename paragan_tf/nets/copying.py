"""Copies of a user's net: the same values in variables of its own.

Keras models that know their inputs are made again, since their tensors refer
to each other by `id`: under Keras 2 from their config, under Keras 3 out of
copies of their layers. Everything else is copied deeply, with a new variable in
place of each old one.
"""

import contextlib
import copy
import types
from typing import Any, Dict, Iterator, List, Sequence

import tensorflow as tf

from paragan_tf.nets import keras_versions
from paragan_tf.nets.keras_versions import is_network, is_of_keras_3

MAKER = "its class, or a function without arguments that makes it"


def copy_net(net: Any, name: str) -> Any:
  """Returns a copy of an instance, with variables of its own."""
  parts = parts_of(net)
  shared = (types.ModuleType, tf.distribute.Strategy)
  memo = {id(part): part for part in parts if isinstance(part, shared)}
  try:
    # Of these first, under both versions: the order names the variables.
    for part in filter(is_network, parts):
      if is_of_keras_3(part):
        _copy_variables(parts_of(part), memo)
      elif id(part) not in memo:
        _clone(part, memo)
    _copy_variables(parts, memo)
    for part in reversed(parts):  # The inner ones first.
      if is_of_keras_3(part):
        _copy_of_keras_3(part, memo)
      elif keras_versions.is_model(part) and id(part) not in memo:
        _copy_model(part, memo)
    return copy.deepcopy(net, memo)
  except Exception as e:
    raise ValueError(
      f"`{name}` must be a net that can be copied, got {type(net).__name__} "
      f"({type(e).__name__}: {e}): pass {MAKER}."
    ) from e


def _copy_variables(parts: Sequence[Any], memo: Dict[int, Any]) -> None:
  for part in parts:
    if isinstance(part, tf.Variable) and id(part) not in memo:
      new = tf.Variable(
        part.numpy(), part.trainable, dtype=part.dtype, name=part.name
      )
      memo[id(part)] = keras_versions.wrap_like(part, new)


def _clone(network: Any, memo: Dict[int, Any]) -> None:
  """Copies a Keras model whose tensors refer to each other by `id`."""
  clone = _clone_layer(network)
  _check_type(clone, network)
  _pair(network, clone, memo)


def _check_type(clone: Any, network: Any) -> None:
  if type(clone) is not type(network):
    raise TypeError(f"a {type(network).__name__} is more than its layers")


def _clone_layer(layer: Any) -> Any:
  if is_network(layer):
    return keras_versions.clone_model(layer, _clone_layer)
  return type(layer).from_config(layer.get_config())


def _pair(old: Any, new: Any, memo: Dict[int, Any]) -> None:
  """Gives a layer's values to the one that replaces it."""
  memo[id(old)] = new
  if is_network(old):
    for layer in old.layers:
      _pair(layer, new.get_layer(layer.name), memo)
  else:
    new.set_weights(old.get_weights())
    memo.update(zip(map(id, old.weights), new.weights))


def _copy_model(model: Any, memo: Dict[int, Any]) -> None:
  """Copies a subclassed model; Keras would write a built one to a file."""
  memo[id(model)] = new = object.__new__(type(model))
  for name in keras_versions.COMPILED:
    memo[id(getattr(model, name, None))] = None
  new.__setstate__(copy.deepcopy(model.__getstate__(), memo))


def _copy_of_keras_3(part: Any, memo: Dict[int, Any]) -> Any:
  """Copies a layer or model; Keras 3 would write it to a file."""
  if id(part) in memo:
    return memo[id(part)]
  if is_network(part):
    clone = keras_versions.clone_model(
      part, lambda layer: _copy_of_keras_3(layer, memo)
    )
    _check_type(clone, part)
    memo[id(part)] = clone
    return clone
  kind: Any = type(part)
  memo[id(part)] = new = kind.__new__(kind)
  # Functions such as `build` refer to the layer that they were made for.
  state = {
    name: value
    for name, value in keras_versions.state_3(part).items()
    if not (name in vars(new) and callable(value))
  }
  for inner in reversed(parts_of(state)):
    if is_of_keras_3(inner):
      _copy_of_keras_3(inner, memo)
  with _copied_tracker(part, memo):
    vars(new).update(copy.deepcopy(state, memo))
  return new


@contextlib.contextmanager
def _copied_tracker(part: Any, memo: Dict[int, Any]) -> Iterator[None]:
  """Copies what finds the variables and layers of a part, by their `id`."""
  tracker = getattr(part, "_tracker", None)
  if tracker is None:
    yield
    return
  stores = {name: store for name, (_, store) in tracker.config.items()}
  memo.update((id(store), []) for store in stores.values())
  memo[id(tracker)] = new = type(tracker)(
    {
      name: (test, memo[id(store)])
      for name, (test, store) in tracker.config.items()
    },
    tracker.exclusions,
  )
  yield
  for name, store in stores.items():
    new.config[name][1][:] = [copy.deepcopy(value, memo) for value in store]
    new.stored_ids[name] = set(map(id, new.config[name][1]))
  if tracker.locked:
    new.lock(tracker._lock_violation_msg)


def parts_of(root: Any) -> List[Any]:
  """Returns what an object is made of, the outer before the inner."""
  seen: Dict[int, Any] = {}

  def visit(part):
    if id(part) not in seen:
      seen[id(part)] = part
      for inner in _children(part):
        visit(inner)

  visit(root)
  return list(seen.values())


def _children(part: Any) -> Sequence[Any]:
  if isinstance(part, dict):
    return list(part.values())
  if isinstance(part, (list, tuple)):
    return part
  inner = keras_versions.children_3(part)
  if inner is not None:
    return inner
  leaves = (tf.Variable, type)
  library = type(part).__module__.split(".")[0]
  opaque = library in ("builtins", "tensorflow", *keras_versions.PACKAGES)
  if isinstance(part, leaves) or (opaque and not isinstance(part, tf.Module)):
    return ()
  return list(getattr(part, "__dict__", {}).values())
