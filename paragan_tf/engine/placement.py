"""Which player trains where: on every replica, or on replicas of its own.

A placement computes the gradients of each turn of a step; the step applies
them:

    for contributions, logs in placement.play(game, batch, phase, count):
      update the players with their contributions     # before the next turn

`CoLocated` lets every replica train both players, `role_split.RoleSplit` lets a
replica train one of them.
"""

import contextlib
from typing import (
  ContextManager,
  Dict,
  Iterator,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
  Union,
)

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine.player import Player
from paragan_tf.game import losses, noise, turns
from paragan_tf.game.augment import Augment
from paragan_tf.game.losses import LossFn
from paragan_tf.game.schedule import Schedule, has_turn
from paragan_tf.types import Batch, Mode, Net

Logs = Dict[str, tf.Tensor]
MOVES = {"d": turns.d_move, "g": turns.g_move}
_ROUND = 1_000_003  # Between the seeds of two rounds.


class Contribution(NamedTuple):
  """What this replica contributes to the update of one player.

  Attributes:
    move: Loss and gradients; zeros where the replica does not train the player.
    weight: Of this replica in means; `None` if all replicas count the same.
    trains: Whether it trains the player, a Python bool where that is known.
    damping: Multiplies the learning rate.
    finite: Whether gradients are finite after the exchange; if not, nothing is
      updated.
  """

  move: turns.Move
  weight: Optional[collectives.Weight] = None
  trains: Union[bool, tf.Tensor] = True
  damping: Union[float, tf.Tensor] = 1.0
  finite: Union[bool, tf.Tensor] = True


Contributions = Mapping[str, Contribution]


class Role(NamedTuple):
  """Whether this replica trains a player, and its weight in means.

  `weight` is `None` if all replicas count the same.
  """

  trains: Union[bool, tf.Tensor] = True
  weight: Optional[collectives.Weight] = None


class Game(NamedTuple):
  """What is played, independent of where.

  Attributes:
    players: "g" and "d".
    loss_fn: Of both.
    augment: What D's images go through, if anything.
    seed: Of the run; a variable where one trace serves several runs.
  """

  players: Mapping[str, Player]
  loss_fn: LossFn
  augment: Optional[Augment]
  seed: Union[int, tf.Variable]

  def net(self, who: str) -> Net:
    """Returns the net of a player."""
    return self.players[who].net

  def loss_at(self, count: tf.Tensor) -> LossFn:
    """Returns the loss function of a step."""
    return losses.at(self.loss_fn, count)

  def terms(
    self, who: str, phase: int, count: tf.Tensor, index: int = 0
  ) -> turns.LossTerms:
    """Returns what a player's loss has beside the game's in one round."""
    loss_scale = self.players[who].loss_scale
    return turns.LossTerms(
      [x for x in self.players[who].penalties if x.due(phase)],
      self.augment,
      self.net("g"),
      self.seed + _ROUND * index,
      count,
      self.players["d"].one_pass,
      loss_scale and loss_scale.value(),
    )

  def draw(self, batch: Batch, mode: Mode) -> turns.Fakes:
    """Returns G's fakes; `Mode.TRAIN` if G is to be trained on them."""
    return turns.draw(self.net("g"), batch, mode, self.players["g"].compute)

  def move(
    self, who: str, fakes: turns.Fakes, batch: Batch, terms: turns.LossTerms
  ) -> turns.Move:
    """Returns a player's move."""
    loss_fn = self.loss_at(terms.step)
    return self.players[who].compute(
      lambda: MOVES[who](fakes, self.net("d"), batch, loss_fn, terms)
    )

  def z(
    self, size: int, count: tf.Tensor, purpose: str, shard=None
  ) -> tf.Tensor:
    """Returns latent codes of one replica; `shard` is its own by default."""
    z_dim = self.net("g").z_dim  # type: ignore[attr-defined]
    return noise.normal([size, z_dim], self.seed, count, purpose, shard)


class Placement(tf.Module):
  """Where players train; subclasses say how.

  Attributes:
    log_names: Scalars that `play` logs.
    is_split: Whether a replica trains one player and never both.
  """

  log_names: Tuple[str, ...] = ()
  is_split = False

  def play(
    self, game: Game, batch: Batch, phase: int, count: tf.Tensor
  ) -> Iterator[Tuple[Contributions, Logs]]:
    """Yields this replica's contributions to each turn of a step.

    Each turn is computed when it is asked for, so it sees what the turns before
    it have updated. Replica context.

    Args:
      game: What is played.
      batch: Real images and class ids of the step, without latent codes.
      phase: The step's position in the cycle.
      count: Steps so far.
    """
    raise NotImplementedError

  def roles(self) -> Mapping[str, Role]:
    """Returns the role of this replica for "g" and "d". Replica context."""
    return {"g": Role(), "d": Role()}

  def owners(self, who: str, num_replicas: int) -> Sequence[int]:
    """Returns the ids of the replicas that train a player."""
    del who
    return range(num_replicas)

  def variables_of(self, who: str) -> Sequence[tf.Variable]:
    """Returns the variables that only replicas of a player use."""
    del who
    return ()

  def device(self, who: str) -> ContextManager:
    """Places operations on the device of a player."""
    del who
    return contextlib.nullcontext()

  def num_bytes(self, phase: int) -> int:
    """Returns the bytes that a replica sends in a phase, beside exchanges."""
    del phase
    return 0


class CoLocated(Placement):
  """Every replica trains G and D, on its shard of each batch."""

  def __init__(self, schedule: Schedule):
    super().__init__(name="co_located")
    self._schedule = schedule

  def play(self, game, batch, phase, count):
    """Yields the turns of all rounds, a batch for each round with D."""
    size = batch.images.shape[0] // self._schedule.num_batches
    used = -1
    for index, round_turns in enumerate(self._schedule.rounds):
      used += has_turn("d", round_turns)
      real = _rows(batch, size, max(used, 0))
      if not has_turn("d", round_turns):
        real = self._g_batch(real)
      z = game.z(real.images.shape[0], count, f"z{index}")
      real = real._replace(z=z)
      yield from self._play_round(game, round_turns, real, phase, count, index)

  def _play_round(self, game, round_turns, batch, phase, count, index):
    """Yields all turns on one batch of real images and one of fakes."""
    mode = Mode.TRAIN if has_turn("g", round_turns) else Mode.FROZEN
    fakes = game.draw(batch, mode)
    for turn in round_turns:
      contributions = {}
      for who in turn:
        terms = game.terms(who, phase, count, index)
        contributions[who] = Contribution(game.move(who, fakes, batch, terms))
      yield contributions, {}

  def _g_batch(self, batch: Batch) -> Batch:
    """Returns the batch of a round in which G trains alone."""
    asked = self._schedule.g_batch_size
    if asked is None:
      return batch
    size = asked // collectives.num_replicas()
    return Batch(
      turns.repeat_rows(batch.images, size),
      turns.repeat_rows(batch.labels, size),
      None,
    )


def _rows(batch: Batch, size: int, index: int) -> Batch:
  """Returns the batch of one round out of the step's."""
  rows = slice(index * size, (index + 1) * size)
  labels = None if batch.labels is None else batch.labels[rows]
  return Batch(batch.images[rows], labels, None)
