"""An experiment: data, players, step and sampler, wired from gin."""

import functools
import zlib
from typing import (
  Callable,
  Dict,
  List,
  Mapping,
  Optional,
  Sequence,
  Tuple,
  Union,
  cast,
)

import gin
import tensorflow as tf

from paragan_tf import checks, collectives, hardware
from paragan_tf.data import preflight
from paragan_tf.data.depth_control import Control
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import loop, strategies
from paragan_tf.engine.estimator import make_estimator
from paragan_tf.engine.estimator_loop import EstimatorLoop
from paragan_tf.engine.placement import CoLocated, Placement
from paragan_tf.engine.player import Player
from paragan_tf.engine.processes import Processes
from paragan_tf.engine.role_split import RoleSplit
from paragan_tf.engine.sampling import Sampler
from paragan_tf.engine.step import Step
from paragan_tf.evaluation import Evaluation
from paragan_tf.game import losses
from paragan_tf.game.augment import Augment
from paragan_tf.game.constraints import Constraint
from paragan_tf.game.ema import Ema
from paragan_tf.game.loss_scale import LossScale
from paragan_tf.game.optimizers import Adam, Optimizer
from paragan_tf.game.penalties import Penalty, check
from paragan_tf.game.rate_scaling import scale_rate
from paragan_tf.game.regularizers import Regularizer
from paragan_tf.game.schedule import Asynchronous, Schedule, Sequential
from paragan_tf.nets import layout_pass
from paragan_tf.nets.precision import Precise, in_precision
from paragan_tf.outputs import extractors
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.sync.exchange import AllReduce, Exchange
from paragan_tf.types import Entry, ImageSpec, Net

# Makes a net from the spec of the images, a seed and a name.
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
  jit_compile: bool = False,
  constraint: Optional[Constraint] = None,
  rate_factor: float = 1.0,
  warm_up_steps: int = 0,
) -> Player:
  """Makes one player, G or D by the gin scope `g/` or `d/`.

  `precision` is that of activations and products: `float32`, `bfloat16`,
  `float16` with a loss scale, or `auto`, the fastest precision of the hardware
  that trains well. With `jit_compile`, XLA compiles the computation of the
  player's gradients, on CPUs and GPUs; on a TPU, all of the step is compiled.
  The learning rate is multiplied by `rate_factor`, and rises from 0 to that in
  `warm_up_steps` updates.
  """
  if clip_norm is not None and clip_norm <= 0:
    raise ValueError(f"`clip_norm` must be above 0, got {clip_norm}.")
  layout = hardware.resolve_layout()
  if precision == "auto":
    precision = layout.precision
  checks.check_precision(precision)
  return Player(
    in_precision(net(spec=spec, seed=seed, name=name), precision),
    scale_rate(optimizer(name=f"{name}_optimizer"), rate_factor, warm_up_steps),
    exchange(name=f"{name}_exchange"),
    clip_norm,
    regularizer,
    tuple(penalties),
    layout.one_pass,
    LossScale(name=f"{name}_loss_scale") if precision == "float16" else None,
    jit_compile,
    constraint,
    layout.select_updates,
  )


def plan_layout(
  spec: ImageSpec, num_images: int
) -> Dict[str, List[layout_pass.Row]]:
  """Returns the layout of all tensors of G and of D, see `layout_pass`.

  Args:
    spec: What the images are like.
    num_images: In the batch of one replica.
  """
  found = {}
  labels = tf.TensorSpec([num_images], tf.int32) if spec.num_classes else None
  side = spec.resolution
  for who in "gd":
    with gin.config_scope(who):
      net = player(spec, 0, who).net
      profile = hardware.profile(hardware.Layout().hardware)
    size = [net.z_dim] if who == "g" else [side, side, spec.channels]
    inputs = tf.TensorSpec([num_images, *size])
    found[who] = layout_pass.plan_net(net, inputs, labels, profile)
  return found


