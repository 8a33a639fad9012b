"""A 32-bit hash: TensorFlow's stateless random numbers differ under XLA."""

import tensorflow as tf


def mix(x: tf.Tensor) -> tf.Tensor:
  """Mixes 32 bits, bijectively: xor-shift and multiply, twice."""
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, uint(shift)))
    x *= uint(factor)
  return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, uint(16)))


def uint(value: int) -> tf.Tensor:
  """Returns `value` as a constant of 32 bits."""
  return tf.constant(value, tf.uint32)
