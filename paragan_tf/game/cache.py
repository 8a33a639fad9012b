"""Buffers of fakes between the replicas of G and those of D.

A replica of G makes a batch of its fakes in each step. If G's replicas exchange
only every few steps, a `Store`, the outbox, keeps the newest batches until
then, at most as many as a cache can hold; without an outbox only the last one
is sent. At G's exchange they are sent to the replicas of D. Their `Cache` adds
them, with the steps in which they were sampled, and drops as many of its oldest
batches:

    batches = make_batch(images, labels, size, dtype)        # each step of G
    sent = outbox.push(batches)
    cache.fill(received, born)                               # G's exchange
    images, labels, born = cache.take(phase, step, replica)  # each step of D

`born` is the step in which a batch was sampled, or -1 before one is received: D
then samples fakes itself. Fakes are sent and kept as uint8, like real images in
files, unless another type is chosen. Types of less than 4 bytes are packed into
int32: collectives between processes have no smaller type, and a TPU would pad a
few channels to 128.
"""

import math
from typing import NamedTuple, Optional, Sequence

import tensorflow as tf

from paragan_tf.game import noise
from paragan_tf.types import ImageSpec

POLICIES = ("oldest", "newest", "random")
DTYPES = ("uint8", "bfloat16", "float32")


class FakeBatches(NamedTuple):
  """Batches of fakes, the oldest first.

  Attributes:
    images: `[n, b, ...]`, as `encode` returns them.
    labels: Class ids, `[n, b]`; zeros if unconditional.
  """

  images: tf.Tensor
  labels: tf.Tensor


class Store(tf.Module):
  """The newest `depth` batches, the oldest first.

  Attributes:
    images: All images, as `encode` returns them.
    labels: Their class ids, `[depth, size]`.
    shape: Of the images of a batch, `[size, h, w, c]`.
  """

  def __init__(
    self, depth: int, size: int, spec: ImageSpec, dtype: str, name: str
  ):
    super().__init__(name=name)
    side = spec.resolution
    self.shape = [size, side, side, spec.channels]
    self._dtype = dtype
    images = encode(tf.zeros([depth, *self.shape]), dtype)
    kind = "images" if dtype == "float32" else "pixels"

    def variable(value, name):
      return tf.Variable(tf.zeros_like(value), trainable=False, name=name)

    with self.name_scope:
      self.images = variable(images, kind)
      self.labels = variable(tf.zeros([depth, size], tf.int32), "labels")

  def push(self, batches: FakeBatches) -> FakeBatches:
    """Adds batches, drops as many of the oldest, and returns all."""
    num = batches.images.shape[0]
    stored = FakeBatches(
      tf.concat([self.images[num:], batches.images], 0),
      tf.concat([self.labels[num:], batches.labels], 0),
    )
    self.images.assign(stored.images)
    self.labels.assign(stored.labels)
    return stored


class Cache(Store):
  """The fakes that D trains on, and the step in which each batch was sampled.

  Policies: `oldest` takes each batch once, in order; `newest` takes the last
  one, `random` any.
  """

  def __init__(
    self,
    depth: int,
    size: int,
    spec: ImageSpec,
    policy: str,
    seed: int,
    dtype: str = "float32",
  ):
    super().__init__(depth, size, spec, dtype, name="fakes")
    self._policy = policy
    self._seed = seed
    with self.name_scope:
      self.born = tf.Variable(
        -tf.ones([depth], tf.int64), trainable=False, name="born"
      )

  def fill(self, batches: FakeBatches, born: Sequence[tf.Tensor]) -> None:
    """Adds batches that were sampled in the steps `born`."""
    self.push(batches)
    kept = self.born[len(born) :]
    self.born.assign(tf.concat([kept, tf.stack(list(born))], 0))

  def take(self, phase: int, step: tf.Tensor, replica: tf.Tensor):
    """Returns images, labels and `born` of the batch to train on.

    Args:
      phase: Steps since the last exchange.
      step: Count of steps.
      replica: Id of this replica, for random numbers.
    """
    last = self.born.shape[0] - 1
    if self._policy == "random":
      index = self._random_index(last + 1, step, replica)
    else:
      index = last if self._policy == "newest" else min(phase, last)
    images = decode(self.images[index], self._dtype, self.shape)
    return images, self.labels[index], self.born[index]

  def fill_level(self) -> tf.Tensor:
    """Returns the fraction of batches that were received, in [0, 1]."""
    return tf.reduce_mean(tf.cast(self.born >= 0, tf.float32))

  def _random_index(self, count: int, step, replica) -> tf.Tensor:
    u = noise.uniform(1, self._seed, step, "cache", replica)[0]
    return tf.minimum(tf.cast(u * count, tf.int32), count - 1)


def make_batch(
  images: tf.Tensor, labels: Optional[tf.Tensor], size: int, dtype: str
) -> FakeBatches:
  """Returns the first `size` fakes of a step as one batch."""
  if labels is None:
    labels = tf.zeros([size], tf.int32)
  return FakeBatches(encode(images[None, :size], dtype), labels[None, :size])


def encode(images: tf.Tensor, dtype: str) -> tf.Tensor:
  """Returns images in [-1, 1], `[n, b, ...]`, as they are sent and kept.

  That is `[n, b, words]` in int32, but for float32. uint8 has 256 levels.
  """
  if dtype == "float32":
    return images
  if dtype == "uint8":
    images = tf.round((tf.clip_by_value(images, -1.0, 1.0) + 1.0) * 127.5)
  small = tf.cast(images, tf.as_dtype(dtype))
  per_word = 4 // small.dtype.size
  flat = tf.reshape(small, [*images.shape[:2], -1])
  flat = tf.pad(flat, [[0, 0], [0, 0], [0, -flat.shape[2] % per_word]])
  words = tf.reshape(flat, [*images.shape[:2], -1, per_word])
  return tf.bitcast(words, tf.int32)


def decode(kept: tf.Tensor, dtype: str, shape: Sequence[int]) -> tf.Tensor:
  """Returns one encoded batch as float32 in [-1, 1], of the given shape."""
  if dtype == "float32":
    return kept
  small = tf.bitcast(kept, tf.as_dtype(dtype))
  size = math.prod(shape[1:])
  flat = tf.reshape(small, [shape[0], -1])[:, :size]
  floats = tf.reshape(tf.cast(flat, tf.float32), shape)
  return floats / 127.5 - 1.0 if dtype == "uint8" else floats
