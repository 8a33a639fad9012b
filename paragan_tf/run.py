"""One run in its folder: what it leaves there, and how it goes on."""

import math
import os
from typing import Callable, List, Mapping, Optional, Sequence

import gin
import tensorflow as tf

from paragan_tf import config
from paragan_tf.engine import loop, strategies
from paragan_tf.experiment import Experiment
from paragan_tf.outputs import checkpoints, metrics, report, samples
from paragan_tf.outputs.progress import Progress
from paragan_tf.outputs.records import Records, write_file

_CONFIG, _BROKEN = "config.gin", "broken.txt"
# How long to train, how often to look, how far to read ahead and what to do
# about a file that broke may change when a run goes on.
_FREE = (
  "run.Run.",
  "estimator.",
  "encoded.Streaming.adaptive",
  "encoded.Streaming.cache_bytes",
  "encoded.Streaming.max_",
  "encoded.Streaming.min_",
  "sources.folder.broken",
  # How something is computed, not what.
  "hardware.Layout.",
  "Layout.",
)


class InputError(Exception):
  """No more images came, for a reason that a user can mend."""


@gin.configurable(denylist=["experiment", "model_dir", "estimator"])
class Run:
  """Trains in one folder, from what is there.

  Made without a write: what is wrong is said before anything changes. Of
  several processes only the chief writes. With an `estimator` that one trains,
  and what it learned is taken from its checkpoints.
  """

  def __init__(
    self,
    experiment: Experiment,
    model_dir: str,
    estimator=None,
    num_steps: int = gin.REQUIRED,
    log_every: int = 20,
    sample_every: int = 500,
    save_every: int = 500,
    num_metric_samples: Optional[int] = None,
    num_metric_reference: Optional[int] = None,
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
    self._processes = experiment.processes
    self._estimator = estimator
    self._intervals = [log_every, sample_every, save_every]
    self._num_metric_samples = num_metric_samples
    self._num_metric_reference = num_metric_reference
    self._checkpoints = checkpoints.Checkpoints(
      model_dir,
      writers=checkpoints.Writers(
        self._processes.index, self._processes.count, self._processes.wait
      ),
    )
    self._entries = experiment.entries()
    self._records: Optional[Records] = None
    self._progress: Optional[Progress] = None
    self._logs: loop.Logs = {}
    self._saved: Optional[str] = None
    self._inner: Optional[Callable[[int], loop.Logs]] = None
    self._config = config.operative()
    _check_config(model_dir, self._config)
    self._restore()

  @property
  def done(self) -> int:
    """Steps trained so far."""
    step = self.experiment.step
    return int(strategies.copies(self.experiment.strategy, step.count)[0])

  @property
  def _num_replicas(self) -> int:
    return self.experiment.strategy.num_replicas_in_sync

  def summary(self) -> str:
    """Returns what would run, in a few lines."""
    return (
      f"{self.experiment.summary()}\n"
      f"steps     {self.done:,} done, {self.num_steps:,} in all\n"
      f"folder    {self.model_dir}"
    )

  def open(self) -> None:
    """Looks at the input, makes the folder, saves the config, opens the record.

    Where nothing is left to train, the input is not looked at.
    """
    if self.done < self.num_steps:
      self.experiment.check_input()
      for remark in self.experiment.input_remarks():
        self._say(f"Note: {remark}")
    if self._processes.is_chief:
      _write_config(self.model_dir, self._config)
      self._list_broken()
      self._records = Records(self.model_dir)
      self._records.rewind(self.done)

  def _list_broken(self) -> None:
    """Writes down all images that are left out."""
    rows = [f"{x}\t{why}\n" for x, why in self.experiment.broken_images()]
    if rows:
      path = os.path.join(self.model_dir, _BROKEN)
      write_file(path, "".join(rows).encode())
      self._say(f"All that are broken: {path}")

  def __call__(self, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Trains to the end, then draws, measures and reports."""
    started_at = self.done
    if started_at >= self.num_steps:
      self._say(f"Already trained for {self.done} steps; raise `num_steps`.")
    elif started_at:
      self._say(f"Going on from step {self.done} of {self.model_dir}.")
    if started_at < self.num_steps and self._num_replicas > 1:
      self._say(self.experiment.sync_summary())
    try:
      self.train(self.num_steps, should_stop)
    finally:
      self.close_progress()
    if self.done > started_at:
      self.save()
    if self.done < self.num_steps:
      self._say(
        f"Stopped at step {self.done}; the same command goes on from there."
      )
    elif self._processes.is_chief:
      self.finish()
    if self._records is not None:
      self._records.close()
    self._processes.wait()

  def train(
    self, until: int, should_stop: Callable[[], bool] = lambda: False
  ) -> loop.Logs:
    """Trains up to a step; returns the last logs. May be called again."""
    if self._inner is None:
      self._inner = self._make_inner()
    log_every, sample_every, save_every = self._intervals
    stops = [sample_every, save_every]
    actions = [
      loop.every(sample_every, self._consolidate_and_sample),
      loop.every(save_every, lambda step, logs: self.save()),
    ]
    if self._estimator is None:  # That one logs on its way.
      stops.append(log_every)
      actions.insert(0, self._log)
    if self._records is not None and self._progress is None:
      self._progress = Progress(self.num_steps, self.done)
    try:
      loop.train(
        self._inner,
        self.done,
        until,
        stops,
        actions,
        lambda: self._processes.any(should_stop()),
      )
    except tf.errors.OpError as e:
      reason = self.experiment.input_fn.find_failure()
      if reason is None:
        raise
      raise self._input_failed(reason) from e
    self.experiment.consolidate()
    return self._logs

  def _input_failed(self, reason: str) -> InputError:
    """Keeps what was learned; returns what to raise.

    Of several processes the others may never come to save with this one.
    """
    if (
      self._processes.count == 1 and self.done % self.experiment.step.cycle == 0
    ):
      self.save()
    if self._saved == self._checkpoints.path(self.done):
      return InputError(f"{reason} Trained up to step {self.done}.")
    kept = self._saved or "none, so it begins anew"
    return InputError(
      f"{reason} Step {self.done} is not saved; the last checkpoint is {kept}."
    )

  def save(self) -> None:
    """Saves, if that was not done at this step."""
    if self._checkpoints.path(self.done) != self._saved:
      self._saved = self._checkpoints.save(self.done, self._entries)

  def close_progress(self) -> None:
    """Leaves the last state of the progress bar on screen."""
    if self._progress is not None:
      self._progress.close()
      self._progress = None

  def _say(self, text: str) -> None:
    if self._processes.is_chief:
      print(text, flush=True)

  def _make_inner(self) -> Callable[[int], loop.Logs]:
    if self._estimator is None:
      return self.experiment.inner_loop(self.done)
    return self._estimator_loop()

  def _estimator_loop(self) -> Callable[[int], loop.Logs]:
    log = loop.every(self._intervals[0], self._log)

    def inner(num_steps: int) -> loop.Logs:
      made = self.experiment.estimator_loop(self._estimator, self.done, log)
      logs = made(num_steps)
      self._restore()
      return logs

    return inner

  def _restore(self) -> None:
    self._saved = self._checkpoints.latest()
    if self._saved is not None:
      checkpoints.restore(self._saved, self._entries)
    if not self._processes.same(self.done):
      raise ValueError(
        f"`model_dir` must be one folder that all processes share, got "
        f"'{self.model_dir}': others are not at step {self.done} there."
      )
    self.experiment.consolidate()

  def finish(
    self, num_samples: Optional[int] = None
  ) -> List[metrics.MetricValue]:
    """Draws, measures and reports; the chief's work."""
    self._sample(self.done, {})
    self._interpolate()
    values = self._measured(num_samples or self._usual_samples())
    for value in values:
      real = (
        "" if value.real_score is None else f"  (real {value.real_score:.4f})"
      )
      print(f"{value.name:16} {value.value:.4f}{real}")
    path = report.write(self.model_dir)
    print(f"Pictures: {samples.png_path(self.model_dir, self.done)}")
    print(f"Report:   {path}", flush=True)
    return values

  def _usual_samples(self) -> Optional[int]:
    """Returns how many samples the config asks for, if there are as many."""
    source = getattr(self.experiment.input_fn, "source", None)
    if self._num_metric_samples is None or source is None:
      return self._num_metric_samples
    return min(self._num_metric_samples, source.num_heldout)

  def _measured(self, num_samples) -> List[metrics.MetricValue]:
    if not self.experiment.evaluation.can_measure:
      return []
    print("Measuring ...", flush=True)
    evaluation = self.experiment.evaluation
    try:
      values = evaluation.measure(num_samples, self._num_metric_reference)
    except ValueError as e:
      raise InputError(
        f"Nothing is measured: {e} All is trained; the last checkpoint is "
        f"{self._saved}."
      ) from e
    assert self._records is not None
    self._records.metric(self.done, [value.to_json() for value in values])
    return values

  def _check_finite(self, step: int, logs: loop.Logs) -> None:
    bad = [name for name, value in logs.items() if not math.isfinite(value)]
    if bad:
      kept = self._checkpoints.latest()
      raise FloatingPointError(
        f"`{bad[0]}` is {logs[bad[0]]} at step {step}: training diverged; "
        f"lower a learning rate. The last checkpoint is kept: {kept}."
      )

  def _log(self, step: int, logs: loop.Logs) -> None:
    logs = {**logs, **self.experiment.input_fn.meter()}
    self._check_finite(step, logs)
    self._logs = logs
    if step % self._intervals[0] or self._records is None:
      return
    self._records.write(step, logs)
    assert self._progress is not None
    reading = None
    if "input/depth" in logs:
      reading = logs["input/readers"], logs["input/depth"]
    self._progress.update(
      step,
      logs["images_per_second"],
      logs["d/loss"],
      logs["g/loss"],
      logs.get("input_wait"),
      reading,
    )

  def _consolidate_and_sample(self, step: int, logs: loop.Logs) -> None:
    self.experiment.consolidate()
    self._sample(step, logs)

  def _sample(self, step: int, logs: loop.Logs) -> None:
    del logs
    if self._records is None:
      return
    grid = self.experiment.evaluation.grid()
    scale = samples.scale_for(self.experiment.spec.resolution)
    samples.write_png(samples.png_path(self.model_dir, step), grid, scale)
    self._records.image(step, "samples", grid)

  def _interpolate(self) -> None:
    if self._records is None or not self.experiment.mixes_classes:
      return
    grid = self.experiment.evaluation.interpolation()
    scale = samples.scale_for(self.experiment.spec.resolution)
    samples.write_png(samples.interpolation_path(self.model_dir), grid, scale)
    self._records.image(self.done, "interpolation", grid)


def prepare(
  gin_files: Sequence[str],
  gin_bindings: Sequence[str],
  model_dir: str,
  device_options: Optional[strategies.DeviceOptions] = None,
  engine: str = "strategy",
) -> Run:
  """Reads the config and builds the run; what is wrong is a `ValueError`.

  Args:
    gin_files: Config files, read in order.
    gin_bindings: Single bindings, read after them.
    model_dir: The run's folder.
    device_options: Which devices to train on.
    engine: `strategy` or `tpu_estimator`.
  """
  config.load(gin_files, gin_bindings)
  device_options = device_options or strategies.DeviceOptions()
  by_estimator = engine == "tpu_estimator"
  choice = (
    strategies.for_estimator(device_options)
    if by_estimator
    else strategies.choose(device_options)
  )
  print(f"Training on {choice.reason}.", flush=True)
  try:
    experiment = Experiment(choice.strategy)
    estimator = None
    if by_estimator:
      estimator = experiment.estimator(model_dir, choice.tpu)
    return Run(experiment, model_dir, estimator)
  except config.WRONG as e:
    raise ValueError(config.sentence(e)) from e


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
