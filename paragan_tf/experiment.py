"""What a run computes with, wired from gin: the file that knows every room."""

import contextlib
from typing import (
  Any,
  Callable,
  Dict,
  Iterator,
  List,
  Mapping,
  Optional,
  Sequence,
)

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.data import preflight
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import loop, strategies
from paragan_tf.engine.apart import Apart
from paragan_tf.engine.estimator import (
  EstimatorLoop,
  make_estimator,
  make_input_fn,
)
from paragan_tf.engine.processes import Processes
from paragan_tf.engine.sampling import Sampler
from paragan_tf.engine.step import Player, Step
from paragan_tf.game import losses
from paragan_tf.game.augment import Augment
from paragan_tf.game.ema import Ema
from paragan_tf.game.optimizers import Adam, Optimizer
from paragan_tf.game.penalties import Penalty, check
from paragan_tf.game.regularizers import Regularizer
from paragan_tf.game.schedule import Schedule, Sequential
from paragan_tf.nets import standing
from paragan_tf.nets.norms import batch_norms
from paragan_tf.nets.precision import Precise, in_precision
from paragan_tf.outputs import checkpoints, features, metrics, samples
from paragan_tf.sync.exchange import AllReduce, Exchange
from paragan_tf.types import ImageSpec, Net

# From the data's spec, a seed and a name to a net.
MakeNet = Callable[..., Net]
_SAMPLE_SEED, _METRIC_SEED, _STANDING_SEED = 1, 2, 3


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

  `precision` is that of activations and products: `float32` or `bfloat16`.
  """
  if clip_norm is not None and clip_norm <= 0:
    raise ValueError(f"`clip_norm` must be above 0, got {clip_norm}.")
  return Player(
    in_precision(net(spec=spec, seed=seed, name=name), precision),
    optimizer(name=f"{name}_optimizer"),
    exchange(name=f"{name}_exchange"),
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
    num = self._schedule.num_shares(strategy.num_replicas_in_sync)
    if batch_size < 1 or batch_size % num:
      raise ValueError(
        f"`batch_size` must be a multiple of the {num} replicas, "
        f"got {batch_size}: take {max(1, round(batch_size / num)) * num}."
      )
    g_batch_size = self._schedule.g_batch_size
    num_replicas = strategy.num_replicas_in_sync
    if not self._schedule.roles and (g_batch_size or 0) % num_replicas:
      raise ValueError(
        f"`g_batch_size` must be a multiple of the {num_replicas} replicas, "
        f"got {g_batch_size}."
      )
    self.strategy = strategy
    self.processes = Processes(strategy)
    self.batch_size = batch_size
    self.input_fn = input_fn()
    self.spec = self.input_fn.spec
    self.extractor = extractor
    self._nets = nets or {}
    self._augment = augment
    self._parts = (loss, self._schedule, ema, seed)
    with strategies.scope(strategy):
      self.step = self.make_step()
    twin = self.step.ema.twin
    if num_standing < 0:
      raise ValueError(f"`num_standing` must be 0 or more, got {num_standing}.")
    self._truncation = truncation
    self._num_standing = num_standing
    self._yardsticks: Dict[Any, metrics.Yardstick] = {}
    self.sampler = Sampler(
      strategy, twin, bool(self.spec.num_classes), truncation=truncation
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
    twin = self._player("g", "g_ema", seed).net
    apart = None
    if schedule.roles:
      _check_alone(schedule, {"g": g.net, "d": d.net})
      apart = self._apart(schedule, {"g": g.exchange, "d": d.exchange}, seed)
    augment = self._augment and self._augment()
    average = ema(g.net, twin)
    return Step(g, d, loss, schedule, average, seed, count, apart, augment)

  def _apart(self, schedule, exchanges, seed: int) -> Apart:
    for name, exchange in exchanges.items():
      if not exchange.talks:
        raise ValueError(
          "G and D on replicas of their own must exchange, and "
          f"`{type(exchange).__name__}` of `{name}` does not: take `AllReduce` "
          "or `Periodic`."
        )
    periods = {name: exchange.period for name, exchange in exchanges.items()}
    return Apart(schedule, self.spec, self.batch_size, periods, seed)

  def _player(self, side: str, name: str, seed: int) -> Player:
    given = {"net": self._nets[side]} if side in self._nets else {}
    with gin.config_scope(side):
      return player(self.spec, seed, name, **given)

  @property
  def images_per_step(self) -> int:
    """Real images that one step takes, over all replicas."""
    return self.batch_size * self.step.schedule.num_batches

  def check_input(self) -> None:
    """Says in a `ValueError` why training could not work on the input."""
    preflight.check(self.input_fn, self.images_per_step)

  def input_remarks(self) -> List[str]:
    """Returns what is odd about the input, and no error."""
    return preflight.remarks(self.input_fn)

  def dataset(self, start_step: int) -> tf.distribute.DistributedDataset:
    """Returns the batches of each replica, from `start_step` on."""
    num = self.strategy.num_replicas_in_sync
    num_shares = self._schedule.num_shares(num)

    def dataset_fn(context):
      local = num // context.num_input_pipelines
      first = context.input_pipeline_id * local
      replicas = range(first, first + local)
      return self.input_fn(
        dict(
          batch_size=self.images_per_step // num_shares,
          num_shares=num_shares,
          shares=[self._schedule.share(replica) for replica in replicas],
          start_step=start_step,
        )
      )

    return self.strategy.distribute_datasets_from_function(dataset_fn)

  def inner_loop(self, start_step: int) -> loop.InnerLoop:
    """Returns the inner loop, its data standing at `start_step`."""
    return loop.InnerLoop(
      self.strategy,
      self.step,
      iter(self.dataset(start_step)),
      self.images_per_step,
    )

  def estimator(self, model_dir: str, tpu=None):
    """Returns a `TPUEstimator` of the run; `tpu` is where it trains, if any."""
    on_cores = self._schedule.on_cores
    if tpu is not None and self._schedule.roles and not on_cores:
      raise ValueError(
        "TPUEstimator keeps one value of each variable, and "
        f"`{type(self._schedule).__name__}` gives replicas a cache of their "
        "own: take `--engine=strategy`, or `on_cores`."
      )
    for name, side in self.step.players.items():
      if tpu is not None and not side.exchange.replicas_agree:
        raise ValueError(
          "TPUEstimator keeps one value of each variable, and "
          f"`{type(side.exchange).__name__}` of `{name}` lets replicas differ: "
          "take `AllReduce`, or `--engine=strategy`."
        )
    return make_estimator(
      self.make_step,
      model_dir,
      self.images_per_step,
      tpu,
      cores_per_replica=2 if on_cores else None,
    )

  def estimator_loop(
    self, estimator, start_step: int, log: loop.Action
  ) -> EstimatorLoop:
    """Returns the estimator's inner loop, its data standing at `start_step`."""
    return EstimatorLoop(
      estimator,
      make_input_fn(self.input_fn, start_step),
      self.images_per_step,
      log,
      self.step.log_names,
    )

  def entries(self) -> List[checkpoints.Entry]:
    """Returns every variable of the run, with all its copies."""
    num = self.strategy.num_replicas_in_sync
    first = self.processes.index * (num // self.processes.count)
    own = set()
    for side in self.step.players.values():
      if not side.exchange.replicas_agree:
        own |= {v.name for v in side.net.variables}
        own |= {v.name for v in side.optimizer.variables}
        own |= {v.name for v in side.exchange.variables}
    if not self.step.players["g"].exchange.replicas_agree:
      own |= {v.name for v in self.step.ema.twin.variables}
    if self.step.apart is not None:
      own |= {v.name for v in self.step.apart.variables}
    return [
      checkpoints.Entry(
        variable.name.split(":")[0],
        strategies.copies(self.strategy, variable),
        agrees=variable.name not in own,
        first_replica=first,
        num_replicas=num,
      )
      for variable in self.step.variables
    ]

  def plain_g(self) -> Net:
    """Returns a copy of the average of G, with plain variables."""
    twin = self.step.ema.twin
    copy = self._player("g", "exported", self._parts[-1]).net
    for variable, value in zip(copy.variables, twin.variables):
      variable.assign(strategies.copies(self.strategy, value)[0])
    return copy

  def grid(self, rows: int = 8) -> np.ndarray:
    """Returns a picture of samples with fixed latent codes, a class a column.

    Unconditional samples stand in eight columns.
    """
    columns = min(self.spec.num_classes or 8, 10)
    labels = np.tile(np.arange(columns), rows)
    return samples.grid(self.sampler(labels, _SAMPLE_SEED), columns)

  @property
  def mixes_classes(self) -> bool:
    """Whether G draws between two classes; a user's net may know ids only."""
    return self.spec.num_classes > 1 and "g" not in self._nets

  def interpolation(self, rows: int = 8, columns: int = 8) -> np.ndarray:
    """Returns a picture whose rows go from a class to the next one.

    Each row has one latent code, and from left to right more of the next class.
    """
    first = np.arange(rows) % self.spec.num_classes
    classes = np.eye(self.spec.num_classes, dtype=np.float32)
    left, right = classes[first], np.roll(classes, -1, 0)[first]
    shares = np.linspace(0.0, 1.0, columns)[None, :, None]
    labels = left[:, None] + shares * (right - left)[:, None]
    z = np.repeat(self.sampler.codes(rows, _SAMPLE_SEED), columns, 0)
    labels = labels.reshape([rows * columns, -1])
    return samples.grid(self.sampler(labels, _SAMPLE_SEED, z=z), columns)

  def measure(
    self,
    num_samples: Optional[int],
    num_reference: Optional[int] = None,
    progress=None,
  ) -> List[metrics.MetricValue]:
    """Returns the metric values of the moving average of G.

    Args:
      num_samples: How many samples; as many as there are held-out images if
        `None`.
      num_reference: How many images of the training set to hold them against;
        as many as there are at hand if `None`.
      progress: Called with the images done and their total.
    """
    counts = (num_samples, num_reference)
    if counts not in self._yardsticks:
      self._yardsticks[counts] = self._yardstick(*counts, progress)
    sampling = metrics.Sampling(
      ema=True,
      truncation=self._truncation,
      bn_mode=f"standing, {self._num_standing}"
      if self._num_standing
      else "stored",
      seed=_METRIC_SEED,
    )
    with self._metric_sampler() as sampler:
      return self._yardsticks[counts].measure(
        lambda labels, start: sampler(labels, _METRIC_SEED, start),
        sampling,
        progress,
      )

  @contextlib.contextmanager
  def _metric_sampler(self) -> Iterator[Sampler]:
    """Gives what draws for metrics."""
    if not self._num_standing:
      yield self.sampler
      return
    g, size, num_classes = self.plain_g(), 256, self.spec.num_classes
    codes = self.sampler.codes(self._num_standing * size, _STANDING_SEED)
    labels = np.random.RandomState(0).randint(
      max(num_classes, 1), size=len(codes)
    )
    batches = (
      (
        tf.constant(codes[i : i + size]),
        tf.constant(labels[i : i + size], tf.int32) if num_classes else None,
      )
      for i in range(0, len(codes), size)
    )
    with standing.standing_statistics(g, batches):
      yield Sampler(
        tf.distribute.get_strategy(),
        g,
        bool(num_classes),
        size,
        self._truncation,
      )

  def _yardstick(
    self, num_samples: Optional[int], num_reference: Optional[int], progress
  ) -> metrics.Yardstick:
    assert self.extractor is not None
    extractor = self.extractor()
    conditional = bool(self.spec.num_classes)
    reference = self.input_fn.reference(num_reference)
    heldout = self.input_fn.heldout()
    return metrics.Yardstick(
      extractor,
      reference.pixels,
      heldout.pixels,
      heldout.labels if conditional else None,
      reference.labels if conditional else None,
      reference_split=self.input_fn.split,
      num_samples=num_samples,
      progress=progress,
      knows_classes=extractor.classes_of == self.input_fn.name,
    )

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
        f"{type(side.exchange).__name__}"
      )
    return "\n".join(lines)


def _check_alone(schedule: Schedule, nets: Mapping[str, Net]) -> None:
  """Refuses norms that wait for replicas which play the other player."""
  if schedule.plays_both(collectives.num_replicas()):
    return
  for name, net in nets.items():
    if any(norm.group_size != 1 for norm in batch_norms(net)):
      raise ValueError(
        f"Norms of `{name}` ask all replicas for their moments, and with "
        f"`{type(schedule).__name__}` some of them play the other player: set "
        "`norms.BatchNorm.group_size = 1`."
      )


def _kind(net: Net) -> str:
  if isinstance(net, Precise):
    return f"{_kind(net.net)} in {net.dtype.name}"
  return type(net).__module__.split(".")[-1]


def _turns(schedule: Schedule) -> str:
  rounds = (" ".join("+".join(t) for t in turns) for turns in schedule.rounds)
  return " | ".join(rounds)
