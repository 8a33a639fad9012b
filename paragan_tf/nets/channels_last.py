"""Users' nets with channels first, computed with channels last.

    found = convert(parts)            # replaces `call` of Keras layers
    call = give_channels_first(call)  # of a D that expects such images
    call = take_channels_last(call)   # of a G that returns such images

Between layers tensors keep the axes that the net was written for, so whatever
else the net does with them means the same. A tensor that was computed with
channels last remembers that form, and the next layer takes it from there. The
transposes between them are then used by nothing, and are not computed.

A layer is not changed: its `call` runs on a shallow copy, which shares its
variables and has another format.
"""

import traceback
from typing import Any, Callable, Dict, Optional, Sequence

import tensorflow as tf

from paragan_tf.nets import keras_versions
from paragan_tf.nets.calling import Call
from paragan_tf.types import ImageSpec

_FORMATS = {
  "channels_first": "channels_last",
  "NCW": "NWC",
  "NCHW": "NHWC",
  "NCDHW": "NDHWC",
}
_AXES = ("axis", "_reduction_axes")
# Layers that have a format because of the axis that they act on.
_BY_AXIS = ("BatchNormalization", "GroupNormalization", "Concatenate")
# Layers that act on each number alone, whatever its place.
_ELEMENTWISE = (
  *("Activation", "ReLU", "LeakyReLU", "ELU", "Rescaling", "Identity"),
  *("Dropout", "GaussianDropout", "GaussianNoise"),
  *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"),
)
_ELEMENTWISE_FUNCTIONS = (
  *("linear", "relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu"),
  *("swish", "mish", "softplus", "softsign", "tanh", "sigmoid", "exponential"),
)
_MEMORY = "_computed_with_channels_last"


# What layers with channels first have computed last, by their names.
Converted = Dict[str, Optional[tf.TensorSpec]]


def convert(parts: Sequence[Any]) -> Converted:
  """Lets all layers of a net compute with channels last.

  Args:
    parts: Of the net, see `copying.parts_of`.

  Returns:
    The layers with channels first, none if there are none.
  """
  layers = [part for part in parts if keras_versions.is_layer(part)]
  found: Converted = {x.name: None for x in layers if _is_channels_first(x)}
  for layer in layers if found else ():
    kind = type(layer).__name__
    if _is_channels_first(layer) or kind in _BY_AXIS:
      _replace_call(layer, found, is_needed=True)
    elif kind in _ELEMENTWISE:
      _replace_call(layer, found, is_needed=False)
  return found


def expects_channels_first(
  net: Any, spec: ImageSpec, converted: Converted
) -> bool:
  """Returns whether a D is written for images with channels first.

  Its attribute `data_format` says so, or its Keras input, or its layers.

  Args:
    net: The user's.
    spec: The images that it will get.
    converted: Its layers with channels first.
  """
  asked = getattr(net, "data_format", None)
  if asked in ("channels_first", "channels_last"):
    return asked == "channels_first"
  if keras_versions.is_network(net):
    shape = tuple(net.inputs[0].shape)[1:]
    last = _fits(shape, [spec.resolution, spec.resolution, spec.channels])
    first = _fits(shape, [spec.channels, spec.resolution, spec.resolution])
    if first != last:
      return first
  return bool(converted)


def give_channels_first(call: Call) -> Call:
  """Returns a call that transposes images before."""
  return lambda x, labels, training: call(_remember(x), labels, training)


def take_channels_last(call: Call, spec: ImageSpec) -> Call:
  """Returns a call that transposes images after, where they need it."""
  size, channels = spec.resolution, spec.channels

  def call_and_transpose(x, labels, training):
    y = call(x, labels, training)
    if not tf.is_tensor(y) or y.shape[1:] == [size, size, channels]:
      return y
    return _recall(y) if y.shape[1:] == [channels, size, size] else y

  return call_and_transpose


