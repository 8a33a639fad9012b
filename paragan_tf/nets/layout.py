"""Convolutions in several forms that compute the same.

Which of them is fast depends on the hardware; `hardware.ResolvedLayout` says:

    before, after, conv = plan_conv(layout, kernel_shape, resize)
    y = after(conv(before(x), w))    # in the precision of x

A resize by two can be folded into the kernel: nearest upsampling and a 3x3
kernel are one transposed 4x4 kernel, and a 3x3 kernel and 2x2 average pooling
are one strided 4x4 kernel, with 4/9 of the multiply-adds and no large
temporary.
"""

from typing import Callable, Dict, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf import tf_private
from paragan_tf.hardware import ResolvedLayout

# From an image and a kernel to an image.
Conv = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Resize = Callable[[tf.Tensor], tf.Tensor]

_RGB = 4  # Up to so many channels, a tensor counts as an image.
_BLOCK = 4  # Pixels of a block in each direction.
# Of a batch: folding costs more than it saves below them.
_FEW_PIXELS = {"up": 2048, "down": 1024}
_MANY_PIXELS = 2048  # Storing a folded kernel pays from here on.
# A transposed convolution takes as long for 16 images as for 32, so folding
# one pays from 32 on if the result has few channels, and from 64 on if not.
_FEW_IMAGES = 32
_MANY_IMAGES = 64
_FEW_CHANNELS = 128


def plan_conv(
  layout: ResolvedLayout, shape: Sequence[int], resize: Optional[str]
) -> Tuple[Resize, Resize, Conv]:
  """Returns the resize before a convolution, the one after it, and itself."""
  if shape[0] == 3:
    return _keep, _keep, _choose_conv(layout, shape, resize)
  # A 1x1 kernel commutes with a resize, and has less to do on a small image.
  is_small = layout.resizes != "apart"
  if resize == "up":
    return (_keep, upsample, conv) if is_small else (upsample, _keep, conv)
  if resize == "down":
    return (pool, _keep, conv) if is_small else (_keep, pool, conv)
  return _keep, _keep, conv


def explain_conv(
  layout: ResolvedLayout,
  shape: Sequence[int],
  resize: Optional[str],
  image: Sequence[Optional[int]],
) -> Tuple[str, str]:
  """Returns the form of a convolution in words, and why it is chosen.

  Args:
    layout: As for `plan_conv`.
    shape: Of the kernel.
    resize: Beside the convolution.
    image: The shape of what is convolved.
  """
  if resize is None:
    is_rgb = shape[3] <= _RGB or (
      shape[2] <= _RGB and layout.rgb_convs == "blocks"
    )
    if shape[0] == 3 and is_rgb and layout.rgb_convs != "plain":
      return layout.rgb_convs, "an image's few channels leave lanes empty"
    return "plain", "the only form"
  if layout.resizes == "apart":
    return "apart", "`resizes` asks for it"
  if shape[0] == 1:
    return "on the small image", "1x1 kernels commute with a resize"
  if layout.resizes == "folded":
    return "folded", "4/9 of the multiply-adds"
  if _is_few(image, resize):
    return "apart", "few pixels: folding costs more than it saves"
  return "strided", "4/9 of the multiply-adds, where no image has holes"


def _is_few(
  image: Sequence[Optional[int]], resize: str, limit: Optional[int] = None
) -> bool:
  batch, height, width = image[:3]
  if batch is None or height is None or width is None:
    return False
  limit = limit or _FEW_PIXELS[resize]
  return batch * height * width // (4 if resize == "down" else 1) < limit


def _choose_conv(
  layout: ResolvedLayout, shape: Sequence[int], resize: Optional[str]
) -> Conv:
  if resize is not None:
    return _WITH_RESIZE[layout.store_kernels][resize][layout.resizes]
  if shape[-1] <= _RGB:
    return _TO_RGB[layout.rgb_convs]
  if shape[-2] <= _RGB and layout.rgb_convs == "blocks":
    return _from_rgb
  return conv


def _keep(x: tf.Tensor) -> tf.Tensor:
  return x


@tf.custom_gradient
def _store(w: tf.Tensor) -> tf.Tensor:
  """Returns the same, which a compiler does not merge with what uses it."""
  return tf_private.store(w), lambda dw: dw


def conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Convolves with stride 1; the resolution stays the same."""
  return tf.nn.conv2d(x, tf.cast(w, x.dtype), 1, "SAME")


@tf.custom_gradient
def upsample(x: tf.Tensor) -> tf.Tensor:
  """Doubles height and width; each pixel appears four times."""
  size = [2 * x.shape[1], 2 * x.shape[2]]
  # XLA supports the resize, but not its gradient.
  y = tf.raw_ops.ResizeNearestNeighbor(images=x, size=size)
  return y, lambda dy: 4.0 * pool(dy)


def pool(x: tf.Tensor) -> tf.Tensor:
  """Halves height and width by the mean of each 2x2 block."""
  return tf.nn.avg_pool2d(x, 2, 2, "VALID")


def with_gradients_of(forward: Conv, for_x: Conv, for_w: Conv) -> Conv:
  """Returns the first of three forms, with the gradients of the others."""

  @tf.custom_gradient
  def call(x, w):
    def grad(dy):
      # Nothing uses the forward results of the other forms.
      return _gradients(for_x, x, w, dy)[0], _gradients(for_w, x, w, dy)[1]

    return forward(x, w), grad

  return call


def by_pixels(resize: str, few: Conv, many: Conv) -> Conv:
  """Returns one of two forms, by the pixels of a batch at the lower resolution.

  Folding saves multiply-adds for each pixel, and costs a pass over the kernel:
  with few pixels and many channels, more than it saves.
  """

  def call(x, w):
    return (few if _is_few(x.shape, resize) else many)(x, w)

  return call


def by_images(few: Conv, many: Conv) -> Conv:
  """Returns one of two forms of a convolution with holes in its image.

  They compute the gradient by the image, as wide as the kernel's input.
  """

  def call(x, w):
    is_narrow = w.shape[2] <= _FEW_CHANNELS
    enough = _FEW_IMAGES if is_narrow else _MANY_IMAGES
    return (many if (x.shape[0] or 0) >= enough else few)(x, w)

  return call


def apply_precision(product: Conv, layout: ResolvedLayout) -> Conv:
  """Returns a product with the precision of a layout."""
  return in_float32(product) if layout.float32_products else product


def in_float32(product: Conv) -> Conv:
  """Returns a product of rounded numbers that is computed in float32."""

  def call(x, w):
    if (
      tf.as_dtype(x.dtype).size >= tf.float32.size
    ):  # NumPy arrays are allowed.
      return product(x, w)
    rounded = tf.cast(w, x.dtype)
    y = product(tf.cast(x, tf.float32), tf.cast(rounded, tf.float32))
    return tf.cast(y, x.dtype)

  return call


def pad_channels(x: tf.Tensor, width: int, axis: int = -1) -> tf.Tensor:
  """Adds zeros at the end of an axis, unless it is that wide already."""
  missing = width - x.shape[axis]
  if missing <= 0:
    return x
  paddings = [[0, 0] for _ in x.shape]
  paddings[axis][1] = missing
  return tf.pad(x, paddings)


def cut_channels(x: tf.Tensor, width: int) -> tf.Tensor:
  """Returns the first channels of a tensor, without its padding."""
  return x if x.shape[-1] == width else x[..., :width]


def _gradients(fn: Conv, x: tf.Tensor, w: tf.Tensor, dy: tf.Tensor):
  with tf.GradientTape() as tape:
    tape.watch([x, w])
    y = fn(x, w)
  return tape.gradient(y, [x, w], dy)


def _up_apart(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  return conv(upsample(x), w)


def _up_folded(x: tf.Tensor, w: tf.Tensor, finish: Resize = _keep) -> tf.Tensor:
  """Returns `conv(upsample(x), w)` as one transposed convolution."""
  kernel = _block_sum(tf.reverse(tf.transpose(w, [0, 1, 3, 2]), [0, 1]))
  shape = [tf.shape(x)[0], 2 * x.shape[1], 2 * x.shape[2], w.shape[3]]
  kernel = finish(tf.cast(kernel, x.dtype))
  return tf.nn.conv2d_transpose(x, kernel, shape, 2, "SAME")


def _down_apart(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  return pool(conv(x, w))


def _down_folded(
  x: tf.Tensor, w: tf.Tensor, finish: Resize = _keep
) -> tf.Tensor:
  """Returns `pool(conv(x, w))` as one strided convolution."""
  kernel = finish(tf.cast(0.25 * _block_sum(w), x.dtype))
  return tf.nn.conv2d(x, kernel, 2, "SAME")


def _block_sum(w: tf.Tensor) -> tf.Tensor:
  """Returns the full convolution of a kernel with a 2x2 block of ones."""

  def shift(i, j):
    return tf.pad(w, [[i, 1 - i], [j, 1 - j], [0, 0], [0, 0]])

  # One expression, so that a compiler makes one pass over the data.
  return (shift(0, 0) + shift(1, 0)) + (shift(0, 1) + shift(1, 1))


def _to_rgb_as_product(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv(x, w)` as one matrix product and nine shifted adds.

  A plain convolution to an image's few channels leaves a CPU's vector lanes
  empty, and its gradient takes up to ten times as long as this one's.
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


def _to_rgb_in_blocks(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv(x, w)`, computed with a block's pixels as channels.

  It uses 48 of a TPU's 128 lanes, where a plain convolution uses 3.
  """
  if x.shape[1] % _BLOCK or x.shape[2] % _BLOCK:
    return conv(x, w)
  x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
  y = tf.nn.conv2d(x, tf.cast(_blocks(w), x.dtype), _BLOCK, "VALID")
  return tf.nn.depth_to_space(y, _BLOCK)


def _from_blocks(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Returns `conv(x, w)` whose gradient by x is `_to_rgb_in_blocks`."""
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


_from_rgb = with_gradients_of(conv, for_x=_from_blocks, for_w=conv)
_TO_RGB = {
  "plain": conv,
  "product": _to_rgb_as_product,
  "blocks": with_gradients_of(
    _to_rgb_in_blocks, for_x=conv, for_w=_to_rgb_in_blocks
  ),
}


def _list_resizes(stores: bool) -> Dict[str, Dict[str, Conv]]:
  """Returns the forms of both resizes; folded kernels may be stored."""

  def choose(x: tf.Tensor, resize: str) -> Resize:
    is_stored = stores and not _is_few(x.shape, resize, _MANY_PIXELS)
    return _store if is_stored else _keep

  def up(x, w):
    return _up_folded(x, w, choose(x, "up"))

  def down(x, w):
    return _down_folded(x, w, choose(x, "down"))

  return {
    "up": {
      "apart": _up_apart,
      "folded": up,
      "strided": by_pixels(
        "up", _up_apart, with_gradients_of(_up_apart, for_x=up, for_w=up)
      ),
    },
    "down": {
      "apart": _down_apart,
      "folded": down,
      "strided": by_pixels(
        "down",
        _down_apart,
        with_gradients_of(down, for_x=by_images(_down_apart, down), for_w=down),
      ),
    },
  }


_WITH_RESIZE = {stores: _list_resizes(stores) for stores in (False, True)}
