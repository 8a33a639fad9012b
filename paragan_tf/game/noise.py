"""Stateless random numbers that do not depend on replicas or devices.

A number is a function of (seed, step, purpose) and of its position in the
global batch, of which each replica takes its shard. So a run does not depend on
the number of replicas.

TensorFlow's stateless generators return other numbers under XLA (also with
`alg="philox"`), so the bits come from an integer hash in plain ops, which is
the same on every device and in every engine.
"""

import zlib
from typing import Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from paragan_tf import collectives, hashing

# Of a run; a tensor where one trace serves several runs.
Seed = Union[int, tf.Tensor]


def normal(
  shape: Sequence[int],
  seed: Seed,
  step: tf.Tensor,
  purpose: str,
  shard: Optional[Union[int, tf.Tensor]] = None,
) -> tf.Tensor:
  """Returns standard normal numbers of one shard, `shape`.

  Args:
    shape: Of the shard.
    seed: Of the run.
    step: Count of steps.
    purpose: Name of what the numbers are used for.
    shard: Index of the shard; the replica's by default.
  """
  count = int(np.prod(shape))
  shard = collectives.replica_id() if shard is None else shard
  # Box-Muller transform.
  radius = tf.sqrt(
    -2.0 * tf.math.log(uniform(count, seed, step, purpose, shard))
  )
  angle = 2.0 * np.pi * uniform(count, seed, step, purpose, shard, 1)
  return tf.reshape(radius * tf.cos(angle), shape)


def uniform(
  count: int,
  seed: Seed,
  step: tf.Tensor,
  purpose: str,
  shard: Optional[Union[int, tf.Tensor]] = None,
  stream: int = 0,
) -> tf.Tensor:
  """Returns `count` uniform numbers in (0, 1) of one shard.

  Args:
    count: Numbers in the shard.
    seed: Of the run.
    step: Count of steps.
    purpose: Name of what the numbers are used for.
    shard: Index of the shard; the replica's by default.
    stream: Index of an independent sequence.
  """
  shard = collectives.replica_id() if shard is None else shard
  key = _key(seed, step, f"{purpose}/{stream}")
  first = tf.cast(shard, tf.uint32) * hashing.uint(count)
  position = tf.range(count, dtype=tf.int32)
  bits = hashing.mix(hashing.mix(tf.cast(position, tf.uint32) + first) + key)
  # The upper 24 bits, at the middle of their interval: never 0 or 1.
  upper = tf.cast(tf.bitwise.right_shift(bits, hashing.uint(8)), tf.float32)
  return (upper + 0.5) * 2.0**-24


def integers(
  count: int,
  low: int,
  high: int,
  seed: Seed,
  step: tf.Tensor,
  purpose: str,
  shard: Optional[Union[int, tf.Tensor]] = None,
) -> tf.Tensor:
  """Returns `count` uniform int32 in [low, high], both included."""
  num = high - low + 1
  scaled = uniform(count, seed, step, purpose, shard) * num
  # Close to 1, a product in float32 may be rounded up to `num`.
  return low + tf.minimum(tf.cast(scaled, tf.int32), num - 1)


def _key(seed: Seed, step: tf.Tensor, stream: str) -> tf.Tensor:
  is_traced = tf.is_tensor(seed)
  name = f"{stream}/{'traced' if is_traced else seed}"
  salt = hashing.uint(zlib.crc32(name.encode()))
  key = hashing.mix(tf.bitwise.bitwise_xor(tf.cast(step, tf.uint32), salt))
  if not is_traced:
    return key
  # The hash of 0 is 0, so that it is moved first.
  return hashing.mix(key + hashing.mix(tf.cast(seed, tf.uint32) + salt))
