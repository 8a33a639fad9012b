"""How the replicas of one player agree.

An exchange acts at some moments of an update, and leaves all alone by default:

    grads = exchange.before_update(grads, phase, counts)          # on gradients
    updates = optimizer.updates(grads, weights)
    settled -= exchange.average_updates(updates, phase)           # on updates
    exchange.after_update(settled, state, phase, counts)          # on variables
    optimizer.look_ahead(exchange.ahead(updates), weights)

What is settled are the weights themselves, but for optimistic optimizers.

`phase` is a Python int, so whether to talk is settled when the step is traced.
`state` is what a net carries beside its weights: batch-norm statistics and
spectral-norm vectors. `counts` is what this replica counts in means: 1 where
all replicas play a player; where only some do, more than 1 for those and 0 for
the others. Players that move in the same turn and whose exchanges are alike
(`can_fuse_with`) talk in one go: the lists are then those of all of them.
"""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import gin
import tensorflow as tf

from paragan_tf import collectives

Logs = Dict[str, tf.Tensor]


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
    communicates: Whether anything is exchanged at all.
    supports_roles: Whether it heeds `counts`, so that a player may be played by
      some of the replicas only.
    mean_is_model: Whether the mean over replicas is what was learned; it is
      sampled from, exported, and resumed from with more or fewer replicas.
    takes_statistics: Whether `state` is to hold what a net carries.
    takes_moments: Whether it is to hold the optimizer's moments, too.
    log_names: Scalars that `after_update` returns.
    seed: The run's, for what is drawn; set by who makes a player.
  """

  period = 1
  replicas_agree = False
  communicates = False
  supports_roles = True
  mean_is_model = False
  takes_statistics = True
  takes_moments = False
  log_names: Tuple[str, ...] = ()
  seed = 0

  def __init__(self, name: str = "exchange"):
    super().__init__(name=name)

  @property
  def summed(self) -> Sequence[tf.Variable]:
    """State of which, with more or fewer replicas, the sum is kept.

    A checkpoint without it had nothing to keep.
    """
    return ()

  @property
  def residual_targets(self) -> Mapping[str, Tuple[str, int, int]]:
    """What takes up state that is summed, if this exchange has none of it.

    For each variable's name: that of a vector, its size, and where in it the
    part starts that belongs to the variable.
    """
    return {}

  def init(self, weights: Sequence[tf.Variable]) -> None:
    """Makes the state that `weights` need; under a strategy's scope."""
    del weights

  def before_update(
    self,
    grads: Sequence[tf.Tensor],
    phase: int,
    counts: Optional[Counts] = None,
  ) -> List[tf.Tensor]:
    """Returns the gradients to apply. Replica context."""
    del phase, counts
    return list(grads)

  def average_updates(
    self, updates: Sequence[tf.Tensor], phase: int
  ) -> Sequence[tf.Tensor]:
    """Returns what to subtract from what is settled. Replica context."""
    del phase
    return updates

  def ahead(self, updates: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Returns how this replica expects the next update to be."""
    return updates

  def after_update(
    self,
    weights: Sequence[tf.Variable],
    state: Sequence[tf.Variable],
    phase: int,
    counts: Optional[Counts] = None,
  ) -> Logs:
    """Changes the variables after the update. Replica context."""
    del weights, state, phase, counts
    return {}

  def can_fuse_with(self, other: "Exchange") -> bool:
    """Returns whether one of the two can talk for both."""
    del other
    return False

  def num_bytes(
    self,
    weights: Sequence[tf.Variable],
    state: Sequence[tf.Variable],
    phase: int,
  ) -> int:
    """Returns the bytes that a replica has to say in a phase.

    That is before any algorithm of the transport: a mean over all is the size
    of what is averaged, of which a ring of M passes 2 (M - 1) / M on; a gather
    is one message, which a ring passes on M - 1 times. What goes to others one
    by one, as with neighbors, counts for each of them, and is what the wire
    carries. The suite `wire` turns one into the other.
    """
    del weights, state, phase
    return 0

  def num_bytes_received(
    self,
    weights: Sequence[tf.Variable],
    state: Sequence[tf.Variable],
    phase: int,
  ) -> int:
    """Returns the bytes of what others say to it; by default as many."""
    return self.num_bytes(weights, state, phase)

  def summary(self) -> str:
    """Returns what it is, in a few words."""
    return type(self).__name__


@gin.register
class AllReduce(Exchange):
  """Averages gradients at every step, so that all replicas stay equal."""

  replicas_agree = True
  communicates = True

  def before_update(self, grads, phase, counts=None):
    """Returns the mean gradients."""
    del phase
    return collectives.mean(grads, counts and counts.weights)

  def after_update(self, weights, state, phase, counts=None):
    """Averages what each replica saw of its own batch."""
    del weights, phase
    settle(state, counts and counts.state)
    return {}

  def can_fuse_with(self, other):
    """Returns whether the other one averages gradients too."""
    return type(other) is type(self)

  def num_bytes(self, weights, state, phase):
    """Returns the size of gradients and state."""
    del phase
    return size_in_bytes([*weights, *state])


@gin.register
class Periodic(Exchange):
  """Averages weights every `period` steps and trains alone in between."""

  communicates = True

  def __init__(self, period: int = 2, name: str = "periodic"):
    super().__init__(name=name)
    if period < 1:
      raise ValueError(f"`period` must be at least 1, got {period}.")
    self.period = period

  def after_update(self, weights, state, phase, counts=None):
    """Averages on the last step of each period."""
    if phase % self.period == self.period - 1:
      settle([*weights, *state], counts and [*counts.weights, *counts.state])
    return {}

  def can_fuse_with(self, other):
    """Returns whether the other one averages at the same steps."""
    return type(other) is type(self) and other.period == self.period

  def num_bytes(self, weights, state, phase):
    """Returns the size of weights and state, on the last step of a period."""
    talks = phase % self.period == self.period - 1
    return size_in_bytes([*weights, *state]) if talks else 0


def size_in_bytes(variables: Sequence[tf.Variable]) -> int:
  """Returns the size of variables; 0 if there is nobody to give them to."""
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
