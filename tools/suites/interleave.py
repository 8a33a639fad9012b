"""Fair comparison on a machine whose speed varies: all run in every repetition.

    results = interleave({"a": run_a, "b": run_b}, deadline)
    ratio = compute_quartiles(results["b"] / results["a"])  # of a repetition

The order alternates (a b, b a, a b, ...), so that a drift favors none.
"""

import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

import numpy as np


class Quartiles(NamedTuple):
  """The median of measurements, and their lower and upper quartile."""

  low: float
  median: float
  high: float


def compute_quartiles(values: np.ndarray) -> Quartiles:
  """Returns the quartiles of `values`."""
  return Quartiles(*(float(np.percentile(values, q)) for q in (25, 50, 75)))


def add_spread(figures: Dict[str, float], name: str, values: np.ndarray):
  """Adds the median of `values` as `name`, the quartiles as `_low`, `_high`."""
  low, figures[name], high = compute_quartiles(values)
  figures[f"{name}_low"], figures[f"{name}_high"] = low, high


def format_spread(figures: Mapping[str, float], name: str, form: str) -> str:
  """Returns what `add_spread` added, as `median (low - high)`."""
  ends = (format(figures[f"{name}_{end}"], form) for end in ("low", "high"))
  return f"{format(figures[name], form)} ({' - '.join(ends)})"


def interleave(
  tasks: Mapping[str, Callable[[], Any]],
  deadline: float,
  min_repetitions: int = 3,
) -> Dict[str, np.ndarray]:
  """Runs all `tasks` repeatedly; returns their results, a row a repetition.

  Args:
    tasks: What to measure, in the order of the first repetition; each returns a
      number or a tuple of numbers.
    deadline: When the last repetition should be over, by `time.monotonic`.
    min_repetitions: How often to run all, even if that exceeds the deadline.
  """
  results: Dict[str, List[Any]] = {name: [] for name in tasks}
  order = list(tasks)
  num_repetitions, longest = 0, 0.0
  while (
    num_repetitions < min_repetitions or time.monotonic() + longest < deadline
  ):
    started = time.monotonic()
    for name in order:
      results[name].append(tasks[name]())
    order.reverse()
    longest = max(longest, time.monotonic() - started)
    num_repetitions += 1
    left = max(0.0, deadline - time.monotonic())
    log_progress(f"Repetition {num_repetitions}, {left:.0f} s left.")
  return {name: np.array(values) for name, values in results.items()}


def log_progress(line: str) -> None:
  """Prints a line about the progress of the benchmark."""
  print(line, file=sys.stderr, flush=True)
