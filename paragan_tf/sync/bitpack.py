"""Words of 32 bits: short codes packed into them, and random ones.

Collectives carry int32 and nothing shorter, so what is to be short on the wire
must share words.
"""

import functools
from typing import Sequence, Union

import tensorflow as tf

from paragan_tf import hashing

# Two int32: a draw is a function of them.
Seed = Union[tf.Tensor, Sequence[int]]


def num_words(count: int, bits: int) -> int:
  """Returns how many words hold `count` codes of so many bits."""
  return -(-count // (32 // bits))


def packed(codes: tf.Tensor, bits: int) -> tf.Tensor:
  """Returns int32 words of `32 // bits` codes each.

  Codes never straddle words: those of 7 bits take as much as those of 8.

  Args:
    codes: Integers in [0, 2^bits), int32, `[n]`.
    bits: Bits of a code.
  """
  count, num = codes.shape[0], num_words(codes.shape[0], bits)
  fitting = 32 // bits
  # Neighbors go to different words, so that rows are read in one piece.
  rows = tf.reshape(tf.pad(codes, [[0, fitting * num - count]]), [fitting, num])
  shifted = tf.bitwise.left_shift(rows, _shifts(bits))
  return functools.reduce(tf.bitwise.bitwise_or, tf.unstack(shifted))


def unpacked(words: tf.Tensor, bits: int, count: int) -> tf.Tensor:
  """Returns the `count` codes that were packed."""
  rows = tf.bitwise.right_shift(words[tf.newaxis], _shifts(bits))
  codes = tf.bitwise.bitwise_and(rows, tf.constant(2**bits - 1, tf.int32))
  return tf.reshape(codes, [-1])[:count]


def _shifts(bits: int) -> tf.Tensor:
  return bits * tf.range(32 // bits, dtype=tf.int32)[:, tf.newaxis]


def uniform(count: int, seed: Seed) -> tf.Tensor:
  """Returns `count` random numbers in (0, 1], float32."""
  # The upper 24 bits, at the middle of their interval.
  upper = tf.bitwise.right_shift(_drawn(count, seed), hashing.uint(8))
  return (tf.cast(upper, tf.float32) + 0.5) * 2.0**-24


def integers(count: int, seed: Seed) -> tf.Tensor:
  """Returns `count` random numbers of 31 bits, int32."""
  return tf.bitcast(
    tf.bitwise.right_shift(_drawn(count, seed), hashing.uint(1)), tf.int32
  )


def _drawn(count: int, seed: Seed) -> tf.Tensor:
  """Returns `count` random words, uint32.

  The bits come from an integer hash in plain ops: TensorFlow's stateless
  generators give other numbers under XLA.
  """
  seed = tf.bitcast(tf.convert_to_tensor(seed, tf.int32), tf.uint32)
  # The hash of 0 is 0, and seeds start there.
  key = hashing.mix(hashing.mix(seed[0] + hashing.uint(0x9E3779B9)) + seed[1])
  place = tf.cast(tf.range(count, dtype=tf.int32), tf.uint32)
  return hashing.mix(hashing.mix(place) + key)
