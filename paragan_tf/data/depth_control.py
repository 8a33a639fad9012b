"""Sets the depth of all pipelines of a run by the step timings of its loop.

    control = input_fn.make_control(start_step, images_per_step)
    input_fn({..., "control": control})     # makes a pipeline with variables
    control.update(step, logs, read, write) # after each inner loop

A pipeline without a control has the least depth.
"""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf.data.loop_control import LoopTiming
from paragan_tf.data.step_timing import Pipeline, Reads, StepTiming

# Returns the values of variables.
ReadFn = Callable[[Sequence[tf.Variable]], Sequence[np.ndarray]]
# Assigns a value to a variable.
WriteFn = Callable[[tf.Variable, int], Any]


def _read_eagerly(variables: Sequence[tf.Variable]) -> List[np.ndarray]:
  return [variable.numpy() for variable in variables]


class Control:
  """Plans for all pipelines of a run that one program feeds.

  Args:
    options: Bounds.
    start_step: Steps that were done before the pipelines start.
    images_per_step: Over all replicas.
  """

  def __init__(
    self, options: StepTiming, start_step: int, images_per_step: int
  ):
    self._options = options
    self._step = start_step
    self._images_per_step = images_per_step
    self._pipelines: List[Pipeline] = []
    self._is_first = True
    self._waited = 0.0

  def make_pipeline(self, reads: Optional[Reads] = None) -> Pipeline:
    """Makes a pipeline's variables, on the host whose device is set."""
    pipeline = Pipeline(self._options, is_live=True, reads=reads)
    self._pipelines.append(pipeline)
    return pipeline

  def update(
    self,
    step: int,
    logs: Mapping[str, float],
    read: ReadFn = _read_eagerly,
    write: WriteFn = lambda variable, value: variable.assign(value),
  ) -> None:
    """Plans anew after an inner loop.

    Args:
      step: Steps done.
      logs: Of the loop, with `images_per_second`, `input_wait`, `input_late`.
      read: Returns the values of variables.
      write: Assigns to a variable.
    """
    num_steps, self._step = step - self._step, step
    seconds = num_steps * self._images_per_step / logs["images_per_second"]
    timing = LoopTiming(
      num_steps,
      seconds,
      logs["input_wait"] * seconds,
      round(logs["input_late"] * num_steps),
    )
    self._waited += timing.waited
    # The first loop is traced, and waits for a buffer that is empty.
    is_first, self._is_first = self._is_first, False
    counted = read([p.variables[2] for p in self._pipelines])
    for pipeline, count in zip(self._pipelines, counted):
      if is_first:
        pipeline.count_steps(num_steps, count)
      else:
        pipeline.update(timing, count)
      write(pipeline.variables[0], pipeline.plan.depth)
      write(pipeline.variables[1], pipeline.plan.num_decoders)

  def meter(self) -> Dict[str, float]:
    """Returns the plan for the logs: sums over pipelines, maximum depth."""
    pipelines = self._pipelines
    if not pipelines:
      return {}
    return {
      "input/readers": sum(p.num_reads for p in pipelines),
      "input/depth": max(p.plan.depth for p in pipelines),
      "input/decoders": max(p.plan.num_decoders for p in pipelines),
      "input/megabytes": sum(p.num_bytes for p in pipelines) / 1e6,
      "input/waited_seconds": self._waited,
    }


class TimedInput:
  """An input whose depth may follow step timings.

  Args:
    timing: Bounds; `None` if the depth is fixed.
  """

  def __init__(self, timing: Optional[StepTiming]):
    self._timing = timing
    self._control: Optional[Control] = None

  def make_control(
    self, start_step: int, images_per_step: int
  ) -> Optional[Control]:
    """Returns what sets the depth by step timings; none if it is fixed."""
    if self._timing is not None:
      self._control = Control(self._timing, start_step, images_per_step)
    return self._control

  def _make_pipeline(
    self, params: Mapping[str, Any], reads: Optional[Reads] = None
  ) -> Optional[Pipeline]:
    """Returns a pipeline, constant without a control; none if it is fixed."""
    if self._timing is None:
      return None
    control = params.get("control")
    if control:
      return control.make_pipeline(reads)
    return Pipeline(self._timing, False, reads)
