"""The spectral norm as SNGAN estimates it (arXiv 1802.05957, Algorithm 1)."""

from typing import Tuple

import tensorflow as tf


def norm(
  w: tf.Tensor, u: tf.Tensor, update_u: bool
) -> Tuple[tf.Tensor, tf.Tensor]:
  """Returns the norm of matrices, `[..., 1, 1]`, and the vectors `u`.

  Args:
    w: `[..., rows, columns]`.
    u: The right singular vectors so far, `[..., 1, columns]`.
    update_u: Whether to make a power iteration.
  """
  constant = tf.stop_gradient(w)
  v = unit(tf.matmul(u, constant, transpose_b=True))
  if update_u:
    u = unit(tf.matmul(v, constant))
  return tf.reduce_sum(tf.matmul(v, w) * u, [-2, -1], keepdims=True), u


def unit(x: tf.Tensor) -> tf.Tensor:
  """Returns vectors `[..., 1, n]` of length 1."""
  squares = tf.reduce_sum(tf.square(x), [-2, -1], keepdims=True)
  return x * tf.math.rsqrt(squares + 1e-12)
