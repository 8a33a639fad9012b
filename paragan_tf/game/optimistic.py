"""Optimizers that expect an update to be as the last one was.

For players who move at the same time, or see each other late: plain descent
turns in circles there, or runs away. With `u` the last update,

    z = x - u        # The weights of the net: the gradient is taken here.
    x = x - u'       # What is settled, a slot `base`; u' is made of it.

which for one who is alone is `z' = z - 2 u' + u`, Daskalakis et al., arXiv
1711.00141. An exchange between replicas mixes `x`, and never sees `z`.
"""

from typing import Sequence

import gin
import tensorflow as tf

from paragan_tf.game.optimizers import (
  Adam,
  LearningRate,
  Optimizer,
  adam_update,
  sgd_update,
)


class Optimistic(Optimizer):
  """Keeps what is settled apart from where the gradient is taken.

  `base` starts as the weights are when the first update comes, not at `init`,
  so weights that were restored in between count.
  """

  @property
  def moments(self):
    """All slots but `base`."""
    return tuple(name for name in self.slot_names if name != "base")

  def begin(self, weights: Sequence[tf.Variable]) -> None:
    """Takes `weights` for settled until there has been an update."""

    def start():
      for x, z in zip(self.slots["base"], weights):
        x.assign(z)

    tf.cond(tf.equal(self.t, 0), start, lambda: None)

  def settled(self, weights):
    """Returns `base`."""
    del weights
    return self.slots["base"]

  def look_ahead(self, ahead, weights):
    """Sets the weights to where they would be after one more such update."""
    for x, z, u in zip(self.slots["base"], weights, ahead):
      z.assign(x - u)


@gin.register
class OptimisticSGD(Optimistic):
  """Optimistic gradient descent."""

  slot_names = ("base",)

  def __init__(
    self, learning_rate: LearningRate = 1e-2, name: str = "optimistic_sgd"
  ):
    super().__init__(learning_rate, name)

  def _update(self, g, w, slots, t, alpha):
    return sgd_update(g, alpha)


@gin.register
class OptimisticAdam(Optimistic, Adam):
  """Optimistic Adam, Algorithm 1 of the paper."""

  slot_names = ("m", "v", "base")
  update_fn = staticmethod(adam_update)

  def __init__(
    self,
    learning_rate: LearningRate = 2e-4,
    beta1: float = 0.0,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "optimistic_adam",
  ):
    Adam.__init__(self, learning_rate, beta1, beta2, epsilon, name)
