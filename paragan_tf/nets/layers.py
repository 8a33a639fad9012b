"""Layers with explicit shapes, named variables and stateless initial values.

A layer that changes the resolution is one convolution, not a resize and a
convolution: nearest upsampling by two and a 3x3 kernel are one transposed 4x4
kernel, and a 3x3 kernel and 2x2 average pooling are one strided 4x4 kernel.
The function is the same, with 4/9 of the multiply-adds and no large temporary.

A layer computes in the precision of its input. Its weights, and what is done to
them before they are used, are float32.
"""

import math
import zlib
from typing import Callable, Optional, Sequence

import gin
import tensorflow as tf

from paragan_tf.nets.remat import move, read
from paragan_tf.types import Mode

_NARROW = 4  # Output channels up to which a convolution is a matrix product.

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

  A kernel is a matrix with a column for each output; its columns have the
  length `gain` and stand at right angles, or its rows, if there are fewer.
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
  """Returns the share of each class in each sample, `[b, num_classes]`.

  Args:
    labels: Class ids, `[b]`, or those shares themselves, in floats.
    num_classes: How many classes there are.
  """
  labels = tf.convert_to_tensor(labels)
  if labels.dtype.is_floating:
    return tf.ensure_shape(labels, [None, num_classes])
  # A one-hot product: its gradient is dense and the same on every device.
  return tf.one_hot(labels, num_classes)


