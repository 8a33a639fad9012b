"""Convolutions in several forms that compute the same.

Which of them is fast depends on the hardware; `hardware.Layout` chooses:

    before, after, conv = parts(layout, kernel_shape, resize)
    y = after(conv(before(x), w))    # in the precision of x

A resize by two folds into the kernel: nearest upsampling and a 3x3 kernel are
one transposed 4x4 kernel, and a 3x3 kernel and 2x2 average pooling are one
strided 4x4 kernel, with 4/9 of the multiply-adds and no large temporary.
"""

import functools
from typing import Callable, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf.hardware import Layout

# From an image and a kernel to an image.
Conv = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Change = Callable[[tf.Tensor], tf.Tensor]

_NARROW = 4  # Channels up to which an image's end has a form of its own.
_BLOCK = 4  # Pixels that a block has in each direction.


def parts(
  layout: Layout, shape: Sequence[int], resize: Optional[str]
) -> Tuple[Change, Change, Conv]:
  """Returns what is done before a kernel, after it, and how with it."""
  if shape[0] == 3:
    return _same, _same, _form(layout, shape, resize)
  # A kernel of one pixel commutes with a resize: it has less to do when small.
  small_first = layout.resizes != "apart"
  if resize == "up":
    return (_same, upsample, conv) if small_first else (upsample, _same, conv)
  if resize == "down":
    return (pool, _same, conv) if small_first else (_same, pool, conv)
  return _same, _same, conv


def _form(layout: Layout, shape: Sequence[int], resize: Optional[str]) -> Conv:
  if resize is not None:
    return _RESIZED[resize][layout.resizes]
  if shape[-1] <= _NARROW:
    return _TO_FEW[layout.rgb_convs]
  if shape[-2] <= _NARROW and layout.rgb_convs == "blocks":
    return _from_few
  return conv


def _same(x: tf.Tensor) -> tf.Tensor:
  return x


def conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Convolves, and keeps the resolution."""
  return tf.nn.conv2d(x, tf.cast(w, x.dtype), 1, "SAME")


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


def mixed(forward: Conv, for_x: Conv, for_w: Conv) -> Conv:
  """Returns the first of three forms, with the gradients of the others."""

  @tf.custom_gradient
  def call(x, w):
    def grad(dy):
      # What the other forms compute forward is asked for by nobody.
      return _pulled_back(for_x, x, w, dy)[0], _pulled_back(for_w, x, w, dy)[1]

    return forward(x, w), grad

  return call


def fitted(product: Conv, layout: Layout) -> Conv:
  """Returns a product as the hardware likes it best."""
  return widened(aligned(product, layout.multiple), layout.float32_products)


def widened(product: Conv, is_wide: bool) -> Conv:
  """Returns a product that is computed in float32, of rounded numbers."""
  if not is_wide:
    return product

  def call(x, w):
    if tf.as_dtype(x.dtype).size >= tf.float32.size:  # NumPy's come, too.
      return product(x, w)
    rounded = tf.cast(w, x.dtype)
    y = product(tf.cast(x, tf.float32), tf.cast(rounded, tf.float32))
    return tf.cast(y, x.dtype)

  return call


def aligned(product: Conv, multiple: int) -> Conv:
  """Returns a product that is computed on whole multiples.

  Of rows of the batch, of inputs and of outputs; what is added is zero, and
  left out of the result.
  """
  if multiple == 1:
    return product

  def call(x, w):
    fill = functools.partial(_filled, multiple=multiple)
    y = product(fill(fill(x, 0), -1), fill(fill(w, -2), -1))
    return y[: tf.shape(x)[0], ..., : w.shape[-1]]

  return call


def _pulled_back(fn: Conv, x: tf.Tensor, w: tf.Tensor, dy: tf.Tensor):
  with tf.GradientTape() as tape:
    tape.watch([x, w])
    y = fn(x, w)
  return tape.gradient(y, [x, w], dy)


def _filled(x: tf.Tensor, axis: int, multiple: int) -> tf.Tensor:
  """Returns x with zeros at the end of an axis."""
  size = x.shape[axis] if x.shape[axis] is not None else tf.shape(x)[axis]
  more = [[0, 0] for _ in x.shape]
  more[axis][1] = -size % multiple
  return tf.pad(x, more)


def _up_apart(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  return conv(upsample(x), w)


def _up_folded(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv(upsample(x), w)` as one transposed convolution."""
  kernel = _block_sum(tf.reverse(tf.transpose(w, [0, 1, 3, 2]), [0, 1]))
  shape = [tf.shape(x)[0], 2 * x.shape[1], 2 * x.shape[2], w.shape[3]]
  kernel = tf.cast(kernel, x.dtype)
  return tf.nn.conv2d_transpose(x, kernel, shape, 2, "SAME")


