"""What small nets learn on CIFAR-10, in FID of 10,000 samples.

    for seed in 0, 1, 2:
      for each side:
        train for a fixed number of steps, and so of images
        measure FID of 10,000 samples against the 50,000 training images

With seed 0 a curve is measured as well, by fewer samples: its values are higher
and have a panel of their own. Each side and seed is written to `--json` as soon
as it is measured; the same command goes on from there.
"""

import functools
import time
from typing import Any, List, Sequence, Tuple

import numpy as np

from tools.suites.interleave import log_progress
from tools.suites.learner import Learner
from tools.suites.quality import plot
from tools.suites.quality.results import SEEDS, Point, Results, Settings
from tools.suites.quality.sides import SIDES, make_config
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, close_all

FULL = Settings()
QUICK = Settings(200, 1000, 2000, 200, 1)
_CURVE_SEED = 0
_MINUTE = 60.0


def run(options: Options) -> Result:
  """Measures what `--json` has not yet; returns the table, all and a plot."""
  if options.json is None:
    raise ValueError(
      "`--suite=quality` needs `--json`: it takes hours, keeps each result "
      "there, and goes on from it when it is called again."
    )
  names = options.select_sides(SIDES)
  results = Results(options.json, QUICK if options.quick else FULL)
  measure_missing(results, names)
  return Result(
    format_table(results),
    results.figures(),
    lambda path: plot.draw(results, path),
  )


def measure_missing(results: Results, names: Sequence[str]) -> None:
  """Trains and measures each side and seed that has no result, seed 0 first."""
  missing = list_missing(results, names)
  started = time.monotonic()
  for i, (name, seed) in enumerate(missing):
    minutes = (time.monotonic() - started) / _MINUTE
    left = f", {minutes / i * (len(missing) - i):.0f} min left" if i else ""
    log_progress(f"{i} of {len(missing)}{left}: {name}, seed {seed}.")
    worker = Worker(name, functools.partial(Learner, *make_config(name, seed)))
    with close_all([worker]):
      points = measure(worker, results.settings, name, seed)
    results.add(name, seed, points)
    log_progress(f"{name}, seed {seed}: FID {points[-1].fid:.1f}.")


def list_missing(
  results: Results, names: Sequence[str]
) -> List[Tuple[str, int]]:
  """Returns the sides and seeds without a result, in the order of work."""
  pairs = [(name, seed) for seed in SEEDS for name in names]
  return [pair for pair in pairs if not results.points(*pair)]


def measure(
  worker: Any, settings: Settings, name: str, seed: int
) -> List[Point]:
  """Trains a side with a seed; returns its curve, if any, and its FID."""
  count = settings.num_curve_points if seed == _CURVE_SEED else 0
  steps = [settings.num_steps * i // count for i in range(1, count + 1)]
  plan = [(step, settings.num_curve_samples) for step in steps]
  plan.append((settings.num_steps, settings.num_samples))
  points: List[Point] = []
  step, seconds = 0, 0.0
  for until, num_samples in plan:
    if until > step:
      seconds = worker.call("advance", until - step)
      step = until
    title = f"{name}, seed {seed}, step {step:,}: images"
    (value,) = worker.call(
      "measure", num_samples, settings.num_reference, ["fid"], title
    )
    points.append(
      Point(step, seconds, num_samples, value["value"], value["real_score"])
    )
  return points


def format_table(results: Results) -> str:
  """Returns the FID of each side as text: seeds, their mean and deviation."""
  settings = results.settings
  rows: List[str] = []
  real = None
  for name, side in SIDES.items():
    finals = results.finals(name)
    if not finals:
      continue
    real = next(iter(finals.values())).real_fid
    fids = np.array([point.fid for point in finals.values()])
    minutes = np.mean([point.seconds for point in finals.values()]) / _MINUTE
    each = [f"{finals[x].fid:.1f}" if x in finals else "-" for x in SEEDS]
    deviation = f" +- {fids.std(ddof=1):.1f}" if len(fids) > 1 else ""
    mean = f"{fids.mean():.1f}{deviation}"
    cells = "".join(f"{x:9}" for x in each)
    rows.append(f"{side.title:32}{minutes:<9.1f}{cells}{mean}")
  title = f"FID-{settings.num_samples}"
  lines = [
    f"CIFAR-10, {settings.num_steps} steps, {title} against "
    f"{settings.num_reference} training images; "
    + (f"held-out images get {real:.2f}" if real is not None else "no result"),
    f"{'':32}{'minutes':9}"
    + "".join(f"{f'seed {x}':9}" for x in SEEDS)
    + "mean",
    *rows,
  ]
  missing = list_missing(results, tuple(SIDES))
  if missing:
    lines.append(f"{len(missing)} results are missing.")
  return "\n".join(lines)
