"""From an encoded image to one that a run takes: crop, resize, flip, noise.

Whatever is random is a function of (seed, place in the run).
"""

import dataclasses
import functools
import io

import gin
import numpy as np
import tensorflow as tf

_CROPS = ("center", "random", "none")
_RESIZERS = ("bicubic", "area")
_CROP, _FLIP, _NOISE = range(3)


@gin.register
@dataclasses.dataclass(frozen=True)
class Transform:
  """What is done with each image.

  Attributes:
    crop: What is cut out of an image that is not square: the largest square at
      its "center", at a "random" place, or "none" (it is stretched).
    resize: How it is brought to the resolution, with antialias: "bicubic", or
      "area" (the mean of the pixels that it covers).
    flip: Whether every second one, by chance, is mirrored.
    dequantize: Whether noise of one of the 256 steps is added (arXiv
      1511.01844), so that values are continuous.
  """

  crop: str = "center"
  resize: str = "bicubic"
  flip: bool = False
  dequantize: bool = False

  def __post_init__(self):
    for name, value, known in (
      ("crop", self.crop, _CROPS),
      ("resize", self.resize, _RESIZERS),
    ):
      if value not in known:
        raise ValueError(
          f"`Transform.{name}` must be one of {list(known)}, got {value!r}."
        )

  @property
  def words(self) -> str:
    """How images were changed that are measured against."""
    crop = "stretched" if self.crop == "none" else f"{self.crop} crop"
    return f"{crop}, {self.resize}"

  def decode(
    self, encoded: tf.Tensor, resolution: int, channels: int, seed, place
  ) -> tf.Tensor:
    """Returns the uint8 image of a file's bytes at the resolution."""
    image = decoded(encoded, channels)
    size = [resolution, resolution]

    def fit(image):
      share = (0.5, 0.5)
      if self.crop == "random":
        share = _uniform([2], seed, place, _CROP)
      return resized(self.square(image, share), resolution, self.resize)

    # Small things cost as much as a small image, so none is done in vain.
    is_other = tf.reduce_any(tf.not_equal(tf.shape(image), [*size, channels]))
    image = _unless(is_other, image, tf.identity, fit)
    return tf.ensure_shape(image, [*size, channels])

  def floats(self, images: tf.Tensor, seed: int, places: tf.Tensor):
    """Returns uint8 images, `[b, h, w, c]` or one, as floats in [-1, 1]."""
    if not (self.flip or self.dequantize):
      return tf.cast(images, tf.float32) / 127.5 - 1.0
    if images.shape.rank == 3:
      return self._changed(images, seed, places)
    return tf.map_fn(
      lambda one: self._changed(one[0], seed, one[1]),
      (images, places),
      fn_output_signature=tf.TensorSpec(images.shape[1:], tf.float32),
    )

  def _changed(self, image: tf.Tensor, seed: int, place: tf.Tensor):
    if self.flip:
      turn = _uniform([], seed, place, _FLIP) < 0.5
      image = tf.where(turn, image[:, ::-1], image)
    image = tf.cast(image, tf.float32)
    if not self.dequantize:
      return image / 127.5 - 1.0
    noise = _uniform(image.shape, seed, place, _NOISE)
    return (image + noise) / 128.0 - 1.0

  def square(self, images: tf.Tensor, share=(0.5, 0.5)) -> tf.Tensor:
    """Cuts squares out of `[..., h, w, c]`, `share` of the room before them."""
    if self.crop == "none":
      return images
    shape = tf.shape(images)[-3:-1]
    side = tf.reduce_min(shape)
    room = tf.cast(shape - side, tf.float32)
    top, left = tf.unstack(tf.cast(tf.round(share * room), tf.int32))
    return images[..., top : top + side, left : left + side, :]


def resized(image: tf.Tensor, resolution: int, how: str) -> tf.Tensor:
  """Brings uint8 images, one or a batch, to the resolution."""
  size = (resolution, resolution)
  antialias = how != "area"  # Which is by itself.
  floats = tf.cast(image, tf.float32)
  floats = tf.image.resize(floats, size, how, antialias=antialias)
  return tf.saturate_cast(tf.round(floats), tf.uint8)


def _unless(is_rare: tf.Tensor, value: tf.Tensor, usual_fn, rare_fn):
  """Returns `usual_fn(value)`, or `rare_fn(value)` where that is so.

  As `tf.cond`, which in `tf.data` calls a function for either: twice an image,
  a tenth of the time of a small one. Here only what is rare is a call.
  """
  if tf.executing_eagerly():
    return rare_fn(value) if is_rare else usual_fn(value)
  usual, rare = tf.raw_ops.Switch(data=value, pred=is_rare)
  call = tf.function(rare_fn, autograph=False)
  return tf.raw_ops.Merge(inputs=[usual_fn(usual), call(rare)]).output


def _uniform(shape, seed: int, place: tf.Tensor, purpose: int) -> tf.Tensor:
  mixed = tf.stack([tf.constant(seed * 4 + purpose, tf.int64), place])
  return tf.random.stateless_uniform(shape, mixed)


def decoded(encoded: tf.Tensor, channels: int) -> tf.Tensor:
  """Returns `[h, w, channels]`, uint8, of JPEG, PNG, WebP, BMP or GIF bytes."""

  def common(encoded):
    # Of PNG too. As Pillow and others decode; the default is off by up to 7.
    exact = "INTEGER_ACCURATE"
    return tf.io.decode_jpeg(encoded, channels, dct_method=exact)

  def pillow(encoded):
    decode = functools.partial(_pillow, channels=channels)
    # As numbers: NumPy cuts zeros off the end of a text.
    numbers = tf.io.decode_raw(encoded, tf.uint8)
    return tf.numpy_function(decode, [numbers], tf.uint8)

  def other(encoded):
    return tf.io.decode_image(encoded, channels, expand_animations=False)

  def rare(encoded):
    # Padded, for a file may be shorter than its head.
    head = tf.strings.join([tf.strings.substr(encoded, 0, 12), " " * 12])
    is_webp = tf.equal(tf.strings.substr(head, 8, 4), "WEBP")
    is_bmp = tf.equal(tf.strings.substr(head, 0, 2), "BM")
    is_foreign = tf.logical_or(is_webp, is_bmp)
    return tf.cond(is_foreign, lambda: pillow(encoded), lambda: other(encoded))

  first = tf.strings.substr(encoded, 0, 1)
  is_rare = tf.reduce_all(tf.not_equal(first, [b"\xff", b"\x89"]))
  image = _unless(is_rare, encoded, common, rare)
  image.set_shape([None, None, channels])
  return image


def _pillow(content: np.ndarray, channels: int) -> np.ndarray:
  """Decodes what TensorFlow cannot: WebP, and BMP with a palette or to grey."""
  import PIL.Image

  with PIL.Image.open(io.BytesIO(content.tobytes())) as image:
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
  return pixels.reshape([*pixels.shape[:2], channels])
