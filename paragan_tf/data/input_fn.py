"""From a source to batches: `input_fn(params) -> tf.data.Dataset`.

The image at each place of the global batch is a function of (seed, step) only:
every epoch is a fresh permutation, and the place in it is computed, not kept.
So a run resumes at any step without stored iterator state, and sees the same
global batches on any number of replicas.
"""

from typing import Any, Callable, Mapping

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import sources
from paragan_tf.types import ImageSpec


@gin.register
class InputFn:
  """Gives each replica its share of every global batch.

  Called with `params` in Estimator's way; the keys, all optional but the first:

    batch_size: Images an element has, for one replica.
    num_shares: Into how many shares the global batch is cut (1).
    shares: Which ones this pipeline gives, in turn, one for each replica that
      it feeds; a share may be given to several (all).
    start_step: The step of the first element (0).
  """

  def __init__(
    self,
    source: Callable[[], sources.Source] = sources.fashion,
    resolution: int = 32,
    conditional: bool = True,
    prefetch: int = 2,
    seed: int = 0,
  ):
    self.source = source()
    if resolution < 4:
      raise ValueError(f"`resolution` must be at least 4, got {resolution}.")
    if conditional and self.source.train.labels is None:
      raise ValueError(
        f"`conditional` needs labels and '{self.source.name}' has none: set "
        "`InputFn.conditional = False`."
      )
    self.seed = seed
    self.prefetch = prefetch
    self.resolution = resolution
    self.conditional = conditional
    self._pixels = self._resized(self.source.train.pixels)

  @property
  def spec(self) -> ImageSpec:
    """What the nets must make and judge."""
    return ImageSpec(
      resolution=self.resolution,
      channels=self.source.train.pixels.shape[-1],
      num_classes=len(self.source.label_names) if self.conditional else 0,
    )

  @property
  def name(self) -> str:
    """What the data is called."""
    return self.source.name

  @property
  def num_images(self) -> int:
    """How many there are to train on."""
    return len(self._pixels)

  def __call__(self, params: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns endless `(images, labels)`; images float32 in [-1, 1]."""
    size = params["batch_size"]
    total = params.get("num_shares", 1)
    # Counted before it is a tensor, whose length a graph does not know.
    places = list(params.get("shares", range(total)))
    local, shares = len(places), tf.constant(places, tf.int64)
    start = params.get("start_step", 0)
    pixels = tf.constant(self._pixels)
    labels = self.source.train.labels
    labels = tf.constant(labels) if self.conditional else None

    @tf.autograph.experimental.do_not_convert
    def element(k):
      first = ((k // local) * total + shares[k % local]) * size
      place = first + tf.range(size, dtype=tf.int64)
      rows = self._permuted(place)
      images = tf.cast(tf.gather(pixels, rows), tf.float32) / 127.5 - 1.0
      if labels is None:
        return (images,)
      return images, tf.gather(labels, rows)

    elements = tf.data.Dataset.range(start * local, np.iinfo(np.int64).max)
    batches = elements.map(
      element, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    # Else a strategy asks all replicas at every step whether one ran dry.
    endless = tf.data.experimental.assert_cardinality(
      tf.data.INFINITE_CARDINALITY
    )
    return batches.prefetch(self.prefetch * local).apply(endless)

  def reference(self) -> np.ndarray:
    """Returns the training images as floats in [-1, 1], to measure against."""
    return self._pixels.astype(np.float32) / 127.5 - 1.0

  def heldout(self) -> sources.Images:
    """Returns the images kept to measure with, at the resolution."""
    heldout = self.source.heldout
    return heldout._replace(pixels=self._resized(heldout.pixels))

  def _permuted(self, place: tf.Tensor) -> tf.Tensor:
    count = len(self._pixels)
    epoch = place // count
    seeds = tf.stack(
      [tf.fill(tf.shape(place), np.int64(self.seed)), epoch, 0 * epoch], 1
    )
    # `tf.random.experimental.index_shuffle` takes one seed for all places; a
    # batch over the end of an epoch needs two.
    return tf.raw_ops.RandomIndexShuffle(
      index=place % count,
      seed=seeds,
      max_index=tf.constant(count - 1, tf.int64),
      rounds=16,
    )

  def _resized(self, pixels: np.ndarray) -> np.ndarray:
    """Brings uint8 images to the resolution, bicubic with antialias."""
    if pixels.shape[1:3] == (self.resolution, self.resolution):
      return pixels
    size = [self.resolution, self.resolution]
    parts = []
    for start in range(0, len(pixels), 1000):
      part = pixels[start : start + 1000]
      resized = tf.image.resize(part, size, "bicubic", antialias=True)
      parts.append(tf.saturate_cast(tf.round(resized), tf.uint8).numpy())
    return np.concatenate(parts)
