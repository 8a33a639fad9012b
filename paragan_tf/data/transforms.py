"""Decodes and transforms images: crop, resize, flip, dequantize.

Random numbers are a function of (seed, position in the run).
"""

import dataclasses
import functools
import io

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import exif

_CROPS = ("center", "random", "none")
_RESIZERS = ("bicubic", "area")
_CROP, _FLIP, _NOISE = range(3)
_FIRST_BYTES = (b"\xff", b"\x89")  # Of a JPEG, of a PNG.


@gin.register
@dataclasses.dataclass(frozen=True)
class Transform:
  """How each image is transformed.

  Attributes:
    crop: The square that is cut out of an image that is not square: the largest
      one at its "center", at a "random" position, or "none" (it is stretched).
    resize: How it is resized, with antialiasing: "bicubic", or "area" (the mean
      of the covered pixels).
    flip: Whether an image is mirrored with probability 1/2.
    dequantize: Whether uniform noise, as wide as one of the 256 levels, is
      added (arXiv 1511.01844), so that values are continuous.
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
  def description(self) -> str:
    """Crop and resize of the images that metrics compare with."""
    crop = "stretched" if self.crop == "none" else f"{self.crop} crop"
    return f"{crop}, {self.resize}"

  def decode(
    self,
    encoded: tf.Tensor,
    resolution: int,
    channels: int,
    seed,
    position,
    python: bool = True,
  ) -> tf.Tensor:
    """Decodes, crops and resizes one image to uint8; see `decode_image`."""
    image = decode_image(encoded, channels, python)
    size = [resolution, resolution]

    def fit(image):
      offset = (0.5, 0.5)
      if self.crop == "random":
        offset = _uniform([2], seed, position, _CROP)
      square = self.crop_square(image, offset)
      return resize_images(square, resolution, self.resize)

    # A few needless ops would cost as much as decoding a small image.
    is_other = tf.reduce_any(tf.not_equal(tf.shape(image), [*size, channels]))
    image = _cond_rare(is_other, image, tf.identity, fit)
    return tf.ensure_shape(image, [*size, channels])

  def to_floats(self, images: tf.Tensor, seed: int, positions: tf.Tensor):
    """Maps uint8 images, `[b, h, w, c]` or one, to floats in [-1, 1]."""
    if not (self.flip or self.dequantize):
      return tf.cast(images, tf.float32) / 127.5 - 1.0
    if images.shape.rank == 3:
      return self._augment(images, seed, positions)
    return tf.map_fn(
      lambda one: self._augment(one[0], seed, one[1]),
      (images, positions),
      fn_output_signature=tf.TensorSpec(images.shape[1:], tf.float32),
    )

  def _augment(self, image: tf.Tensor, seed: int, position: tf.Tensor):
    if self.flip:
      mirrored = _uniform([], seed, position, _FLIP) < 0.5
      image = tf.where(mirrored, image[:, ::-1], image)
    image = tf.cast(image, tf.float32)
    if not self.dequantize:
      return image / 127.5 - 1.0
    noise = _uniform(image.shape, seed, position, _NOISE)
    return (image + noise) / 128.0 - 1.0

  def crop_square(self, images: tf.Tensor, offset=(0.5, 0.5)) -> tf.Tensor:
    """Crops `[..., h, w, c]`, at `offset`, a fraction of the margin."""
    if self.crop == "none":
      return images
    shape = tf.shape(images)[-3:-1]
    side = tf.reduce_min(shape)
    margin = tf.cast(shape - side, tf.float32)
    top, left = tf.unstack(tf.cast(tf.round(offset * margin), tf.int32))
    return images[..., top : top + side, left : left + side, :]


def resize_images(image: tf.Tensor, resolution: int, how: str) -> tf.Tensor:
  """Resizes uint8 images, one or a batch."""
  size = (resolution, resolution)
  antialias = how != "area"  # Area has it built in.
  floats = tf.cast(image, tf.float32)
  floats = tf.image.resize(floats, size, how, antialias=antialias)
  return tf.saturate_cast(tf.round(floats), tf.uint8)


def _cond_rare(is_rare: tf.Tensor, value: tf.Tensor, usual_fn, rare_fn):
  """Returns `rare_fn(value) if is_rare else usual_fn(value)`.

  In `tf.data`, `tf.cond` calls a function for either branch: twice an image, a
  tenth of the time of a small one. Here only the rare branch is a call.
  """
  if tf.executing_eagerly():
    return rare_fn(value) if is_rare else usual_fn(value)
  usual, rare = tf.raw_ops.Switch(data=value, pred=is_rare)
  call = tf.function(rare_fn, autograph=False)
  return tf.raw_ops.Merge(inputs=[usual_fn(usual), call(rare)]).output


def _uniform(shape, seed: int, position: tf.Tensor, purpose: int) -> tf.Tensor:
  seeds = tf.stack([tf.constant(seed * 4 + purpose, tf.int64), position])
  return tf.random.stateless_uniform(shape, seeds)


def decode_image(
  encoded: tf.Tensor, channels: int, python: bool = True
) -> tf.Tensor:
  """Decodes JPEG, PNG, WebP, BMP or GIF bytes to uint8 `[h, w, channels]`.

  A photo is turned as its EXIF header says.

  Without `python`, by TensorFlow's ops alone: not some BMP, and WebP only in
  color and only by newer releases, such as 2.21.
  """

  def decode_common(encoded):
    # PNG, too. Exact as in Pillow; the default is off by up to 7.
    exact = "INTEGER_ACCURATE"
    return tf.io.decode_jpeg(encoded, channels, dct_method=exact)

  def decode_with_pillow(encoded):
    decode = functools.partial(_decode_with_pillow, channels=channels)
    # Numbers, because NumPy strips zeros from the end of a string.
    numbers = tf.io.decode_raw(encoded, tf.uint8)
    return tf.numpy_function(decode, [numbers], tf.uint8)

  def decode_other(encoded):
    return tf.io.decode_image(encoded, channels, expand_animations=False)

  def decode_rare(encoded):
    # Padded, because a file may be shorter than 12 bytes.
    head = tf.strings.join([tf.strings.substr(encoded, 0, 12), " " * 12])
    is_webp = tf.equal(tf.strings.substr(head, 8, 4), "WEBP")
    is_bmp = tf.equal(tf.strings.substr(head, 0, 2), "BM")
    return tf.cond(
      tf.logical_or(is_webp, is_bmp),
      lambda: decode_with_pillow(encoded),
      lambda: decode_other(encoded),
    )

  def decode_turned(encoded):
    return exif.turn(decode_common(encoded), exif.orientation(encoded))

  def decode_unusual(encoded):
    first = tf.strings.substr(encoded, 0, 1)
    return tf.cond(
      tf.reduce_any(tf.equal(first, _FIRST_BYTES)),
      lambda: decode_turned(encoded),
      lambda: (decode_rare if python else decode_other)(encoded),
    )

  is_rare = _is_unusual(encoded)
  image = _cond_rare(is_rare, encoded, decode_common, decode_unusual)
  image.set_shape([None, None, channels])
  return image


def _is_unusual(encoded: tf.Tensor) -> tf.Tensor:
  """Returns whether bytes are no JPEG or PNG, or a JPEG that may be turned.

  In few ops, as it is done for every image.
  """
  parts = tf.strings.substr(encoded, [0, exif.FIRST, exif.SECOND], [1, 2, 2])
  usual = [[first, exif.SEGMENT, exif.SEGMENT] for first in _FIRST_BYTES]
  is_other = tf.math.logical_xor(tf.equal(parts, usual), [True, False, False])
  return tf.reduce_all(tf.reduce_any(is_other, axis=1))


def _decode_with_pillow(content: np.ndarray, channels: int) -> np.ndarray:
  """Decodes what TensorFlow cannot: WebP, BMP with a palette or to gray."""
  import PIL.Image
  import PIL.ImageOps

  with PIL.Image.open(io.BytesIO(content.tobytes())) as image:
    turned = PIL.ImageOps.exif_transpose(image)
    pixels = np.asarray(turned.convert("L" if channels == 1 else "RGB"))
  return pixels.reshape([*pixels.shape[:2], channels])
