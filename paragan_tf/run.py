"""One run: trains an experiment in its folder, saves, resumes, reports."""

import functools
import math
from typing import Any, Callable, List, Mapping, Optional, Sequence

import gin

from paragan_tf import checks, config, facts
from paragan_tf.callbacks import Callbacks
from paragan_tf.data import index_files, reading
from paragan_tf.engine import estimator as estimators
from paragan_tf.engine import loop, strategies
from paragan_tf.engine.entries import StepState
from paragan_tf.experiment import Experiment
from paragan_tf.outputs import checkpoints, metrics, samples
from paragan_tf.outputs.progress import Counter, Progress
from paragan_tf.outputs.run_folder import RunFolder


class InputError(Exception):
  """The input ended early, for a reason that a user can fix."""


_ARGUMENTS = ["experiment", "model_dir", "estimator", "callbacks", "notes"]


@gin.configurable(denylist=_ARGUMENTS)
class Run:
  """Trains an experiment in one folder.

      run = Run(experiment, model_dir)   # refuses what is wrong, writes nothing
      run.restore()                      # reads the newest checkpoint, if any
      run.open()                         # makes the folder
      run()                              # trains to the end, then reports

  Of several processes only the chief writes. With an `estimator`, that trains;
  it is made with `saves=False`. `callbacks` are described in `callbacks.py`;
  `notes` are recorded with the config, and must be the same when it is resumed.
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
    measure_every: Optional[int] = None,
    best_by: Optional[str] = None,
    num_metric_samples: Optional[int] = None,
    num_metric_reference: Optional[int] = None,
    callbacks: Sequence[Any] = (),
    notes: Optional[Mapping[str, str]] = None,
  ):
    intervals = dict(
      num_steps=num_steps,
      log_every=log_every,
      sample_every=sample_every,
      save_every=save_every,
    )
    if measure_every is not None:
      intervals["measure_every"] = measure_every
    checks.check_intervals(intervals, experiment.step.exchange_cycle)
    self.experiment = experiment
    self.num_steps = num_steps
    self._processes = experiment.processes
    self._estimator = estimator
    self._log_every = log_every
    self._sample_every = sample_every
    self._save_every = save_every
    self._measure_every, self._best_by = measure_every, best_by
    self._intervals = [sample_every, save_every]
    self._intervals += [measure_every] if measure_every else []
    self._num_metric_samples = num_metric_samples
    self._num_metric_reference = num_metric_reference
    self.folder = RunFolder(
      model_dir,
      checkpoints.Writers(
        self._processes.index, self._processes.count, self._processes.wait
      ),
    )
    self._state = StepState(
      experiment.step, experiment.strategy, experiment.processes
    )
    self._progress: Optional[Progress] = None
    self._logs: loop.Logs = {}
    self._saved: Optional[str] = None
    self._inner: Optional[Callable[[int], loop.Logs]] = None
    self._is_restored = False
    self._callbacks = Callbacks(callbacks)
    self._is_started = False
    self._config = config.operative(notes)
    config.check_resumable(self.folder.read_config(), self._config, model_dir)

  @property
  def done(self) -> int:
    """Steps trained so far."""
    step = self.experiment.step
    return int(strategies.copies(self.experiment.strategy, step.count)[0])

  def summary(self) -> str:
    """Returns what would run, in a few lines."""
    return (
      f"{self.experiment.summary()}\n"
      f"steps     {self.done:,} done, {self.num_steps:,} in all\n"
      f"folder    {self.folder.path}"
    )

  def open(self) -> None:
    """Checks the input, makes the folder, saves the config, opens the records.

    Where nothing is left to train, the input is not checked.
    """
    if self.done < self.num_steps:
      self.experiment.check_input()
      for remark in self.experiment.input_remarks():
        self._print(f"Note: {remark}")
    self.folder.open(self._config, self.done, self.experiment.g_info())
    if self.folder.is_writer:
      self.experiment.input_fn.save_index(self.folder.path)
    broken = self.folder.write_broken(self.experiment.broken_images())
    if broken is not None:
      self._print(f"All broken images: {broken}")

  def __call__(self, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Trains to the end, then samples, measures and reports."""
    started_at = self.done
    if started_at >= self.num_steps:
      self._print(f"Already trained for {self.done} steps; raise `num_steps`.")
    elif started_at:
      self._print(f"Resuming at step {self.done} of {self.folder.path}.")
    num_replicas = self.experiment.strategy.num_replicas_in_sync
    if started_at < self.num_steps and num_replicas > 1:
      self._print(self.experiment.sync_summary())
    try:
      self.train(self.num_steps, should_stop)
    finally:
      self.close_progress()
    if self.done > started_at:
      self.save()
      self.notify_end()
    if self.done < self.num_steps:
      self._print(
        f"Stopped at step {self.done}; the same command resumes there."
      )
    elif self._processes.is_chief:
      self.finish()
    self.folder.close()
    self._processes.wait()

  def train(
    self, until: int, should_stop: Callable[[], bool] = lambda: False
  ) -> loop.Logs:
    """Trains up to a step; returns the last logs. May be called again."""
    if not self._is_restored:
      raise ValueError(
        "`Run.restore` must be called before `Run.train`: a checkpoint in "
        f"'{self.folder.path}' would be overwritten."
      )
    self._record_start()
    stops = [self._log_every, *self._intervals]
    actions = [
      self._log,
      loop.every(self._sample_every, self._consolidate_and_sample),
      loop.every(self._save_every, lambda step, logs: self.save()),
    ]
    if self._measure_every:
      actions.append(loop.every(self._measure_every, self._measure_and_keep))
    if self.folder.is_writer and self._progress is None:
      self._progress = Progress(self.num_steps, self.done)
    try:
      self._make_loop()(
        self.done,
        until,
        stops,
        actions,
        lambda: self._processes.any(should_stop()),
      )
    except reading.OP_ERRORS as e:
      reason = self.experiment.input_fn.find_failure(self.done)
      if reason is None:
        raise
      raise self._input_failed(reason) from e
    self.experiment.consolidate()
    return self._logs

  def extend(self, num_steps: int) -> None:
    """Makes `num_steps` the end, which the next `train` records."""
    self._is_started &= num_steps == self.num_steps
    self.num_steps = num_steps

  def _record_start(self) -> None:
    """Records what this process trains with, once for each end."""
    if self._is_started or not self.folder.is_writer:
      return
    self._is_started = True
    found = facts.collect(self.experiment, self._estimator)
    self.folder.start(self.done, {**found, "num_steps": self.num_steps})

  def _input_failed(self, reason: str) -> InputError:
    """Saves if it can; returns the error to raise.

    With several processes it cannot: the others may not reach the save.
    """
    if self._processes.count == 1:
      self.save()
    if self._saved == self.folder.checkpoints.path(self.done):
      return InputError(f"{reason} Trained up to step {self.done}.")
    kept = self._saved or "none, so training starts over"
    return InputError(
      f"{reason} Step {self.done} is not saved; the last checkpoint is {kept}."
    )

  def save(self) -> None:
    """Saves a checkpoint, unless this step is saved already."""
    if self.folder.checkpoints.path(self.done) != self._saved:
      entries = self._state.prepare_save(self.done)
      self._saved = self.folder.checkpoints.save(self.done, entries)
      self._callbacks.call("on_save", self.done, self._saved)

  def notify_end(self) -> None:
    """Tells the callbacks that training has ended."""
    self._callbacks.call("on_end", self.done)

  def close_progress(self) -> None:
    """Ends the progress bar; its last state stays on screen."""
    if self._progress is not None:
      self._progress.close()
      self._progress = None

  def _print(self, text: str) -> None:
    if self._processes.is_chief:
      print(text, flush=True)

  def _make_loop(self) -> Callable[..., int]:
    """Returns `loop.train` with its inner loop, or what an estimator has."""
    if self._estimator is not None:
      if self.done:
        self.save()  # The estimator starts at the newest checkpoint.
      return self.experiment.estimator_loop(
        self._estimator, self._state.entries, self._intervals
      ).train
    if self._inner is None:
      self._inner = self.experiment.inner_loop(self.done)
    return functools.partial(loop.train, self._inner)

  def restore(self) -> None:
    """Reads the newest checkpoint, if there is one; all processes together."""
    self._is_restored = True
    self._saved = self.folder.checkpoints.latest()
    if self._saved is not None:
      checkpoints.restore(self._saved, self._state.entries)
    if not self._processes.same(self.done):
      raise ValueError(
        f"`model_dir` must be one folder that all processes share, got "
        f"'{self.folder.path}': others are not at step {self.done} there."
      )
    self.experiment.consolidate()

  def finish(
    self, num_samples: Optional[int] = None
  ) -> List[metrics.MetricValue]:
    """Samples, measures and reports; called on the chief."""
    self._sample(self.done, {})
    self._interpolate()
    values = self._measure(num_samples)
    if values:
      print(metrics.format_values(values))
    path = self.folder.write_report()
    print(f"Pictures: {self.folder.samples_path(self.done)}")
    print(f"Report:   {path}", flush=True)
    return values

  def _default_samples(self) -> Optional[int]:
    """Returns the samples for metrics, at most as many as held-out images."""
    source = getattr(self.experiment.input_fn, "source", None)
    if self._num_metric_samples is None or source is None:
      return self._num_metric_samples
    return min(self._num_metric_samples, source.num_heldout)

  def _measure_and_keep(self, step: int, logs: loop.Logs) -> None:
    """Measures, unless `finish` is about to, and keeps the best checkpoint."""
    del logs
    self.experiment.consolidate()
    self.save()
    if self.folder.is_writer and step < self.num_steps:
      self._measure()

  def _measure(
    self, num_samples: Optional[int] = None
  ) -> List[metrics.MetricValue]:
    if not self.experiment.evaluation.can_measure:
      if self.experiment.evaluation.note:
        print(self.experiment.evaluation.note, flush=True)
      return []
    counter = Counter(f"Measuring step {self.done:,}: images")
    try:
      values = self.experiment.evaluation.measure(
        num_samples or self._default_samples(),
        self._num_metric_reference,
        counter,
      )
      entries = [value.to_json() for value in values]
      self.folder.record_metrics(self.done, entries)
      if self._measure_every and self._saved and entries:
        self.folder.keep_best(self._saved, self.done, entries, self._best_by)
    except ValueError as e:
      raise InputError(
        f"Nothing is measured: {e} Trained up to step {self.done}; the last "
        f"checkpoint is {self._saved}."
      ) from e
    return values

  def _check_finite(self, step: int, logs: loop.Logs) -> None:
    bad = [name for name, value in logs.items() if not math.isfinite(value)]
    if bad:
      kept = self.folder.checkpoints.latest()
      raise FloatingPointError(
        f"`{bad[0]}` is {logs[bad[0]]} at step {step}: training diverged; "
        f"lower a learning rate. The last checkpoint is kept: {kept}."
      )

  def _log(self, step: int, logs: loop.Logs) -> None:
    logs = {**logs, **self.experiment.input_fn.meter()}
    self._check_finite(step, logs)
    self._logs = logs
    if step % self._log_every:
      return
    self._callbacks.call("on_log", step, dict(logs))
    if self._progress is None:
      return
    self.folder.log(step, logs)
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
    if self.folder.is_writer:
      grid = self.experiment.evaluation.grid()
      self.folder.write_samples(step, grid, self._scale)

  def _interpolate(self) -> None:
    if self.folder.is_writer and self.experiment.mixes_classes:
      grid = self.experiment.evaluation.interpolation()
      self.folder.write_interpolation(self.done, grid, self._scale)

  @property
  def _scale(self) -> int:
    return samples.scale_for(self.experiment.spec.resolution)


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
  by_estimator = engine == "tpu_estimator"
  if by_estimator:
    estimators.check_exists()
  config.load(gin_files, gin_bindings)
  device_options = device_options or strategies.DeviceOptions()
  choice = (
    strategies.for_estimator(device_options)
    if by_estimator
    else strategies.choose(device_options)
  )
  print(f"Training on {choice.reason}.", flush=True)
  try:
    with index_files.reading_from(model_dir):
      experiment = Experiment(choice.strategy)
    estimator = None
    if by_estimator:
      estimator = experiment.estimator(model_dir, choice.tpu, saves=False)
    run = Run(experiment, model_dir, estimator)
    run.restore()
    return run
  except config.WRONG as e:
    raise ValueError(config.sentence(e)) from e
