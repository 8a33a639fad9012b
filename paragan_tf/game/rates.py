"""Learning-rate schedules: functions of the number of updates so far.

In gin: `d/optimizers.Adam.learning_rate = @rates.cosine()`, with its arguments
in the same scope, `d/rates.cosine.num_steps = 100_000`.
"""

import math
from typing import Callable

import gin
import tensorflow as tf

# Maps the number of updates so far, an int64 scalar, to the rate, float64.
Rate = Callable[[tf.Tensor], tf.Tensor]


@gin.register
def constant(rate: float, warm_up_steps: int = 0) -> Rate:
  """Returns a constant rate, after a linear warm-up from 0."""
  return _make_rate(rate, 1, rate, warm_up_steps, lambda done: 0.0 * done)


@gin.register
def linear(
  rate: float, num_steps: int, final_rate: float = 0.0, warm_up_steps: int = 0
) -> Rate:
  """Returns linear decay to `final_rate` at `num_steps`, then constant."""
  return _make_rate(
    rate, num_steps, final_rate, warm_up_steps, lambda done: done
  )


@gin.register
def cosine(
  rate: float, num_steps: int, final_rate: float = 0.0, warm_up_steps: int = 0
) -> Rate:
  """Returns cosine decay to `final_rate` (arXiv 1608.03983), then constant."""

  def decay_fn(done):
    return 0.5 * (1.0 - tf.cos(math.pi * done))

  return _make_rate(rate, num_steps, final_rate, warm_up_steps, decay_fn)


def _make_rate(rate, num_steps, final_rate, warm_up_steps, decay_fn) -> Rate:
  """Returns a rate with a warm-up.

  Args:
    rate: At the start of the decay.
    num_steps: End of the decay.
    final_rate: At the end of the decay.
    warm_up_steps: Steps in which the rate rises from 0.
    decay_fn: Maps the progress, in [0, 1], to the decayed part, in [0, 1].
  """
  if rate <= 0 or final_rate < 0:
    raise ValueError(
      "`rate` must be above 0 and `final_rate` at least 0, got "
      f"{rate} and {final_rate}."
    )
  if warm_up_steps < 0 or num_steps <= (0 if num_steps == 1 else warm_up_steps):
    raise ValueError(
      "`num_steps` must be above `warm_up_steps`, which must be at least 0, "
      f"got {num_steps} and {warm_up_steps}."
    )

  def at(t: tf.Tensor) -> tf.Tensor:
    t = tf.cast(t, tf.float64)
    span = max(1, num_steps - warm_up_steps)
    done = tf.clip_by_value((t - warm_up_steps) / span, 0.0, 1.0)
    decayed = rate + (final_rate - rate) * decay_fn(done)
    if not warm_up_steps:
      return decayed
    return tf.minimum((t + 1.0) / warm_up_steps, 1.0) * decayed

  return at
