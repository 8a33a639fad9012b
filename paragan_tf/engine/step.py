"""One step of training, written for one replica; every engine runs this one.

Pseudo-code:

    for turns in schedule.rounds:
      fakes = g(z)
      for turn in turns:
        moves = each player's gradient at the same point
        for each player of the turn:
          grads = exchange.before_update(grads, phase)    # in one go, where
          updates = optimizer.updates(clipped grads)      # exchanges are alike
          settled <- settled - exchange.average_updates(updates, phase)
          exchange.after_update(settled, state, phase)
          optimizer.look_ahead(exchange.ahead(updates))
    the average of G follows what is settled

Where players live on replicas of their own, `engine/role_split.py` says how the
moves of a turn come about.
"""

import contextlib
import math
from typing import (
  ContextManager,
  Dict,
  List,
  Mapping,
  Optional,
  Sequence,
  Tuple,
  Union,
)

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine.player import Player
from paragan_tf.engine.role_split import LOG_NAMES, Part, RoleSplit
from paragan_tf.game import losses, noise, turns
from paragan_tf.game.augment import Augment
from paragan_tf.game.ema import Ema
from paragan_tf.game.losses import LossFn
from paragan_tf.game.schedule import Round, Schedule, moves
from paragan_tf.sync.exchange import Counts
from paragan_tf.types import Batch, Mode

Logs = Dict[str, tf.Tensor]
MOVES = {"d": turns.d_move, "g": turns.g_move}
_ROUND = 1_000_003  # Between the seeds of two rounds.
_LOGGED = ("grad_norm", "loss", "rate", "update_ratio")


