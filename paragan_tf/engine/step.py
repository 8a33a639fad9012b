"""One step of training, written for one replica; every engine runs this one.

Pseudo-code:

    for turns in schedule.rounds:
      fakes = g(z)
      for turn in turns:
        moves = each player's gradient at the same point
        for each player of the turn:
          grads = exchange.before_update(grads, phase)
          optimizer.apply(grads, weights)
          exchange.after_update(weights, state, phase)
    the average of G follows
"""

import math
from typing import Dict, List, NamedTuple, Optional

import tensorflow as tf

from paragan_tf.game import noise, turns
from paragan_tf.game.ema import Ema
from paragan_tf.game.losses import LossFn
from paragan_tf.game.optimizers import Optimizer
from paragan_tf.game.schedule import Round, Schedule, moves
from paragan_tf.sync.exchange import Exchange
from paragan_tf.types import Batch, Mode, Net

MOVES = {"d": turns.d_move, "g": turns.g_move}


class Player(NamedTuple):
  """One side of the game."""

  net: Net
  optimizer: Optimizer
  exchange: Exchange


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
  ):
    super().__init__(name="step")
    self.players = {"g": g, "d": d}
    self.loss_fn = loss_fn
    self.schedule = schedule
    self.ema = ema
    self.seed = seed
    if count is None:
      count = tf.Variable(
        0, trainable=False, dtype=tf.int64, name="global_step"
      )
    self.count = count
    for player in (g, d):
      player.optimizer.init(player.net.trainable_variables)

  @property
  def cycle(self) -> int:
    """Steps after which all repeats: phases go from 0 to `cycle - 1`."""
    return math.lcm(*(p.exchange.period for p in self.players.values()))

  @property
  def log_names(self) -> List[str]:
    """The names of the scalars that a call returns."""
    return [f"{who}/loss" for who in sorted(self.players)]

  def __call__(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], phase: int
  ) -> Dict[str, tf.Tensor]:
    """Trains for one step on one replica.

    Args:
      images: `[num_batches * b, h, w, c]`, in [-1, 1]: a batch for each
        round with D, one after the other.
      labels: `[num_batches * b]`, or `None`.
      phase: The step's place in the cycle.

    Returns:
      Scalars of this replica to log.
    """
    count = tf.convert_to_tensor(self.count)
    logs: Dict[str, tf.Tensor] = {}
    used = -1
    for index, round_turns in enumerate(self.schedule.rounds):
      used += moves("d", round_turns)
      z = self._z(images.shape[0] // self.schedule.num_batches, index, count)
      batch = _part(images, labels, z, max(used, 0))
      logs.update(self._round(round_turns, batch, phase))
    self.ema.update(count)
    self.count.assign_add(1)
    return logs

  def _round(
    self, round_turns: Round, batch: Batch, phase: int
  ) -> Dict[str, tf.Tensor]:
    """Plays all turns on one batch of real images and one of fakes."""
    mode = Mode.TURN if moves("g", round_turns) else Mode.WATCH
    fakes = turns.draw(self.players["g"].net, batch, mode)
    d = self.players["d"].net
    logs = {}
    for turn in round_turns:
      made = {who: MOVES[who](fakes, d, batch, self.loss_fn) for who in turn}
      for who, move in made.items():
        self._update(self.players[who], move, phase)
        logs[f"{who}/loss"] = move.loss
    return logs

  def _z(self, size: int, index: int, count: tf.Tensor) -> tf.Tensor:
    z_dim = self.players["g"].net.z_dim  # type: ignore[attr-defined]
    return noise.normal([size, z_dim], self.seed, count, f"z{index}")

  def _update(self, player: Player, move: turns.Move, phase: int):
    weights = list(player.net.trainable_variables)
    state = [v for v in player.net.variables if not v.trainable]
    grads = player.exchange.before_update(move.grads, phase)
    player.optimizer.apply(grads, weights)
    player.exchange.after_update(weights, state, phase)


def _part(images, labels, z: tf.Tensor, index: int) -> Batch:
  """Returns the batch of one round out of the step's images."""
  rows = slice(index * z.shape[0], (index + 1) * z.shape[0])
  return Batch(images[rows], None if labels is None else labels[rows], z)
