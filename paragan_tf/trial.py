"""Builds all that a run will use, before it starts.

    check_measuring(experiment, num)     # the extractor and its weights
    trace_a_step(experiment, step)       # the graph of a step, which is not run

A run that trains for days would otherwise end with what it lacks for metrics.
"""

from typing import Optional

from paragan_tf import config
from paragan_tf.experiment import Experiment


def check_measuring(
  experiment: Experiment,
  num: Optional[int] = None,
  best_by: Optional[str] = None,
) -> None:
  """Raises a `ValueError` if samples of the run could not be measured.

  Args:
    experiment: Of the run.
    num: How many samples are to be measured, if the run says so.
    best_by: The metric that says which checkpoint is best, if the run does.
  """
  if num is not None and num < 2:
    raise ValueError(
      f"`Run.num_metric_samples` must be at least 2, got {num}: raise it, or "
      "set `Experiment.extractor = None` to measure nothing."
    )
  try:
    experiment.evaluation.prepare()
  except config.WRONG as e:
    raise ValueError(
      f"Samples could not be measured: {config.sentence(e)}"
    ) from e
  names = experiment.evaluation.names()
  if best_by is not None and best_by not in names:
    raise ValueError(
      "`Run.best_by` must be a metric that is measured, "
      f"{', '.join(names) or 'and none is'}, got '{best_by}'."
    )


def trace_a_step(experiment: Experiment, start_step: int) -> None:
  """Raises a `ValueError` if a step cannot be traced."""
  try:
    experiment.inner_loop(start_step).trace()
  except config.WRONG as e:
    raise ValueError(f"A step cannot be traced: {config.sentence(e)}") from e
