"""Layers with explicit shapes, named variables and stateless initial values.

`hardware.Layout` chooses how a product is computed, see `layout.py`. A layer
computes in the precision of its input. Its weights, and what is computed from
them alone, are float32.

Where the layout pads channels, a layer pads its kernel and its bias by zeros,
and returns channels that are zero at the end; the next layer takes them as they
are. So a net pads at its entry and cuts at its exit. Variables have no padding.
"""

import math
import zlib
from typing import Callable, Optional, Sequence

import tensorflow as tf

from paragan_tf.hardware import ResolvedLayout, resolve_layout
from paragan_tf.nets import layout
from paragan_tf.nets.forward import AnyMode, Forward
from paragan_tf.nets.spectral import norm, unit
from paragan_tf.types import Mode

# From a variable's full name and shape to its first value.
Init = Callable[[str, Sequence[int]], tf.Tensor]


def normal_init(stddev: float, seed: int) -> Init:
  """Returns an initializer that draws from N(0, stddev^2)."""

  def init(name, shape):
    return stddev * tf.random.stateless_normal(
      shape, _key(name, seed), alg="philox"
    )

  return init


def glorot_init(seed: int, gain: float = 1.0) -> Init:
  """Returns Glorot and Bengio's uniform initializer (AISTATS 2010)."""

  def init(name, shape):
    receptive = 1
    for size in shape[:-2]:
      receptive *= size
    fan_in, fan_out = receptive * shape[-2], receptive * shape[-1]
    limit = gain * (6.0 / (fan_in + fan_out)) ** 0.5
    return tf.random.stateless_uniform(
      shape, _key(name, seed), -limit, limit, alg="philox"
    )

  return init


def orthogonal_init(seed: int, gain: float = 1.0) -> Init:
  """Returns Saxe et al.'s orthogonal initializer (arXiv 1312.6120).

  A kernel is a matrix with a column for each output. Its columns, or its rows
  if there are fewer, are orthogonal and have the length `gain`.
  """

  def init(name, shape):
    rows, columns = math.prod(shape[:-1]), shape[-1]
    normal = tf.random.stateless_normal(
      [max(rows, columns), min(rows, columns)], _key(name, seed), alg="philox"
    )
    q, r = tf.linalg.qr(normal)
    # Without the signs, the result would depend on how QR was computed.
    q *= tf.where(tf.linalg.diag_part(r) < 0.0, -1.0, 1.0)
    q = q if rows >= columns else tf.transpose(q)
    return gain * tf.reshape(q, shape)

  return init


