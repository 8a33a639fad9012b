"""What a run computes with, wired from gin: the file that knows every room."""

from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import gin
import tensorflow as tf

from paragan_tf import checks, collectives, hardware
from paragan_tf.data import preflight
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import loop, strategies
from paragan_tf.engine.estimator import (
  EstimatorLoop,
  make_estimator,
  make_input_fn,
  timed,
)
from paragan_tf.engine.player import Player
from paragan_tf.engine.processes import Processes
from paragan_tf.engine.role_split import RoleSplit
from paragan_tf.engine.sampling import Sampler
from paragan_tf.engine.step import Step
from paragan_tf.evaluation import Evaluation
from paragan_tf.game import losses
from paragan_tf.game.augment import Augment
from paragan_tf.game.ema import Ema
from paragan_tf.game.optimizers import Adam, Optimizer
from paragan_tf.game.penalties import Penalty, check
from paragan_tf.game.regularizers import Regularizer
from paragan_tf.game.schedule import Asynchronous, Schedule, Sequential
from paragan_tf.nets.fused import FusedPowerIterations
from paragan_tf.nets.precision import Precise, in_precision
from paragan_tf.nets.wrapped import Wrapped
from paragan_tf.outputs import checkpoints, features
from paragan_tf.sync.exchange import AllReduce, Exchange
from paragan_tf.types import ImageSpec, Net

# From the data's spec, a seed and a name to a net.
MakeNet = Callable[..., Net]


@gin.configurable(denylist=["spec", "seed", "name"])
def player(
  spec: ImageSpec,
  seed: int,
  name: str,
  net: MakeNet = gin.REQUIRED,
  optimizer: Callable[..., Optimizer] = Adam,
  exchange: Callable[..., Exchange] = AllReduce,
  clip_norm: Optional[float] = None,
  regularizer: Optional[Regularizer] = None,
  penalties: Sequence[Penalty] = (),
  precision: str = "float32",
) -> Player:
  """Makes one player; gin scope `g/` or `d/` says which.

  `precision` is that of activations and products: `float32`, `bfloat16`, or
  `auto`, the fastest of the hardware that trains well.
  """
  if clip_norm is not None and clip_norm <= 0:
    raise ValueError(f"`clip_norm` must be above 0, got {clip_norm}.")
  made = exchange(name=f"{name}_exchange")
  made.seed = seed
  return Player(
    _laid_out(net(spec=spec, seed=seed, name=name), precision),
    optimizer(name=f"{name}_optimizer"),
    made,
    clip_norm,
    regularizer,
    tuple(penalties),
  )


