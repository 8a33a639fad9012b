"""The layout pass: how each tensor of a net is laid out, before it trains.

    rows = plan_net(net, inputs, labels, profile)    # one row a tensor

The net is called once in a graph that never runs. Its layers chose their forms
and their padding when they were made, see `hardware.Layout`, and report here.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf import hardware
from paragan_tf.nets import attention, layers, norms
from paragan_tf.nets.forward import Forward
from paragan_tf.types import Mode

_MADE_OF_WEIGHTS = "made of weights or summed over pixels: stays float32"


class Row(NamedTuple):
  """One tensor of a net: what a layer returns.

  Attributes:
    name: Of the layer.
    shape: Of the tensor, channels last.
    carried: The same with the channels that are padded through the net.
    tiles: The same as the hardware stores it, its lanes and rows filled.
    dtype: What it is stored in.
    dtype_reason: Why.
    waste_before: The part of the tiles that is empty without carried padding.
    waste_after: The same with it; what is carried is not empty but zero.
    zeros: The part of the carried channels that is zero.
    form: How the layer computes it.
    reason: Why that form.
  """

  name: str
  shape: Tuple[int, ...]
  carried: Tuple[int, ...]
  tiles: Tuple[int, ...]
  dtype: str
  dtype_reason: str
  waste_before: float
  waste_after: float
  zeros: float
  form: str
  reason: str


def plan_net(
  net: Any,
  inputs: tf.TensorSpec,
  labels: Optional[tf.TensorSpec],
  profile: hardware.Profile,
) -> List[Row]:
  """Returns a row for each tensor that a net computes, in its order.

  Of a net that is not made of our layers, as a user's, the rows are its
  weights: it is computed as it is written. Before them come the Keras layers
  that are converted to channels last.
  """
  rows: List[Row] = []

  precision = getattr(net, "dtype", tf.float32)

  def observe(layer, x, y):
    row = _describe(layer, x, y, profile)
    if y.dtype != precision:
      row = row._replace(dtype_reason=_MADE_OF_WEIGHTS)
    rows.append(row)

  # Layers take a `Forward` in place of a mode; a user's net does not.
  forward: Any = Forward(Mode.FROZEN, observer=observe)

  def call(x, labels=None):
    return _get_call(net)(x, labels, forward)

  if not any(isinstance(m, layers.Weight) for m in net.submodules):
    converted = getattr(net, "converted", {}).items()
    rows = [
      _describe_converted(name, result, inputs, profile)
      for name, result in converted
      if result is not None
    ]
    weights = net.trainable_variables
    return rows + [_describe_weight(w, profile) for w in weights]
  specs = [inputs] if labels is None else [inputs, labels]
  tf.function(call, autograph=False).get_concrete_function(*specs)
  return rows


def _get_call(net: Any) -> Callable[..., Any]:
  return getattr(net, "judge", None) or net


def _describe(layer: Any, x, y, profile: hardware.Profile) -> Row:
  name = layer.name_scope.name.rstrip("/")
  if isinstance(layer, attention.SelfAttention):
    shape = (y.shape[0], x.shape[1], y.shape[1])
    return _make_row(name, shape, shape, y.dtype, _explain(layer, x), profile)
  width = layer.channels if isinstance(layer, norms.Norm) else layer.outputs
  carried = tuple(y.shape)
  shape = (*carried[:-1], width)
  return _make_row(name, shape, carried, y.dtype, _explain(layer, x), profile)


def _explain(layer: Any, x: tf.Tensor) -> Tuple[str, str]:
  """Returns the form of a layer, and why it has this one."""
  if isinstance(layer, layers.Conv):
    return layers.layout.explain_conv(
      layer.layout, layer.shape, layer.resize, x.shape
    )
  if isinstance(layer, attention.SelfAttention):
    if layer.attends_once:
      return "sum after product", "fewer passes over attention weights"
    return "softmax", "the only form that other hardware gains by"
  if isinstance(layer, norms.Norm):
    return "scale and shift", "one multiply-add an element"
  return "product", "the only form"


def _make_row(
  name: str,
  shape: Sequence[int],
  carried: Sequence[int],
  dtype: tf.DType,
  explained: Tuple[str, str],
  profile: hardware.Profile,
) -> Row:
  before, after = (_order(sizes, profile) for sizes in (shape, carried))
  tiles = hardware.padded_shape(after, dtype, profile)
  return Row(
    name,
    tuple(shape),
    tuple(carried),
    _order_back(tiles, profile),
    dtype.name,
    "the player's precision",
    hardware.waste(before, dtype, profile),
    hardware.waste(after, dtype, profile),
    1.0 - shape[-1] / carried[-1],
    *explained,
  )


def _describe_converted(
  name: str, result: tf.TensorSpec, inputs: tf.TensorSpec, profile
) -> Row:
  """Returns the row of a Keras layer that has channels first."""
  shape = (inputs.shape[0], *result.shape[1:])
  explained = "channels last", "channels first in the net: converted"
  row = _make_row(name, shape, shape, result.dtype, explained, profile)
  return row._replace(dtype_reason="the layer's")


def _describe_weight(w: tf.Variable, profile: hardware.Profile) -> Row:
  row = _make_row(
    w.name.split(":")[0], w.shape, w.shape, w.dtype, ("as written", ""), profile
  )
  return row._replace(dtype_reason="a weight", reason="a user's net is kept")


def _order(shape: Sequence[int], profile: hardware.Profile) -> Tuple[int, ...]:
  """Returns the sizes of an image as a TPU stores them: rows are images."""
  if len(shape) != 4 or profile.kind != "tpu":
    return tuple(shape)
  batch, height, width, channels = shape
  return height, width, batch, channels


def _order_back(shape: Sequence[int], profile) -> Tuple[int, ...]:
  if len(shape) != 4 or profile.kind != "tpu":
    return tuple(shape)
  height, width, batch, channels = shape
  return batch, height, width, channels
