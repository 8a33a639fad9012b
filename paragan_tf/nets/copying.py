"""Copies of a user's net: the same values in variables of its own.

Keras models that know their inputs are made again from their config, since
their tensors refer to each other by `id`. Everything else is copied deeply,
with a new variable in place of each old one.
"""

import copy
from typing import Any, Dict, List, Sequence

import tensorflow as tf

MAKER = "its class, or a function without arguments that makes it"
_COMPILED = ("optimizer", "compiled_loss", "compiled_metrics", "train_function")


def copy_net(net: Any, name: str) -> Any:
  """Returns a copy of an instance, with variables of its own."""
  parts = parts_of(net)
  memo: Dict[int, Any] = {}
  try:
    for part in parts:
      if is_network(part) and id(part) not in memo:
        _clone(part, memo)
    for part in parts:
      if isinstance(part, tf.Variable) and id(part) not in memo:
        memo[id(part)] = tf.Variable(
          part.numpy(), part.trainable, dtype=part.dtype, name=part.name
        )
    for part in reversed(parts):  # The inner ones first.
      if isinstance(part, tf.keras.Model) and id(part) not in memo:
        _copy_model(part, memo)
    return copy.deepcopy(net, memo)
  except Exception as e:
    raise ValueError(
      f"`{name}` must be a net that can be copied, got {type(net).__name__} "
      f"({type(e).__name__}: {e}): pass {MAKER}."
    ) from e


def _clone(network: Any, memo: Dict[int, Any]) -> None:
  """Copies a Keras model whose tensors refer to each other by `id`."""
  clone = _clone_layer(network)
  if type(clone) is not type(network):
    raise TypeError(f"a {type(network).__name__} is more than its layers")
  _pair(network, clone, memo)


def _clone_layer(layer: Any) -> Any:
  if is_network(layer):
    return tf.keras.models.clone_model(layer, clone_function=_clone_layer)
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
  for name in _COMPILED:  # Keras's own training, which is not used here.
    memo[id(getattr(model, name, None))] = None
  new.__setstate__(copy.deepcopy(model.__getstate__(), memo))


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
  leaves = (tf.Variable, type)
  library = type(part).__module__.split(".")[0]
  opaque = library in ("builtins", "tensorflow", "keras")
  if isinstance(part, leaves) or (opaque and not isinstance(part, tf.Module)):
    return ()
  return list(getattr(part, "__dict__", {}).values())


def is_network(net: Any) -> bool:
  """Returns whether this is a Keras model that knows its inputs."""
  return isinstance(net, tf.keras.Model) and bool(net.inputs)
