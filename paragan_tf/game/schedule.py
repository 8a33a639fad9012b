"""Who moves when.

A step is a tuple of rounds, a round a tuple of turns. A round draws latent
codes and looks at one batch of real images and one of fakes; the players of one
turn look at the same point, then all of them move:

    for turns in schedule.rounds:      # e.g. (("d",),), (("d",), ("g",))
      fakes = g(z)
      for turn in turns:
        moves = [gradient of player for player in turn]
        for player, move in zip(turn, moves): update player
"""

from typing import Optional, Tuple

import gin

from paragan_tf.game.cache import POLICIES
from paragan_tf.game.roles import Roles

Turn = Tuple[str, ...]
Round = Tuple[Turn, ...]


def moves(player: str, turns: Round) -> bool:
  """Returns whether a player has a turn in a round."""
  return any(player in turn for turn in turns)


class Schedule:
  """The rounds of one step.

  Attributes:
    rounds: Names of the players that move, turn by turn, round by round.
    roles: Which replicas play whom; `None` if all of them play both.
    g_batch_size: Fakes that G draws when it moves alone, over all replicas;
      `None` if as many as there are real images.
    on_cores: Whether G and D have a core each of every replica.
  """

  rounds: Tuple[Round, ...]
  roles: Optional[Roles] = None
  g_batch_size: Optional[int] = None
  on_cores = False

  def num_shards(self, num_replicas: int) -> int:
    """Returns among how many replicas a batch of real images is shared."""
    return num_replicas

  def plays_both(self, num_replicas: int) -> bool:
    """Returns whether each replica plays both."""
    del num_replicas
    return True

  def shard(self, replica: int) -> int:
    """Returns which shard of a batch of real images a replica takes."""
    return replica

  @property
  def num_batches(self) -> int:
    """How many batches of real images a step takes: one a round with D."""
    return max(1, sum(moves("d", turns) for turns in self.rounds))


@gin.register
class Sequential(Schedule):
  """D moves `num_d_steps` times, then G moves against the new D.

  Args:
    num_d_steps: How often D moves in a step, each time on new images.
    num_g_steps: How often G moves.
    g_batch_size: Fakes that G draws when it moves, over all replicas; that of
      real images, `Experiment.batch_size`, by default.
    reuse_fakes: G answers on the fakes that D has just been trained on; its
      forward pass is then needed once, and kept in memory through D's turn.
      Without it G draws fakes of its own.
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
        f"`g_batch_size` {g_batch_size} asks for fakes of G's own: set "
        "`reuse_fakes` to False."
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
  """Both move at the same time, from the same point and on the same batch."""

  def __init__(self) -> None:
    self.rounds = ((("d", "g"),),)


@gin.register
class Asynchronous(Schedule):
  """G and D move at the same time, each on replicas of its own.

  ParaGAN (arXiv 2411.03999). A replica of G answers to the D it last saw; a
  replica of D trains on real images and on fakes that its G drew some steps
  ago. Weights and fakes are exchanged when the players' exchanges say so; on
  one replica both move in one program, and neither waits for the other.

  Sequential training is recovered exactly where nothing can be stale: G's path
  against a D that stands still (learning rate of D next to nothing), period 1.

  Args:
    g_per_group: Replicas of G in each group.
    d_per_group: Replicas of D in each group; one count divides the other.
    g_batch_size: Fakes that G draws in a step, over all its replicas; that of
      real images, `Experiment.batch_size`, by default.
    cache_depth: Batches of fakes that D keeps.
    cache_policy: `oldest` (each once, in order), `newest` or `random`.
    staleness_bound: Steps that a view may be old, of D by G or of a fake by D;
      what period and depth lead to by default, and never less.
    damping: Divides a player's rate by the age of what it saw of the other
      (staleness-aware SGD, arXiv 1511.05950).
    on_cores: Every replica plays both at the same time, and where TPUEstimator
      drives a TPU it has two cores, one for G and one for D. An older way,
      which newer TPU compilers refuse.
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
        "`g_per_group` and `d_per_group` must be at least 1, and one divide "
        "the other, "
        f"got {g_per_group} and {d_per_group}."
      )
    if cache_depth < 1:
      raise ValueError(f"`cache_depth` must be at least 1, got {cache_depth}.")
    if cache_policy not in POLICIES:
      raise ValueError(
        f"`cache_policy` must be one of {', '.join(POLICIES)}, got "
        f"'{cache_policy}'."
      )
    if on_cores and larger > 1:
      raise ValueError(
        "`on_cores` lets every replica play both, so `g_per_group` and "
        f"`d_per_group` must be 1, got {g_per_group} and {d_per_group}."
      )
    self.roles = Roles(g_per_group, d_per_group)
    self.on_cores = on_cores
    self.g_batch_size = g_batch_size
    self.cache_depth = cache_depth
    self.cache_policy = cache_policy
    self.staleness_bound = staleness_bound
    self.damping = damping

  def num_shards(self, num_replicas: int) -> int:
    """Returns how many replicas play D."""
    if self.plays_both(num_replicas):
      return num_replicas
    if num_replicas % self.roles.group:
      raise ValueError(
        f"`g_per_group` {self.roles.g_per_group} and `d_per_group` "
        f"{self.roles.d_per_group} "
        f"must fit the replicas in whole groups of {self.roles.group}, got "
        f"{num_replicas} replicas."
      )
    return self.roles.num_playing("d", num_replicas)

  def shard(self, replica: int) -> int:
    """Returns the shard of the D that a replica plays or feeds."""
    return replica if self.on_cores else self.roles.d_place(replica)

  def g_place(self, replica: int) -> int:
    """Returns the place of a replica among those that play G, or of its G."""
    return replica if self.on_cores else self.roles.g_place(replica)

  def plays_both(self, num_replicas: int) -> bool:
    """Returns whether each replica plays both."""
    return self.on_cores or num_replicas == 1

  def bound(self, period: int) -> int:
    """Returns the oldest view that can be, with an exchange every `period`."""
    least = {
      "oldest": max(period, self.cache_depth),
      "newest": period,
      "random": period + self.cache_depth - 1,
    }[self.cache_policy]
    if self.staleness_bound is not None and self.staleness_bound < least:
      raise ValueError(
        f"`staleness_bound` must be at least {least}, which the exchange's "
        f"period {period} and `cache_depth` {self.cache_depth} lead to, got "
        f"{self.staleness_bound}."
      )
    return self.staleness_bound or least
