"""How the replicas of one player agree.

An exchange acts at two moments of an update, and leaves both alone by default:

    grads = exchange.before_update(grads, phase, counts)          # on gradients
    optimizer.apply(grads, weights)
    exchange.after_update(weights, state, phase, counts)          # on variables

`phase` is a Python int, so whether to talk is settled when the step is traced.
`state` is what a net carries beside its weights: batch-norm statistics and
spectral-norm vectors. `counts` is what this replica counts in means: 1 where
all replicas play a player; where only some do, more than 1 for those and 0 for
the others. Players that move in the same turn and whose exchanges are alike
(`is_like`) talk in one go: the lists are then those of all of them.
"""

from typing import List, NamedTuple, Optional, Sequence

import gin
import tensorflow as tf

from paragan_tf import collectives


class Counts(NamedTuple):
  """What this replica counts in the means of each tensor."""

  weights: List[collectives.Weight]
  state: List[collectives.Weight]


@gin.register
class Exchange(tf.Module):
  """Trains alone: nothing is exchanged.

  Attributes:
    period: Steps after which the exchange repeats itself.
    replicas_agree: Whether all replicas hold the same values after every step;
      if not, a checkpoint keeps each replica's own.
    talks: Whether anything is exchanged at all.
  """

  period = 1
  replicas_agree = False
  talks = False

  def __init__(self, name: str = "exchange"):
    super().__init__(name=name)

  def before_update(
    self,
    grads: Sequence[tf.Tensor],
    phase: int,
    counts: Optional[Counts] = None,
  ) -> List[tf.Tensor]:
    """Returns the gradients to apply. Replica context."""
    del phase, counts
    return list(grads)

  def after_update(
    self,
    weights: Sequence[tf.Variable],
    state: Sequence[tf.Variable],
    phase: int,
    counts: Optional[Counts] = None,
  ) -> None:
    """Changes the variables after the update. Replica context."""
    del weights, state, phase, counts

  def is_like(self, other: "Exchange") -> bool:
    """Returns whether one of the two can talk for both."""
    del other
    return False

  def num_bytes(
    self,
    weights: Sequence[tf.Variable],
    state: Sequence[tf.Variable],
    phase: int,
  ) -> int:
    """Returns the bytes that a replica gives to others in a phase."""
    del weights, state, phase
    return 0


@gin.register
class AllReduce(Exchange):
  """Averages gradients at every step, so that all replicas stay equal."""

  replicas_agree = True
  talks = True

  def before_update(self, grads, phase, counts=None):
    """Returns the mean gradients."""
    del phase
    return collectives.mean(grads, counts and counts.weights)

  def after_update(self, weights, state, phase, counts=None):
    """Averages what each replica saw of its own batch."""
    del weights, phase
    settle(state, counts and counts.state)

  def is_like(self, other):
    """Returns whether the other one averages gradients too."""
    return type(other) is type(self)

  def num_bytes(self, weights, state, phase):
    """Returns the size of gradients and state."""
    del phase
    return _num_bytes([*weights, *state])


@gin.register
class Periodic(Exchange):
  """Averages weights every `period` steps and trains alone in between."""

  talks = True

  def __init__(self, period: int = 2, name: str = "periodic"):
    super().__init__(name=name)
    if period < 1:
      raise ValueError(f"`period` must be at least 1, got {period}.")
    self.period = period

  def after_update(self, weights, state, phase, counts=None):
    """Averages on the last step of each period."""
    if phase % self.period == self.period - 1:
      settle([*weights, *state], counts and [*counts.weights, *counts.state])

  def is_like(self, other):
    """Returns whether the other one averages at the same steps."""
    return type(other) is type(self) and other.period == self.period

  def num_bytes(self, weights, state, phase):
    """Returns the size of weights and state, on the last step of a period."""
    talks = phase % self.period == self.period - 1
    return _num_bytes([*weights, *state]) if talks else 0


def _num_bytes(variables: Sequence[tf.Variable]) -> int:
  if collectives.num_replicas() == 1:
    return 0
  return sum(v.shape.num_elements() * v.dtype.size for v in variables)


def settle(
  variables: Sequence[tf.Variable],
  counts: Optional[Sequence[collectives.Weight]] = None,
) -> None:
  """Gives every replica the mean of all. Replica context."""
  if collectives.num_replicas() == 1:
    return
  values = [tf.convert_to_tensor(variable) for variable in variables]
  for variable, value in zip(variables, collectives.mean(values, counts)):
    variable.assign(value)
