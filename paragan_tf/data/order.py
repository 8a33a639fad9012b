"""The order of the images of an epoch, for sets on disk.

    blocks   neighbors in a file, read at once; blocks are shuffled
    lanes    slices of the global batch; a process reads only the blocks of the
             lanes that it feeds
    windows  images of a lane; images are shuffled within a window

The order is a function of (seed, epoch): a run resumes at any step without
stored state, and sees the same global batches on any number of replicas. It is
computed by TensorFlow, eagerly or in the graph of a pipeline, with equal
results.
"""

from typing import List, NamedTuple

import numpy as np
import tensorflow as tf

from paragan_tf import hashing

_BLOCKS, _IMAGES = 0, 1  # What a draw is for.


class Lane(NamedTuple):
  """A slice of the global batch.

  Attributes:
    batch_size: Images of a global batch.
    first: Its first image in a global batch.
    width: Its images of a global batch.
  """

  batch_size: int
  first: int
  width: int

  def count(self, position):
    """Returns the number of its images before a position of the run."""
    inside = tf.clip_by_value(
      position % self.batch_size - self.first, 0, self.width
    )
    return position // self.batch_size * self.width + inside

  def positions(self, indices):
    """Returns the positions in the run of its images, counted from 0."""
    step, inside = indices // self.width, indices % self.width
    return step * self.batch_size + self.first + inside


class Epoch(NamedTuple):
  """The shuffled blocks of an epoch, as tensors.

  Attributes:
    number: The epoch.
    first: First row of each block, in the order of the epoch.
    start: Number of images before each block.
    end: Number of images up to the end of each block.
  """

  number: tf.Tensor
  first: tf.Tensor
  start: tf.Tensor
  end: tf.Tensor


class Span(NamedTuple):
  """The images of a lane in an epoch.

  Attributes:
    start: Images of earlier lanes in this epoch.
    count: Images of this lane in this epoch.
    before: Images of this lane in earlier epochs.
  """

  start: tf.Tensor
  count: tf.Tensor
  before: tf.Tensor


class Order:
  """A new order every epoch, each image once.

  Args:
    blocks: The block of each image, from 0 up, sorted, shape `[n]`.
    batch_size: Images of a global batch.
    seed: Of the shuffles of all epochs.
    window: Number of images to shuffle among, over all lanes.
    num_lanes: Slices of the global batch; only adjacent ones may share a block.
  """

  def __init__(
    self,
    blocks: np.ndarray,
    batch_size: int,
    seed: int = 0,
    window: int = 8192,
    num_lanes: int = 16,
  ):
    self.blocks = np.asarray(blocks)
    self.batch_size = batch_size
    self._seed = seed
    num_lanes = min(num_lanes, batch_size)
    self.window = max(1, window // num_lanes)
    ends = -(-batch_size * np.arange(num_lanes + 1) // num_lanes)
    self.lanes: List[Lane] = [
      Lane(batch_size, int(a), int(b - a)) for a, b in zip(ends, ends[1:])
    ]
    self._sizes = np.bincount(self.blocks)

  def __len__(self) -> int:
    return len(self.blocks)

  def rows(self, epoch: int) -> np.ndarray:
    """Returns the image at each position of an epoch, shape `[n]`."""
    with tf.device("CPU:0"):
      spans = [self.span(lane, np.int64(epoch)) for lane in self.lanes]
      counts = [int(span.count) for span in spans]
      starts = np.repeat([int(span.start) for span in spans], counts)
      indices = np.arange(len(self), dtype=np.int64)
      windows = starts + (indices - starts) // self.window * self.window
      rows = self.shuffle(self.epoch(np.int64(epoch)), indices, windows)
      positions = [
        lane.positions(span.before + np.arange(count, dtype=np.int64))
        for lane, span, count in zip(self.lanes, spans, counts)
      ]
    result = np.empty(len(self), np.int64)
    result[np.concatenate(positions) - epoch * len(self)] = rows
    return result

  def rows_from(self, position: int, count: int) -> np.ndarray:
    """Returns the images at `count` positions of the run."""
    found, n = [], len(self)
    end = position + count
    while position < end:
      epoch, first = divmod(position, n)
      found.append(self.rows(epoch)[first : first + end - position])
      position += len(found[-1])
    return np.concatenate(found)

  def epoch(self, number: tf.Tensor) -> Epoch:
    """Returns the shuffled blocks of an epoch."""
    sizes = tf.constant(self._sizes, tf.int64)
    ids = tf.range(len(self._sizes), dtype=tf.int64)
    order = tf.argsort(self._draw(number, _BLOCKS, ids), stable=True)
    first = tf.gather(tf.cumsum(sizes, exclusive=True), order)
    sizes = tf.gather(sizes, order)
    end = tf.cumsum(sizes)
    return Epoch(number, first, end - sizes, end)

  def span(self, lane: Lane, epoch: tf.Tensor) -> Span:
    """Returns which images a lane has in an epoch."""
    earlier = Lane(lane.batch_size, 0, lane.first)
    ends = epoch * len(self), (epoch + 1) * len(self)
    before = lane.count(ends[0])
    return Span(
      earlier.count(ends[1]) - earlier.count(ends[0]),
      lane.count(ends[1]) - before,
      before,
    )

  def shuffle(self, epoch: Epoch, indices, windows) -> tf.Tensor:
    """Returns rows, shuffled within windows.

    Args:
      epoch: The shuffled blocks.
      indices: Of images in the sequence of these blocks; whole windows.
      windows: The first index of the window of each, not decreasing.
    """
    draws = self._draw(epoch.number, _IMAGES, indices)
    keys = tf.bitwise.left_shift(
      tf.convert_to_tensor(windows, tf.int64), tf.constant(32, tf.int64)
    )
    indices = tf.gather(indices, tf.argsort(keys + draws, stable=True))
    block = tf.searchsorted(epoch.end, indices, side="right")
    inside = indices - tf.gather(epoch.start, block)
    return tf.gather(epoch.first, block) + inside

  def _draw(self, epoch, purpose: int, indices) -> tf.Tensor:
    """Returns a random number from 0 to 2^32 - 1 for each index, as int64."""
    key = hashing.uint(self._seed % 2**32)
    for number in (epoch, purpose):
      key = _xor(hashing.mix(key), tf.cast(number, tf.uint32))
    hashed = hashing.mix(tf.cast(indices, tf.uint32))
    return tf.cast(hashing.mix(_xor(hashed, hashing.mix(key))), tf.int64)


def _xor(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  return tf.bitwise.bitwise_xor(a, b)
