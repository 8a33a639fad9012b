"""Scales the learning rate of an optimizer, whatever rate it has.

For batches of another size than the one that the rate was chosen for.
"""

from typing import Any

import tensorflow as tf

from paragan_tf.game.optimizers import LearningRate, Optimizer


def scale_rate(
  optimizer: Optimizer, factor: float = 1.0, warm_up_steps: int = 0
) -> Optimizer:
  """Returns the optimizer with its rate scaled, after a linear warm-up from 0.

  Args:
    optimizer: Whose rate is changed, with that of one inside of it.
    factor: What the rate is multiplied by.
    warm_up_steps: Updates in which the rate rises.
  """
  if not factor > 0:
    raise ValueError(f"`rate_factor` must be above 0, got {factor}.")
  if not isinstance(warm_up_steps, int) or warm_up_steps < 0:
    raise ValueError(
      f"`warm_up_steps` must be an integer, at least 0, got {warm_up_steps!r}."
    )
  if factor == 1 and not warm_up_steps:
    return optimizer
  rate = _scaled(optimizer.learning_rate, factor, warm_up_steps)
  part: Any = optimizer
  while part is not None:
    part.learning_rate = rate
    part = getattr(part, "inner", None)
  return optimizer


def _scaled(
  rate: LearningRate, factor: float, warm_up_steps: int
) -> LearningRate:
  def at(t: tf.Tensor) -> tf.Tensor:
    base = tf.cast(rate(t) if callable(rate) else rate, tf.float64)
    if not warm_up_steps:
      return factor * base
    done = (tf.cast(t, tf.float64) + 1.0) / warm_up_steps
    return factor * tf.minimum(done, 1.0) * base

  return at