def explain(error: Exception) -> str:
  """Returns what to do about an error of a net, if a format is the reason."""
  text = str(error)
  if "NHWC" not in text and "channels_first" not in text:
    return ""
  frames = traceback.extract_tb(error.__traceback__)
  libraries = ("/tensorflow/", "/keras/", "/tf_keras/", "/paragan_tf/")
  own = [f for f in frames if not any(x in f.filename for x in libraries)]
  where = f"line {own[-1].lineno} of '{own[-1].filename}'" if own else "it"
  return (
    f": {where} computes with channels first. Keras layers that a net has when "
    "it is made are converted to channels last; use such layers there, or "
    "channels last."
  )


def _fits(shape: Sequence[Optional[int]], asked: Sequence[int]) -> bool:
  if len(shape) != len(asked):
    return False
  return all(one in (None, other) for one, other in zip(shape, asked))


def _is_channels_first(layer: Any) -> bool:
  return getattr(layer, "data_format", None) == "channels_first"


def _replace_call(layer: Any, found: Converted, is_needed: bool) -> None:
  """Replaces the call of a layer.

  Args:
    layer: Is changed in place.
    found: Where to note what it computes.
    is_needed: Whether it must not be called with channels first. If not, it is
      only where this saves a transpose.
  """
  original = layer.call

  def call(inputs, *args, **kwargs):
    xs = tf.nest.flatten(inputs)
    ranks = {x.shape.rank if tf.is_tensor(x) else None for x in xs}
    rank = ranks.pop()
    known = any(hasattr(x, _MEMORY) for x in xs)
    if ranks or rank not in (3, 4, 5) or not (is_needed or known):
      return original(inputs, *args, **kwargs)
    if not _acts_on_channels(layer, rank):
      return original(inputs, *args, **kwargs)
    twin = _make_twin(layer, rank)
    inputs = tf.nest.pack_sequence_as(inputs, [_recall(x) for x in xs])
    y = type(layer).call(twin, inputs, *args, **kwargs)
    found[layer.name] = tf.TensorSpec(y.shape, y.dtype)
    return _remember(y) if y.shape.rank == rank else y

  vars(layer)["call"] = call


def _acts_on_channels(layer: Any, rank: int) -> bool:
  """Returns whether the axis of a layer, if it has one, is the channels'."""
  if type(layer).__name__ not in _BY_AXIS:
    return True
  return [axis % rank for axis in tf.nest.flatten(layer.axis)] == [1]


def _make_twin(layer: Any, rank: int) -> Any:
  """Returns a shallow copy of a layer, with channels last."""
  state: Dict[str, Any] = dict(vars(layer))
  by_axis = type(layer).__name__ in _BY_AXIS
  for name, value in state.items():
    if isinstance(value, str):
      state[name] = _FORMATS.get(value, value)
    elif by_axis and name in _AXES and value is not None:
      state[name] = tf.nest.map_structure(lambda a: _move(a, rank), value)
  if "_channels_first" in state:
    state["_channels_first"] = False
  activation = state.get("activation")
  if callable(activation):
    state["activation"] = _elementwise(activation)
  twin = object.__new__(type(layer))
  vars(twin).update(state)
  return twin


def _elementwise(activation: Callable) -> Callable:
  """Returns an activation that may act on the axes of channels first."""
  if getattr(activation, "__name__", "") in _ELEMENTWISE_FUNCTIONS:
    return activation
  return lambda y: _recall(activation(_remember(y)))


def _move(axis: int, rank: int) -> int:
  """Returns where an axis of channels first is with channels last."""
  axis %= rank
  return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


def _remember(x: tf.Tensor) -> tf.Tensor:
  """Returns a tensor with channels first that remembers where it is from."""
  rank = x.shape.rank
  first = tf.transpose(x, [0, rank - 1, *range(1, rank - 1)])
  setattr(first, _MEMORY, x)
  return first


def _recall(x: tf.Tensor) -> tf.Tensor:
  """Returns a tensor with channels last, without a transpose if possible."""
  remembered = getattr(x, _MEMORY, None)
  if remembered is not None:
    return remembered
  return tf.transpose(x, [0, *range(2, x.shape.rank), 1])
