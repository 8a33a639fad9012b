"""Random numbers that depend on nothing but what they are for.

A draw is keyed by (seed, step, purpose) and cut by replica out of the whole
batch's draw, so a run does not depend on how many replicas share the batch.
"""

import zlib
from typing import Sequence

import tensorflow as tf

from paragan_tf import collectives


def normal(
  shape: Sequence[int], seed: int, step: tf.Tensor, purpose: str
) -> tf.Tensor:
  """Returns this replica's rows of a standard normal draw, `shape`."""
  salt = zlib.crc32(purpose.encode()) & 0x7FFFFFFF
  key = tf.stack([tf.cast(step, tf.int32), tf.constant(seed ^ salt)])
  rows = shape[0]
  whole = tf.random.stateless_normal(
    [collectives.num_replicas() * rows, *shape[1:]], key
  )
  start = collectives.replica_id() * rows
  return tf.reshape(whole[start : start + rows], shape)
