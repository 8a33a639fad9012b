"""What a player pays for its weights, added to its loss."""

from typing import Callable, Sequence

import gin
import tensorflow as tf

from paragan_tf.hardware import Layout

# From a player's weights to a scalar.
Regularizer = Callable[[Sequence[tf.Variable]], tf.Tensor]


@gin.register
def l2(scale: float = 1e-4) -> Regularizer:
  """`scale / 2` times the square of all kernels; biases are free."""
  _check(scale)

  def penalty(weights):
    kernels = [w for w in weights if w.shape.rank > 1]
    return scale * tf.add_n([tf.nn.l2_loss(w) for w in kernels])

  return penalty


@gin.register
def orthogonal(scale: float = 1e-4) -> Regularizer:
  """BigGAN's (arXiv 1809.11096, eq. 3): off-diagonal products of filters.

  `scale * ||W^T W * (1 - I)||^2`, each kernel as a matrix with a column for
  each output. All kernels count, BigGAN's shared embedding too, which the
  authors' code leaves out.
  """
  _check(scale)
  smaller = Layout().gram_on_short_side

  def penalty(weights):
    kernels = [w for w in weights if w.shape.rank > 1]
    return scale * tf.add_n([_off_diagonal(w, smaller) for w in kernels])

  return penalty


def _off_diagonal(w: tf.Variable, smaller: bool) -> tf.Tensor:
  matrix = tf.reshape(w, [-1, w.shape[-1]])
  if smaller:
    return _smaller_off_diagonal(matrix)
  products = tf.matmul(matrix, matrix, transpose_a=True)
  diagonal = tf.linalg.diag_part(products)
  return tf.reduce_sum(products**2) - tf.reduce_sum(diagonal**2)


@tf.custom_gradient
def _smaller_off_diagonal(w: tf.Tensor) -> tf.Tensor:
  """Returns the same, by the smaller one of `W^T W` and `W W^T`.

  Both have the same norm, and one may be a thousand times larger. The gradient
  `4 (W W^T W - W diag)` is one more product; TensorFlow would make two.
  """
  by_rows = w.shape[0] < w.shape[1]
  products = tf.matmul(w, w, transpose_a=not by_rows, transpose_b=by_rows)
  diagonal = tf.reduce_sum(w**2, 0)

  def grad(dy):
    cubic = tf.matmul(products, w) if by_rows else tf.matmul(w, products)
    return 4.0 * dy * (cubic - w * diagonal)

  return tf.reduce_sum(products**2) - tf.reduce_sum(diagonal**2), grad


def _check(scale: float) -> None:
  if scale <= 0:
    raise ValueError(f"`scale` must be above 0, got {scale}.")
