"""Exchanges: how the replicas of one player agree.

An exchange is called at four moments of an update, and by default changes
nothing:

    grads = exchange.accumulate(grads, phase)                  # on one replica
    if not exchange.applies(phase): return                     # no update yet
    grads = exchange.before_update(grads, phase, counts)       # on gradients
    updates = optimizer.updates(grads, weights)
    base -= exchange.average_updates(updates, phase)           # on updates
    exchange.after_update(base, state, phase, counts)          # on variables
    optimizer.look_ahead(updates, weights)

The base weights are the weights themselves, except with optimistic optimizers.

`phase` is a Python int, so whether to communicate is known while the step is
traced. It counts steps; if an update takes several moves of the player
(`moves_per_update`), it counts these, of which a step may have more than one.
`state` holds the variables of a player, beside its weights, that
`exchanged_state` names. `counts` are the weights of this replica in means: 1 if
all replicas train a player; if only some do, more than 1 for those and 0 for
the others. Players of one turn whose exchanges can be fused (`can_fuse_with`)
send one message: each list then holds the tensors of all of them.
"""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import gin
import tensorflow as tf

from paragan_tf import collectives

Logs = Dict[str, tf.Tensor]


class Counts(NamedTuple):
  """The weights of this replica in the means of each tensor."""

  weights: List[collectives.Weight]
  state: List[collectives.Weight]


class Traffic(NamedTuple):
  """Bytes of one replica in one phase.

  They do not depend on the algorithm of the collective: an all-reduce counts as
  the size of its input, of which a ring of M sends 2 (M - 1) / M; an all-gather
  counts as one message, which a ring forwards M - 1 times. A message to a
  neighbor counts as its size, once for each neighbor. The suite `wire` converts
  these numbers into bytes on the wire.
  """

  sent: int = 0
  received: int = 0


@gin.register
class Exchange(tf.Module):
  """Communicates nothing: each replica trains alone.

  Attributes:
    period: Steps after which the exchange repeats.
    moves_per_update: Moves of the player whose gradients make one update.
    shares_gradients: Whether all replicas apply the same gradients: weights and
      optimizers are then equal on all of them.
    replicas_agree: Whether all replicas hold the same values after every step.
    agrees_after_period: Whether they hold the same weights and statistics after
      each period. If neither, a checkpoint keeps the values of each replica.
    communicates: Whether it communicates at all.
    supports_roles: Whether it uses `counts`, so that only some of the replicas
      may train a player.
    mean_is_model: Whether the mean over replicas is the trained model. It is
      then sampled and exported, and a run with more or fewer replicas resumes
      from it.
    exchanged_state: What `state` holds: `statistics` of the net (batch-norm
      statistics and spectral-norm vectors), `moments` of the optimizer, or
      `slow_weights` of `Lookahead`; the latter if `after_update` changes
      weights.
    log_names: Scalars that `after_update` returns.
  """

  period = 1
  moves_per_update = 1
  shares_gradients = False
  replicas_agree = False
  agrees_after_period = False
  communicates = False
  supports_roles = True
  mean_is_model = False
  exchanged_state: Tuple[str, ...] = ("statistics",)
  log_names: Tuple[str, ...] = ()

  def __init__(self, name: str = "exchange"):
    super().__init__(name=name)

  def init(self, weights: Sequence[tf.Variable], seed: int = 0) -> None:
    """Creates variables for `weights`, in a strategy's scope.

    Args:
      weights: Of the player.
      seed: Of the run, for random draws.
    """
    del weights, seed

  def applies(self, phase: int) -> bool:
    """Returns whether a move in this phase ends with an update."""
    return is_period_end(phase, self.moves_per_update)

  def accumulate(
    self, grads: Sequence[tf.Tensor], phase: int
  ) -> List[tf.Tensor]:
    """Returns the gradients of this replica to exchange, where `applies`."""
    del phase
    return list(grads)

  def before_update(
    self,
    grads: Sequence[tf.Tensor],
    phase: int,
    counts: Optional[Counts] = None,
  ) -> List[tf.Tensor]:
    """Returns the gradients to apply. Replica context."""
    del phase, counts
    return list(grads)

  @property
  def averages_updates(self) -> bool:
    """Whether replicas apply the mean of their updates."""
    return type(self).average_updates is not Exchange.average_updates

  def average_updates(
    self, updates: Sequence[tf.Tensor], phase: int
  ) -> Sequence[tf.Tensor]:
    """Returns what to subtract from the base weights. Replica context."""
    del phase
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
    """Returns whether both exchanges can send one message."""
    del other
    return False

  def traffic(
    self,
    weights: Sequence[tf.Variable],
    state: Sequence[tf.Variable],
    phase: int,
  ) -> Traffic:
    """Returns the bytes that a replica sends and receives in a phase."""
    del weights, state, phase
    return Traffic()

  def summary(self) -> str:
    """Returns a short description."""
    return type(self).__name__


