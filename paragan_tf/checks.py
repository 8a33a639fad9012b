"""Checks that the parts of an experiment are compatible, before it is built."""

from typing import Any, Mapping, Optional, Sequence

from paragan_tf import collectives
from paragan_tf.game import class_losses
from paragan_tf.game.penalties import Penalty
from paragan_tf.game.schedule import Schedule
from paragan_tf.nets.norms import batch_norms
from paragan_tf.sync.exchange import Exchange
from paragan_tf.types import Net

# By D's conditioning: the penalty that both players need to learn classes.
_CLASS_PENALTIES = {
  "ac": class_losses.AuxiliaryClassifier,
  "2c": class_losses.Contrastive,
}


def check_batches(
  schedule: Schedule, batch_size: int, num_replicas: int
) -> None:
  """Raises an error if a batch cannot be split evenly among replicas."""
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


def check_nets(nets: Mapping[str, Net]) -> None:
  """Raises an error if G is a discriminator, or D a generator."""
  for who, net in nets.items():
    if hasattr(net, "z_dim") != (who == "g"):
      made, wanted = ("D", "G") if who == "g" else ("G", "D")
      raise ValueError(
        f"`{who}/player.net` must make a {wanted}, and makes a {made}, "
        f"{type(net).__name__}: set `g/player.net` to a generator and "
        "`d/player.net` to a discriminator."
      )


def check_seconds(max_seconds: Optional[float], estimator: Any) -> None:
  """Raises an error if what trains cannot stop in time."""
  if max_seconds is not None and estimator is not None:
    raise ValueError(
      f"`max_seconds` needs `--engine=strategy`, got {max_seconds}: "
      "TPUEstimator stops after steps only; set `Run.num_steps`."
    )


def check_classes(penalties: Sequence[Penalty], who: str, d: Net) -> None:
  """Raises an error if D's head predicts classes and no penalty trains it."""
  conditioning = getattr(getattr(d, "head", None), "conditioning", "none")
  needed = _CLASS_PENALTIES.get(conditioning)
  if needed and not any(isinstance(penalty, needed) for penalty in penalties):
    raise ValueError(
      f"`conditioning` '{conditioning}' of D needs the penalty "
      f"`{needed.__name__}` of both players, and `{who}` has none: set "
      f"`{who}/player.penalties = [@class_losses.{needed.__name__}()]`."
    )


def check_precision(precision: str) -> None:
  """Raises an error if the replicas' devices do not have a precision."""
  if precision == "float16" and collectives.device_kind() == "tpu":
    raise ValueError(
      "`precision` must be 'bfloat16' or 'float32' on a TPU, which has no "
      "float16, got 'float16'."
    )


def check_loss_scale(exchange: Exchange, who: str) -> None:
  """Raises an error if an exchange cannot skip an update.

  With a loss scale, a replica skips updates whose gradients are not finite.
  """
  if exchange.averages_updates:
    raise ValueError(
      f"`precision` 'float16' skips updates, and `{type(exchange).__name__}` "
      f"of `{who}` averages those of all replicas: take 'bfloat16', or "
      "`AllReduce`, `Periodic` or `Gossip`."
    )


def check_jit_compile(nets: Mapping[str, Net], who: str) -> None:
  """Raises an error if a player's gradients cannot be compiled by themselves.

  Replicas cannot communicate inside of a compiled function.
  """
  if collectives.device_kind() == "tpu":
    raise ValueError(
      f"`jit_compile` of `{who}` must be False on a TPU, where all of the step "
      "is compiled, got True."
    )
  num = collectives.num_replicas()
  for name, net in nets.items():
    if num > 1 and any(norm.group_size != 1 for norm in batch_norms(net)):
      raise ValueError(
        f"`jit_compile` of `{who}` must be False where norms communicate, and "
        f"norms of `{name}` average moments over replicas: set it to False, or "
        "`norms.BatchNorm.group_size = 1`."
      )


def check_role_split(
  schedule: Schedule, nets: Mapping[str, Net], exchanges: Mapping[str, Exchange]
) -> None:
  """Raises an error if G and D cannot train on separate replicas.

  Norms must not communicate: they would wait for replicas that train the other
  player. Exchanges must update a player on replicas that do not train it, too.
  """
  is_split = not schedule.plays_both(collectives.num_replicas())
  for name, net in nets.items():
    if is_split and any(norm.group_size != 1 for norm in batch_norms(net)):
      raise ValueError(
        f"Norms of `{name}` average moments over replicas, and with "
        f"`{type(schedule).__name__}` some replicas train the other player: "
        "set `norms.BatchNorm.group_size = 1`."
      )
  for name, exchange in exchanges.items():
    if not (exchange.communicates and exchange.supports_roles):
      raise ValueError(
        "G and D on separate replicas need an exchange that updates both on "
        f"all replicas, and `{type(exchange).__name__}` of `{name}` does not: "
        "take `AllReduce` or `Periodic`."
      )


def check_one_value(
  schedule: Schedule, exchanges: Mapping[str, Exchange]
) -> None:
  """Raises an error if variables need a value per replica (TPUEstimator)."""
  if schedule.roles and not schedule.on_cores:
    raise ValueError(
      "TPUEstimator keeps one value of each variable, and "
      f"`{type(schedule).__name__}` gives each replica its own cache: take "
      "`--engine=strategy`, or `on_cores`."
    )
  for name, exchange in exchanges.items():
    if not exchange.replicas_agree:
      raise ValueError(
        "TPUEstimator keeps one value of each variable, and "
        f"`{type(exchange).__name__}` of `{name}` lets replicas differ: "
        "take `AllReduce`, or `--engine=strategy`."
      )


def check_intervals(intervals: Mapping[str, int], cycle: int) -> None:
  """Raises an error unless a run can stop at these intervals.

  Args:
    intervals: Steps between two stops, by name.
    cycle: Steps between two exchanges.
  """
  for name, value in intervals.items():
    if value < 1:
      raise ValueError(f"`Run.{name}` must be at least 1, got {value}.")
  for name in ("save_every", "measure_every"):
    value = intervals.get(name, cycle)
    if value % cycle:
      raise ValueError(
        f"`Run.{name}` must be a multiple of {cycle}, the steps between two "
        f"exchanges, got {value}: take {-(-value // cycle) * cycle}; in "
        "between each replica has values of its own."
      )
