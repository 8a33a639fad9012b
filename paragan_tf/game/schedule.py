"""Schedules: which player trains when.

A step is a tuple of rounds, a round a tuple of turns. A round draws latent
codes and takes one batch of real images and one of fakes. The players of one
turn compute their gradients at the same point, then all of them update:

    for turns in schedule.rounds:      # e.g. (("d",),), (("d",), ("g",))
      fakes = g(z)
      for turn in turns:
        moves = [gradient of player for player in turn]
        for player, move in zip(turn, moves): update player
"""

from typing import Optional, Tuple

import gin

from paragan_tf.game.cache import DTYPES, POLICIES
from paragan_tf.game.roles import Roles

Turn = Tuple[str, ...]
Round = Tuple[Turn, ...]


def has_turn(player: str, turns: Round) -> bool:
  """Returns whether a player has a turn in a round."""
  return any(player in turn for turn in turns)


class Schedule:
  """The rounds of one step.

  Attributes:
    rounds: Names of the players of each turn of each round.
    roles: Which replicas train which player; `None` if all of them train both.
    g_batch_size: Fakes that G draws in rounds without D, over all replicas;
      `None` for as many as there are real images.
    on_cores: Whether each replica has one core for G and one for D.
  """

  rounds: Tuple[Round, ...]
  roles: Optional[Roles] = None
  g_batch_size: Optional[int] = None
  on_cores = False

  def num_shards(self, num_replicas: int) -> int:
    """Returns the number of shards of a batch of real images."""
    return num_replicas

  def plays_both(self, num_replicas: int) -> bool:
    """Returns whether each replica trains both players."""
    del num_replicas
    return True

  def shard(self, replica: int) -> int:
    """Returns the index of the shard of real images that a replica takes."""
    return replica

  @property
  def num_batches(self) -> int:
    """Batches of real images per step: one for each round with D."""
    return max(1, sum(has_turn("d", turns) for turns in self.rounds))


@gin.register
class Sequential(Schedule):
  """D updates `num_d_steps` times, then G trains against the new D.

  Args:
    num_d_steps: Updates of D per step, each on new images.
    num_g_steps: Updates of G per step.
    g_batch_size: Fakes that G draws for its update, over all replicas; by
      default as many as there are real images (`Experiment.batch_size`).
    reuse_fakes: Whether G trains on the fakes of D's last update. Its forward
      pass then runs once, and its activations stay in memory during D's turn.
      Otherwise G draws new fakes.
  """

  def __init__(
    self,
    num_d_steps: int = 1,
    num_g_steps: int = 1,
    g_batch_size: Optional[int] = None,
    reuse_fakes: bool = True,
  ):
    for name, count in (
      ("num_d_steps", num_d_steps),
      ("num_g_steps", num_g_steps),
    ):
      if count < 1:
        raise ValueError(f"`{name}` must be at least 1, got {count}.")
    if reuse_fakes and g_batch_size is not None:
      raise ValueError(
        "`g_batch_size` must be None if G reuses D's fakes, got "
        f"{g_batch_size}: set `reuse_fakes` to False."
      )
    self.g_batch_size = g_batch_size
    d_round: Round = (("d",),)
    g_round: Round = (("g",),)
    if reuse_fakes:
      both: Round = (*d_round, *g_round)
      first = (*(d_round,) * (num_d_steps - 1), both)
      self.rounds = (*first, *(g_round,) * (num_g_steps - 1))
    else:
      self.rounds = (*(d_round,) * num_d_steps, *(g_round,) * num_g_steps)


@gin.register
class Simultaneous(Schedule):
  """Both players update at the same time, from the same point and batch."""

  def __init__(self) -> None:
    self.rounds = ((("d", "g"),),)


