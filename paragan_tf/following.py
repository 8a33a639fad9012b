"""Measures the checkpoints of a run beside it, and keeps the best one.

    follower = Follower("runs/fashion", Request(), best_by="fid")
    follower.measure()         # the newest checkpoint
    follower.follow(...)       # each new one, until the run is complete

It only reads what the run writes, so training never waits for it. Values go to
evaluations.jsonl, which the report and TensorBoard show with the others.
"""

import math
import time
from typing import Callable, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from paragan_tf import measuring, stopping
from paragan_tf.measuring import Request, RunMeter
from paragan_tf.outputs import labels, metrics, records, report
from paragan_tf.outputs.best import Best, choose
from paragan_tf.outputs.checkpoints import Checkpoints
from paragan_tf.outputs.metrics import MetricValue
from paragan_tf.outputs.progress import Counter
from paragan_tf.outputs.statistics import Progress
from paragan_tf.trained import Step


class Measurement(NamedTuple):
  """The values of a checkpoint or of images.

  Attributes:
    values: Of all metrics.
    step: Of the checkpoint; `None` of an export or of images.
    best_by: The metric by which it is the best so far, if it is.
  """

  values: List[MetricValue]
  step: Optional[int] = None
  best_by: Optional[str] = None


class Follower:
  """Measures checkpoints of a run and records them.

  Args:
    model_dir: Folder of the run, or of an export, which is measured only.
    request: What to measure.
    best_by: Name of the metric whose best checkpoint is kept; the first that is
      measured by default.
    stop: A request to stop, which does not cut off what is written.
  """

  def __init__(
    self,
    model_dir: str,
    request: Request,
    best_by: Optional[str] = None,
    stop: Optional[stopping.Request] = None,
  ):
    self._model_dir = model_dir
    self._best_by = best_by
    self._stop = stop or stopping.Request()
    self._meter = RunMeter(model_dir, request)
    self._records: Optional[records.Records] = None

  def measure(
    self, step: Step = None, progress: Optional[Progress] = None
  ) -> Measurement:
    """Measures one checkpoint; records its values, and writes the report."""
    progress = progress or Counter("images")
    best = Best(self._model_dir)
    try:
      staged = self._stage(best, step)
      values = self._meter.measure(step, progress)
      with self._stop.finishing():
        return self._record(best, staged, values)
    finally:
      best.discard_stage()

  def _record(
    self, best: Best, staged: Optional[str], values: List[MetricValue]
  ) -> Measurement:
    """Records values, keeps the checkpoint if it is the best, and reports."""
    step = self._meter.step
    if step is None:
      return Measurement(values)
    if self._records is None:
      self._records = records.Records(self._model_dir, records.EVALUATIONS)
    seconds = records.seconds_at(self._model_dir, step)
    entries = [value.to_json() for value in values]
    self._records.metric(step, entries, seconds)
    kept = None
    if staged is not None:
      entry = choose(entries, self._best_by)
      kept = entry["name"] if best.offer(staged, step, entry) else None
    report.write(self._model_dir)
    return Measurement(values, step, kept)

  def _stage(self, best: Best, step: Step) -> Optional[str]:
    """Copies the checkpoint to measure, which the run may remove meanwhile."""
    steps = measuring.list_steps(self._model_dir)
    if step is None and steps:
      step = steps[-1]
    if step not in steps or not isinstance(step, int):
      return None
    path = Checkpoints(self._model_dir).path(step)
    return best.stage(path, step)

  def follow(
    self,
    on_result: Callable[[Measurement], None],
    should_stop: Callable[[], bool],
    poll_seconds: float = 5.0,
  ) -> None:
    """Measures each checkpoint that is not measured yet, the newest first.

    Args:
      on_result: Called with each result.
      should_stop: Whether to end before the run is complete.
      poll_seconds: Seconds between two looks at the folder.
    """
    if labels.is_pool(self._model_dir):
      raise ValueError(
        f"`--follow` follows one run, and '{self._model_dir}' has one for each "
        "label: leave it out when they are trained."
      )
    seen = {x["step"] for x in records.read_evaluations(self._model_dir)}
    if not measuring.list_steps(self._model_dir):
      print(f"Waiting for a checkpoint in '{self._model_dir}'.", flush=True)
    while not should_stop():
      steps = measuring.list_steps(self._model_dir)
      new = [step for step in steps if step not in seen]
      if not new:
        if steps and steps[-1] >= self._num_steps():
          return
        time.sleep(poll_seconds)
        continue
      step = new[-1]
      seen.add(step)
      try:
        on_result(self.measure(step, Counter(f"step {step:,}: images")))
      except (ValueError, tf.errors.NotFoundError):
        # The run removes old checkpoints; others that fail are mistakes.
        if step in measuring.list_steps(self._model_dir):
          raise

  def _num_steps(self) -> float:
    """Returns how long the run goes on, as it said at its last start."""
    starts = records.read_starts(self._model_dir)
    return starts[-1].get("num_steps", math.inf) if starts else math.inf


def measure_images(path: str, request: Request) -> Measurement:
  """Measures the images of a folder or an npz file."""
  return Measurement(measuring.measure_images(path, request, Counter("images")))


def format_values(values: Sequence[MetricValue]) -> str:
  """Returns a table of values, and below it how they were measured."""
  if not values:
    return "Nothing can be measured."
  p = values[0].protocol
  num = "?" if p.num_reference is None else f"{p.num_reference:,}"
  return (
    f"{metrics.format_values(values)}\n"
    f"{p.num_samples:,} samples against {num} of {p.reference_split}; "
    f"{p.extractor}, {p.resizer}"
  )
