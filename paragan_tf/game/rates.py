"""Learning rates that change: from the count of updates to the next rate.

In gin: `d/optimizers.Adam.learning_rate = @rates.cosine()`, its values under
the same scope, `d/rates.cosine.num_steps = 100_000`.
"""

import math
from typing import Callable

import gin
import tensorflow as tf

# From the count of updates done, an int64 scalar, to the rate, float64.
Rate = Callable[[tf.Tensor], tf.Tensor]


@gin.register
def constant(rate: float, warm_up_steps: int = 0) -> Rate:
  """Stays, after a linear warm-up from 0."""
  return _made(rate, 1, rate, warm_up_steps, lambda done: 0.0 * done)


@gin.register
def linear(
  rate: float, num_steps: int, final_rate: float = 0.0, warm_up_steps: int = 0
) -> Rate:
  """Falls on a line to `final_rate` at `num_steps`, and stays there."""
  return _made(rate, num_steps, final_rate, warm_up_steps, lambda done: done)


@gin.register
def cosine(
  rate: float, num_steps: int, final_rate: float = 0.0, warm_up_steps: int = 0
) -> Rate:
  """Falls on half a cosine to `final_rate`, as arXiv 1608.03983 has it."""

  def fallen(done):
    return 0.5 * (1.0 - tf.cos(math.pi * done))

  return _made(rate, num_steps, final_rate, warm_up_steps, fallen)


def _made(rate, num_steps, final_rate, warm_up_steps, fallen) -> Rate:
  """Returns the rate; `fallen` maps the share of steps done to [0, 1]."""
  if rate <= 0 or final_rate < 0:
    raise ValueError(
      "`rate` must be above 0 and `final_rate` not below, got "
      f"{rate} and {final_rate}."
    )
  if warm_up_steps < 0 or num_steps <= (0 if num_steps == 1 else warm_up_steps):
    raise ValueError(
      "`num_steps` must be more than `warm_up_steps`, and that at least 0, "
      f"got {num_steps} and {warm_up_steps}."
    )

  def at(t: tf.Tensor) -> tf.Tensor:
    t = tf.cast(t, tf.float64)
    span = max(1, num_steps - warm_up_steps)
    done = tf.clip_by_value((t - warm_up_steps) / span, 0.0, 1.0)
    falling = rate + (final_rate - rate) * fallen(done)
    if not warm_up_steps:
      return falling
    return tf.minimum((t + 1.0) / warm_up_steps, 1.0) * falling

  return at