@gin.configurable(denylist=["strategy", "nets", "optimizers"])
class Experiment:
  """All that a run computes with: data, players, the step, the sampler.

  `nets` and `optimizers` make those of "g" and "d" where gin does not choose
  them. `truncation` applies to samples and metrics, not to training. With
  `num_standing`, metrics use the batch-norm statistics of that many batches of
  samples instead of the moving average. `extractor` is 'auto', 'inception',
  'mobilenet', ... or makes one, `metrics` the names of those to measure;
  statistics of real images are kept in `reference_dir`.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    nets: Optional[Mapping[str, MakeNet]] = None,
    batch_size: int = 64,
    input_fn: Callable[[], InputFn] = InputFn,
    loss: Union[losses.LossFn, losses.TopK] = losses.hinge,
    schedule: Callable[[], Schedule] = Sequential,
    ema: Callable[..., Ema] = Ema,
    augment: Optional[Callable[[], Augment]] = None,
    extractor: extractors.Choice = None,
    metrics: Optional[Sequence[str]] = None,
    reference_dir: Optional[str] = None,
    truncation: Optional[float] = None,
    num_standing: int = 0,
    seed: int = 0,
    optimizers: Optional[Mapping[str, Callable[..., Optimizer]]] = None,
  ):
    self._make_input, self._schedule = input_fn, schedule()
    num_replicas = strategy.num_replicas_in_sync
    checks.check_batches(self._schedule, batch_size, num_replicas)
    self.strategy = strategy
    self.processes = Processes(strategy)
    self.batch_size = batch_size
    self.input_fn = input_fn()
    self.spec = self.input_fn.spec
    self._nets = nets or {}
    self._optimizers = optimizers or {}
    self._augment = augment
    self._loss = cast(losses.LossFn, loss)  # The step knows `TopK`.
    self._ema = ema
    self._seed = seed
    self._inner_loop: Optional[loop.InnerLoop] = None
    self._is_restarted, self._traced_rate_scale = False, 1.0
    with strategies.scope(strategy):
      self.step = self.make_step()
      self._mean_g = self._make_mean_g()
    conditional = bool(self.spec.num_classes)
    self.sampler = Sampler(
      strategy, self._sampled_g, conditional, truncation=truncation
    )
    self._consolidate_graph = tf.function(self._assign_mean_g, autograph=False)
    self._evaluate = functools.partial(
      Evaluation,
      extractor=extractor,
      plain_g=self.plain_g,
      num_standing=num_standing,
      reference_dir=reference_dir,
      only=metrics,
    )
    self.evaluation = self._evaluate(self.sampler, self.input_fn)

  def restart(self) -> None:
    """Begins anew with the input that gin's config has by now.

    Only for another label: weights and random numbers are those of a new
    experiment, and what is traced is used again.
    """
    self.input_fn = self._make_input()
    with strategies.scope(self.strategy):
      self.step.assign(self.make_step())
    self.step.rate_scale = 1.0
    self.evaluation = self._evaluate(self.sampler, self.input_fn)
    self._is_restarted = True

  @property
  def _net_seed(self) -> int:
    """The seed of weights and noise: that of the run, and of its label."""
    label = getattr(self.input_fn, "label", None)
    if label is None:
      return self._seed
    return zlib.crc32(f"{self._seed}/{label}".encode()) & 0x7FFFFFFF

  def make_step(self, count: Optional[tf.Variable] = None) -> Step:
    """Makes a step, with variables of its own.

    Args:
      count: The variable that counts the steps, if there is one already.
    """
    g, d = self._player("g", "g"), self._player("d", "d")
    checks.check_nets({"g": g.net, "d": d.net})
    if d.loss_scale and not g.loss_scale:  # G's gradients come through D.
      with gin.config_scope("g"):
        g = g._replace(loss_scale=LossScale(name="g_loss_scale"))
    for who, side in (("g", g), ("d", d)):
      if side.loss_scale:
        checks.check_loss_scale(side.exchange, who)
      if side.jit_compile:
        checks.check_jit_compile({"g": g.net, "d": d.net}, who)
      check(side.penalties, who)
      checks.check_classes(side.penalties, who, d.net)
    noise_seed = None
    if getattr(self.input_fn, "label", None) is not None:
      # The labels that a process trains share the trace of a step.
      noise_seed = tf.Variable(
        self._net_seed, trainable=False, dtype=tf.int32, name="noise_seed"
      )
    return Step(
      g,
      d,
      self._loss,
      self._schedule,
      self._ema(g.net, self._player("g", "g_ema").net),
      self._seed,
      count,
      self._make_placement({"g": g, "d": d}),
      self._augment and self._augment(),
      noise_seed,
    )

  def _make_placement(self, players: Mapping[str, Player]) -> Placement:
    if not isinstance(self._schedule, Asynchronous):
      return CoLocated(self._schedule)
    nets = {name: side.net for name, side in players.items()}
    exchanges = {name: side.exchange for name, side in players.items()}
    checks.check_role_split(self._schedule, nets, exchanges)
    periods = {name: exchange.period for name, exchange in exchanges.items()}
    return RoleSplit(
      self._schedule, self.spec, self.batch_size, periods, self._seed
    )

  def _make_mean_g(self) -> Optional[Net]:
    """Makes a G for the mean over replicas, if their averages differ."""
    mean_is_model = self.step.players["g"].exchange.mean_is_model
    if self.strategy.num_replicas_in_sync == 1 or not mean_is_model:
      return None
    return self._player("g", "g_mean").net

  @property
  def _sampled_g(self) -> Net:
    return self._mean_g or self.step.ema.twin

  def consolidate(self) -> None:
    """Averages the moving averages of G over replicas, if they differ.

    The mean is sampled, measured and exported. All processes call it together.
    """
    if self._mean_g is not None:
      self._consolidate_graph()

  def _assign_mean_g(self) -> None:
    def replica():
      assert self._mean_g is not None
      values = [tf.convert_to_tensor(v) for v in self.step.ema.twin.variables]
      means = collectives.mean(values)
      for variable, value in zip(self._mean_g.variables, means):
        variable.assign(value)

    self.strategy.run(replica)

  def _player(self, side: str, name: str) -> Player:
    chosen = {"net": self._nets, "optimizer": self._optimizers}
    given = {key: x[side] for key, x in chosen.items() if side in x}
    with gin.config_scope(side):
      return player(self.spec, self._net_seed, name, **given)

  @property
  def images_per_step(self) -> int:
    """Real images that one step takes, over all replicas."""
    return self.batch_size * self.step.schedule.num_batches

  @property
  def mixes_classes(self) -> bool:
    """Whether G can interpolate classes; a user's net may take ids only."""
    return self.spec.num_classes > 1 and "g" not in self._nets

  def g_info(self) -> GInfo:
    """Returns what G is like, for those who use it without the data."""
    source = getattr(self.input_fn, "source", None)
    names = source.label_names if source and self.spec.num_classes else ()
    return GInfo(
      *self.spec,
      z_dim=self._sampled_g.z_dim,  # type: ignore[attr-defined]
      label_names=tuple(names),
      mixes_classes=self.mixes_classes,
      own_net="g" in self._nets,
      mean_of_replicas=self.step.players["g"].exchange.mean_is_model,
      truncation=self.sampler.truncation,
    )

  def check_input(self) -> List[str]:
    """Raises a `ValueError` if the input cannot be trained on.

    Returns what looks odd in its first batch.
    """
    num = self._schedule.num_shards(self.strategy.num_replicas_in_sync)
    return preflight.check(
      self.input_fn, self.images_per_step, num, self.python_input
    )

  @property
  def python_input(self) -> bool:
    """Whether input pipelines may call Python: hosts of a TPU cannot."""
    return not isinstance(self.strategy, tf.distribute.TPUStrategy)

  def input_remarks(self) -> List[str]:
    """Returns warnings about the input, and how images are made to fit."""
    return [
      *preflight.remarks(self.input_fn),
      *preflight.describe_fit(self.input_fn),
      *preflight.describe_repeats(self.input_fn, self.images_per_step),
    ]

  def broken_images(self) -> Sequence[Tuple[str, str]]:
    """Returns files that the input skips, and why."""
    source = getattr(self.input_fn, "source", None)
    return source.broken if source is not None else ()

  def dataset(
    self, start_step: int, control: Optional[Control] = None
  ) -> tf.distribute.DistributedDataset:
    """Returns the batches of each replica, from `start_step` on.

    Args:
      start_step: The step of the first batches.
      control: Lets the depth follow step timings, if anything does.
    """
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
          python=self.python_input,
          control=control,
        )
      )

    return self.strategy.distribute_datasets_from_function(dataset_fn)

  def inner_loop(self, start_step: int) -> loop.InnerLoop:
    """Returns the inner loop; its data starts at `start_step`."""
    control = self.input_fn.make_control(start_step, self.images_per_step)
    follow = control.update if control else lambda step, logs: None
    iterator = strategies.iterate(self.dataset(start_step, control))
    is_traced = self._traced_rate_scale == self.step.rate_scale
    if self._is_restarted and is_traced and self._inner_loop is not None:
      self._inner_loop.restart(iterator, start_step, follow)
      return self._inner_loop
    self._traced_rate_scale = self.step.rate_scale
    self._inner_loop = loop.InnerLoop(
      self.strategy,
      self.step,
      iterator,
      self.images_per_step,
      start_step,
      follow,
    )
    return self._inner_loop

  def estimator(self, model_dir: str, tpu=None, saves: bool = True):
    """Returns a `TPUEstimator` of the run, on `tpu` if there is one.

    It `saves` at the end of `train`; not where a `Run` drives it, which saves.
    """
    if tpu is not None:
      exchanges = {n: side.exchange for n, side in self.step.players.items()}
      checks.check_one_value(self._schedule, exchanges)
    return make_estimator(
      self.make_step,
      model_dir,
      self.images_per_step,
      tpu,
      cores_per_replica=2 if self._schedule.on_cores else None,
      saves=saves,
    )

  def estimator_loop(
    self, estimator, entries: Sequence[Entry], fetch_every: Sequence[int]
  ) -> EstimatorLoop:
    """Returns the loop of an estimator, whose values `entries` get."""
    return EstimatorLoop(
      estimator,
      self.input_fn,
      self.images_per_step,
      self.step,
      entries,
      fetch_every,
      self.input_fn.make_control,
    )

  def plain_g(self) -> Net:
    """Returns a copy of the moving average of G, with plain variables."""
    copy = self._player("g", "exported").net
    for variable, value in zip(copy.variables, self._sampled_g.variables):
      variable.assign(strategies.copies(self.strategy, value)[0])
    return copy

  def sync_summary(self) -> str:
    """Returns how replicas agree, for each player, in one sentence."""
    players: Dict[str, List[str]] = {}
    for name, side in self.step.players.items():
      players.setdefault(side.exchange.summary(), []).append(f"`{name}`")
    rows = (f"{' and '.join(names)} by {by}" for by, names in players.items())
    return f"Replicas exchange {'; '.join(rows)}."

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


def _kind(net: Net) -> str:
  if isinstance(net, Precise):
    return f"{_kind(net.net)} in {net.dtype.name}"
  return type(net).__module__.split(".")[-1]


def _turns(schedule: Schedule) -> str:
  rounds = (" ".join("+".join(t) for t in turns) for turns in schedule.rounds)
  return " | ".join(rounds)
