"""A hash in TensorFlow: its own stateless numbers differ under XLA."""

import tensorflow as tf


def mixed(x: tf.Tensor) -> tf.Tensor:
  """Mixes 32 bits: two rounds of multiply and shift, a bijection."""
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, uint(shift)))
    x *= uint(factor)
  return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, uint(16)))


def uint(value: int) -> tf.Tensor:
  """Returns a number of 32 bits."""
  return tf.constant(value, tf.uint32)
