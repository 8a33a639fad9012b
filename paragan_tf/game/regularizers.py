"""Penalties on a player's weights, added to its loss."""

from typing import Callable, Sequence

import gin
import tensorflow as tf

from paragan_tf.game.number_checks import check_positive
from paragan_tf.hardware import resolve_layout

# From a player's weights to a scalar.
Regularizer = Callable[[Sequence[tf.Variable]], tf.Tensor]


@gin.register
def l2(scale: float = 1e-4) -> Regularizer:
  """`scale / 2` times the sum of squares of all kernels, without biases."""
  check_positive("scale", scale)

  def penalty(weights):
    kernels = [w for w in weights if w.shape.rank > 1]
    return scale * tf.add_n([tf.nn.l2_loss(w) for w in kernels])

  return penalty


@gin.register
def orthogonal(scale: float = 1e-4) -> Regularizer:
  """BigGAN's (arXiv 1809.11096, eq. 3): off-diagonal products of filters.

  `scale * ||W^T W * (1 - I)||^2`, each kernel as a matrix with a column for
  each output. All kernels count, even BigGAN's shared embedding, which the
  authors' code leaves out.
  """
  check_positive("scale", scale)
  on_short_side = resolve_layout().gram_on_short_side

  def penalty(weights):
    kernels = [w for w in weights if w.shape.rank > 1]
    return scale * tf.add_n([_off_diagonal(w, on_short_side) for w in kernels])

  return penalty


def _off_diagonal(w: tf.Variable, on_short_side: bool) -> tf.Tensor:
  matrix = tf.reshape(w, [-1, w.shape[-1]])
  if on_short_side:
    return _off_diagonal_on_short_side(matrix)
  products = tf.matmul(matrix, matrix, transpose_a=True)
  diagonal = tf.linalg.diag_part(products)
  return tf.reduce_sum(products**2) - tf.reduce_sum(diagonal**2)


@tf.custom_gradient
def _off_diagonal_on_short_side(w: tf.Tensor) -> tf.Tensor:
  """Returns the same, from the smaller of `W^T W` and `W W^T`.

  Both have the same norm, and one may be a thousand times larger. The gradient
  `4 (W W^T W - W diag)` is one more product; TensorFlow's would be two.
  """
  if w.shape[0] >= w.shape[1]:
    # Without its diagonal, the product needs no other pass over the weights.
    products = tf.matmul(w, w, transpose_a=True)
    products = tf.linalg.set_diag(products, tf.zeros_like(products[0]))
    penalty = tf.reduce_sum(products**2)
    return penalty, lambda dy: 4.0 * dy * tf.matmul(w, products)
  products = tf.matmul(w, w, transpose_b=True)
  diagonal = tf.reduce_sum(w**2, 0)

  def grad(dy):
    return 4.0 * dy * (tf.matmul(products, w) - w * diagonal)

  return tf.reduce_sum(products**2) - tf.reduce_sum(diagonal**2), grad
