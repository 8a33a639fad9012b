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
  v = unit(tf.matmul(u, tf.stop_gradient(w), transpose_b=True))
  if not update_u:
    # The product that gave `v` again, so that weights are read once.
    along_v = tf.matmul(u, w, transpose_b=True) * v
    return tf.reduce_sum(along_v, [-2, -1], keepdims=True), u
  along_u = tf.matmul(v, w)
  u = unit(tf.stop_gradient(along_u))
  return tf.reduce_sum(along_u * u, [-2, -1], keepdims=True), u


def unit(x: tf.Tensor) -> tf.Tensor:
  """Returns vectors `[..., 1, n]` of length 1."""
  squares = tf.reduce_sum(tf.square(x), [-2, -1], keepdims=True)
  return x * tf.math.rsqrt(squares + 1e-12)
