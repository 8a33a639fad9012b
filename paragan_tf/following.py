"""Measures the checkpoints of a run beside it, and keeps the best one.

    follower = Follower("runs/fashion", Request(), best_by="fid")
    follower.measure()         # the newest checkpoint
    follower.follow(...)       # each new one, until the run is complete

It only reads what the run writes, so training never waits for it. Values go to
evaluations.jsonl, which the report and TensorBoard show with the others.
"""

import math
import time
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from paragan_tf import measuring
from paragan_tf.measuring import Request, RunMeter, Step
from paragan_tf.outputs import records, report
from paragan_tf.outputs.best import Best
from paragan_tf.outputs.checkpoints import Checkpoints
from paragan_tf.outputs.metrics import MetricValue
from paragan_tf.outputs.progress import Counter
from paragan_tf.outputs.statistics import Progress


class Measurement(NamedTuple):
  """The values of a checkpoint or of images.

  Attributes:
    values: Of all metrics.
    step: Of the checkpoint; `None` of an export or of images.
    best: The value by which it is the best so far, if it is.
  """

  values: List[MetricValue]
  step: Optional[int] = None
  best: Optional[MetricValue] = None


class Follower:
  """Measures checkpoints of a run and records them.

  Args:
    model_dir: Folder of the run, or of an export, which is measured only.
    request: What to measure.
    best_by: Name of the metric whose best checkpoint is kept; the first that is
      measured by default.
  """

  def __init__(
    self, model_dir: str, request: Request, best_by: Optional[str] = None
  ):
    self._model_dir = model_dir
    self._best_by = best_by
    self._meter = RunMeter(model_dir, request)
    self._records: Optional[records.Records] = None

  def measure(
    self, step: Step = None, progress: Optional[Progress] = None
  ) -> Measurement:
    """Measures one checkpoint; records its values, and writes the report."""
    progress = progress or Counter("images")
    staged = self._stage(step)
    values = self._meter.measure(step, progress)
    done = self._meter.step
    if done is None:
      return Measurement(values)
    if self._records is None:
      self._records = records.Records(self._model_dir, records.EVALUATIONS)
    seconds = records.seconds_at(self._model_dir, done)
    self._records.metric(done, [x.to_json() for x in values], seconds)
    kept = None
    if staged is not None:
      kept = keep_best(self._model_dir, staged, done, values, self._best_by)
    report.write(self._model_dir)
    return Measurement(values, done, kept)

  def _stage(self, step: Step) -> Optional[str]:
    """Copies the checkpoint to measure, which the run may remove meanwhile."""
    steps = measuring.list_steps(self._model_dir)
    if step is None and steps:
      step = steps[-1]
    if step not in steps or not isinstance(step, int):
      return None
    path = Checkpoints(self._model_dir).path(step)
    return Best(self._model_dir).stage(path, step)

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
  return Measurement(
    measuring.measure_images(path, request, Counter("images"))
  )


def format_values(values: Sequence[MetricValue]) -> str:
  """Returns values as a table, with what real images get, and how measured."""
  rows, how = [], ""
  for x in values:
    deviation = "" if x.deviation is None else f" ± {x.deviation:.4f}"
    real = "" if x.real_score is None else f"real {x.real_score:.4f}"
    rows.append(f"{x.name:28} {x.value:10.4f}{deviation:12} {real}".rstrip())
    how = (
      f"{x.protocol.num_samples:,} samples against "
      f"{x.protocol.num_reference or 'an unknown number of'} of "
      f"{x.protocol.reference_split}; {x.protocol.extractor}, "
      f"{x.protocol.resizer}"
    )
  return "\n".join([*rows, how])


def keep_best(
  model_dir: str,
  path: str,
  step: int,
  values: List[MetricValue],
  best_by: Optional[str],
) -> Optional[MetricValue]:
  """Keeps a checkpoint if it is the best by a metric; returns that value."""
  by_name: Mapping[str, MetricValue] = {value.name: value for value in values}
  if not values:
    return None
  name = best_by or values[0].name
  if name not in by_name:
    raise ValueError(
      f"`best_by` must be one of {', '.join(by_name)}, got '{name}'."
    )
  value = by_name[name]
  is_best = Best(model_dir).offer(path, step, value.to_json())
  return value if is_best else None
