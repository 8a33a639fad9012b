"""Optimizers that expect an update to change as it last did.

For players who move at the same time, or see each other late: plain descent
turns in circles there, or runs away.
"""

import gin
import tensorflow as tf

from paragan_tf.game.optimizers import (
  Adam,
  LearningRate,
  Optimizer,
  Tensors,
  adam_update,
)


def optimistic_sgd_update(g, f, alpha) -> Tensors:
  """Daskalakis et al., arXiv 1711.00141; `f` is the last gradient."""
  alpha = tf.cast(alpha, g.dtype)
  return alpha * (2 * g - f), g


@gin.register
class OptimisticSGD(Optimizer):
  """Optimistic gradient descent."""

  slot_names = ("f",)

  def __init__(
    self, learning_rate: LearningRate = 1e-2, name: str = "optimistic_sgd"
  ):
    super().__init__(learning_rate, name)

  def _update(self, g, w, slots, t, alpha):
    return optimistic_sgd_update(g, *slots, alpha)


def optimistic_adam_update(
  g, m, v, u, t, alpha, beta1, beta2, epsilon
) -> Tensors:
  """Daskalakis et al., arXiv 1711.00141, Algorithm 1: 2 u_t - u_(t-1)."""
  last = u
  u, m, v = adam_update(g, m, v, t, alpha, beta1, beta2, epsilon)
  return 2 * u - last, m, v, u


@gin.register
class OptimisticAdam(Adam):
  """Optimistic Adam."""

  slot_names = ("m", "v", "u")
  update_fn = staticmethod(optimistic_adam_update)

  def __init__(
    self,
    learning_rate: LearningRate = 2e-4,
    beta1: float = 0.0,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "optimistic_adam",
  ):
    super().__init__(learning_rate, beta1, beta2, epsilon, name)
