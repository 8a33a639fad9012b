"""One run: trains an experiment in its folder, saves, resumes, reports."""

import contextlib
import functools
from typing import (
  Any,
  Callable,
  List,
  Mapping,
  Optional,
  Sequence,
)

import gin

from paragan_tf import (
  checks,
  config,
  facts,
  holding,
  stopping,
  termination,
  trial,
)
from paragan_tf.callbacks import Callbacks
from paragan_tf.data import reading
from paragan_tf.engine import budget, loop, peers, strategies
from paragan_tf.engine.entries import StepState
from paragan_tf.experiment import Experiment
from paragan_tf.health import Health, RollBackError
from paragan_tf.outputs import checkpoints, metrics, records, stored
from paragan_tf.outputs.progress import Progress
from paragan_tf.outputs.run_folder import TIMEOUT, RunFolder
from paragan_tf.run_control import Control, Limits
from paragan_tf.run_results import InputError, Measuring, Results
from paragan_tf.types import Entry
from paragan_tf.watchdog import Watchdog

_ARGUMENTS = ["experiment", "model_dir", "estimator", "callbacks", "notes"]
_ARGUMENTS += ["changes", "make_again"]


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
  A run ends after `num_steps`, `max_images` real ones, or `max_seconds` of
  training, whichever comes first. While the folder cannot be written, training
  goes on for `folder_timeout` seconds; a `termination_watcher` returns why to
  stop, see `termination.py`. A process that does not answer for
  `worker_timeout` seconds is lost. A `hold` compares the run with a plan; what
  it has changed are `changes`, and `make_again` builds the run anew. If memory
  runs out and a hold acts, the run goes back to its newest checkpoint, and on
  with half the batch.
  """

  def __init__(
    self,
    experiment: Experiment,
    model_dir: str,
    estimator=None,
    num_steps: int = gin.REQUIRED,
    max_images: Optional[int] = None,
    max_seconds: Optional[float] = None,
    log_every: int = 20,
    sample_every: int = 500,
    save_every: int = 500,
    measure_every: Optional[int] = None,
    best_by: Optional[str] = None,
    num_metric_samples: Optional[int] = None,
    num_metric_reference: Optional[int] = None,
    watchdog: Callable[[], Watchdog] = Watchdog,
    callbacks: Sequence[Any] = (),
    notes: Optional[Mapping[str, str]] = None,
    folder_timeout: float = TIMEOUT,
    termination_watcher: Optional[termination.Watcher] = None,
    worker_timeout: float = peers.TIMEOUT,
    hold: Optional[holding.Hold] = None,
    changes: holding.Changes = holding.Changes(),  # noqa: B008
    make_again: Optional[Callable[[Optional[holding.Changes]], "Run"]] = None,
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
    termination.check(termination_watcher)
    self.experiment = experiment
    self.num_steps = changes.extra_steps + budget.count_steps(
      num_steps, max_images, experiment.images_per_step
    )
    self.seconds = budget.Seconds(max_seconds)
    checks.check_seconds(max_seconds, estimator)
    self._make_again = make_again
    self._processes = experiment.processes
    self._processes.peers.set_timeout(worker_timeout)
    self._estimator = estimator
    self._log_every = log_every
    self._sample_every = sample_every
    self._save_every = save_every
    self._measure_every = measure_every
    self._intervals = [sample_every, save_every]
    self._intervals += [measure_every] if measure_every else []
    self._held = holding.Held(
      hold, changes, experiment, self.num_steps, intervals, self._note
    )
    if self._held.acts and make_again is None:
      raise ValueError(
        "`Hold.acts` needs a run that `tools.train` has made, with "
        "`--engine=strategy`: set `holding.Hold.acts = False`."
      )
    self.folder = RunFolder(
      model_dir,
      checkpoints.Writers(
        self._processes.index, self._processes.count, self._processes.any
      ),
      folder_timeout,
    )
    self._state = StepState(
      experiment.step, experiment.strategy, experiment.processes
    )
    self._health = Health(
      watchdog(), experiment, self.folder, probes=estimator is None
    )
    self._progress: Optional[Progress] = None
    self._logs: loop.Logs = {}
    self._inner: Optional[loop.InnerLoop] = None
    self._is_restored = False
    self._callbacks = Callbacks(callbacks)
    self.control = Control(
      self.folder,
      self._prepare_save,
      self._list_entries,
      self._processes,
      experiment.step.cycle,
      self._callbacks,
      Limits(folder_timeout, termination_watcher, self.seconds),
    )
    self._results = Results(
      experiment,
      self.folder,
      self.control,
      Measuring(
        num_metric_samples,
        num_metric_reference,
        bool(measure_every),
        best_by,
      ),
    )
    self._is_started = False
    self._config = config.operative({**(notes or {}), **changes.note()})
    holding.check_resumable(
      self.folder.read_config(), self._config, model_dir, changes
    )
    self._processes.check_chief(self.folder.check_lock)

  def attach(self, stop: stopping.Stop) -> None:
    """Lets signals stop the run."""
    stop.at_exit(self.folder.close)
    self.control.stop = stop

  @property
  def is_complete(self) -> bool:
    """Whether nothing is left to train."""
    return self.done >= self.num_steps or self.seconds.is_spent

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

  def rehearse(self) -> None:
    """Checks all that training needs, and writes nothing."""
    self._processes.check_chief(self.folder.check_path)
    self._check_parts()
    if self._estimator is None:
      trial.trace_a_step(self.experiment, self.done)

  def _check_parts(self) -> List[str]:
    """Checks extractor and input; returns what looks odd."""
    if self._processes.is_chief:
      measuring = self._results.measuring
      trial.check_measuring(self.experiment, measuring.num, measuring.best_by)
    return self.experiment.check_input()

  def open(self) -> None:
    """Checks the input, makes the folder, saves the config, opens the records.

    Where nothing is left to train, the input is not checked.
    """
    if not self.is_complete:
      odd = self._check_parts()
      for remark in [*odd, *self.experiment.input_remarks()]:
        self._print(f"Note: {remark}")
    self.folder.open(self._config, self.done, self.experiment.g_info())
    if self.folder.is_writer:
      self.experiment.input_fn.save_index(self.folder.path)
    broken = self.folder.write_broken(self.experiment.broken_images())
    if broken is not None:
      self._print(f"All broken images: {broken}")

  def __call__(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
    """Trains to the end, then samples, measures and reports.

    Returns:
      Whether it is complete; otherwise it was stopped, and saved.
    """
    with self._processes.peers.watching():
      is_complete = self._train_and_finish(should_stop)
      self._processes.wait()
    self._processes.wait()  # Nobody watches any more: all may end.
    self.folder.close()
    return is_complete

  def _train_and_finish(self, should_stop: Callable[[], bool]) -> bool:
    started_at = self.done
    if self.is_complete:
      self._print(f"Already trained for {self.done} steps; raise `num_steps`.")
    elif started_at:
      self._print(f"Resuming at step {self.done} of {self.folder.path}.")
    num_replicas = self.experiment.strategy.num_replicas_in_sync
    if not self.is_complete and num_replicas > 1:
      self._print(self.experiment.sync_summary())
    try:
      with self.control.watching():
        self._train_and_change(should_stop)
    finally:
      self.close_progress()
    if self.done > started_at:
      self._health.finish()
      self.save()
      self.notify_end()
    self.control.stop.has_unsaved = False
    is_complete = self.is_complete and self._finish_or_stop()
    if not is_complete:
      self._print(
        f"Stopped at step {self.done}; the same command resumes there."
      )
    return is_complete

  def _train_and_change(self, should_stop: Callable[[], bool]) -> None:
    """Trains to the end, also as the runs that a change makes of this one."""
    while True:
      lowered: Optional[holding.Changes] = None
      try:
        self.train(self.num_steps, should_stop)
      except holding.OutOfMemoryError:
        lowered = self._held.lower_batch(self._saved_step())
        if lowered is None:
          raise
      if lowered is not None:  # Here, nothing holds the failed step any more.
        words = lowered.describe(self._held.changes)
        self._build_again(lowered)
        self._note(f"Memory ran out. From step {self.done} on, {words}.")
        continue
      if not self._held.is_due(self.done) or self._is_asked(should_stop):
        return
      self.save()
      self._build_again()

  def _saved_step(self) -> int:
    """Returns the step of the newest checkpoint; 0 if there is none."""
    self.control.saver.join()
    newest = self.folder.checkpoints.latest()
    return 0 if newest is None else checkpoints.step_of(newest)

  def _finish_or_stop(self) -> bool:
    """Measures and reports on the chief; returns whether it was let."""
    if self._processes.is_chief:
      with contextlib.suppress(stopping.Stopped):
        self.finish()
        return True
    return not self._processes.is_chief

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
    stops = self._held.stops = [self._log_every, *self._intervals]
    actions = [
      self._log,
      loop.every(self._log_every, self._held.check),
      loop.every(self._sample_every, self._consolidate_and_sample),
      loop.every(self._save_every, self._start_save),
      lambda step, logs: self.control.saver.poll(),
    ]
    if self._measure_every:
      actions.append(loop.every(self._measure_every, self._measure_and_keep))
    if self.folder.is_writer and self._progress is None:
      self._progress = Progress(self.num_steps, self.done)
    pace = self.control.pace(
      lambda: should_stop() or self._held.is_due(self.done), self._tick
    )
    self._health.begin(self.done, self.control.saver.last)
    with self._processes.peers.watching():
      try:
        self._train_or_roll_back(until, stops, actions, pace)
      except holding.MEMORY_ERRORS as e:
        raise holding.OutOfMemoryError(self._describe_memory()) from e
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

  def _describe_memory(self) -> str:
    """Returns what may be done where memory has run out."""
    return (
      f"Memory ran out at step {self.done}, with a batch of "
      f"{self.experiment.batch_size} images in all: lower "
      "`Experiment.batch_size`, or let `exchange.AccumulatedGradients` add up "
      "gradients of smaller batches. The last checkpoint is "
      f"{self.control.saver.last or 'none, so training starts over'}."
    )

  def _input_failed(self, reason: str) -> InputError:
    """Saves if it can; returns the error to raise.

    With several processes it cannot: the others may not reach the save.
    """
    if self._processes.count == 1:
      self.save()
    self.control.saver.join()
    if self.control.saver.last == self.folder.checkpoints.path(self.done):
      return InputError(f"{reason} Trained up to step {self.done}.")
    kept = self.control.saver.last or "none, so training starts over"
    return InputError(
      f"{reason} Step {self.done} is not saved; the last checkpoint is {kept}."
    )

  def save(self) -> None:
    """Saves a checkpoint, unless this step is saved, and waits for it."""
    self._record_seconds()
    self.control.save(self.done)

  def _prepare_save(self, step: int) -> Sequence[Entry]:
    """Returns what a checkpoint keeps; all processes together."""
    return [*self._state.prepare_save(step), *self._held.entries(step)]

  def _list_entries(self, step: int) -> Sequence[Entry]:
    """Returns what a checkpoint of now would keep; changes nothing."""
    return [*self._state.entries_now(), *self._held.entries(step)]

  def _is_asked(self, should_stop: Callable[[], bool]) -> bool:
    """Returns whether any process was asked to stop; all must call it."""
    stop = self.control.stop
    return self._processes.any(should_stop() or stop.is_requested())

  def _build_again(self, changes: Optional[holding.Changes] = None) -> None:
    """Becomes the run that resumes at the newest checkpoint.

    Args:
      changes: In place of those of the checkpoint.
    """
    self.close_progress()
    self.folder.close()
    assert self._make_again is not None
    stop = self.control.stop
    for name in (
      "experiment",
      "control",
      "_state",
      "_inner",
      "_held",
      "_health",
    ):
      setattr(self, name, None)  # Frees its memory first.
    vars(self).update(vars(self._make_again(changes)))
    self.control.stop = stop
    self.open()

  def _note(self, text: str) -> None:
    self.folder.note(self.done, text)
    if self._progress is not None:
      self._progress.note(text)
    else:
      self._print(text)

  def _start_save(self, step: int, logs: loop.Logs) -> None:
    """Saves a checkpoint while training goes on."""
    del step, logs
    if self._health.may_save:
      self._record_seconds()
      self.control.saver.start(self.done)

  def _record_seconds(self) -> None:
    """Records what is used of the budget, for those who resume here."""
    if self.seconds.limit is not None and self.done % self._log_every:
      self.folder.log(self.done, {budget.SECONDS: self.seconds.used})

  def _tick(self, step: int) -> None:
    if self._progress is not None:
      self._progress.tick(step)

  def _train_or_roll_back(self, until: int, stops, actions, pace) -> None:
    while True:
      try:
        self._make_loop()(self.done, until, stops, actions, pace)
        return
      except RollBackError as e:
        self._roll_back(e.path)

  def _roll_back(self, path: str) -> None:
    """Goes back to a checkpoint, which is the newest one from then on."""
    self.control.saver.wait()
    stored.restore(path, self._state.entries)
    self.folder.roll_back(path, self.done)
    self._processes.wait()
    newest = self.folder.checkpoints.path(self.done)
    self.control.saver.restored(newest)
    self._inner = None
    self.experiment.consolidate()
    self._health.begin(self.done, newest)

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
    newest = self.folder.checkpoints.latest()
    self.control.saver.restored(newest)
    if newest is not None:
      stored.restore(newest, self._state.entries)
      self.seconds.resume(records.read(self.folder.path), self.done)
    with self._processes.peers.watching():
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
    return self._results.finish(self.done, num_samples)

  def _measure_and_keep(self, step: int, logs: loop.Logs) -> None:
    """Measures, unless `finish` is about to, and keeps the best checkpoint."""
    del logs
    self.experiment.consolidate()
    self.save()
    if self.folder.is_writer and step < self.num_steps:
      self._results.measure(step)

  def _log(self, step: int, logs: loop.Logs) -> None:
    logs = {**logs, **self.experiment.input_fn.meter()}
    logs = self._health.follow(step, logs, self.control.saver.last)
    if self.seconds.limit is not None:
      logs[budget.SECONDS] = self.seconds.used
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
    del logs
    self.experiment.consolidate()
    self._results.sample(step)
