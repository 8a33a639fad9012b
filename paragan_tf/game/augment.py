"""Augmentation of D's images, real and fake.

    images = augment(images, seed, step, purpose)   # Each image independently.
    augment.update(real_logits)                     # After each update of D.

A transform is a pure function of images `[b, h, w, c]` in [-1, 1] and of one
number per image; pixels from outside the image are gray, 0. Shapes are fixed,
and pixels are moved by multiplication with matrices, which has gradients of any
order, and no scatter under XLA.
"""

from typing import Callable, Dict, NamedTuple, Optional, Sequence, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.game import noise


class Draw(NamedTuple):
  """Draws the random numbers of a transform, one for each image."""

  num: int
  seed: Union[int, tf.Tensor]
  step: tf.Tensor
  purpose: str

  def uniform(self, what: str) -> tf.Tensor:
    """Returns numbers in (0, 1), `[b]`."""
    return noise.uniform(self.num, *self._key(what))

  def normal(self, what: str) -> tf.Tensor:
    """Returns standard normal numbers, `[b]`."""
    return noise.normal([self.num], *self._key(what))

  def integers(self, low: int, high: int, what: str) -> tf.Tensor:
    """Returns integers in [low, high], `[b]`."""
    return noise.integers(self.num, low, high, *self._key(what))

  def _key(self, what: str):
    return self.seed, self.step, f"{self.purpose}/{what}"


def flip(images: tf.Tensor, on: tf.Tensor) -> tf.Tensor:
  """Flips the images that are `on`, left to right."""
  return tf.where(_per_image(on), tf.reverse(images, [2]), images)


