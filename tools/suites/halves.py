"""What is learned in bfloat16: suite `layout --quality`.

The default run on the embedded set, in float32 and in bfloat16, several seeds
each, one after the other: the Frechet distance at its end. Losses are looked at
all the way, for a number that is none.
"""

import functools
import math
from typing import Dict, List, NamedTuple

import numpy as np

from tools.suites.ours import load
from tools.suites.rounds import say
from tools.suites.suite import Result
from tools.suites.workers import Worker, closing

_GIN_FILE = "gin/runs/fashion.gin"
_SEEDS = (0, 1, 2)
_PRECISIONS = ("float32", "bfloat16")
_STEPS_AT_ONCE = 100
_STEPS_BETWEEN_WORDS = 500
_LONG = 5000  # Steps of the one run that is to stay finite.


class Learned(NamedTuple):
  """How a run ended.

  Attributes:
    frechet: The distance after the run's number of steps.
    finite_steps: How many steps gave numbers.
    asked_steps: How many were to be done.
  """

  frechet: float
  finite_steps: int
  asked_steps: int


class Learner:
  """A run in a precision."""

  def __init__(self, precision: str, seed: int):
    bindings = (
      f"player.precision = '{precision}'",
      f"Experiment.seed = {seed}",
    )
    run = load(bindings, (), _GIN_FILE)
    self._num_steps = run.gin.query_parameter("Run.num_steps")
    self._experiment = run.Experiment(run.strategies.choose().strategy)
    self._inner_loop = self._experiment.inner_loop(0)
    self._finite_steps = 0

  def learn(self, until: int) -> Learned:
    """Trains as long as the run does, then on until a step."""
    self._run(self._num_steps)
    if self._finite_steps < self._num_steps:
      return Learned(math.nan, self._finite_steps, max(until, self._num_steps))
    first = self._experiment.evaluation.measure(None)[0]
    self._run(until)
    asked = max(until, self._num_steps)
    return Learned(first.value, self._finite_steps, asked)

  def _run(self, until: int) -> None:
    """Trains until a step, or a number that is none."""
    while self._finite_steps < until:
      logs = self._inner_loop(_STEPS_AT_ONCE)
      if not all(math.isfinite(value) for value in logs.values()):
        return
      self._finite_steps += _STEPS_AT_ONCE
      if self._finite_steps % _STEPS_BETWEEN_WORDS == 0:
        say(f"{self._finite_steps} steps.")


def run(quick: bool) -> Result:
  """Trains all; with `quick` on one seed, and none for long."""
  found: Dict[str, List[Learned]] = {}
  for precision in _PRECISIONS:
    for seed in _SEEDS[: 1 if quick else None]:
      is_long = precision == "bfloat16" and seed == 0 and not quick
      say(f"{precision}, seed {seed}.")
      learned = _learned(precision, seed, _LONG if is_long else 0)
      found.setdefault(precision, []).append(learned)
      say(f"{precision}, seed {seed}: {learned}")
  figures = gather(found)
  return Result(table(figures), figures)


def _learned(precision: str, seed: int, until: int) -> Learned:
  worker = Worker(precision, functools.partial(Learner, precision, seed))
  with closing([worker]):
    return worker.ask("learn", until)


def gather(found: Dict[str, List[Learned]]) -> Dict[str, float]:
  """Returns the flat figures; a deviation is over the seeds.

  `finite_steps` are those of the worst seed, of the steps that all of them were
  to do; a run that was to go on has `long_finite_steps` of its own.
  """
  figures: Dict[str, float] = {}
  for precision, runs in found.items():
    distances = [learned.frechet for learned in runs]
    figures[f"{precision}_frechet"] = float(np.mean(distances))
    several = len(distances) > 1
    deviation = float(np.std(distances, ddof=1)) if several else 0.0
    figures[f"{precision}_frechet_deviation"] = deviation
    usual = min(r.asked_steps for r in runs)
    worst = min(r.finite_steps for r in runs)
    figures[f"{precision}_finite_steps"] = min(worst, usual)
    for r in runs:
      if r.asked_steps > usual:
        figures[f"{precision}_long_finite_steps"] = r.finite_steps
  return figures


def table(figures: Dict[str, float]) -> str:
  """Returns the figures as lines."""
  lines = ["The default run, Frechet distance at its end, over the seeds"]
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
