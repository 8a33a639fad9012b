"""What does not fit together, said before a run is made."""

from typing import Mapping, Sequence

from paragan_tf import collectives
from paragan_tf.game import class_losses
from paragan_tf.game.penalties import Penalty
from paragan_tf.game.schedule import Schedule
from paragan_tf.nets.norms import batch_norms
from paragan_tf.sync.exchange import Exchange
from paragan_tf.types import Net

# What both players must pay for D's head to learn classes.
_PAID = {
  "ac": class_losses.AuxiliaryClassifier,
  "2c": class_losses.Contrastive,
}


def check_batches(
  schedule: Schedule, batch_size: int, num_replicas: int
) -> None:
  """Refuses batches that replicas cannot share alike."""
  num = schedule.num_shards(num_replicas)
  if batch_size < 1 or batch_size % num:
    raise ValueError(
      f"`batch_size` must be a multiple of the {num} replicas, "
      f"got {batch_size}: take {max(1, round(batch_size / num)) * num}."
    )
  g_batch_size = schedule.g_batch_size
  if not schedule.roles and (g_batch_size or 0) % num_replicas:
    raise ValueError(
      f"`g_batch_size` must be a multiple of the {num_replicas} replicas, "
      f"got {g_batch_size}."
    )


def check_classes(penalties: Sequence[Penalty], who: str, d: Net) -> None:
  """Refuses a D whose head says classes that nobody pays for."""
  conditioning = getattr(getattr(d, "head", None), "conditioning", "none")
  paid = _PAID.get(conditioning)
  if paid and not any(isinstance(penalty, paid) for penalty in penalties):
    raise ValueError(
      f"`conditioning` '{conditioning}' of D needs the penalty "
      f"`{paid.__name__}` of both players, and `{who}` has none: set "
      f"`{who}/player.penalties = [@class_losses.{paid.__name__}()]`."
    )


def check_role_split(
  schedule: Schedule, nets: Mapping[str, Net], exchanges: Mapping[str, Exchange]
) -> None:
  """Refuses what cannot play on replicas of its own.

  That are norms that wait for replicas which play the other player, and
  exchanges by which the two would not see each other.
  """
  alone = not schedule.plays_both(collectives.num_replicas())
  for name, net in nets.items():
    if alone and any(norm.group_size != 1 for norm in batch_norms(net)):
      raise ValueError(
        f"Norms of `{name}` ask all replicas for their moments, and with "
        f"`{type(schedule).__name__}` some of them play the other player: set "
        "`norms.BatchNorm.group_size = 1`."
      )
  for name, exchange in exchanges.items():
    if not (exchange.communicates and exchange.supports_roles):
      raise ValueError(
        "G and D on replicas of their own must exchange, and "
        f"`{type(exchange).__name__}` of `{name}` does not, or not between "
        "them: take `AllReduce` or `Periodic`."
      )


def check_one_value(
  schedule: Schedule, exchanges: Mapping[str, Exchange]
) -> None:
  """Refuses what TPUEstimator cannot keep: values of each replica's own."""
  if schedule.roles and not schedule.on_cores:
    raise ValueError(
      "TPUEstimator keeps one value of each variable, and "
      f"`{type(schedule).__name__}` gives replicas a cache of their "
      "own: take `--engine=strategy`, or `on_cores`."
    )
  for name, exchange in exchanges.items():
    if not exchange.replicas_agree:
      raise ValueError(
        "TPUEstimator keeps one value of each variable, and "
        f"`{type(exchange).__name__}` of `{name}` lets replicas differ: "
        "take `AllReduce`, or `--engine=strategy`."
      )
