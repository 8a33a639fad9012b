"""What is learned in bfloat16: suite `layout --quality`.

The default run trains on the embedded set in float32 and in bfloat16, with
several seeds, one after the other, and is scored by the Fréchet distance at its
end. All logs of a run are checked for values that are not finite.
"""

import functools
import math
from typing import Dict, List, NamedTuple

import numpy as np

from tools.suites.interleave import log_progress
from tools.suites.ours import load_config
from tools.suites.suite import Result
from tools.suites.workers import Worker, close_all

_GIN_FILE = "gin/runs/fashion.gin"
_SEEDS = (0, 1, 2)
_PRECISIONS = ("float32", "bfloat16")
_STEPS_AT_ONCE = 100
_STEPS_BETWEEN_LINES = 500
_LONG = 5000  # Steps of the one long run.


class Outcome(NamedTuple):
  """How a run ended.

  Attributes:
    frechet: The distance after the run's number of steps.
    finite_steps: Steps before the first log that was not finite.
    planned_steps: Steps that the run was to make.
  """

  frechet: float
  finite_steps: int
  planned_steps: int


class Learner:
  """Trains the default run in one precision."""

  def __init__(self, precision: str, seed: int):
    bindings = (
      f"player.precision = '{precision}'",
      f"Experiment.seed = {seed}",
    )
    run = load_config(bindings, (), _GIN_FILE)
    self._num_steps = run.gin.query_parameter("Run.num_steps")
    self._experiment = run.Experiment(run.strategies.choose().strategy)
    self._inner_loop = self._experiment.inner_loop(0)
    self._finite_steps = 0

  def train(self, until: int) -> Outcome:
    """Trains for the run's number of steps, scores, and trains to `until`."""
    planned = max(until, self._num_steps)
    self._run(self._num_steps)
    if self._finite_steps < self._num_steps:
      return Outcome(math.nan, self._finite_steps, planned)
    first = self._experiment.evaluation.measure(None, only=["fid"])[0]
    self._run(until)
    return Outcome(first.value, self._finite_steps, planned)

  def _run(self, until: int) -> None:
    """Trains until a step, or the first log that is not finite."""
    while self._finite_steps < until:
      logs = self._inner_loop(_STEPS_AT_ONCE)
      if not all(math.isfinite(value) for value in logs.values()):
        return
      self._finite_steps += _STEPS_AT_ONCE
      if self._finite_steps % _STEPS_BETWEEN_LINES == 0:
        log_progress(f"{self._finite_steps} steps.")


def run(quick: bool) -> Result:
  """Trains all; with `quick`, one seed each and no long run."""
  outcomes: Dict[str, List[Outcome]] = {}
  for precision in _PRECISIONS:
    for seed in _SEEDS[: 1 if quick else None]:
      is_long = precision == "bfloat16" and seed == 0 and not quick
      log_progress(f"{precision}, seed {seed}.")
      outcome = _train(precision, seed, _LONG if is_long else 0)
      outcomes.setdefault(precision, []).append(outcome)
      log_progress(f"{precision}, seed {seed}: {outcome}")
  figures = gather(outcomes)
  return Result(format_table(figures), figures)


def _train(precision: str, seed: int, until: int) -> Outcome:
  worker = Worker(precision, functools.partial(Learner, precision, seed))
  with close_all([worker]):
    return worker.call("train", until)


def gather(outcomes: Dict[str, List[Outcome]]) -> Dict[str, float]:
  """Returns the figures by name; a deviation is over the seeds.

  `finite_steps` is of the worst seed, out of the steps that all seeds were to
  make; a longer run has `long_finite_steps` of its own.
  """
  figures: Dict[str, float] = {}
  for precision, runs in outcomes.items():
    distances = [outcome.frechet for outcome in runs]
    figures[f"{precision}_frechet"] = float(np.mean(distances))
    several = len(distances) > 1
    deviation = float(np.std(distances, ddof=1)) if several else 0.0
    figures[f"{precision}_frechet_deviation"] = deviation
    usual = min(r.planned_steps for r in runs)
    worst = min(r.finite_steps for r in runs)
    figures[f"{precision}_finite_steps"] = min(worst, usual)
    for r in runs:
      if r.planned_steps > usual:
        figures[f"{precision}_long_finite_steps"] = r.finite_steps
  return figures


def format_table(figures: Dict[str, float]) -> str:
  """Returns the figures as text."""
  lines = ["The default run, Fréchet distance at its end, over the seeds"]
  for precision in _PRECISIONS:
    mean = figures[f"{precision}_frechet"]
    deviation = figures[f"{precision}_frechet_deviation"]
    steps = figures[f"{precision}_finite_steps"]
    line = (
      f"{precision:10}{mean:.1f} +- {deviation:.1f}, {steps:.0f} steps finite"
    )
    long = figures.get(f"{precision}_long_finite_steps")
    lines.append(line if long is None else f"{line}, {long:.0f} of a long run")
  return "\n".join(lines)
