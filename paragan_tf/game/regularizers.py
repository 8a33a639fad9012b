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
  each output.
  """
  _check(scale)
  smaller = Layout().smaller_gram

  def penalty(weights):
    kernels = [w for w in weights if w.shape.rank > 1]
    return scale * tf.add_n([_off_diagonal(w, smaller) for w in kernels])

  return penalty


def _off_diagonal(w: tf.Variable, smaller: bool) -> tf.Tensor:
  matrix = tf.reshape(w, [-1, w.shape[-1]])
  if smaller and matrix.shape[0] < matrix.shape[1]:
    # `W W^T` has the norm of `W^T W`, and may be a thousand times smaller.
    products = tf.matmul(matrix, matrix, transpose_b=True)
    diagonal = tf.reduce_sum(matrix**2, 0)
  else:
    products = tf.matmul(matrix, matrix, transpose_a=True)
    diagonal = tf.linalg.diag_part(products)
  return tf.reduce_sum(products**2) - tf.reduce_sum(diagonal**2)


def _check(scale: float) -> None:
  if scale <= 0:
    raise ValueError(f"`scale` must be above 0, got {scale}.")
