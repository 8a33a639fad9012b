"""The variables of a step, as a checkpoint keeps them.

    entries = state.prepare_save(num_steps)    # averages local state if due
    checkpoints.save(num_steps, entries)
    stored.restore(path, state.entries)

After whole periods the replicas of a player agree, but for the moments of its
optimizer and the moving average if the exchange averages weights only. These
are averaged over the replicas that train the player, training goes on with the
averages, and one value is saved: the size of a checkpoint does not depend on
the number of replicas. Within a period the values of all replicas are saved.
"""

import itertools
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine import strategies
from paragan_tf.engine.player import Player
from paragan_tf.engine.processes import Processes
from paragan_tf.engine.step import Step, run_if
from paragan_tf.game.slots import SlotSpec
from paragan_tf.sync.exchange import (
  AccumulatedGradients,
  ErrorFeedback,
  assign_mean,
)
from paragan_tf.types import Entry, VectorSlice


class StepState:
  """All variables of a step.

  Attributes:
    entries: To restore, and to save after whole periods.
  """

  def __init__(
    self, step: Step, strategy: tf.distribute.Strategy, processes: Processes
  ):
    self._step = step
    self._strategy = strategy
    self._processes = processes
    self.entries = self._make_entries(is_period_end=True)
    # A TPU's strategy names its program after the function: no lambda here.
    self._average = tf.function(self._average_on_replicas, autograph=False)

  def prepare_save(self, num_steps: int) -> List[Entry]:
    """Returns what to save after a number of steps; all processes together."""
    if num_steps % self._step.exchange_cycle:
      return self._make_entries(is_period_end=False)
    if self._strategy.num_replicas_in_sync > 1 and self._averaged_players():
      self._average()
    return self.entries

  def entries_now(self) -> List[Entry]:
    """Returns the same without a change, as within a period."""
    return self._make_entries(is_period_end=False)

  def _averaged_players(self) -> Dict[str, Player]:
    return {
      who: player
      for who, player in self._step.players.items()
      if player.exchange.agrees_after_period
      and not player.exchange.shares_gradients
    }

  def _average_on_replicas(self) -> None:
    self._strategy.run(self._average_local_state)

  def _average_local_state(self) -> None:
    """Averages what replicas do not exchange. Replica context."""
    roles = self._step.placement.roles()
    for who, player in self._averaged_players().items():
      trains, weight = roles[who]
      moments = player.optimizer.moment_slots
      # Elsewhere the moments of the other player may be in their memory.
      values = run_if(
        trains,
        lambda m=moments: [tf.convert_to_tensor(x) for x in m],
        lambda m=moments: [tf.zeros(x.shape, x.dtype) for x in m],
      )
      counts = None if weight is None else [weight] * len(values)
      means = collectives.mean(values, counts)
      run_if(trains, lambda m=moments, x=means: _assign(m, x), lambda: None)
      if who == "g":
        average = self._step.ema.twin.variables
        counts = None if weight is None else [weight] * len(average)
        assign_mean(average, counts)

  def _make_entries(self, is_period_end: bool) -> List[Entry]:
    step, num = self._step, self._strategy.num_replicas_in_sync
    first = self._processes.index * self._processes.num_local_replicas
    own = _find_local(step, is_period_end)
    feedbacks = _feedbacks(step)
    summed = {
      _key(v) for feedback in feedbacks for v in feedback.summed_residuals
    }
    # At the end of a period they are 0, as where gradients did not add up.
    sums = {
      _key(v)
      for player in step.players.values()
      if is_period_end and isinstance(player.exchange, AccumulatedGradients)
      for v in player.exchange.sums
    }
    residual_targets = {
      name.split(":")[0]: VectorSlice(*target)
      for feedback in feedbacks
      for name, target in feedback.residual_targets.items()
    }
    owners = _find_owners(step, num)
    entries = []
    for name, copies in self._list_variables():
      everywhere = owners.get(name, range(num))
      kept = [
        (first + i, copy)
        for i, copy in enumerate(copies)
        if first + i in everywhere
      ]
      entries.append(
        Entry(
          name,
          tuple(copy for _, copy in kept),
          agrees=name not in own,
          replicas=tuple(replica for replica, _ in kept),
          all_replicas=tuple(everywhere),
          num_replicas=num,
          merge_rule=own.get(name),
          optional=name in summed or name in sums,
          residual_source=residual_targets.get(name),
        )
      )
    return entries

  def _list_variables(self) -> Iterator[Tuple[str, Sequence]]:
    """Yields the name of each variable, and its copies on local replicas."""
    shared = self._step.shared_moments
    buffers = shared.variables if shared else ()
    for variable in self._step.variables:
      if not any(variable is buffer for buffer in buffers):
        yield _key(variable), strategies.copies(self._strategy, variable)
    for view in itertools.chain(*shared.views.values()) if shared else ():
      copies = strategies.copies(self._strategy, view.buffer)
      yield view.name, [view.in_buffer(copy) for copy in copies]


def _key(variable: tf.Variable) -> str:
  return variable.name.split(":")[0]


def _assign(variables: Sequence[tf.Variable], values) -> None:
  for variable, value in zip(variables, values):
    variable.assign(value)


def _find_local(step: Step, is_period_end: bool) -> Dict[str, Optional[str]]:
  """Returns the variables that differ between replicas, and how they merge."""
  own: Dict[str, Optional[str]] = {}
  for name, player in step.players.items():
    exchange = player.exchange
    if exchange.replicas_agree:
      continue
    if not exchange.shares_gradients:
      # Two scalars, which each replica adapts to its own gradients.
      own.update((_key(v), "mean") for v in _scale_variables(player))
    if exchange.agrees_after_period and is_period_end:
      continue
    if exchange.shares_gradients:
      local = (*player.state, *exchange.variables)
      own.update((_key(v), None) for v in local)
      continue
    modules = [player.net, player.optimizer, exchange]
    if name == "g":
      modules.append(step.ema.twin)
    rule = "mean" if exchange.mean_is_model else None
    own.update((spec.name, rule) for spec in _moments(player))
    own.update((_key(v), rule) for module in modules for v in module.variables)
  for feedback in _feedbacks(step):
    own.update((_key(v), "sum") for v in feedback.summed_residuals)
  own.update((_key(v), None) for v in step.placement.variables)
  return own


def _find_owners(step: Step, num_replicas: int) -> Dict[str, Sequence[int]]:
  """Returns which replicas use a variable, if not all of them do."""
  owners: Dict[str, Sequence[int]] = {}
  for who, player in step.players.items():
    used = [_key(v) for v in step.placement.variables_of(who)]
    used += [_key(v) for v in player.exchange.variables]
    if not player.exchange.shares_gradients:
      shared = [*player.base, *player.optimizer.slow_weights]
      own = {_key(v) for v in player.optimizer.variables}
      own |= {_key(v) for v in _scale_variables(player)}
      own |= {spec.name for spec in _moments(player)}
      used += own - {_key(v) for v in shared}
    replicas = step.placement.owners(who, num_replicas)
    owners.update((name, replicas) for name in used)
  return owners


def _moments(player: Player) -> List[SlotSpec]:
  return player.optimizer.moment_specs(player.weights)


def _scale_variables(player: Player) -> Sequence[tf.Variable]:
  return player.loss_scale.variables if player.loss_scale else ()


def _feedbacks(step: Step) -> List[ErrorFeedback]:
  exchanges = [player.exchange for player in step.players.values()]
  return [x for x in exchanges if isinstance(x, ErrorFeedback)]