def beside(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Joins rows of two matrices, in the precision of the first."""
  return tf.concat([x, tf.cast(y, x.dtype)], 1)


class Weight(tf.Module):
  """A kernel `[..., inputs, outputs]`, divided by its spectral norm if asked.

  The norm is estimated as in SNGAN (arXiv 1802.05957, Algorithm 1): one power
  iteration per turn of the owner, whose vector `u` is state.
  """

  def __init__(
    self, shape: Sequence[int], init: Init, spectral: bool, name: str = "weight"
  ):
    super().__init__(name=name)
    with self.name_scope as scope:
      self.w = tf.Variable(init(scope + "w", shape), name="w")
      self.u: Optional[tf.Variable] = None
      if spectral:
        u = normal_init(1.0, 0)(scope + "u", [1, shape[-1]])
        self.u = tf.Variable(_unit(u), trainable=False, name="u")

  def __call__(self, mode: Mode) -> tf.Tensor:
    """Returns the kernel; `Mode.TURN` makes one power iteration."""
    w = read(self.w)
    if self.u is None:
      return w
    matrix = tf.reshape(w, [-1, w.shape[-1]])
    constant = tf.stop_gradient(matrix)
    u = read(self.u)
    v = _unit(tf.matmul(u, constant, transpose_b=True))
    if mode is Mode.TURN:
      u = _unit(tf.matmul(v, constant))
      move(self.u, u)
    sigma = tf.reduce_sum(tf.matmul(v, matrix) * u)
    return w / sigma


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
    with self.name_scope:
      self.weight = Weight([inputs, outputs], init, spectral)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b") if bias else None

  def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
    """Maps `[b, inputs]` to `[b, outputs]`."""
    y = tf.matmul(x, tf.cast(self.weight(mode), x.dtype))
    return y if self.bias is None else biased(y, self.bias)


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
    with self.name_scope:
      self.weight = Weight([classes, size], init, spectral)

  def __call__(self, labels: tf.Tensor, mode: Mode) -> tf.Tensor:
    """Maps labels, as in `class_weights`, to `[b, size]`."""
    table = self.weight(mode)
    return tf.matmul(class_weights(labels, table.shape[0]), table)


@gin.configurable(allowlist=["fused"])
class Conv(tf.Module):
  """A convolution that keeps, doubles or halves the resolution.

  `resize="up"` is nearest upsampling by two, then the kernel; `"down"` is the
  kernel, then 2x2 average pooling. Kernels of size 1 commute with both, and
  run at the lower resolution. `fused=False` computes it as it is said here,
  one operation after the other.
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
    fused: bool = True,
    name: str = "conv",
  ):
    super().__init__(name=name)
    if size not in (1, 3):
      raise ValueError(f"`size` of a `Conv` must be 1 or 3, got {size}.")
    if resize not in (None, "up", "down"):
      raise ValueError(
        f"`resize` of a `Conv` must be None, 'up' or 'down', got {resize!r}."
      )
    self.resize = resize
    self.size = size
    self.fused = fused
    with self.name_scope:
      self.weight = Weight([size, size, inputs, outputs], init, spectral)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b") if bias else None

  def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
    """Maps `[b, h, w, inputs]` to `[b, h', w', outputs]`."""
    w = self.weight(mode)
    convolve = self._fused if self.fused else self._plain
    return convolve(x, w)

  def _fused(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    if self.size == 1 and self.resize == "up":
      return upsample(self._biased(_conv(x, w)))
    if self.size == 1 and self.resize == "down":
      return self._biased(_conv(pool(x), w))
    if self.resize == "up":
      return self._biased(_upsampled_conv(x, w))
    if self.resize == "down":
      return self._biased(_pooled_conv(x, w))
    is_narrow = self.size == 3 and w.shape[-1] <= _NARROW
    return self._biased((_narrow_conv if is_narrow else _conv)(x, w))

  def _plain(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    y = self._biased(_conv(upsample(x) if self.resize == "up" else x, w))
    return pool(y) if self.resize == "down" else y

  def _biased(self, y: tf.Tensor) -> tf.Tensor:
    return y if self.bias is None else biased(y, self.bias)


def biased(y: tf.Tensor, b: tf.Variable) -> tf.Tensor:
  """Adds a bias to each channel, in the precision of `y`."""
  return tf.nn.bias_add(y, tf.cast(read(b), y.dtype))


@tf.custom_gradient
def upsample(x: tf.Tensor) -> tf.Tensor:
  """Doubles height and width, each pixel four times."""
  size = [2 * x.shape[1], 2 * x.shape[2]]
  # XLA knows the resize, but not its gradient.
  y = tf.raw_ops.ResizeNearestNeighbor(images=x, size=size)
  return y, lambda dy: 4.0 * pool(dy)


def pool(x: tf.Tensor) -> tf.Tensor:
  """Halves height and width by the mean of each 2x2 block."""
  return tf.nn.avg_pool2d(x, 2, 2, "VALID")


def _conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  return tf.nn.conv2d(x, tf.cast(w, x.dtype), 1, "SAME")


def _narrow_conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv2d(x, w)` as one matrix product and nine shifted adds.

  A kernel with the image's few channels leaves a convolution's vector lanes
  empty; its gradient takes up to ten times as long as this one's.
  """
  size, _, inputs, outputs = w.shape
  w = tf.cast(w, x.dtype)
  columns = tf.reshape(tf.transpose(w, [2, 0, 1, 3]), [inputs, -1])
  y = tf.matmul(tf.reshape(x, [-1, inputs]), columns)
  height, width = x.shape[1:3]
  y = tf.reshape(y, [-1, height, width, size * size, outputs])
  y = tf.pad(y, [[0, 0], [1, 1], [1, 1], [0, 0], [0, 0]])
  return tf.add_n(
    [
      y[:, i : i + height, j : j + width, size * i + j]
      for i in range(size)
      for j in range(size)
    ]
  )


def _upsampled_conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv2d(upsample(x), w)` as one transposed convolution."""
  kernel = _block_sum(tf.reverse(tf.transpose(w, [0, 1, 3, 2]), [0, 1]))
  shape = [tf.shape(x)[0], 2 * x.shape[1], 2 * x.shape[2], w.shape[3]]
  kernel = tf.cast(kernel, x.dtype)
  return tf.nn.conv2d_transpose(x, kernel, shape, 2, "SAME")


def _pooled_conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `pool(conv2d(x, w))` as one strided convolution."""
  kernel = tf.cast(0.25 * _block_sum(w), x.dtype)
  return tf.nn.conv2d(x, kernel, 2, "SAME")


def _block_sum(w: tf.Tensor) -> tf.Tensor:
  """Returns the full convolution of a kernel with a 2x2 block of ones."""
  rest = [[0, 0], [0, 0]]
  rows = tf.pad(w, [[0, 1], [0, 0], *rest]) + tf.pad(w, [[1, 0], [0, 0], *rest])
  return tf.pad(rows, [[0, 0], [0, 1], *rest]) + tf.pad(
    rows, [[0, 0], [1, 0], *rest]
  )


def _unit(x: tf.Tensor) -> tf.Tensor:
  return x * tf.math.rsqrt(tf.reduce_sum(tf.square(x)) + 1e-12)


def _key(name: str, seed: int) -> Sequence[int]:
  return [seed, zlib.crc32(name.encode()) & 0x7FFFFFFF]
