"""One run, wired from gin: the only file that knows every room."""

import math
import os
from typing import Callable, List, Mapping, Optional, Sequence

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import config
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import loop, strategies
from paragan_tf.engine.sampling import Sampler
from paragan_tf.engine.step import Player, Step
from paragan_tf.game import losses
from paragan_tf.game.ema import Ema
from paragan_tf.game.optimizers import Adam, Optimizer
from paragan_tf.game.schedule import Schedule, Sequential
from paragan_tf.outputs import checkpoints, features, metrics, report, samples
from paragan_tf.outputs.progress import Progress
from paragan_tf.outputs.records import Records, write_file
from paragan_tf.sync.exchange import AllReduce, Exchange
from paragan_tf.types import ImageSpec, Net

_CONFIG = "config.gin"
# How long to train and how often to look may change when a run goes on.
_FREE = ("experiment.Run.",)
_SAMPLE_SEED, _METRIC_SEED = 1, 2


@gin.configurable(denylist=["spec", "seed", "name"])
def player(
  spec: ImageSpec,
  seed: int,
  name: str,
  net: Callable[..., Net] = gin.REQUIRED,
  optimizer: Callable[..., Optimizer] = Adam,
  exchange: Callable[..., Exchange] = AllReduce,
) -> Player:
  """Makes one player; gin scope `g/` or `d/` says which."""
  return Player(
    net(spec=spec, seed=seed, name=name),
    optimizer(name=f"{name}_optimizer"),
    exchange(name=f"{name}_exchange"),
  )


@gin.configurable(denylist=["strategy"])
class Experiment:
  """All that a run computes with: data, players, the step, checkpoints."""

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    batch_size: int = 64,
    input_fn: Callable[[], InputFn] = InputFn,
    loss: losses.LossFn = losses.hinge,
    schedule: Callable[[], Schedule] = Sequential,
    ema: Callable[..., Ema] = Ema,
    extractor: Optional[Callable[[], features.Extractor]] = None,
    seed: int = 0,
  ):
    num = strategy.num_replicas_in_sync
    if batch_size < 1 or batch_size % num:
      raise ValueError(
        f"`batch_size` must be a multiple of the {num} replicas, "
        f"got {batch_size}: take {max(1, round(batch_size / num)) * num}."
      )
    self.strategy = strategy
    self.batch_size = batch_size
    self.input_fn = input_fn()
    self.spec = self.input_fn.spec
    self.extractor = extractor
    with strategies.scope(strategy):
      g, d = (self._player(name, seed) for name in ("g", "d"))
      with gin.config_scope("g"):
        twin = player(self.spec, seed, "g_ema").net
      self.step = Step(g, d, loss, schedule(), ema(g.net, twin), seed)
    self.sampler = Sampler(strategy, twin, bool(self.spec.num_classes))

  def _player(self, name: str, seed: int) -> Player:
    with gin.config_scope(name):
      return player(self.spec, seed, name)

  @property
  def images_per_step(self) -> int:
    """Real images that one step takes, over all replicas."""
    return self.batch_size * self.step.schedule.num_batches

  def inner_loop(self, start_step: int) -> loop.InnerLoop:
    """Returns the inner loop, its data standing at `start_step`."""
    num = self.strategy.num_replicas_in_sync

    def dataset_fn(context):
      local = num // context.num_input_pipelines
      return self.input_fn(
        dict(
          batch_size=self.images_per_step // num,
          num_replicas=num,
          first_replica=context.input_pipeline_id * local,
          local_replicas=local,
          start_step=start_step,
        )
      )

    data = self.strategy.distribute_datasets_from_function(dataset_fn)
    return loop.InnerLoop(
      self.strategy, self.step, iter(data), self.images_per_step
    )

  def entries(self) -> List[checkpoints.Entry]:
    """Returns every variable of the run, with all its copies."""
    own = set()
    for side in self.step.players.values():
      if not side.exchange.replicas_agree:
        own |= {v.name for v in side.net.variables}
        own |= {v.name for v in side.optimizer.variables}
        own |= {v.name for v in side.exchange.variables}
    if not self.step.players["g"].exchange.replicas_agree:
      own |= {v.name for v in self.step.ema.twin.variables}
    return [
      checkpoints.Entry(
        variable.name.split(":")[0],
        strategies.copies(self.strategy, variable),
        agrees=variable.name not in own,
      )
      for variable in self.step.variables
    ]

  def grid(self, rows: int = 8) -> np.ndarray:
    """Returns a picture of samples with fixed latent codes, a class a column.

    Unconditional samples stand in eight columns.
    """
    columns = min(self.spec.num_classes or 8, 10)
    labels = np.tile(np.arange(columns), rows)
    return samples.grid(self.sampler(labels, _SAMPLE_SEED), columns)

  def measure(self, num_samples: Optional[int], progress=None):
    """Returns the metric values of the moving average of G."""
    assert self.extractor is not None
    heldout = self.input_fn.heldout()
    return metrics.measure(
      lambda labels, start: self.sampler(labels, _METRIC_SEED, start),
      self.extractor(),
      self.input_fn.reference(),
      heldout.pixels.astype(np.float32) / 127.5 - 1.0,
      heldout.labels if self.spec.num_classes else None,
      metrics.Sampling(
        ema=True, truncation=None, bn_mode="stored", seed=_METRIC_SEED
      ),
      reference_split=f"{self.input_fn.source.name}/train",
      num_samples=num_samples,
      progress=progress,
    )

  def summary(self) -> str:
    """Returns what would run, in a few lines."""
    counts = {
      name: sum(v.shape.num_elements() for v in side.net.trainable_variables)
      for name, side in self.step.players.items()
    }
    lines = [
      f"data      {self.input_fn.source.name}, "
      f"{len(self.input_fn.source.train.pixels):,} images to train on, "
      f"{self.spec.resolution}x{self.spec.resolution}x{self.spec.channels}, "
      f"{self.spec.num_classes} classes",
      f"batch     {self.batch_size} on "
      f"{self.strategy.num_replicas_in_sync} replica(s), "
      f"turns {_turns(self.step.schedule)}",
    ]
    for name, side in self.step.players.items():
      lines.append(
        f"{name}         {type(side.net).__module__.split('.')[-1]}, "
        f"{counts[name]:,} weights, {type(side.optimizer).__name__}, "
        f"{type(side.exchange).__name__}"
      )
    return "\n".join(lines)


