"""Fakes on their way from G to D, a few batches of them.

A replica of G makes a `parcel` of the fakes of each step. If G's replicas
exchange only every few steps, a `Store`, the outbox, keeps the newest parcels
until then, at most as many as a cache has room for; without it only the last
one is sent. At G's exchange they go to the replicas of D, where a `Cache` takes
them in, with the steps in which they were drawn, and drops as many of its
oldest batches:

    sent = outbox.push(parcel(images, labels, size))         # each step of G
    cache.fill(received, born)                               # G's exchange
    images, labels, born = cache.take(phase, step, replica)  # each step of D

A batch with `born` of -1 has not come yet: D then draws fakes of its own.
"""

from typing import NamedTuple, Optional, Sequence

import tensorflow as tf

from paragan_tf.game import noise
from paragan_tf.types import ImageSpec

POLICIES = ("oldest", "newest", "random")


class Parcel(NamedTuple):
  """Batches of fakes, the oldest first.

  Attributes:
    images: `[n, b, h, w, c]`, in [-1, 1].
    labels: Class ids, `[n, b]`; zeros if unconditional.
  """

  images: tf.Tensor
  labels: tf.Tensor


class Store(tf.Module):
  """The newest `depth` batches, the oldest first."""

  def __init__(self, depth: int, size: int, spec: ImageSpec, name: str):
    super().__init__(name=name)
    side = spec.resolution
    shape = [depth, size, side, side, spec.channels]

    def variable(shape, dtype, name):
      return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)

    with self.name_scope:
      self.images = variable(shape, tf.float32, "images")
      self.labels = variable(shape[:2], tf.int32, "labels")

  def push(self, parcel: Parcel) -> Parcel:
    """Adds batches, drops as many, and returns all."""
    num = parcel.images.shape[0]
    whole = Parcel(
      tf.concat([self.images[num:], parcel.images], 0),
      tf.concat([self.labels[num:], parcel.labels], 0),
    )
    self.images.assign(whole.images)
    self.labels.assign(whole.labels)
    return whole


class Cache(Store):
  """What D trains on: its batches, and the step that each was drawn in.

  Policies: `oldest` takes each batch once, in order; `newest` always the last;
  `random` any.
  """

  def __init__(
    self, depth: int, size: int, spec: ImageSpec, policy: str, seed: int
  ):
    super().__init__(depth, size, spec, name="fakes")
    self._policy = policy
    self._seed = seed
    with self.name_scope:
      self.born = tf.Variable(
        -tf.ones([depth], tf.int64), trainable=False, name="born"
      )

  def fill(self, parcel: Parcel, born: Sequence[tf.Tensor]) -> None:
    """Takes batches in, drawn in the steps `born`."""
    self.push(parcel)
    kept = self.born[len(born) :]
    self.born.assign(tf.concat([kept, tf.stack(list(born))], 0))

  def take(self, phase: int, step: tf.Tensor, replica: tf.Tensor):
    """Returns the images, labels and first step of the batch to train on.

    Args:
      phase: Steps since the last exchange.
      step: The count of steps.
      replica: Which replica asks.
    """
    last = self.born.shape[0] - 1
    if self._policy == "random":
      place = self._random(last + 1, step, replica)
    else:
      place = last if self._policy == "newest" else min(phase, last)
    return self.images[place], self.labels[place], self.born[place]

  def fill_level(self) -> tf.Tensor:
    """Returns the share of batches that have come, in [0, 1]."""
    return tf.reduce_mean(tf.cast(self.born >= 0, tf.float32))

  def _random(self, count: int, step, replica) -> tf.Tensor:
    draw = noise.uniform(1, self._seed, step, "cache", replica)[0]
    return tf.minimum(tf.cast(draw * count, tf.int32), count - 1)


def parcel(images: tf.Tensor, labels: Optional[tf.Tensor], size: int) -> Parcel:
  """Returns the first `size` fakes of a batch as a parcel of one."""
  if labels is None:
    labels = tf.zeros([size], tf.int32)
  return Parcel(images[None, :size], labels[None, :size])