def class_weights(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Returns the weight of each class in each sample, `[b, num_classes]`.

  Args:
    labels: Class ids, `[b]`, or the weights themselves, in floats.
    num_classes: How many classes there are.
  """
  labels = tf.convert_to_tensor(labels)
  if labels.dtype.is_floating:
    return tf.ensure_shape(labels, [None, num_classes])
  # A one-hot product: its gradient is dense and the same on every device.
  return tf.one_hot(labels, num_classes)


def concat(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Concatenates the rows of two matrices, in the precision of the first."""
  return tf.concat([x, tf.cast(y, x.dtype)], 1)


class Weight(tf.Module):
  """A kernel `[..., inputs, outputs]`, divided by its spectral norm if asked.

  One power iteration per turn of the owner estimates the norm. Its vector `u`
  is state, see `spectral.py`.
  """

  def __init__(
    self, shape: Sequence[int], init: Init, spectral: bool, name: str = "weight"
  ):
    super().__init__(name=name)
    chosen = resolve_layout()
    self.as_matrix = chosen.weights_as_matrices
    self.join_power_iterations = chosen.join_power_iterations
    with self.name_scope as scope:
      self.w = tf.Variable(init(scope + "w", shape), name="w")
      self.u: Optional[tf.Variable] = None
      if spectral:
        u = normal_init(1.0, 0)(scope + "u", [1, shape[-1]])
        self.u = tf.Variable(unit(u), trainable=False, name="u")

  def __call__(self, mode: AnyMode) -> tf.Tensor:
    """Returns the kernel; `Mode.TRAIN` makes one power iteration."""
    forward = Forward.of(mode)
    kernel = forward.result_for(self)
    if kernel is not None:
      return kernel
    w = forward.read(self.w)
    if self.u is None:
      return w
    matrix = tf.reshape(w, [-1, w.shape[-1]])
    update_u = forward.mode is Mode.TRAIN
    sigma, u = norm(matrix, forward.read(self.u), update_u)
    if update_u:
      forward.assign_state(self.u, u)
    if self.as_matrix:
      return tf.reshape(matrix / sigma, w.shape)
    return w / sigma


class Widths:
  """How many channels a layer takes and returns, padding included."""

  def __init__(self, inputs: int, outputs: int, chosen: ResolvedLayout):
    self.inputs = chosen.padded_width(inputs)
    self.outputs = chosen.padded_width(outputs)

  def pad_input(self, x: tf.Tensor) -> tf.Tensor:
    """Pads what comes from outside of the net."""
    return layout.pad_channels(x, self.inputs)

  def pad_kernel(self, w: tf.Tensor) -> tf.Tensor:
    """Adds zero rows and columns."""
    w = layout.pad_channels(w, self.inputs, -2)
    return layout.pad_channels(w, self.outputs)


class Linear(tf.Module):
  """A matrix product and a bias."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: Init,
    spectral: bool = False,
    bias: bool = True,
    name: str = "linear",
  ):
    super().__init__(name=name)
    chosen = resolve_layout()
    self.outputs = outputs
    self.widths = Widths(inputs, outputs, chosen)
    self.product = layout.apply_precision(tf.matmul, chosen)
    with self.name_scope:
      self.weight = Weight([inputs, outputs], init, spectral)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b") if bias else None

  def __call__(self, x: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Maps `[b, inputs]` to `[b, outputs]`."""
    x = self.widths.pad_input(x)
    kernel = self.widths.pad_kernel(self.weight(mode))
    y = self.product(x, tf.cast(kernel, x.dtype))
    y = y if self.bias is None else add_bias(y, self.bias, mode)
    return Forward.of(mode).note(self, x, y)


class ToPixels(Linear):
  """The first layer of a G: a linear layer to 4x4 pixels."""

  def __init__(
    self,
    inputs: int,
    channels: int,
    init: Init,
    spectral: bool = False,
    name: str = "linear",
  ):
    super().__init__(inputs, 16 * channels, init, spectral, name=name)
    self.channels = channels
    self.width = resolve_layout().padded_width(channels)

  def __call__(self, x: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Maps `[b, inputs]` to `[b, 4, 4, channels]`."""
    y = layout.cut_channels(super().__call__(x, mode), 16 * self.channels)
    y = tf.reshape(y, [-1, 4, 4, self.channels])
    return layout.pad_channels(y, self.width)


class Embedding(tf.Module):
  """One vector a class."""

  def __init__(
    self,
    classes: int,
    size: int,
    init: Init,
    spectral: bool = False,
    name: str = "embedding",
  ):
    super().__init__(name=name)
    self.outputs, self.width = size, resolve_layout().padded_width(size)
    with self.name_scope:
      self.weight = Weight([classes, size], init, spectral)

  def __call__(self, labels: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Maps labels, as in `class_weights`, to `[b, size]`."""
    table = layout.pad_channels(self.weight(mode), self.width)
    rows = class_weights(labels, table.shape[0])
    return Forward.of(mode).note(self, rows, tf.matmul(rows, table))


def make_shared_embedding(
  num_classes: int, size: int, init: Init
) -> Optional[Embedding]:
  """Returns the embedding that all norms of a G share, if there are classes."""
  if not num_classes:
    return None
  return Embedding(num_classes, size, init, name="shared")


class Conv(tf.Module):
  """A convolution that keeps, doubles or halves the resolution.

  `resize="up"` is nearest upsampling by two, then the kernel; `"down"` is the
  kernel, then 2x2 average pooling. Kernels of size 1 commute with both, and
  run at the lower resolution, unless the layout's `resizes` is `apart`.
  """

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: Init,
    size: int = 3,
    resize: Optional[str] = None,
    spectral: bool = False,
    bias: bool = True,
    name: str = "conv",
  ):
    super().__init__(name=name)
    if size not in (1, 3):
      raise ValueError(f"`size` of a `Conv` must be 1 or 3, got {size}.")
    if resize not in (None, "up", "down"):
      raise ValueError(
        f"`resize` of a `Conv` must be None, 'up' or 'down', got {resize!r}."
      )
    self.resize, self.outputs = resize, outputs
    chosen, shape = resolve_layout(), [size, size, inputs, outputs]
    self.widths = Widths(inputs, outputs, chosen)
    padded = [size, size, self.widths.inputs, self.widths.outputs]
    self.layout, self.shape = chosen, padded
    self.before, self.after, conv = layout.plan_conv(chosen, padded, resize)
    self.conv = layout.apply_precision(conv, chosen)
    with self.name_scope:
      self.weight = Weight(shape, init, spectral)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b") if bias else None

  def __call__(self, x: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Maps `[b, h, w, inputs]` to `[b, h', w', outputs]`."""
    x = self.widths.pad_input(x)
    y = self.conv(self.before(x), self.kernel(mode))
    y = self.after(y if self.bias is None else add_bias(y, self.bias, mode))
    return Forward.of(mode).note(self, x, y)

  def kernel(self, mode: AnyMode) -> tf.Tensor:
    """Returns the kernel as it is computed with, padding included."""
    return self.widths.pad_kernel(self.weight(mode))


class ToImage(Conv):
  """The last layer of a G: a convolution and tanh; it returns no padding."""

  def __call__(self, x: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Maps `[b, h, w, inputs]` to images in [-1, 1]."""
    y = super().__call__(x, mode)
    return tf.tanh(layout.cut_channels(y, self.outputs))


def add_bias(y: tf.Tensor, b: tf.Variable, mode: AnyMode) -> tf.Tensor:
  """Adds a bias to each channel, in the precision of `y`."""
  bias = layout.pad_channels(Forward.of(mode).read(b), y.shape[-1])
  return tf.nn.bias_add(y, tf.cast(bias, y.dtype))


def check_dims(**dims: int) -> None:
  """Raises a `ValueError` for a size below 1."""
  for name, size in dims.items():
    if size < 1:
      raise ValueError(f"`{name}` of a net must be at least 1, got {size}.")


def _key(name: str, seed: int) -> Sequence[int]:
  return [seed, zlib.crc32(name.encode()) & 0x7FFFFFFF]