@gin.configurable(denylist=["experiment", "model_dir"])
class Run:
  """One folder: what a run leaves there, and how it goes on from there.

  Made without a write: what is wrong is said before anything changes.
  """

  def __init__(
    self,
    experiment: Experiment,
    model_dir: str,
    num_steps: int = gin.REQUIRED,
    log_every: int = 20,
    sample_every: int = 500,
    save_every: int = 500,
    num_metric_samples: Optional[int] = None,
  ):
    intervals = dict(
      num_steps=num_steps,
      log_every=log_every,
      sample_every=sample_every,
      save_every=save_every,
    )
    _check_intervals(intervals, experiment.step.cycle)
    self.experiment = experiment
    self.model_dir = model_dir
    self.num_steps = num_steps
    self._intervals = [log_every, sample_every, save_every]
    self._num_metric_samples = num_metric_samples
    self._checkpoints = checkpoints.Checkpoints(model_dir)
    self._entries = experiment.entries()
    self._progress: Optional[Progress] = None
    self._config = config.operative()
    _check_config(model_dir, self._config)
    self._saved = self._checkpoints.latest()
    if self._saved is not None:
      checkpoints.restore(self._saved, self._entries)
    count = strategies.copies(experiment.strategy, experiment.step.count)[0]
    self.done = int(count)

  def summary(self) -> str:
    """Returns what would run, in a few lines."""
    return (
      f"{self.experiment.summary()}\n"
      f"steps     {self.done:,} done, {self.num_steps:,} in all\n"
      f"folder    {self.model_dir}"
    )

  def open(self) -> None:
    """Makes the folder, saves the config and opens the record."""
    _write_config(self.model_dir, self._config)
    self._records = Records(self.model_dir)
    self._records.rewind(self.done)

  def __call__(self, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Trains, then draws, measures and reports."""
    if self.done < self.num_steps:
      self._train(should_stop)
    else:
      print(f"Already trained for {self.done} steps; raise `Run.num_steps`.")
    if self.done >= self.num_steps:
      self._finish()
    self._records.close()

  def _train(self, should_stop: Callable[[], bool]) -> None:
    if self.done:
      print(f"Going on from step {self.done} of {self.model_dir}.", flush=True)
    self._progress = Progress(self.num_steps, self.done)
    _, sample_every, save_every = self._intervals
    actions = [
      self._check_finite,
      self._log,
      loop.every(sample_every, self._sample),
      loop.every(save_every, self._save),
    ]
    try:
      self.done = loop.train(
        self.experiment.inner_loop(self.done),
        self.done,
        self.num_steps,
        self._intervals,
        actions,
        should_stop,
      )
    finally:
      self._progress.close()
    self._save(self.done, {})
    if self.done < self.num_steps:
      print(
        f"Stopped at step {self.done}; the same command goes on from there."
      )

  def _finish(self) -> None:
    self._sample(self.done, {})
    if self.experiment.extractor is not None:
      print("Measuring ...", flush=True)
      values = self.experiment.measure(self._num_metric_samples)
      self._records.metric(self.done, [value.to_json() for value in values])
      for value in values:
        real = "" if value.floor is None else f"  (real {value.floor:.4f})"
        print(f"{value.name:16} {value.value:.4f}{real}")
    path = report.write(self.model_dir)
    print(f"Pictures: {samples.png_path(self.model_dir, self.done)}")
    print(f"Report:   {path}")

  def _check_finite(self, step: int, logs: loop.Logs) -> None:
    bad = [name for name, value in logs.items() if not math.isfinite(value)]
    if bad:
      kept = self._checkpoints.latest()
      raise FloatingPointError(
        f"`{bad[0]}` is {logs[bad[0]]} at step {step}: training diverged; "
        f"lower a learning rate. The last checkpoint is kept: {kept}."
      )

  def _log(self, step: int, logs: loop.Logs) -> None:
    self._records.write(step, logs)
    assert self._progress is not None
    self._progress.update(
      step,
      logs["images_per_second"],
      logs["d/loss"],
      logs["g/loss"],
      logs["input_wait"],
    )

  def _sample(self, step: int, logs: loop.Logs) -> None:
    del logs
    grid = self.experiment.grid()
    scale = samples.scale_for(self.experiment.spec.resolution)
    samples.write_png(samples.png_path(self.model_dir, step), grid, scale)
    self._records.image(step, "samples", grid)

  def _save(self, step: int, logs: loop.Logs) -> None:
    del logs
    path = self._checkpoints.path(step)
    if path != self._saved:
      self._saved = self._checkpoints.save(step, self._entries)


def _turns(schedule: Schedule) -> str:
  rounds = (" ".join("+".join(t) for t in turns) for turns in schedule.rounds)
  return " | ".join(rounds)


def prepare(
  gin_files: Sequence[str],
  gin_bindings: Sequence[str],
  model_dir: str,
  num_cpu_replicas: int = 0,
) -> Run:
  """Reads the config and builds the run; what is wrong is a `ValueError`."""
  config.load(gin_files, gin_bindings)
  choice = strategies.choose(num_cpu_replicas)
  print(f"Training on {choice.reason}.", flush=True)
  try:
    return Run(Experiment(choice.strategy), model_dir)
  except ValueError as e:
    raise ValueError(config.plain(e)) from e
  except (TypeError, RuntimeError) as e:  # A value of the wrong kind.
    raise ValueError(
      f"A value of `{config.culprit(e)}` is wrong: {config.plain(e)}"
    ) from e


def _check_intervals(intervals: Mapping[str, int], cycle: int) -> None:
  for name, value in intervals.items():
    if value < 1 or value % cycle:
      raise ValueError(
        f"`Run.{name}` must be a multiple of the cycle of {cycle} step(s), "
        f"got {value}: take {-(-max(value, 1) // cycle) * cycle}."
      )


def _check_config(model_dir: str, new: str) -> None:
  path = os.path.join(model_dir, _CONFIG)
  if not tf.io.gfile.exists(path):
    return
  with tf.io.gfile.GFile(path) as f:
    rows = config.differences(f.read(), new, _FREE)
  if rows:
    listed = "; ".join(f"`{n}` was {old}, now {new}" for n, old, new in rows)
    raise ValueError(
      f"The run in '{model_dir}' has another config: {listed}. Give the old "
      "values or another `--model_dir`."
    )


def _write_config(model_dir: str, text: str) -> None:
  try:
    tf.io.gfile.makedirs(model_dir)
    write_file(os.path.join(model_dir, _CONFIG), text.encode())
  except (tf.errors.OpError, OSError) as e:
    raise ValueError(
      f"`model_dir` must be a folder that can be written, got '{model_dir}' "
      f"({str(e).splitlines()[0]}): give another one."
    ) from e
