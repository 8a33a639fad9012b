"""How the replicas of one player agree.

An exchange acts at two moments of an update, and leaves both alone by default:

    grads = exchange.before_update(grads, phase)          # on gradients
    optimizer.apply(grads, weights)
    exchange.after_update(weights, state, phase)          # on variables

`phase` is a Python int, so whether to talk is settled when the step is traced.
`state` is what a net carries beside its weights: batch-norm statistics and
spectral-norm vectors.
"""

from typing import List, Sequence

import gin
import tensorflow as tf

from paragan_tf import collectives


@gin.register
class Exchange(tf.Module):
  """Trains alone: nothing is exchanged.

  Attributes:
    period: Steps after which the exchange repeats itself.
    replicas_agree: Whether all replicas hold the same values after every step;
      if not, a checkpoint keeps each replica's own.
  """

  period = 1
  replicas_agree = False

  def __init__(self, name: str = "exchange"):
    super().__init__(name=name)

  def before_update(
    self, grads: Sequence[tf.Tensor], phase: int
  ) -> List[tf.Tensor]:
    """Returns the gradients to apply. Replica context."""
    del phase
    return list(grads)

  def after_update(
    self,
    weights: Sequence[tf.Variable],
    state: Sequence[tf.Variable],
    phase: int,
  ) -> None:
    """Changes the variables after the update. Replica context."""
    del weights, state, phase


@gin.register
class AllReduce(Exchange):
  """Averages gradients at every step, so that all replicas stay equal."""

  replicas_agree = True

  def before_update(self, grads, phase):
    """Returns the mean gradients."""
    del phase
    return collectives.mean(grads)

  def after_update(self, weights, state, phase):
    """Averages what each replica saw of its own batch."""
    del weights, phase
    settle(state)


@gin.register
class Periodic(Exchange):
  """Averages weights every `period` steps and trains alone in between."""

  def __init__(self, period: int = 2, name: str = "periodic"):
    super().__init__(name=name)
    if period < 1:
      raise ValueError(f"`period` must be at least 1, got {period}.")
    self.period = period

  def after_update(self, weights, state, phase):
    """Averages on the last step of each period."""
    if phase % self.period == self.period - 1:
      settle([*weights, *state])


def settle(variables: Sequence[tf.Variable]) -> None:
  """Gives every replica the mean of all. Replica context."""
  if collectives.num_replicas() == 1:
    return
  values = [tf.convert_to_tensor(variable) for variable in variables]
  for variable, value in zip(variables, collectives.mean(values)):
    variable.assign(value)
