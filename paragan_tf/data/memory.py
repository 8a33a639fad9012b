"""Batches out of images in memory: the place of each is computed, not kept."""

import os
from typing import Dict, Optional

import numpy as np
import tensorflow as tf

from paragan_tf.data import transforms
from paragan_tf.data.batch_shard import Finish, Shard
from paragan_tf.data.sources import Images
from paragan_tf.data.transforms import Transform

_AT_ONCE = 1000


class Memory:
  """A set in memory, for `InputFn`; resized once, when it is made."""

  def __init__(
    self, images: Images, resolution: int, transform: Transform, seed: int
  ):
    self._seed = seed
    self._labels = images.labels
    same = images.pixels.shape[1:3] == (resolution, resolution)
    self.change = "" if same else transform.words
    self._pixels = _resized(images.pixels, resolution, transform)

  def __len__(self) -> int:
    return len(self._pixels)

  def dataset(self, shard: Shard, finish: Finish) -> tf.data.Dataset:
    """Returns what `finish` makes of images, labels and places, endlessly."""
    size, total = shard.batch_size, shard.num_shards
    # Counted before it is a tensor, whose length a graph does not know.
    local, shares = len(shard.shards), tf.constant(shard.shards, tf.int64)
    pixels = tf.constant(self._pixels)
    labels = None if self._labels is None else tf.constant(self._labels)

    @tf.autograph.experimental.do_not_convert
    def element(k):
      first = ((k // local) * total + shares[k % local]) * size
      places = first + tf.range(size, dtype=tf.int64)
      rows = self._permuted(places)
      ids = None if labels is None else tf.gather(labels, rows)
      return finish(tf.gather(pixels, rows), ids, places)

    start = shard.start_step * local
    elements = tf.data.Dataset.range(start, np.iinfo(np.int64).max)
    # A few: as many batches wait to be taken.
    parallel = min(8, os.cpu_count() or 1)
    return elements.map(
      element, num_parallel_calls=parallel, deterministic=True
    )

  def images(self, rows: np.ndarray) -> Images:
    """Returns some images."""
    labels = None if self._labels is None else self._labels[rows]
    return Images(self._pixels[rows], labels)

  def find_failure(self) -> Optional[str]:
    """Returns nothing: what is in memory does not fail."""
    return None

  def meter(self) -> Dict[str, float]:
    """Returns nothing: no reader, no wait."""
    return {}

  def _permuted(self, places: tf.Tensor) -> tf.Tensor:
    count = len(self._pixels)
    epoch = places // count
    seeds = tf.stack(
      [tf.fill(tf.shape(places), np.int64(self._seed)), epoch, 0 * epoch], 1
    )
    # `tf.random.experimental.index_shuffle` takes one seed for all places; a
    # batch over the end of an epoch needs two.
    return tf.raw_ops.RandomIndexShuffle(
      index=places % count,
      seed=seeds,
      max_index=tf.constant(count - 1, tf.int64),
      rounds=16,
    )


def _resized(
  pixels: np.ndarray, resolution: int, transform: Transform
) -> np.ndarray:
  """Brings uint8 images to the resolution, a part at a time."""
  height, width = pixels.shape[1:3]
  if height == width == resolution:
    return pixels
  if transform.crop == "random" and height != width:
    raise ValueError(
      "`Transform.crop` 'random' is for files, and the images of "
      f"{height}x{width} are in memory: take 'center'."
    )
  parts = []
  for start in range(0, len(pixels), _AT_ONCE):
    part = transform.square(tf.constant(pixels[start : start + _AT_ONCE]))
    parts.append(transforms.resized(part, resolution, transform.resize).numpy())
  return np.concatenate(parts)
