"""One step of training, written for one replica; every engine runs this one.

Pseudo-code:

    for turn in placement.play(batch):                # gradients at one point
      for each player of the turn:
        grads = exchange.accumulate(grads, phase)
        go on with the next one unless exchange.applies(phase)
        grads = exchange.before_update(grads, phase)  # one message for players
        updates = optimizer.updates(clipped grads)    # whose exchanges fuse
        base -= exchange.average_updates(updates, phase)
        exchange.after_update(base, state, phase)
        optimizer.look_ahead(updates)
      penalties and the augmentation adapt to D's scores, if it was updated
    the average of G follows its base weights

`engine/placement.py` says which player a replica trains.
"""

import collections
import functools
import math
from typing import Counter, Dict, List, Mapping, Optional, Sequence, Union

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine import finite
from paragan_tf.engine.placement import (
  CoLocated,
  Contribution,
  Contributions,
  Game,
  Logs,
  Placement,
)
from paragan_tf.engine.player import Player
from paragan_tf.engine.shared_moments import share_moments
from paragan_tf.game.augment import Augment
from paragan_tf.game.ema import Ema
from paragan_tf.game.losses import LossFn
from paragan_tf.game.schedule import Schedule
from paragan_tf.game.slots import MakeSlot, make_variable
from paragan_tf.sync.exchange import Counts, Traffic
from paragan_tf.types import Batch

_LOGGED = ("grad_norm", "loss", "rate", finite.SKIPPED, "update_ratio")
_NORMS = ("grad_norm", "update_ratio")


