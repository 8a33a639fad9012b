"""Optimistic optimizers: they predict that the next update equals the last one.

For players that update at the same time, or see each other late: plain
gradient descent cycles or diverges there. With `u` the last update,

    z = x - u        # The weights of the net: the gradient is taken here.
    x = x - u'       # The base weights, slot `base`; u' uses that gradient.

which on one replica is `z' = z - 2 u' + u`, Daskalakis et al., arXiv
1711.00141. An exchange between replicas averages `x`, and never sees `z`.
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
  """Keeps the base weights apart from where the gradient is taken.

  `base` is copied from the weights at the first update, not at `init`, so that
  weights restored in between are used.
  """

  @property
  def moments(self):
    """All slots but `base`."""
    return tuple(name for name in self.slot_names if name != "base")

  def begin(self, weights: Sequence[tf.Variable]) -> None:
    """Copies `weights` to `base` before the first update."""

    def start():
      for x, z in zip(self.slots["base"], weights):
        x.assign(z)

    tf.cond(tf.equal(self.t, 0), start, lambda: None)

  def base(self, weights):
    """Returns the slot `base`."""
    del weights
    return self.slots["base"]

  def look_ahead(self, ahead, weights):
    """Sets the weights to `base - ahead`."""
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