def rotate(images: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
  """Rotates square images by quarter turns, counterclockwise."""
  transposed = tf.transpose(images, [0, 2, 1, 3])
  by_turns = (tf.reverse(transposed, [1]), tf.reverse(images, [1, 2]))
  result = images
  for num, rotated in enumerate((*by_turns, tf.reverse(transposed, [2])), 1):
    result = tf.where(_per_image(tf.equal(turns, num)), rotated, result)
  return result


def shift(images: tf.Tensor, dy: tf.Tensor, dx: tf.Tensor) -> tf.Tensor:
  """Shifts images by whole pixels, down and to the right."""

  def matrix(offset, size):
    # Row i has its 1 in column i - offset, if there is such a column.
    columns = tf.range(size)[None] - offset[:, None]
    return tf.one_hot(columns, size, dtype=images.dtype)

  return _multiply(
    images, matrix(dy, images.shape[1]), matrix(dx, images.shape[2])
  )


def scale(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Scales images around their center, by bilinear interpolation."""

  def matrix(size):
    pixels = np.arange(size, dtype=np.float32)
    center = (size - 1) / 2
    sources = center + (pixels - center)[None] / factor[:, None]
    distance = tf.abs(sources[:, :, None] - pixels)
    return tf.cast(tf.maximum(0.0, 1.0 - distance), images.dtype)

  return _multiply(images, matrix(images.shape[1]), matrix(images.shape[2]))


def brightness(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
  """Adds `amount` to all values."""
  return images + _per_image(amount, images.dtype)


def contrast(
  images: tf.Tensor, factor: tf.Tensor, middle: Union[float, tf.Tensor] = 0.0
) -> tf.Tensor:
  """Multiplies the differences of all values from `middle`."""
  return (images - middle) * _per_image(factor, images.dtype) + middle


def saturation(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Multiplies the differences of channels from their mean, the gray value."""
  gray = tf.reduce_mean(images, 3, keepdims=True)
  return contrast(images, factor, gray)


def cutout(images: tf.Tensor, y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """Sets half the height and width to gray, around `(y, x)`.

  An even number of rows is centered at the edge before row `y`, an odd one at
  the row; the same holds for columns.
  """

  def inside(center, size):
    half = _half(size)
    first = (center - half // 2)[:, None]
    pixels = tf.range(size)[None]
    return (pixels >= first) & (pixels < first + half)

  rows = inside(y, images.shape[1])[:, :, None, None]
  columns = inside(x, images.shape[2])[:, None, :, None]
  return tf.where(rows & columns, tf.zeros_like(images), images)


def flip_and_shift(images: tf.Tensor, draw: Draw, most: int = 4) -> tf.Tensor:
  """Flips half of the images, and shifts all by at most `most` pixels."""
  images = flip(images, draw.uniform("flip") < 0.5)
  return shift(
    images, draw.integers(-most, most, "dy"), draw.integers(-most, most, "dx")
  )


class Augment(tf.Module):
  """Augments D's images; this base class returns them unchanged."""

  def __init__(self, name: str = "augment"):
    super().__init__(name=name)

  def __call__(
    self, images: tf.Tensor, seed: int, step: tf.Tensor, purpose: str
  ) -> tf.Tensor:
    """Returns augmented images; real and fake ones have another `purpose`."""
    return images

  def update(
    self,
    real_logits: tf.Tensor,
    num_playing: int,
    weight: Optional[collectives.Weight] = None,
  ) -> None:
    """Adapts to D's logits of real images; replica context.

    Args:
      real_logits: Of this replica's images.
      num_playing: Number of replicas that train D.
      weight: Of this replica in means, 1 by default; the mean of all weights
        is 1.
    """


# Maps images and random draws to images.
Transform = Callable[[tf.Tensor, Draw], tf.Tensor]


def _color(images: tf.Tensor, draw: Draw) -> tf.Tensor:
  images = brightness(images, draw.uniform("brightness") - 0.5)
  images = saturation(images, 2.0 * draw.uniform("saturation"))
  mean = tf.reduce_mean(images, [1, 2, 3], keepdims=True)
  return contrast(images, draw.uniform("contrast") + 0.5, mean)


def _translation(images: tf.Tensor, draw: Draw) -> tf.Tensor:
  """Shifts by at most an eighth of the side."""
  h, w = (int(side / 8 + 0.5) for side in images.shape[1:3])
  return shift(images, draw.integers(-h, h, "dy"), draw.integers(-w, w, "dx"))


def _cutout(images: tf.Tensor, draw: Draw) -> tf.Tensor:
  # As many positions as there are rows or, for an even number, edges.
  h, w = (size - _half(size) % 2 for size in images.shape[1:3])
  return cutout(images, draw.integers(0, h, "y"), draw.integers(0, w, "x"))


_DIFF_AUGMENT: Dict[str, Transform] = {
  "color": _color,
  "translation": _translation,
  "cutout": _cutout,
}


@gin.register
class DiffAugment(Augment):
  """Augments every image (arXiv 2006.10738).

  `policy` names any of `color`, `translation` and `cutout`, in order.
  """

  def __init__(
    self,
    policy: Sequence[str] = ("color", "translation", "cutout"),
    name: str = "augment",
  ):
    super().__init__(name=name)
    self.policy = _check_policy(policy, _DIFF_AUGMENT)

  def __call__(self, images, seed, step, purpose):
    """Returns augmented images."""
    for what in self.policy:
      draw = Draw(images.shape[0], seed, step, f"{purpose}/{what}")
      images = _DIFF_AUGMENT[what](images, draw)
    return images


def _log_normal(draw: Draw, deviation: float) -> tf.Tensor:
  """Returns log-normal factors with a deviation in octaves."""
  return tf.exp(np.log(2.0) * deviation * draw.normal("factor"))


# With the strengths of the paper's appendix B.
_ADA: Dict[str, Transform] = {
  "flip": lambda x, draw: flip(x, draw.uniform("on") < 0.5),
  "rotation": lambda x, draw: rotate(x, draw.integers(0, 3, "turns")),
  "translation": _translation,
  "scale": lambda x, draw: scale(x, _log_normal(draw, 0.2)),
  "brightness": lambda x, draw: brightness(x, 0.2 * draw.normal("amount")),
  "contrast": lambda x, draw: contrast(x, _log_normal(draw, 0.5)),
  "saturation": lambda x, draw: saturation(x, _log_normal(draw, 1.0)),
  "cutout": _cutout,
}
_ADA_POLICY = tuple(name for name in _ADA if name != "cutout")


@gin.register
class Ada(Augment):
  """Applies each transform with probability `p` (arXiv 2006.06676).

  `p` rises while the mean sign of D's logits of real images is above `target`,
  a sign of overfitting, and falls while it is below; from 0 to 1 it takes
  `speed` images. `p` is a variable, and agrees on all replicas.

  The default `policy` is the paper's: pixel blitting, geometric and color
  transforms. Arbitrary rotation, anisotropic scaling, hue rotation and filters
  are not implemented. `cutout`, which the paper does not train with, is
  available.
  """

  def __init__(
    self,
    policy: Sequence[str] = _ADA_POLICY,
    target: float = 0.6,
    speed: int = 500_000,
    name: str = "augment",
  ):
    super().__init__(name=name)
    if not -1.0 < target < 1.0:
      raise ValueError(f"`target` must be in (-1, 1), got {target}.")
    if speed < 1:
      raise ValueError(f"`speed` must be at least 1, got {speed}.")
    self.policy = _check_policy(policy, _ADA)
    self.target = target
    self.speed = speed
    self.p = tf.Variable(0.0, trainable=False, name=f"{name}/p")

  def __call__(self, images, seed, step, purpose):
    """Returns augmented images."""
    p = tf.convert_to_tensor(self.p)
    for what in self.policy:
      draw = Draw(images.shape[0], seed, step, f"{purpose}/{what}")
      on = _per_image(draw.uniform("p") < p)
      # Selected, not multiplied by 0 or 1, because a TPU rounds products.
      images = tf.where(on, _ADA[what](images, draw), images)
    return images

  def update(self, real_logits, num_playing, weight=None):
    """Updates `p`; replica context."""
    signs = tf.sign(tf.cast(real_logits, tf.float32))
    weights = None if weight is None else [weight]
    (r,) = collectives.mean([tf.reduce_mean(signs)], weights)
    num_images = real_logits.shape[0] * num_playing
    p = self.p + num_images / self.speed * tf.sign(r - self.target)
    p = tf.where(tf.math.is_finite(p), p, self.p)
    self.p.assign(tf.clip_by_value(p, 0.0, 1.0))


def _multiply(images, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
  """Returns `rows @ images @ columns^T` for each image and channel."""
  images = tf.einsum("bij,bjwc->biwc", rows, images)
  return tf.einsum("bkw,biwc->bikc", columns, images)


def _half(size: int) -> int:
  return (size + 1) // 2


def _per_image(x: tf.Tensor, dtype=None) -> tf.Tensor:
  """Reshapes one value per image, `[b]`, to `[b, 1, 1, 1]`."""
  x = x[:, None, None, None]
  return x if dtype is None else tf.cast(x, dtype)


def _check_policy(policy: Sequence[str], known: Dict[str, Transform]):
  """Returns the policy as a tuple; refuses unknown transforms."""
  for what in policy:
    if what not in known:
      names = ", ".join(f"`{name}`" for name in known)
      raise ValueError(f"`policy` must name some of {names}, got {what!r}.")
  return tuple(policy)