class Step(tf.Module):
  """Owns all that a run learns; calling it trains for one step."""

  def __init__(
    self,
    g: Player,
    d: Player,
    loss_fn: LossFn,
    schedule: Schedule,
    ema: Ema,
    seed: int,
    count: Optional[tf.Variable] = None,
    role_split: Optional[RoleSplit] = None,
    augment: Optional[Augment] = None,
  ):
    super().__init__(name="step")
    self.players = {"g": g, "d": d}
    self.loss_fn = loss_fn
    self.schedule = schedule
    self.ema = ema
    self.seed = seed
    self.role_split = role_split
    self.augment = augment
    if count is None:
      count = tf.Variable(
        0, trainable=False, dtype=tf.int64, name="global_step"
      )
    self.count = count
    for player in (g, d):
      player.optimizer.init(player.weights)
      player.exchange.init(player.weights)
    ema.follow(g.weights, g.settled)

  @property
  def cycle(self) -> int:
    """Steps after which all repeats: phases go from 0 to `cycle - 1`."""
    periods = [x.period for p in self.players.values() for x in p.penalties]
    return math.lcm(self._exchange_cycle, *periods)

  @property
  def _exchange_cycle(self) -> int:
    return math.lcm(*(p.exchange.period for p in self.players.values()))

  def first_like(self, phase: int) -> int:
    """Returns the first phase in which exactly the same happens.

    A cycle may be long for a penalty that is rarely due; the phases between
    need not be traced one by one.
    """

    def what_happens(phase: int):
      players = self.players.values()
      due = (x.due(phase) for p in players for x in p.penalties)
      return phase % self._exchange_cycle, tuple(due)

    kinds = [what_happens(earlier) for earlier in range(phase + 1)]
    return kinds.index(kinds[-1])

  @property
  def log_names(self) -> List[str]:
    """The names of the scalars that a call returns."""
    names = [f"{who}/{what}" for who in "dg" for what in _LOGGED]
    names += ["exchange/bytes", "exchange/bytes_received"]
    names += LOG_NAMES if self.role_split else ()
    turns = {tuple(sorted(t)) for r in self.schedule.rounds for t in r}
    for turn in turns:
      for group in self._that_talk_together(list(turn)):
        said = self.players[group[0]].exchange.log_names
        names += [_log_name(group, name) for name in said]
    return sorted(set(names))

  def __call__(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], phase: int
  ) -> Logs:
    """Trains for one step on one replica.

    Args:
      images: `[num_batches * b, h, w, c]`, in [-1, 1]: a batch for each
        round with D, one after the other.
      labels: `[num_batches * b]`, or `None`.
      phase: The step's place in the cycle.

    Returns:
      Scalars to log; their mean over all replicas is what they say.
    """
    count = tf.convert_to_tensor(self.count)
    logs: Logs = {}
    if self.role_split is None:
      logs.update(self._rounds(images, labels, phase, count))
    else:
      batch = Batch(images, labels, None)
      logs.update(self._round_apart(self.role_split, batch, phase, count))
    self.ema.update(count)
    self.count.assign_add(1)
    given, received = self._num_bytes(phase)
    logs["exchange/bytes"] = tf.constant(float(given))
    logs["exchange/bytes_received"] = tf.constant(float(received))
    return logs

  def _rounds(self, images, labels, phase: int, count: tf.Tensor) -> Logs:
    logs: Logs = {}
    used = -1
    for index, round_turns in enumerate(self.schedule.rounds):
      used += moves("d", round_turns)
      size = images.shape[0] // self.schedule.num_batches
      batch = _part(images, labels, size, max(used, 0))
      if not moves("d", round_turns):
        size, batch = self._g_batch(size, batch)
      batch = batch._replace(z=self._z(size, index, count))
      terms = self._terms(phase, count, index)
      logs.update(self._round(round_turns, batch, phase, terms))
    return logs

  def _round(
    self,
    round_turns: Round,
    batch: Batch,
    phase: int,
    terms: Mapping[str, turns.LossTerms],
  ) -> Logs:
    """Plays all turns on one batch of real images and one of fakes."""
    mode = Mode.TRAIN if moves("g", round_turns) else Mode.FROZEN
    fakes = turns.draw(self.players["g"].net, batch, mode)
    d = self.players["d"].net
    loss_fn = losses.at(self.loss_fn, terms["d"].step)
    logs = {}
    for turn in round_turns:
      parts = {
        who: Part(MOVES[who](fakes, d, batch, loss_fn, terms[who]))
        for who in turn
      }
      logs.update(self._update(parts, phase))
      self._follow(parts, terms["d"].step)
    return logs

  def _round_apart(
    self, role_split: RoleSplit, batch: Batch, phase: int, count: tf.Tensor
  ) -> Logs:
    """Plays one turn of both, each on replicas of its own."""
    nets = {who: player.net for who, player in self.players.items()}
    terms = self._terms(phase, count, 0)
    loss_fn = losses.at(self.loss_fn, count)
    parts, sent, logs = role_split.play(
      nets, loss_fn, terms, batch, phase, count
    )
    logs.update(self._update(parts, phase))
    self._follow(parts, count)
    role_split.exchange(sent, phase, count)
    return logs

  def _terms(self, phase: int, count: tf.Tensor, index: int):
    """Returns what each player's move counts in one round of a step."""
    return {
      who: turns.LossTerms(
        [x for x in player.penalties if x.due(phase)],
        self.augment,
        self.players["g"].net,
        self.seed + _ROUND * index,
        count,
      )
      for who, player in self.players.items()
    }

  def _follow(self, parts: Mapping[str, Part], count: tf.Tensor) -> None:
    """Lets what adapts to D follow its move."""
    if "d" not in parts:
      return
    scores = parts["d"].move.scores
    assert scores is not None
    weight = None if self.role_split is None else parts["d"].weight
    for penalty in self.players["d"].penalties:
      penalty.update(scores, count, weight)
    if self.augment is not None:
      num_playing = self.schedule.num_shards(collectives.num_replicas())
      self.augment.update(scores.real, num_playing, weight)

  def _g_batch(self, size: int, batch: Batch) -> Tuple[int, Batch]:
    """Returns how many fakes G draws when it moves alone, and beside what."""
    asked = self.schedule.g_batch_size
    if asked is None:
      return size, batch
    size = asked // collectives.num_replicas()
    return size, Batch(
      turns.repeated(batch.images, size),
      turns.repeated(batch.labels, size),
      None,
    )

  def _z(self, size: int, index: int, count: tf.Tensor) -> tf.Tensor:
    z_dim = self.players["g"].net.z_dim  # type: ignore[attr-defined]
    return noise.normal([size, z_dim], self.seed, count, f"z{index}")

  def _update(self, parts: Dict[str, Part], phase: int) -> Logs:
    """Moves the players of a turn, and lets their replicas agree."""
    groups = self._that_talk_together(sorted(parts))
    grads: Dict[str, List[tf.Tensor]] = {}
    for group in groups:
      grads.update(self._before_update(group, parts, phase))
    logs: Logs = {}
    updates: Dict[str, List[tf.Tensor]] = {}
    for who, part in parts.items():
      with self._place(who):
        updates[who] = self._updates(who, part, grads[who])
        logs.update(self._move(who, part, grads[who], updates[who], phase))
    for group in groups:
      logs.update(self._after_update(group, parts, phase))
    for who in parts:
      with self._place(who):
        self.players[who].look_ahead(updates[who])
    return logs

  def _place(self, who: str) -> ContextManager:
    return (
      self.role_split.place(who)
      if self.role_split
      else contextlib.nullcontext()
    )

  def _that_talk_together(self, turn: List[str]) -> List[List[str]]:
    if len(turn) == 2:
      first, second = (self.players[who].exchange for who in turn)
      if first.can_fuse_with(second):
        return [turn]
    return [[who] for who in turn]

  def _before_update(self, group, parts, phase: int):
    """Returns the gradients that each player of a group is to apply."""
    own = {
      who: self.players[who].regularized(parts[who].move.grads) for who in group
    }
    exchange = self.players[group[0]].exchange
    counts = self._counts(group, parts)
    shared = exchange.before_update(tf.nest.flatten(own), phase, counts)
    return tf.nest.pack_sequence_as(own, shared)

  def _after_update(self, group, parts, phase: int) -> Logs:
    """Lets the replicas agree on the variables of a group's players."""
    players = [self.players[who] for who in group]
    logs = players[0].exchange.after_update(
      [w for player in players for w in player.settled],
      [v for player in players for v in player.state],
      phase,
      self._counts(group, parts),
    )
    return {_log_name(group, name): value for name, value in logs.items()}

  def _counts(self, group, parts) -> Optional[Counts]:
    """Returns what this replica counts in means, `None` if all count alike."""
    if self.role_split is None:
      return None
    counts = Counts([], [])
    for who in group:
      player, weight = self.players[who], parts[who].weight
      counts.weights.extend(weight for _ in player.weights)
      counts.state.extend(weight for _ in player.state)
    return counts

  def _updates(
    self, who: str, part: Part, grads: List[tf.Tensor]
  ) -> List[tf.Tensor]:
    """Returns by what one player is to move, zeros where it is not played."""
    player = self.players[who]
    grads = player.clipped(grads)
    damping = self.role_split.damping(part) if self.role_split else 1.0
    weights = player.weights
    player.optimizer.begin(weights)
    return _if(
      _moves(player, part),
      lambda: player.optimizer.updates(grads, weights, damping),
      lambda: [tf.zeros(w.shape, w.dtype) for w in weights],
    )

  def _move(self, who: str, part: Part, grads, updates, phase: int) -> Logs:
    """Moves one player where it is played; returns its logs."""
    player = self.players[who]
    shared = player.exchange.average_updates(updates, phase)
    moved = _if(
      _moves(player, part),
      lambda: player.move(shared),
      lambda: tf.zeros([]),
    )
    share = 1.0 if player.exchange.replicas_agree else part.weight
    damping = self.role_split.damping(part) if self.role_split else 1.0
    rate = player.optimizer.rate() * tf.cast(damping, tf.float64)
    return {
      f"{who}/loss": part.weight * part.move.loss,
      f"{who}/grad_norm": share * tf.linalg.global_norm(grads),
      f"{who}/update_ratio": share * moved,
      f"{who}/rate": tf.cast(rate, tf.float32),
    }

  def _num_bytes(self, phase: int) -> Tuple[int, int]:
    """Returns what a replica gives to others in a phase, and gets, at most."""
    given = received = (
      self.role_split.num_bytes(phase) if self.role_split else 0
    )
    for player in self.players.values():
      weights, state = player.weights, player.state
      times = 1 if self.role_split else self._num_turns(player)
      said = player.exchange
      given += times * said.num_bytes(weights, state, phase)
      received += times * said.num_bytes_received(weights, state, phase)
    return given, received

  def _num_turns(self, player: Player) -> int:
    who = "g" if player is self.players["g"] else "d"
    return sum(turn.count(who) for r in self.schedule.rounds for turn in r)


def _log_name(group: Sequence[str], name: str) -> str:
  return f"exchange/{'_'.join(group)}/{name}"


def _moves(player: Player, part: Part) -> Union[bool, tf.Tensor]:
  # Where gradients are shared, all replicas move, so that all stay equal.
  return player.exchange.replicas_agree or part.plays


def _if(condition, do, do_not):
  if condition is True:
    return do()
  if condition is False:
    return do_not()
  return tf.cond(condition, do, do_not)


def _part(images, labels, size: int, index: int) -> Batch:
  """Returns the batch of one round out of the step's images."""
  rows = slice(index * size, (index + 1) * size)
  return Batch(images[rows], None if labels is None else labels[rows], None)