@gin.register
class Asynchronous(Schedule):
  """G and D update at the same time, on separate replicas.

  ParaGAN (arXiv 2411.03999). A replica of G trains against the last D that it
  received; a replica of D trains on real images and on fakes that its sources
  drew some steps ago. The players' exchanges decide at which steps weights and
  fakes are sent. On one replica both players train in one program, and neither
  waits for the other.

  Where nothing can be stale, this equals sequential training: G's updates
  against a D that does not change (learning rate near 0), with period 1.

  Args:
    g_per_group: Replicas of G in each group.
    d_per_group: Replicas of D in each group; one of both divides the other.
    g_batch_size: Fakes that G draws in a step, over all its replicas; by
      default as many as there are real images (`Experiment.batch_size`).
    cache_depth: Batches of fakes that D keeps.
    cache_policy: `oldest` (each once, in order), `newest` or `random`.
    cache_dtype: Type in which fakes are sent and kept: `uint8`, 256 levels as
      real images have, `bfloat16` or `float32`.
    staleness_bound: Maximum staleness in steps, of the D that G sees and of the
      fakes that D sees; must be at least, and is by default, what the exchange
      period and `cache_depth` cause.
    damping: Whether to divide a player's learning rate by the staleness of what
      it sees of the other (staleness-aware SGD, arXiv 1511.05950).
    on_cores: Every replica trains both players at the same time; with
      TPUEstimator on a TPU, G on one of its two cores and D on the other. Newer
      TPU compilers refuse it.
  """

  rounds = ((("d", "g"),),)
  roles: Roles

  def __init__(
    self,
    g_per_group: int = 1,
    d_per_group: int = 1,
    g_batch_size: Optional[int] = None,
    cache_depth: int = 2,
    cache_policy: str = "oldest",
    cache_dtype: str = "uint8",
    staleness_bound: Optional[int] = None,
    damping: bool = False,
    on_cores: bool = False,
  ):
    larger, smaller = (
      max(g_per_group, d_per_group),
      min(g_per_group, d_per_group),
    )
    if smaller < 1 or larger % smaller:
      raise ValueError(
        "`g_per_group` and `d_per_group` must be at least 1, and one must "
        f"divide the other, got {g_per_group} and {d_per_group}."
      )
    if cache_depth < 1:
      raise ValueError(f"`cache_depth` must be at least 1, got {cache_depth}.")
    if cache_policy not in POLICIES:
      raise ValueError(
        f"`cache_policy` must be one of {', '.join(POLICIES)}, got "
        f"'{cache_policy}'."
      )
    if cache_dtype not in DTYPES:
      raise ValueError(
        f"`cache_dtype` must be one of {', '.join(DTYPES)}, got "
        f"'{cache_dtype}'."
      )
    if on_cores and larger > 1:
      raise ValueError(
        "With `on_cores` every replica trains both players, so `g_per_group` "
        "and `d_per_group` must be 1, got "
        f"{g_per_group} and {d_per_group}."
      )
    self.roles = Roles(g_per_group, d_per_group)
    self.on_cores = on_cores
    self.g_batch_size = g_batch_size
    self.cache_depth = cache_depth
    self.cache_policy = cache_policy
    self.cache_dtype = cache_dtype
    self.staleness_bound = staleness_bound
    self.damping = damping

  def num_shards(self, num_replicas: int) -> int:
    """Returns the number of replicas that train D."""
    if self.plays_both(num_replicas):
      return num_replicas
    if num_replicas % self.roles.group_size:
      raise ValueError(
        f"`g_per_group` {self.roles.g_per_group} and `d_per_group` "
        f"{self.roles.d_per_group} must divide the replicas into groups of "
        f"{self.roles.group_size}, got {num_replicas} replicas."
      )
    return self.roles.num_playing("d", num_replicas)

  def shard(self, replica: int) -> int:
    """Returns the shard of a replica of D; of its first target, for G."""
    return replica if self.on_cores else self.roles.d_index(replica)

  def g_index(self, replica: int) -> int:
    """Returns the index of a replica of G; of its first source, for D."""
    return replica if self.on_cores else self.roles.g_index(replica)

  def plays_both(self, num_replicas: int) -> bool:
    """Returns whether each replica trains both players."""
    return self.on_cores or num_replicas == 1

  def bound(self, period: int) -> int:
    """Returns the maximum staleness, with an exchange every `period` steps."""
    least = {
      "oldest": max(period, self.cache_depth),
      "newest": period,
      "random": period + self.cache_depth - 1,
    }[self.cache_policy]
    if self.staleness_bound is not None and self.staleness_bound < least:
      raise ValueError(
        f"`staleness_bound` must be at least {least}, the staleness that the "
        f"exchange's period {period} and `cache_depth` {self.cache_depth} "
        f"cause, got {self.staleness_bound}."
      )
    return self.staleness_bound or least