class ErrorFeedback:
  """Mix-in for exchanges with error feedback.

  Attributes:
    summed_residuals: Residuals that are summed over the replicas of a
      checkpoint, if it has more or fewer replicas. If it lacks the residuals,
      they are 0.
    residual_targets: Variables that take over a checkpoint's residual vector
      for which this exchange has no variable. Maps a variable's name to the
      name and the size of the vector, and the variable's offset in it.
  """

  summed_residuals: Sequence[tf.Variable] = ()

  @property
  def residual_targets(self) -> Mapping[str, Tuple[str, int, int]]:
    """Variables that take over a checkpoint's residual vector; see above."""
    return {}

  def predict_updates(
    self, updates: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    """Returns the expected next updates: the last ones plus the residuals."""
    return updates


@gin.register
class AllReduce(Exchange):
  """All-reduces gradients at every step, so all replicas stay equal."""

  shares_gradients = True
  replicas_agree = True
  communicates = True

  def before_update(self, grads, phase, counts=None):
    """Returns the mean gradients."""
    del phase
    return collectives.mean(grads, counts and counts.weights)

  def after_update(self, weights, state, phase, counts=None):
    """Averages the state, which differs as each replica has its own batch."""
    del weights, phase
    assign_mean(state, counts and counts.state)
    return {}

  def can_fuse_with(self, other):
    """Returns whether the other one is an all-reduce, too."""
    return type(other) is type(self)

  def traffic(self, weights, state, phase):
    """Returns the size of the gradients and the state."""
    del phase
    size = size_in_bytes([*weights, *state])
    return Traffic(size, size)


@gin.register
class AccumulatedGradients(AllReduce):
  """Adds gradients up on each replica; all-reduces their mean every `period`.

  Between two updates nothing that is trained changes: weights, moments and
  counts of the optimizers, the average of G, the loss scale, LeCam's averages,
  ADA's strength. An update is therefore that of `AllReduce` with `period` times
  the batch, if all gradients of a period are taken at the same point, as with
  `Simultaneous`. Learning-rate schedules count updates; whatever counts steps
  (`Ema.start_step`, periods of penalties) still does. LeCam and ADA see the
  scores of the last move.

  A player with several moves in a step has an update after every `period` of
  its moves, so the ratio of updates of D and G stays. With `Sequential`, G's
  gradients are taken against D before and after an update of D.

  Weights and optimizers are equal on all replicas at all times. Statistics of
  the nets and the sums of gradients are equal after each period: a checkpoint
  within a period has the values of each replica.

  Attributes:
    sums: Of the gradients since the last update, one a weight.
  """

  replicas_agree = False
  agrees_after_period = True

  def __init__(self, period: int = 2, name: str = "accumulated_gradients"):
    super().__init__(name=name)
    self.period = self.moves_per_update = _check_period(period)
    self.sums: List[tf.Variable] = []

  def init(self, weights, seed=0):
    """Creates the sums."""
    del seed
    if self.period > 1:
      self.sums = [
        tf.Variable(
          tf.zeros(w.shape, w.dtype),
          trainable=False,
          name=f"{self.name}/{w.name.split(':')[0]}/sum",
        )
        for w in weights
      ]

  def accumulate(self, grads, phase):
    """Adds gradients up; returns their mean at the end of a period."""
    if not self.sums:
      return list(grads)
    totals = [total + grad for total, grad in zip(self.sums, grads)]
    applies = self.applies(phase)
    for variable, total in zip(self.sums, totals):
      variable.assign(tf.zeros_like(total) if applies else total)
    return [total / self.period for total in totals]

  def can_fuse_with(self, other):
    """Returns whether the other one has updates at the same moves."""
    return super().can_fuse_with(other) and other.period == self.period

  def traffic(self, weights, state, phase):
    """Returns the size of gradients and state, where there is an update."""
    if not self.applies(phase):
      return Traffic()
    return super().traffic(weights, state, phase)


@gin.register
class Periodic(Exchange):
  """Averages weights every `period` steps; replicas train alone in between.

  The moments of optimizers stay local. They are averaged when a checkpoint is
  saved at the end of a period, so that it has one value for all replicas.
  """

  agrees_after_period = True
  communicates = True
  exchanged_state = ("statistics", "slow_weights")

  def __init__(self, period: int = 2, name: str = "periodic"):
    super().__init__(name=name)
    self.period = _check_period(period)

  def after_update(self, weights, state, phase, counts=None):
    """Averages weights and state at the last step of each period."""
    if is_period_end(phase, self.period):
      all_counts = counts and [*counts.weights, *counts.state]
      assign_mean([*weights, *state], all_counts)
    return {}

  def can_fuse_with(self, other):
    """Returns whether the other one averages at the same steps."""
    return type(other) is type(self) and other.period == self.period

  def traffic(self, weights, state, phase):
    """Returns the size of weights and state, at the last step of a period."""
    if not is_period_end(phase, self.period):
      return Traffic()
    size = size_in_bytes([*weights, *state])
    return Traffic(size, size)


def _check_period(period: int) -> int:
  """Returns the period; refuses one below 1."""
  if period < 1:
    raise ValueError(f"`period` must be at least 1, got {period}.")
  return period


def is_period_end(phase: int, period: int) -> bool:
  """Returns whether a phase is the last one of a period."""
  return phase % period == period - 1


def predict_updates(
  exchange: Exchange, updates: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
  """Returns the next updates that this replica expects after `updates`."""
  if isinstance(exchange, ErrorFeedback):
    return exchange.predict_updates(updates)
  return updates


def size_in_bytes(variables: Sequence[tf.Variable]) -> int:
  """Returns the size of variables; 0 with one replica, which sends nothing."""
  if collectives.num_replicas() == 1:
    return 0
  return sum(v.shape.num_elements() * v.dtype.size for v in variables)


def assign_mean(
  variables: Sequence[tf.Variable],
  counts: Optional[Sequence[collectives.Weight]] = None,
) -> None:
  """Assigns the mean over all replicas. Replica context."""
  if collectives.num_replicas() == 1:
    return
  values = [tf.convert_to_tensor(variable) for variable in variables]
  for variable, value in zip(variables, collectives.mean(values, counts)):
    variable.assign(value)
