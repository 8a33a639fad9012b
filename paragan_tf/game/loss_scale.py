"""Loss scaling, with which float16 gradients do not vanish.

Float16 rounds numbers below 3e-8 to 0, and gradients of nets are often smaller.
So the loss is multiplied by a scale before its gradient is taken, and gradients
are divided by it when they are float32 again (arXiv 1710.03740):

    grads = gradient of scale * loss
    grads = mean over replicas                # not finite if one of them is not
    grads, finite = loss_scale.unscale(grads)
    update weights, slots and t               # only if finite
    loss_scale.update(finite)                 # finds the largest useful scale

A scale is a power of 2, so that scaling does not round.
"""

import math
from typing import List, Sequence, Tuple

import gin
import tensorflow as tf


@gin.configurable
class LossScale(tf.Module):
  """The scale of one player's loss, as large as its gradients allow.

  Replicas decide together where they all-reduce gradients, as a mean with an
  infinite part is infinite on all of them. Elsewhere each decides for itself.

  Args:
    initial: The scale at first; a power of 2.
    growth_steps: Updates with finite gradients after which the scale doubles.
    dynamic: Whether the scale changes; steps whose gradients are not finite are
      skipped in either case.
    name: Of its variables.
  """

  def __init__(
    self,
    initial: float = 2.0**15,
    growth_steps: int = 2000,
    dynamic: bool = True,
    name: str = "loss_scale",
  ):
    super().__init__(name=name)
    if initial < 1 or math.frexp(initial)[0] != 0.5:
      raise ValueError(
        f"`initial` of a `LossScale` must be 1, 2, 4 or another power of 2, "
        f"got {initial}: take {2 ** max(0, round(math.log2(max(initial, 1))))}."
      )
    if growth_steps < 1:
      raise ValueError(
        f"`growth_steps` of a `LossScale` must be at least 1, got "
        f"{growth_steps}; for a scale that stays, set `dynamic` to False."
      )
    self._initial = float(initial)
    self._growth_steps = growth_steps
    self._dynamic = dynamic
    self.scale: tf.Variable = None
    self.good_steps: tf.Variable = None

  def init(self) -> None:
    """Creates the variables, in a strategy's scope."""
    self.scale = tf.Variable(
      self._initial, trainable=False, name=f"{self.name}/scale"
    )
    self.good_steps = tf.Variable(
      tf.zeros([], tf.int64), trainable=False, name=f"{self.name}/good_steps"
    )

  def value(self) -> tf.Tensor:
    """Returns the scale, a float32 scalar. Replica context."""
    return tf.convert_to_tensor(self.scale)

  def unscale(
    self, grads: Sequence[tf.Tensor]
  ) -> Tuple[List[tf.Tensor], tf.Tensor]:
    """Returns the gradients of the loss itself, and whether all are finite.

    If one is not, all are 0.
    """
    factor = 1.0 / self.value()
    grads = [grad * tf.cast(factor, grad.dtype) for grad in grads]
    finite = tf.reduce_all(
      [tf.reduce_all(tf.math.is_finite(grad)) for grad in grads]
    )
    return [tf.where(finite, g, tf.zeros_like(g)) for g in grads], finite

  def update(self, finite: tf.Tensor) -> None:
    """Adapts the scale to whether gradients were finite. Replica context."""
    if not self._dynamic:
      return
    good_steps = tf.convert_to_tensor(self.good_steps)
    scale, good_steps = next_scale(
      self.value(), good_steps, finite, self._growth_steps
    )
    self.scale.assign(scale)
    self.good_steps.assign(good_steps)


def next_scale(
  scale: tf.Tensor, good_steps: tf.Tensor, finite: tf.Tensor, growth_steps: int
) -> Tuple[tf.Tensor, tf.Tensor]:
  """Returns the next scale, and the good steps since it last changed.

  It is halved, but stays at least 1, when gradients are not finite. It is
  doubled, if that is finite, after `growth_steps` good steps.
  """
  good_steps = tf.where(finite, good_steps + 1, 0)
  grows = good_steps >= growth_steps
  doubled = tf.where(tf.math.is_finite(2.0 * scale), 2.0 * scale, scale)
  halved = tf.maximum(0.5 * scale, 1.0)
  scale = tf.where(finite, tf.where(grows, doubled, scale), halved)
  return scale, tf.where(grows, tf.zeros_like(good_steps), good_steps)
