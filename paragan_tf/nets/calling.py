"""How a user's net is called: which of its arguments are labels and `training`.

A net is called with x, with labels if it takes a second argument (or has a
second Keras input), and with `training` if it has such an argument. If it has
none, Keras layers inside are told by Keras itself. A `model_fn` may be declared
in its class without `self`.
"""

import inspect
from typing import Any, Callable, List, Optional

import tensorflow as tf

from paragan_tf.nets import keras_versions
from paragan_tf.nets.copying import MAKER
from paragan_tf.nets.keras_versions import is_layer, is_network
from paragan_tf.types import ImageSpec

# From x, labels and whether to train to whatever a net returns.
Call = Callable[[tf.Tensor, Optional[tf.Tensor], bool], Any]

_TRAINING = ("training", "is_training")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def makes_nets(net: Any) -> bool:
  """Returns whether this is a class or function that makes a net."""
  if inspect.isclass(net) or not callable(net):
    return inspect.isclass(net)
  if isinstance(net, tf.Module) or is_layer(net) or hasattr(net, "model_fn"):
    return False
  parameters = inspect.signature(net).parameters.values()
  return all(
    p.default is not p.empty or p.kind in _VARIADIC for p in parameters
  )


def make_call(net: Any, spec: ImageSpec, name: str) -> Call:
  """Returns the net as a function of x, labels and whether to train."""
  if is_network(net):
    return _network_call(net, spec, name)
  fn = _without_self(getattr(net, "model_fn", net))
  if not callable(fn):
    raise ValueError(
      f"`{name}` must be a `tf.Module`, a Keras model, an object with "
      f"`model_fn`, or {MAKER}, got {net!r}."
    )
  labels_name, training_name = _argument_names(
    fn.call if is_layer(fn) else fn, name
  )
  if is_layer(fn) and not training_name:
    training_name = "training"  # Every layer passes it on to those inside.

  def call(x, labels, training):
    kwargs = {labels_name: labels, training_name: training}
    kwargs.pop(None, None)
    return fn(x, **kwargs)

  return call if training_name else _in_phase(call)


def _without_self(fn: Any) -> Any:
  """Returns the function of a method that was declared without `self`.

  Its first argument is x then. What takes more than x and labels has a `self`,
  whatever that is called.
  """
  if not inspect.ismethod(fn) or inspect.isclass(fn.__self__):
    return fn
  first, *others = inspect.signature(fn.__func__).parameters.values()
  inputs = [p for p in others if p.name not in _TRAINING]
  if first.name == "self" or first.kind in _VARIADIC or len(inputs) > 1:
    return fn
  return fn.__func__


def _argument_names(fn: Callable, name: str) -> List[Optional[str]]:
  """Returns the names of a function's arguments for labels and training."""
  parameters = inspect.signature(fn).parameters.values()
  training = [p.name for p in parameters if p.name in _TRAINING]
  known = (*_TRAINING, "mask")
  others = [
    p for p in parameters if p.name not in known and p.kind not in _VARIADIC
  ]
  required = [p for p in others if p.default is p.empty]
  if not others or len(required) > 2:
    raise ValueError(
      f"`{name}` must take `(x)` or `(x, labels)`, and may take `training`, "
      f"got {inspect.signature(fn)}: give the others in `__init__`."
    )
  # A second argument that has a default other than `None` is something else.
  labels = [p.name for p in others[1:2] if p in required or p.default is None]
  return [next(iter(names), None) for names in (labels, training)]


def _network_call(net: Any, spec: ImageSpec, name: str) -> Call:
  """Returns the call of a Keras model that knows its inputs."""
  inputs = net.inputs
  if len(inputs) == 1:
    return lambda x, labels, training: net(x, training=training)
  shape = tuple(inputs[1].shape)
  size = shape[-1] if len(shape) > 1 else 0
  fits = len(shape) <= 2 and size in (0, 1, None, spec.num_classes)
  if len(inputs) > 2 or not fits or not spec.num_classes:
    raise ValueError(
      f"`{name}` may have one input beside x, for labels of shape [b], [b, 1] "
      f"or [b, num_classes], got {[tuple(i.shape) for i in inputs]} and "
      f"{spec.num_classes} classes: leave out the others."
    )

  def call(x, labels, training):
    if size is None or size == 1:
      labels = labels[:, None]
    elif size:
      labels = tf.one_hot(labels, size)
    return net([x, labels], training=training)  # Keras casts both.

  return call


def _in_phase(call: Call) -> Call:
  """Tells layers whether to train, for a net that cannot pass it on."""

  def call_in_phase(x, labels, training):
    return keras_versions.call_in_phase(
      lambda: call(x, labels, training), x, training
    )

  return call_in_phase