def _down_apart(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  return pool(conv(x, w))


def _down_folded(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `pool(conv(x, w))` as one strided convolution."""
  kernel = tf.cast(0.25 * _block_sum(w), x.dtype)
  return tf.nn.conv2d(x, kernel, 2, "SAME")


def _block_sum(w: tf.Tensor) -> tf.Tensor:
  """Returns the full convolution of a kernel with a 2x2 block of ones."""

  def shifted(i, j):
    return tf.pad(w, [[i, 1 - i], [j, 1 - j], [0, 0], [0, 0]])

  # All in one expression, which a compiler makes one pass of.
  return (shifted(0, 0) + shifted(1, 0)) + (shifted(0, 1) + shifted(1, 1))


def _few_as_product(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv(x, w)` as one matrix product and nine shifted adds.

  A kernel with the image's few channels leaves a CPU's vector lanes empty; its
  gradient takes up to ten times as long as this one's.
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


def _few_in_blocks(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv(x, w)`, all pixels of a block as channels of one.

  Three channels of a TPU's 128 lanes would be used; so are 48.
  """
  if x.shape[1] % _BLOCK or x.shape[2] % _BLOCK:
    return conv(x, w)
  x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
  y = tf.nn.conv2d(x, tf.cast(_blocks(w), x.dtype), _BLOCK, "VALID")
  return tf.nn.depth_to_space(y, _BLOCK)


def _from_blocks(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv(x, w)` such that its gradient by x is `_few_in_blocks`."""
  height, width = x.shape[1:3]
  if height % _BLOCK or width % _BLOCK:
    return conv(x, w)
  flipped = tf.reverse(tf.transpose(w, [0, 1, 3, 2]), [0, 1])
  kernel = tf.cast(_blocks(flipped), x.dtype)
  shape = [tf.shape(x)[0], height + 2, width + 2, w.shape[-1]]
  x = tf.nn.space_to_depth(x, _BLOCK)
  y = tf.nn.conv2d_transpose(x, kernel, shape, _BLOCK, "VALID")
  return y[:, 1:-1, 1:-1]


def _blocks(w: tf.Tensor) -> tf.Tensor:
  """Returns the kernel that gives each pixel of a block as channels."""
  last = _BLOCK - 1
  return tf.concat(
    [
      tf.pad(w, [[i, last - i], [j, last - j], [0, 0], [0, 0]])
      for i in range(_BLOCK)
      for j in range(_BLOCK)
    ],
    3,
  )


_from_few = mixed(conv, for_x=_from_blocks, for_w=conv)
_TO_FEW = {
  "plain": conv,
  "product": _few_as_product,
  "blocks": mixed(_few_in_blocks, for_x=conv, for_w=_few_in_blocks),
}
_RESIZED = {
  "up": {
    "apart": _up_apart,
    "folded": _up_folded,
    "strided": mixed(_up_apart, for_x=_up_folded, for_w=_up_folded),
  },
  "down": {
    "apart": _down_apart,
    "folded": _down_folded,
    "strided": mixed(_down_folded, for_x=_down_apart, for_w=_down_folded),
  },
}
