"""What is done to images before D sees them, to real and fake alike.

    images = augment(images, seed, step, purpose)   # Each image in its own way.
    augment.update(real_logits)                     # Once in a turn of D.

A transform is a pure function of images `[b, h, w, c]` in [-1, 1] and of one
number an image; what comes in from outside is gray, 0. Shapes are fixed, and
what moves pixels is a product with a matrix, so that gradients of any order
pass, and XLA has nothing to scatter.
"""

from typing import Callable, Dict, NamedTuple, Optional, Sequence, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.game import noise


class Draw(NamedTuple):
  """The random numbers of one transform: one for each image of a batch."""

  num: int
  seed: int
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
  """Mirrors the images that are `on`, left and right."""
  return tf.where(_wide(on), tf.reverse(images, [2]), images)


def rotate(images: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
  """Turns square images by quarters, counterclockwise."""
  across = tf.transpose(images, [0, 2, 1, 3])
  ways = (tf.reverse(across, [1]), tf.reverse(images, [1, 2]))
  turned = images
  for quarters, way in enumerate((*ways, tf.reverse(across, [2])), 1):
    turned = tf.where(_wide(tf.equal(turns, quarters)), way, turned)
  return turned


def shift(images: tf.Tensor, dy: tf.Tensor, dx: tf.Tensor) -> tf.Tensor:
  """Moves images by whole pixels, down and to the right."""

  def matrix(offset, size):
    # Row i has its one at i - offset, or nowhere.
    places = tf.range(size)[None] - offset[:, None]
    return tf.one_hot(places, size, dtype=images.dtype)

  return _moved(
    images, matrix(dy, images.shape[1]), matrix(dx, images.shape[2])
  )


def scale(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Enlarges images around their middle, by bilinear interpolation."""

  def matrix(size):
    at = np.arange(size, dtype=np.float32)
    middle = (size - 1) / 2
    places = middle + (at - middle)[None] / factor[:, None]
    distance = tf.abs(places[:, :, None] - at)
    return tf.cast(tf.maximum(0.0, 1.0 - distance), images.dtype)

  return _moved(images, matrix(images.shape[1]), matrix(images.shape[2]))


def brightness(images: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
  """Adds to all values."""
  return images + _wide(amount, images.dtype)


def contrast(
  images: tf.Tensor, factor: tf.Tensor, middle: Union[float, tf.Tensor] = 0.0
) -> tf.Tensor:
  """Multiplies the distance of all values to `middle`."""
  return (images - middle) * _wide(factor, images.dtype) + middle


def saturation(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Multiplies the distance of colors to their gray; gray images have none."""
  gray = tf.reduce_mean(images, 3, keepdims=True)
  return contrast(images, factor, gray)


def cutout(images: tf.Tensor, y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """Grays half the height and width, around `(y, x)`.

  An even number of rows lies around the edge before row `y`, an odd one around
  the row; the same for columns.
  """

  def inside(middle, size):
    half = _half(size)
    first = (middle - half // 2)[:, None]
    at = tf.range(size)[None]
    return (at >= first) & (at < first + half)

  rows = inside(y, images.shape[1])[:, :, None, None]
  columns = inside(x, images.shape[2])[:, None, :, None]
  return tf.where(rows & columns, tf.zeros_like(images), images)


def flip_and_shift(images: tf.Tensor, draw: Draw, most: int = 4) -> tf.Tensor:
  """Mirrors half of the images, and moves all by at most `most` pixels."""
  images = flip(images, draw.uniform("flip") < 0.5)
  return shift(
    images, draw.integers(-most, most, "dy"), draw.integers(-most, most, "dx")
  )


class Augment(tf.Module):
  """Leaves images alone; a subclass does not."""

  def __init__(self, name: str = "augment"):
    super().__init__(name=name)

  def __call__(
    self, images: tf.Tensor, seed: int, step: tf.Tensor, purpose: str
  ) -> tf.Tensor:
    """Returns images for D; real and fake ones have a `purpose` each."""
    return images

  def update(
    self,
    real_logits: tf.Tensor,
    num_playing: int,
    weight: Optional[collectives.Weight] = None,
  ) -> None:
    """Adapts to what D says of real images; replica context.

    Args:
      real_logits: Of this replica's images.
      num_playing: How many replicas play D.
      weight: What this replica counts, 1 by default; the weights of all have
        mean 1.
    """


# From images and a draw to images.
Transform = Callable[[tf.Tensor, Draw], tf.Tensor]


def _color(images: tf.Tensor, draw: Draw) -> tf.Tensor:
  images = brightness(images, draw.uniform("brightness") - 0.5)
  images = saturation(images, 2.0 * draw.uniform("saturation"))
  mean = tf.reduce_mean(images, [1, 2, 3], keepdims=True)
  return contrast(images, draw.uniform("contrast") + 0.5, mean)


def _translation(images: tf.Tensor, draw: Draw) -> tf.Tensor:
  """Moves by at most an eighth of the side."""
  h, w = (int(side / 8 + 0.5) for side in images.shape[1:3])
  return shift(images, draw.integers(-h, h, "dy"), draw.integers(-w, w, "dx"))


def _cutout(images: tf.Tensor, draw: Draw) -> tf.Tensor:
  # As many places as there are rows or, for an even number, edges.
  h, w = (size - _half(size) % 2 for size in images.shape[1:3])
  return cutout(images, draw.integers(0, h, "y"), draw.integers(0, w, "x"))


_DIFF_AUGMENT: Dict[str, Transform] = {
  "color": _color,
  "translation": _translation,
  "cutout": _cutout,
}


@gin.register
class DiffAugment(Augment):
  """Changes every image, always (arXiv 2006.10738).

  `policy` names any of `color`, `translation` and `cutout`, in order.
  """

  def __init__(
    self,
    policy: Sequence[str] = ("color", "translation", "cutout"),
    name: str = "augment",
  ):
    super().__init__(name=name)
    self.policy = _checked(policy, _DIFF_AUGMENT)

  def __call__(self, images, seed, step, purpose):
    """Returns images for D."""
    for what in self.policy:
      draw = Draw(images.shape[0], seed, step, f"{purpose}/{what}")
      images = _DIFF_AUGMENT[what](images, draw)
    return images


def _exp2(draw: Draw, deviation: float) -> tf.Tensor:
  """Draws factors, log-normal, of `deviation` octaves."""
  return tf.exp(np.log(2.0) * deviation * draw.normal("factor"))


# With the strengths of the paper's appendix B.
_ADA: Dict[str, Transform] = {
  "flip": lambda x, draw: flip(x, draw.uniform("on") < 0.5),
  "rotation": lambda x, draw: rotate(x, draw.integers(0, 3, "turns")),
  "translation": _translation,
  "scale": lambda x, draw: scale(x, _exp2(draw, 0.2)),
  "brightness": lambda x, draw: brightness(x, 0.2 * draw.normal("amount")),
  "contrast": lambda x, draw: contrast(x, _exp2(draw, 0.5)),
  "saturation": lambda x, draw: saturation(x, _exp2(draw, 1.0)),
  "cutout": _cutout,
}
_ADA_POLICY = tuple(name for name in _ADA if name != "cutout")


@gin.register
class Ada(Augment):
  """Does each transform to an image with probability `p` (arXiv 2006.06676).

  `p` rises while D is surer of real images than `target`, in the mean of the
  signs of its logits, and falls while it is less sure; from 0 to 1 it takes
  `speed` images. `p` is a variable, and agrees on all replicas.

  The default `policy` is the paper's: blitting, geometry and colors. Of its
  transforms, turns by any angle, unequal scales, hues and filters are left out;
  `cutout`, which it leaves out of training as well, may be asked for.
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
    self.policy = _checked(policy, _ADA)
    self.target = target
    self.speed = speed
    self.p = tf.Variable(0.0, trainable=False, name=f"{name}/p")

  def __call__(self, images, seed, step, purpose):
    """Returns images for D."""
    p = tf.convert_to_tensor(self.p)
    for what in self.policy:
      draw = Draw(images.shape[0], seed, step, f"{purpose}/{what}")
      on = _wide(draw.uniform("p") < p)
      # Chosen, not multiplied by one: a TPU rounds products.
      images = tf.where(on, _ADA[what](images, draw), images)
    return images

  def update(self, real_logits, num_playing, weight=None):
    """Moves `p` on; replica context."""
    signs = tf.sign(tf.cast(real_logits, tf.float32))
    weights = None if weight is None else [weight]
    (r,) = collectives.mean([tf.reduce_mean(signs)], weights)
    num_images = real_logits.shape[0] * num_playing
    p = self.p + num_images / self.speed * tf.sign(r - self.target)
    self.p.assign(tf.clip_by_value(p, 0.0, 1.0))


def _moved(images, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
  """Multiplies by a matrix from the left and by one from the right."""
  images = tf.einsum("bij,bjwc->biwc", rows, images)
  return tf.einsum("bkw,biwc->bikc", columns, images)


def _half(size: int) -> int:
  return (size + 1) // 2


def _wide(x: tf.Tensor, dtype=None) -> tf.Tensor:
  """Makes one value an image meet all its pixels."""
  x = x[:, None, None, None]
  return x if dtype is None else tf.cast(x, dtype)


def _checked(policy: Sequence[str], known: Dict[str, Transform]):
  for what in policy:
    if what not in known:
      names = ", ".join(f"`{name}`" for name in known)
      raise ValueError(f"`policy` must name some of {names}, got {what!r}.")
  return tuple(policy)
