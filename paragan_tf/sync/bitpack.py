"""32-bit words: packed codes and random numbers.

Collectives support no integers shorter than int32, so several codes share a
word.
"""

import functools
from typing import Sequence, Union

import tensorflow as tf

from paragan_tf import hashing

# Two int32, which determine the random numbers.
Seed = Union[tf.Tensor, Sequence[int]]


def num_words(count: int, bits: int) -> int:
  """Returns the number of words that hold `count` codes of `bits` bits."""
  return -(-count // (32 // bits))


def pack(codes: tf.Tensor, bits: int) -> tf.Tensor:
  """Packs `32 // bits` codes into each int32 word.

  No code is split between words, so 7 bits take as much space as 8.

  Args:
    codes: Integers in [0, 2^bits), int32, `[n]`.
    bits: Bits per code.
  """
  count, num = codes.shape[0], num_words(codes.shape[0], bits)
  per_word = 32 // bits
  # Consecutive codes go to different words, so that each row is contiguous.
  padded = tf.pad(codes, [[0, per_word * num - count]])
  rows = tf.reshape(padded, [per_word, num])
  shifted = tf.bitwise.left_shift(rows, _shifts(bits))
  return functools.reduce(tf.bitwise.bitwise_or, tf.unstack(shifted))


def unpack(words: tf.Tensor, bits: int, count: int) -> tf.Tensor:
  """Returns the `count` codes of packed words."""
  rows = tf.bitwise.right_shift(words[tf.newaxis], _shifts(bits))
  codes = tf.bitwise.bitwise_and(rows, tf.constant(2**bits - 1, tf.int32))
  return tf.reshape(codes, [-1])[:count]


def _shifts(bits: int) -> tf.Tensor:
  return bits * tf.range(32 // bits, dtype=tf.int32)[:, tf.newaxis]


def uniform(count: int, seed: Seed) -> tf.Tensor:
  """Returns `count` random numbers in (0, 1], float32."""
  # The upper 24 bits select an interval; its midpoint is returned.
  upper = tf.bitwise.right_shift(_random_words(count, seed), hashing.uint(8))
  return (tf.cast(upper, tf.float32) + 0.5) * 2.0**-24


def integers(count: int, seed: Seed) -> tf.Tensor:
  """Returns `count` random integers of 31 bits, int32."""
  return tf.bitcast(
    tf.bitwise.right_shift(_random_words(count, seed), hashing.uint(1)),
    tf.int32,
  )


def _random_words(count: int, seed: Seed) -> tf.Tensor:
  """Returns `count` random words, uint32.

  They are hashes of the index and the seed, in basic ops: TensorFlow's
  stateless generators return other numbers under XLA.
  """
  seed = tf.bitcast(tf.convert_to_tensor(seed, tf.int32), tf.uint32)
  # The hash of 0 is 0, and seeds start at 0.
  key = hashing.mix(hashing.mix(seed[0] + hashing.uint(0x9E3779B9)) + seed[1])
  index = tf.cast(tf.range(count, dtype=tf.int32), tf.uint32)
  return hashing.mix(hashing.mix(index) + key)
