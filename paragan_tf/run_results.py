"""What a run draws and measures: samples, interpolations, metrics, its report.

results = Results(experiment, folder, control, measuring)
results.sample(step)
results.measure(step)               # and keeps the best checkpoint
results.finish(step)                # all of that, then the report
"""

from typing import List, NamedTuple, Optional

from paragan_tf import config
from paragan_tf.experiment import Experiment
from paragan_tf.outputs import metrics, samples
from paragan_tf.outputs.progress import Counter
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.run_control import Control


class InputError(Exception):
  """A run ends early or is not measured, for a reason that a user can fix."""


class Measuring(NamedTuple):
  """What a run measures with.

  Attributes:
    num: Samples; by default as many as there are held-out images.
    num_reference: Real images; all by default.
    keeps_best: Whether the best checkpoint is kept.
    best_by: The metric that says which is best.
  """

  num: Optional[int] = None
  num_reference: Optional[int] = None
  keeps_best: bool = False
  best_by: Optional[str] = None


class Results:
  """Draws and measures the samples of a run, and writes them to its folder."""

  def __init__(
    self,
    experiment: Experiment,
    folder: RunFolder,
    control: Control,
    measuring: Measuring,
  ):
    self._experiment = experiment
    self._folder = folder
    self._control = control
    self.measuring = measuring
    self._scale = samples.scale_for(experiment.spec.resolution)

  def finish(
    self, step: int, num: Optional[int] = None
  ) -> List[metrics.MetricValue]:
    """Samples, measures and reports; called on the chief.

    If nothing can be measured, the report says so before that is raised.
    """
    self.sample(step)
    self._interpolate(step)
    values: List[metrics.MetricValue] = []
    failure = None
    try:
      values = self.measure(step, num)
    except InputError as e:
      failure = e
    if values:
      print(metrics.format_values(values))
    path = self._folder.write_report(str(failure or ""))
    print(f"Pictures: {self._folder.samples_path(step)}")
    print(f"Report:   {path}", flush=True)
    if failure is not None:
      raise failure
    return values

  def measure(
    self, step: int, num: Optional[int] = None
  ) -> List[metrics.MetricValue]:
    """Measures and records; keeps the checkpoint if it is the best one."""
    evaluation = self._experiment.evaluation
    if not evaluation.can_measure:
      if evaluation.note:
        print(evaluation.note, flush=True)
      return []
    counter = Counter(f"Measuring step {step:,}: images")
    kept = self._control.saver.last
    try:
      with self._control.interruptible():
        values = evaluation.measure(
          num or self._default_num(), self.measuring.num_reference, counter
        )
      entries = [value.to_json() for value in values]
      self._folder.record_metrics(step, entries)
      if self.measuring.keeps_best and kept and entries:
        self._folder.keep_best(kept, step, entries, self.measuring.best_by)
    except config.WRONG as e:
      raise InputError(
        f"Nothing is measured: {config.sentence(e)} Trained up to step "
        f"{step}; the last checkpoint is {kept}."
      ) from e
    return values

  def _default_num(self) -> Optional[int]:
    """Returns the samples for metrics, at most as many as held-out images."""
    source = getattr(self._experiment.input_fn, "source", None)
    if self.measuring.num is None or source is None:
      return self.measuring.num
    return min(self.measuring.num, source.num_heldout)

  def sample(self, step: int) -> None:
    """Writes a grid of samples, on the process that writes."""
    if self._folder.is_writer:
      with self._control.interruptible():
        grid = self._experiment.evaluation.grid()
      self._folder.write_samples(step, grid, self._scale)

  def _interpolate(self, step: int) -> None:
    if self._folder.is_writer and self._experiment.mixes_classes:
      with self._control.interruptible():
        grid = self._experiment.evaluation.interpolation()
      self._folder.write_interpolation(step, grid, self._scale)