class Step(tf.Module):
  """Owns all that a run trains; calling it trains for one step."""

  def __init__(
    self,
    g: Player,
    d: Player,
    loss_fn: LossFn,
    schedule: Schedule,
    ema: Ema,
    seed: int,
    count: Optional[tf.Variable] = None,
    placement: Optional[Placement] = None,
    augment: Optional[Augment] = None,
    noise_seed: Optional[tf.Variable] = None,
  ):
    super().__init__(name="step")
    self.game = Game(
      {"g": g, "d": d},
      loss_fn,
      augment,
      seed if noise_seed is None else noise_seed,
    )
    self.schedule = schedule
    self.ema = ema
    self.placement = placement or CoLocated(schedule)
    if count is None:
      count = tf.Variable(
        0, trainable=False, dtype=tf.int64, name="global_step"
      )
    self.count = count
    self.rate_scale = 1.0  # Of both; read when a step is traced.
    self.shared_moments = share_moments(self.players, self.placement.is_split)
    make_moment: MakeSlot = make_variable
    if self.shared_moments is not None:
      make_moment = self.shared_moments.make_moment
    for player in (g, d):
      player.optimizer.init(player.weights, make_moment)
      player.exchange.init(player.weights, seed)
      if player.loss_scale is not None:
        player.loss_scale.init()
    ema.follow(g.weights, g.base)

  def assign(self, other: "Step") -> None:
    """Takes over all values of a step that is made alike."""
    for variable, value in zip(self.variables, other.variables):
      variable.assign(value)

  @property
  def players(self) -> Mapping[str, Player]:
    """Both players, "g" and "d"."""
    return self.game.players

  @property
  def cycle(self) -> int:
    """Steps after which all repeats: phases go from 0 to `cycle - 1`."""
    periods = [x.period for p in self.players.values() for x in p.penalties]
    return math.lcm(self.exchange_cycle, *periods)

  @property
  def exchange_cycle(self) -> int:
    """Steps after which the exchanges repeat; replicas may then agree."""
    return math.lcm(*(p.exchange.period for p in self.players.values()))

  def first_like(self, phase: int) -> int:
    """Returns the first phase in which exactly the same happens.

    A cycle may be long for a penalty that is rarely due; the phases between
    need not be traced one by one.
    """

    def what_happens(phase: int):
      players = self.players.values()
      due = (x.due(phase) for p in players for x in p.penalties)
      return phase % self.exchange_cycle, tuple(due)

    kinds = [what_happens(earlier) for earlier in range(phase + 1)]
    return kinds.index(kinds[-1])

  @property
  def log_names(self) -> List[str]:
    """The names of the scalars that a call returns."""
    names = [f"{who}/{what}" for who in "dg" for what in _LOGGED]
    names += ["exchange/bytes", "exchange/bytes_received"]
    names += self.placement.log_names
    scaled = (who for who, p in self.players.items() if p.loss_scale)
    names += [f"{who}/loss_scale" for who in scaled]
    turns = {tuple(sorted(t)) for r in self.schedule.rounds for t in r}
    for turn in turns:
      for group in self._fuse(turn):
        scalars = self.players[group[0]].exchange.log_names
        names += [_log_name(group, name) for name in scalars]
    return sorted(set(names))

  @property
  def last_step_log_names(self) -> Sequence[str]:
    """The scalars that are 0 unless `is_logged`: norms take time.

    They are 0 in a step without an update, too.
    """
    return [f"{who}/{what}" for who in "dg" for what in _NORMS]

  def __call__(
    self,
    images: tf.Tensor,
    labels: Optional[tf.Tensor],
    phase: int,
    is_logged: Union[bool, tf.Tensor] = True,
  ) -> Logs:
    """Trains for one step on one replica.

    Args:
      images: `[num_batches * b, h, w, c]`, in [-1, 1]: a batch for each
        round with D, one after the other.
      labels: `[num_batches * b]`, or `None`.
      phase: The step's position in the cycle.
      is_logged: Whether to compute the norms of gradients and updates.

    Returns:
      Scalars to log, to be averaged over all replicas.
    """
    count = tf.convert_to_tensor(self.count)
    batch = Batch(images, labels, None)
    logs: Logs = {}
    moves: Counter[str] = collections.Counter()
    for turn, more in self.placement.play(self.game, batch, phase, count):
      phases = {w: self._exchange_phase(w, phase, moves[w]) for w in turn}
      moves.update(list(turn))
      logs.update(more)
      finite.merge(logs, self._update(turn, phases, is_logged))
      if "d" in turn and self.players["d"].exchange.applies(phases["d"]):
        self._adapt(turn["d"], count)
    if self.players["g"].exchange.applies(phase):  # Counted in steps here.
      self.ema.update(count)
    self.count.assign_add(1)
    traffic = self.traffic(phase)
    logs["exchange/bytes"] = tf.constant(float(traffic.sent))
    logs["exchange/bytes_received"] = tf.constant(float(traffic.received))
    return logs

  def traffic(self, phase: int) -> Traffic:
    """Returns the bytes that a replica sends and receives in a phase."""
    sent = received = self.placement.num_bytes(phase)
    for who, player in self.players.items():
      for index in range(self._num_moves(who)):
        at = self._exchange_phase(who, phase, index)
        one = player.exchange.traffic(player.weights, player.state, at)
        sent, received = sent + one.sent, received + one.received
    return Traffic(sent, received)

  def _num_moves(self, who: str) -> int:
    """Returns how often a player moves in a step."""
    return sum(turn.count(who) for r in self.schedule.rounds for turn in r)

  def _exchange_phase(self, who: str, phase: int, index: int) -> int:
    """Returns the phase of an exchange, in a player's `index`-th move."""
    if self.players[who].exchange.moves_per_update == 1:
      return phase
    return phase * self._num_moves(who) + index

  def _update(
    self, turn: Contributions, phases: Mapping[str, int], is_logged
  ) -> Logs:
    """Updates the players of a turn, and lets their replicas agree."""
    turn = {who: self._accumulate(who, turn[who], phases[who]) for who in turn}
    logs: Logs = {}
    groups = []
    averaged: Dict[str, Contribution] = {}
    for group in self._fuse(sorted(turn)):
      logs.update(self._log_moves(group, turn))
      if self.players[group[0]].exchange.applies(phases[group[0]]):
        groups.append(group)
        averaged.update(self._before_update(group, turn, phases[group[0]]))
      else:
        for who in group:
          logs.update(self._log_update(who, turn[who], (), is_logged=False))
    for who in averaged:
      averaged[who] = self._unscale(who, averaged[who])
    updates: Dict[str, List[tf.Tensor]] = {}
    for who, contribution in averaged.items():
      with self.placement.device(who):
        updates[who] = self._optimize(who, contribution)
        applied = self._apply(who, contribution, updates[who], phases[who])
        logs.update(self._log_update(who, contribution, applied, is_logged))
    for group in groups:
      logs.update(self._after_update(group, turn, phases[group[0]]))
    for who, contribution in averaged.items():
      with self.placement.device(who):
        player = self.players[who]
        self._change_if(
          player,
          _is_applied(player, contribution),
          functools.partial(player.look_ahead, updates[who]),
          player.weights,
        )
    return logs

  def _accumulate(
    self, who: str, contribution: Contribution, phase: int
  ) -> Contribution:
    """Returns a contribution with all gradients since the last update."""
    player, move = self.players[who], contribution.move
    grads = player.add_regularizer(move.grads)
    grads = finite.mark(grads, move.loss)
    grads = player.exchange.accumulate(grads, phase)
    return contribution._replace(move=move._replace(grads=grads))

  def _unscale(self, who: str, contribution: Contribution) -> Contribution:
    """Divides gradients by the loss scale; notes if they may be applied."""
    player, move = self.players[who], contribution.move
    grads, is_finite = player.unscale(move.grads, contribution.trains)
    move = move._replace(grads=grads)
    return contribution._replace(move=move, finite=is_finite)

  def _adapt(self, contribution: Contribution, count: tf.Tensor) -> None:
    """Lets penalties and the augmentation adapt to D's scores."""
    player = self.players["d"]
    scores, weight = contribution.move.scores, contribution.weight
    assert scores is not None
    for penalty in player.penalties:
      penalty.update(scores, count, weight)
    if self.game.augment is not None:
      num_batches = self.schedule.num_shards(collectives.num_replicas())
      num_batches *= player.exchange.moves_per_update
      self.game.augment.update(scores.real, num_batches, weight)

  def _fuse(self, turn: Sequence[str]) -> List[List[str]]:
    """Returns the players of a turn, those that send one message together."""
    if len(turn) == 2:
      first, second = (self.players[who].exchange for who in turn)
      same_moves = len({self._num_moves(who) for who in turn}) == 1
      if first.can_fuse_with(second) and same_moves:
        return [list(turn)]
    return [[who] for who in turn]

  def _before_update(
    self, group: Sequence[str], turn: Contributions, phase: int
  ) -> Dict[str, Contribution]:
    """Returns the contributions of a group with the gradients to apply."""
    exchange = self.players[group[0]].exchange
    sent: Dict[str, List[tf.Tensor]] = {}
    for who in group:
      damping = turn[who].damping
      sent[who] = list(turn[who].move.grads)
      # Replicas that apply the same gradients must have the same rate.
      if exchange.shares_gradients and not isinstance(damping, float):
        sent[who].append(tf.cast(damping, tf.float32))
    counts = self._counts(group, turn, {w: len(x) for w, x in sent.items()})
    received = tf.nest.pack_sequence_as(
      sent, exchange.before_update(tf.nest.flatten(sent), phase, counts)
    )
    averaged = {}
    for who, (*grads,) in received.items():
      damping = turn[who].damping
      if len(grads) > len(self.players[who].weights):
        damping = grads.pop()
      move = turn[who].move._replace(grads=grads)
      averaged[who] = turn[who]._replace(move=move, damping=damping)
    return averaged

  def _after_update(self, group, turn: Contributions, phase: int) -> Logs:
    """Lets the replicas agree on the variables of a group's players."""
    players = [self.players[who] for who in group]
    logs = players[0].exchange.after_update(
      [w for player in players for w in player.base],
      [v for player in players for v in player.state],
      phase,
      self._counts(group, turn),
    )
    return {_log_name(group, name): value for name, value in logs.items()}

  def _counts(
    self,
    group: Sequence[str],
    turn: Contributions,
    num_tensors: Optional[Mapping[str, int]] = None,
  ) -> Optional[Counts]:
    """Returns this replica's weights in means, `None` if all count the same."""
    counts = Counts([], [])
    for who in group:
      player, weight = self.players[who], turn[who].weight
      if weight is None:
        return None
      num = num_tensors[who] if num_tensors else len(player.weights)
      counts.weights.extend([weight] * num)
      counts.state.extend(weight for _ in player.state)
    return counts

  def _optimize(self, who: str, contribution: Contribution) -> List[tf.Tensor]:
    """Returns a player's updates, zeros where another replica trains it."""
    player = self.players[who]
    grads = player.clip(contribution.move.grads)
    if player.select_updates and not self.placement.is_split:
      grads = finite.store(grads)
    weights = player.weights
    player.optimizer.begin(weights)
    return self._change_if(
      player,
      _is_updated(player, contribution),
      lambda: player.optimizer.updates(
        grads, weights, self.rate_scale * contribution.damping
      ),
      player.optimizer.variables,
      lambda: [tf.zeros(w.shape, w.dtype) for w in weights],
    )

  def _apply(
    self, who: str, contribution: Contribution, updates, phase: int
  ) -> List[tf.Tensor]:
    """Applies a player's updates where it is trained; returns them averaged."""
    player = self.players[who]
    averaged = player.exchange.average_updates(updates, phase)
    is_applied = _is_applied(player, contribution)
    contribution = contribution._replace(finite=is_applied)
    self._change_if(
      player,
      _is_updated(player, contribution),
      lambda: player.apply_updates(averaged),
      player.base,
    )
    return list(averaged)

  def _change_if(
    self, player: Player, condition, change, variables, otherwise=lambda: None
  ):
    """Runs `change`, of a player's variables, or `otherwise`."""
    is_static = isinstance(condition, bool)
    if is_static or self.placement.is_split or not player.select_updates:
      return run_if(condition, change, otherwise)
    return finite.change_if(condition, lambda: change() or [], variables)

  def _log_moves(self, group: Sequence[str], turn: Contributions) -> Logs:
    """Returns the loss scales of a group's players."""
    logs: Logs = {}
    for who in group:
      loss_scale, weight = self.players[who].loss_scale, turn[who].weight
      weight = 1.0 if weight is None else weight
      if loss_scale is not None:
        logs[f"{who}/loss_scale"] = weight * loss_scale.value()
    return logs

  def _log_update(
    self, who: str, contribution: Contribution, updates, is_logged
  ) -> Logs:
    """Returns the scalars of a player's update; norms if `is_logged`."""
    player, move = self.players[who], contribution.move
    weight = 1.0 if contribution.weight is None else contribution.weight
    shared = 1.0 if player.exchange.shares_gradients else weight
    norms = run_if(
      is_logged,
      lambda: [tf.linalg.global_norm(move.grads), player.update_ratio(updates)],
      lambda: [tf.zeros([])] * 2,
    )
    damping = tf.cast(self.rate_scale * contribution.damping, tf.float64)
    rate = player.optimizer.rate() * damping
    skipped = 1.0 - tf.cast(contribution.finite, tf.float32)
    loss = finite.or_zero(weight * move.loss)
    return {
      f"{who}/rate": tf.cast(rate, tf.float32),
      f"{who}/loss": tf.where(tf.equal(skipped, 0.0), loss, 0.0),
      f"{who}/{finite.SKIPPED}": shared * skipped,
      **{
        f"{who}/{name}": finite.or_zero(shared * x)
        for name, x in zip(_NORMS, norms)
      },
    }


def _log_name(group: Sequence[str], name: str) -> str:
  return f"exchange/{'_'.join(group)}/{name}"


def _is_updated(
  player: Player, contribution: Contribution
) -> Union[bool, tf.Tensor]:
  # Where gradients are shared, all replicas update, so that all stay equal.
  is_updated = player.exchange.shares_gradients or contribution.trains
  is_finite = contribution.finite
  if is_finite is True or is_updated is False:
    return is_updated
  return is_finite if is_updated is True else is_updated & is_finite


def _is_applied(
  player: Player, contribution: Contribution
) -> Union[bool, tf.Tensor]:
  # The mean of all replicas' updates is applied; one may have sent zeros.
  return player.exchange.averages_updates or contribution.finite


def run_if(condition: Union[bool, tf.Tensor], do, do_not=lambda: None):
  """Runs one of two functions; a condition that is static adds no op."""
  if condition is True:
    return do()
  if condition is False:
    return do_not()
  return tf.cond(condition, do, do_not)
