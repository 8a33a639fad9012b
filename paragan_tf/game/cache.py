"""Buffers of fakes between the replicas of G and those of D.

A replica of G makes a batch of its fakes in each step. If G's replicas exchange
only every few steps, a `Store`, the outbox, keeps the newest batches until
then, at most as many as a cache can hold; without an outbox only the last one
is sent. At G's exchange they are sent to the replicas of D. Their `Cache` adds
them, with the steps in which they were sampled, and drops as many of its oldest
batches:

    sent = outbox.push(make_batch(images, labels, ...))      # each step of G
    cache.fill(received, born)                               # G's exchange
    images, labels, born = cache.take(phase, step, replica)  # each step of D

`born` is the step in which a batch was sampled, or -1 before one is received: D
then samples fakes itself. Fakes are sent and kept as uint8, like real images in
files, unless another type is chosen.
"""

from typing import NamedTuple, Optional, Sequence

import tensorflow as tf

from paragan_tf.game import noise
from paragan_tf.types import ImageSpec

POLICIES = ("oldest", "newest", "random")
DTYPES = ("uint8", "bfloat16", "float32")


class FakeBatches(NamedTuple):
  """Batches of fakes, the oldest first.

  Attributes:
    images: `[n, b, h, w, c]`, as `encode` returns them.
    labels: Class ids, `[n, b]`; zeros if unconditional.
  """

  images: tf.Tensor
  labels: tf.Tensor


class Store(tf.Module):
  """The newest `depth` batches, the oldest first."""

  def __init__(
    self, depth: int, size: int, spec: ImageSpec, dtype: str, name: str
  ):
    super().__init__(name=name)
    side = spec.resolution
    shape = [depth, size, side, side, spec.channels]

    def variable(shape, dtype, name):
      return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)

    with self.name_scope:
      self.images = variable(shape, tf.as_dtype(dtype), "images")
      self.labels = variable(shape[:2], tf.int32, "labels")

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
    images = decode(self.images[index])
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
  """Returns images in [-1, 1] as another type; uint8 has 256 levels."""
  if dtype != "uint8":
    return tf.cast(images, tf.as_dtype(dtype))
  levels = (tf.clip_by_value(images, -1.0, 1.0) + 1.0) * 127.5
  return tf.cast(tf.round(levels), tf.uint8)


def decode(images: tf.Tensor) -> tf.Tensor:
  """Returns encoded images as float32 in [-1, 1]."""
  floats = tf.cast(images, tf.float32)
  return floats / 127.5 - 1.0 if images.dtype == tf.uint8 else floats
