"""Batches of images in memory, in an order that is computed, not stored."""

import os
from typing import Dict, Optional

import numpy as np
import tensorflow as tf

from paragan_tf.data import transforms
from paragan_tf.data.batch_shard import BatchShard, FinishFn
from paragan_tf.data.sources import Images
from paragan_tf.data.step_timing import Pipeline
from paragan_tf.data.transforms import Transform

_CHUNK_SIZE = 1000


class InMemorySet:
  """A set in memory, for `InputFn`; resized once, at construction."""

  def __init__(
    self, images: Images, resolution: int, transform: Transform, seed: int
  ):
    self._seed = seed
    self._labels = images.labels
    same = images.pixels.shape[1:3] == (resolution, resolution)
    self.preprocessing = "" if same else transform.description
    self._pixels = _resize(images.pixels, resolution, transform)

  def __len__(self) -> int:
    return len(self._pixels)

  def dataset(
    self,
    shard: BatchShard,
    finish: FinishFn,
    python: bool = True,
    live: Optional[Pipeline] = None,
  ) -> tf.data.Dataset:
    """Returns `finish(images, labels, positions)`, endlessly."""
    del python, live  # It never calls Python, and it reads nothing.
    size, total = shard.batch_size, shard.num_shards
    # Counted here, because a graph does not know the length of a tensor.
    local, shards = len(shard.shards), tf.constant(shard.shards, tf.int64)
    pixels = tf.constant(self._pixels)
    labels = None if self._labels is None else tf.constant(self._labels)

    @tf.autograph.experimental.do_not_convert
    def element(k):
      first = ((k // local) * total + shards[k % local]) * size
      positions = first + tf.range(size, dtype=tf.int64)
      rows = self._permute(positions)
      ids = None if labels is None else tf.gather(labels, rows)
      return finish(tf.gather(pixels, rows), ids, positions)

    start = shard.start_step * local
    elements = tf.data.Dataset.range(start, np.iinfo(np.int64).max)
    # A few: each parallel call holds a finished batch.
    parallel = min(8, os.cpu_count() or 1)
    return elements.map(
      element, num_parallel_calls=parallel, deterministic=True
    )

  def images(self, rows: np.ndarray) -> Images:
    """Returns the images of some rows."""
    labels = None if self._labels is None else self._labels[rows]
    return Images(self._pixels[rows], labels)

  def find_failure(self, step: int = 0) -> Optional[str]:
    """Returns `None`: memory does not fail."""
    del step
    return None

  def meter(self) -> Dict[str, float]:
    """Returns nothing: there are no readers."""
    return {}

  def _permute(self, positions: tf.Tensor) -> tf.Tensor:
    count = len(self._pixels)
    epoch = positions // count
    seeds = tf.stack(
      [tf.fill(tf.shape(positions), np.int64(self._seed)), epoch, 0 * epoch], 1
    )
    # `tf.random.experimental.index_shuffle` takes one seed for all positions; a
    # batch across the end of an epoch needs two.
    return tf.raw_ops.RandomIndexShuffle(
      index=positions % count,
      seed=seeds,
      max_index=tf.constant(count - 1, tf.int64),
      rounds=16,
    )


def _resize(
  pixels: np.ndarray, resolution: int, transform: Transform
) -> np.ndarray:
  """Resizes uint8 images, a chunk at a time."""
  height, width = pixels.shape[1:3]
  if height == width == resolution:
    return pixels
  if transform.crop == "random" and height != width:
    raise ValueError(
      "`Transform.crop` 'random' is for files, and the images of "
      f"{height}x{width} are in memory: take 'center'."
    )
  chunks = []
  for start in range(0, len(pixels), _CHUNK_SIZE):
    chunk = tf.constant(pixels[start : start + _CHUNK_SIZE])
    chunk = transform.crop_square(chunk)
    chunk = transforms.resize_images(chunk, resolution, transform.resize)
    chunks.append(chunk.numpy())
  return np.concatenate(chunks)
