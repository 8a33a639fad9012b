"""Random numbers that depend on nothing but what they are for.

A draw is a function of (seed, step, purpose) and of an element's place in the
whole batch, of which each replica takes its rows. So a run does not depend on
how many replicas share the batch.

TensorFlow's stateless generators give other numbers under XLA (and with
`alg="philox"` too), so the bits come from an integer hash in plain ops, the
same on every device and in every engine.
"""

import zlib
from typing import Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from paragan_tf import collectives, hashing


def normal(
  shape: Sequence[int],
  seed: int,
  step: tf.Tensor,
  purpose: str,
  share: Optional[Union[int, tf.Tensor]] = None,
) -> tf.Tensor:
  """Returns one share of a standard normal draw, `shape`.

  `share` says which; by default that of this replica.
  """
  count = int(np.prod(shape))
  share = collectives.replica_id() if share is None else share
  # The transform of Box and Muller (1958).
  radius = tf.sqrt(
    -2.0 * tf.math.log(uniform(count, seed, step, purpose, share))
  )
  angle = 2.0 * np.pi * uniform(count, seed, step, purpose, share, 1)
  return tf.reshape(radius * tf.cos(angle), shape)


def uniform(
  count: int,
  seed: int,
  step: tf.Tensor,
  purpose: str,
  share: Optional[Union[int, tf.Tensor]] = None,
  stream: int = 0,
) -> tf.Tensor:
  """Returns `count` numbers in (0, 1), those of one share.

  `share` says which; by default that of this replica.
  """
  share = collectives.replica_id() if share is None else share
  salt = zlib.crc32(f"{purpose}/{stream}/{seed}".encode())
  key = hashing.mix(
    tf.bitwise.bitwise_xor(tf.cast(step, tf.uint32), hashing.uint(salt))
  )
  first = tf.cast(share, tf.uint32) * hashing.uint(count)
  place = tf.range(count, dtype=tf.int32)
  bits = hashing.mix(hashing.mix(tf.cast(place, tf.uint32) + first) + key)
  # The upper 24 bits, at the middle of their interval.
  upper = tf.cast(tf.bitwise.right_shift(bits, hashing.uint(8)), tf.float32)
  return (upper + 0.5) * 2.0**-24


def integers(
  count: int,
  low: int,
  high: int,
  seed: int,
  step: tf.Tensor,
  purpose: str,
  share: Optional[Union[int, tf.Tensor]] = None,
) -> tf.Tensor:
  """Returns `count` int32 in [low, high], both ends among them."""
  num = high - low + 1
  places = uniform(count, seed, step, purpose, share) * num
  # Next to 1, a product in float32 may be rounded up to `num`.
  return low + tf.minimum(tf.cast(places, tf.int32), num - 1)