@gin.configurable(denylist=["strategy", "nets"])
class Experiment:
  """All that a run computes with: data, players, the step, checkpoints.

  `nets` makes "g" and "d" where they are not chosen in gin; `truncation` is for
  samples and metrics, not for training. With `num_standing`, metrics use the
  batch-norm statistics of so many batches of samples, not the moving average.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    nets: Optional[Mapping[str, MakeNet]] = None,
    batch_size: int = 64,
    input_fn: Callable[[], InputFn] = InputFn,
    loss: losses.LossFn = losses.hinge,
    schedule: Callable[[], Schedule] = Sequential,
    ema: Callable[..., Ema] = Ema,
    augment: Optional[Callable[[], Augment]] = None,
    extractor: Optional[Callable[[], features.Extractor]] = None,
    truncation: Optional[float] = None,
    num_standing: int = 0,
    seed: int = 0,
  ):
    self._schedule = schedule()
    num_replicas = strategy.num_replicas_in_sync
    checks.check_batches(self._schedule, batch_size, num_replicas)
    self.strategy = strategy
    self.processes = Processes(strategy)
    self.batch_size = batch_size
    self.input_fn = input_fn()
    self.spec = self.input_fn.spec
    self._nets = nets or {}
    self._augment = augment
    self._parts = (loss, self._schedule, ema, seed)
    with strategies.scope(strategy):
      self.step = self.make_step()
      self._mean_g = self._make_mean_g(seed)
    conditional = bool(self.spec.num_classes)
    self.sampler = Sampler(
      strategy, self._shown_g, conditional, truncation=truncation
    )
    self._traced_consolidate = tf.function(self._take_mean, autograph=False)
    self.evaluation = Evaluation(
      self.sampler, self.input_fn, extractor, self.plain_g, num_standing
    )

  def make_step(self, count: Optional[tf.Variable] = None) -> Step:
    """Makes a step, with variables of its own.

    Args:
      count: The variable that counts the steps, if there is one already.
    """
    loss, schedule, ema, seed = self._parts
    g, d = (self._player("g", "g", seed), self._player("d", "d", seed))
    for who, side in (("g", g), ("d", d)):
      check(side.penalties, who)
      checks.check_classes(side.penalties, who, d.net)
    twin = self._player("g", "g_ema", seed).net
    role_split = None
    if isinstance(schedule, Asynchronous):
      exchanges = {"g": g.exchange, "d": d.exchange}
      checks.check_role_split(schedule, {"g": g.net, "d": d.net}, exchanges)
      periods = {name: side.period for name, side in exchanges.items()}
      role_split = RoleSplit(
        schedule, self.spec, self.batch_size, periods, seed
      )
    augment = self._augment and self._augment()
    average = ema(g.net, twin)
    return Step(g, d, loss, schedule, average, seed, count, role_split, augment)

  def _make_mean_g(self, seed: int) -> Optional[Net]:
    """Makes what holds the mean of the averages of G, if they differ."""
    mean_is_model = self.step.players["g"].exchange.mean_is_model
    if self.strategy.num_replicas_in_sync == 1 or not mean_is_model:
      return None
    return self._player("g", "g_mean", seed).net

  @property
  def _shown_g(self) -> Net:
    return self._mean_g or self.step.ema.twin

  def consolidate(self) -> None:
    """Lets what is sampled, measured and exported be the mean over replicas.

    All processes call it together.
    """
    if self._mean_g is not None:
      self._traced_consolidate()

  def _take_mean(self) -> None:
    def replica():
      assert self._mean_g is not None
      values = [tf.convert_to_tensor(v) for v in self.step.ema.twin.variables]
      means = collectives.mean(values)
      for variable, value in zip(self._mean_g.variables, means):
        variable.assign(value)

    self.strategy.run(replica)

  def _player(self, side: str, name: str, seed: int) -> Player:
    given = {"net": self._nets[side]} if side in self._nets else {}
    with gin.config_scope(side):
      return player(self.spec, seed, name, **given)

  @property
  def images_per_step(self) -> int:
    """Real images that one step takes, over all replicas."""
    return self.batch_size * self.step.schedule.num_batches

  @property
  def mixes_classes(self) -> bool:
    """Whether G draws between two classes; a user's net may know ids only."""
    return self.spec.num_classes > 1 and "g" not in self._nets

  def check_input(self) -> None:
    """Says in a `ValueError` why training could not work on the input."""
    num = self._schedule.num_shards(self.strategy.num_replicas_in_sync)
    preflight.check(self.input_fn, self.images_per_step, num)

  def input_remarks(self) -> List[str]:
    """Returns what is odd about the input, and no error."""
    return preflight.remarks(self.input_fn)

  def broken_images(self) -> Sequence[Tuple[str, str]]:
    """Returns files that are left out of the input, and why."""
    source = getattr(self.input_fn, "source", None)
    return source.broken if source is not None else ()

  def dataset(self, start_step: int) -> tf.distribute.DistributedDataset:
    """Returns the batches of each replica, from `start_step` on."""
    num = self.strategy.num_replicas_in_sync
    num_shards = self._schedule.num_shards(num)

    def dataset_fn(context):
      local = num // context.num_input_pipelines
      first = context.input_pipeline_id * local
      replicas = range(first, first + local)
      return self.input_fn(
        dict(
          batch_size=self.images_per_step // num_shards,
          num_shards=num_shards,
          shards=[self._schedule.shard(replica) for replica in replicas],
          start_step=start_step,
        )
      )

    return self.strategy.distribute_datasets_from_function(dataset_fn)

  def inner_loop(self, start_step: int) -> loop.InnerLoop:
    """Returns the inner loop, its data standing at `start_step`."""
    return loop.InnerLoop(
      self.strategy,
      self.step,
      strategies.iterate(self.dataset(start_step)),
      self.images_per_step,
    )

  def estimator(self, model_dir: str, tpu=None):
    """Returns a `TPUEstimator` of the run; `tpu` is where it trains, if any."""
    if tpu is not None:
      exchanges = {n: side.exchange for n, side in self.step.players.items()}
      checks.check_one_value(self._schedule, exchanges)
    return make_estimator(
      self.make_step,
      model_dir,
      self.images_per_step,
      tpu,
      cores_per_replica=2 if self._schedule.on_cores else None,
    )

  def estimator_loop(
    self, estimator, start_step: int, log: loop.Action
  ) -> EstimatorLoop:
    """Returns the estimator's inner loop, its data standing at `start_step`."""
    return EstimatorLoop(
      estimator,
      timed(make_input_fn(self.input_fn, start_step)),
      self.images_per_step,
      log,
      self.step.log_names,
    )

  def entries(self) -> List[checkpoints.Entry]:
    """Returns every variable of the run, with all its copies."""
    num = self.strategy.num_replicas_in_sync
    first = self.processes.index * (num // self.processes.count)
    own, exchanges = self._own(), self._exchanges()
    summed = {v.name for exchange in exchanges for v in exchange.summed}
    residual_targets = {
      name: checkpoints.Part(*part)
      for exchange in exchanges
      for name, part in exchange.residual_targets.items()
    }
    return [
      checkpoints.Entry(
        variable.name.split(":")[0],
        strategies.copies(self.strategy, variable),
        agrees=variable.name not in own,
        first_replica=first,
        num_replicas=num,
        merged=own.get(variable.name),
        optional=variable.name in summed,
        absorbs=residual_targets.get(variable.name),
      )
      for variable in self.step.variables
    ]

  def _exchanges(self) -> List[Exchange]:
    return [side.exchange for side in self.step.players.values()]

  def _own(self) -> Dict[str, Optional[str]]:
    """Returns what replicas have of their own, and how that is merged."""
    own: Dict[str, Optional[str]] = {}
    for name, side in self.step.players.items():
      exchange = side.exchange
      if exchange.replicas_agree:
        continue
      parts = [side.net, side.optimizer, exchange]
      if name == "g":
        parts.append(self.step.ema.twin)
      rule = "mean" if exchange.mean_is_model else None
      own.update((v.name, rule) for part in parts for v in part.variables)
      own.update((v.name, "sum") for v in exchange.summed)
    if self.step.role_split is not None:
      own.update((v.name, None) for v in self.step.role_split.variables)
    return own

  def plain_g(self) -> Net:
    """Returns a copy of the average of G, with plain variables."""
    copy = self._player("g", "exported", self._parts[-1]).net
    for variable, value in zip(copy.variables, self._shown_g.variables):
      variable.assign(strategies.copies(self.strategy, value)[0])
    return copy

  def sync_summary(self) -> str:
    """Returns how replicas agree, for each player, in one sentence."""
    ways: Dict[str, List[str]] = {}
    for name, side in self.step.players.items():
      ways.setdefault(side.exchange.summary(), []).append(f"`{name}`")
    said = (f"{' and '.join(names)} by {way}" for way, names in ways.items())
    return f"Replicas exchange {'; '.join(said)}."

  def summary(self) -> str:
    """Returns what would run, in a few lines."""
    counts = {
      name: sum(v.shape.num_elements() for v in side.net.trainable_variables)
      for name, side in self.step.players.items()
    }
    num_images = self.input_fn.num_images
    known = f"{num_images:,} images to train on, " if num_images else ""
    lines = [
      f"data      {self.input_fn.name}, {known}"
      f"{self.spec.resolution}x{self.spec.resolution}x{self.spec.channels}, "
      f"{self.spec.num_classes} classes",
      f"batch     {self.batch_size} on "
      f"{self.strategy.num_replicas_in_sync} replica(s), "
      f"turns {_turns(self.step.schedule)}",
    ]
    for name, side in self.step.players.items():
      lines.append(
        f"{name}         {_kind(side.net)}, "
        f"{counts[name]:,} weights, {type(side.optimizer).__name__}, "
        f"{side.exchange.summary()}"
      )
    return "\n".join(lines)


def _laid_out(net: Net, precision: str) -> Net:
  layout = hardware.Layout()
  if layout.join_power_iterations:
    net = FusedPowerIterations(net)
  if precision == "auto":
    precision = hardware.profile(layout.hardware).precision
  return in_precision(net, precision)


def _kind(net: Net) -> str:
  if isinstance(net, Precise):
    return f"{_kind(net.net)} in {net.dtype.name}"
  if isinstance(net, Wrapped):
    return _kind(net.net)
  return type(net).__module__.split(".")[-1]


def _turns(schedule: Schedule) -> str:
  rounds = (" ".join("+".join(t) for t in turns) for turns in schedule.rounds)
  return " | ".join(rounds)
