"""Fair comparison on a machine with moods: all take turns, round after round.

    results = take_turns({"a": run_a, "b": run_b}, deadline)
    ratio = quartiles(results["b"] / results["a"])    # within each round

Rounds go forth and back (a b, b a, a b, ...), so that a drift helps nobody.
"""

import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

import numpy as np


class Quartiles(NamedTuple):
  """The middle of many measurements, and how far they spread."""

  low: float
  median: float
  high: float


def quartiles(values: np.ndarray) -> Quartiles:
  """Returns the quartiles of `values`."""
  return Quartiles(*(float(np.percentile(values, q)) for q in (25, 50, 75)))


def add_spread(figures: Dict[str, float], name: str, values: np.ndarray):
  """Adds the median of `values` as `name`, the quartiles as `_low`, `_high`."""
  low, figures[name], high = quartiles(values)
  figures[f"{name}_low"], figures[f"{name}_high"] = low, high


def spread(figures: Mapping[str, float], name: str, form: str) -> str:
  """Returns what `add_spread` added, in words."""
  ends = (format(figures[f"{name}_{end}"], form) for end in ("low", "high"))
  return f"{format(figures[name], form)} ({' - '.join(ends)})"


def take_turns(
  turns: Mapping[str, Callable[[], Any]], deadline: float, min_rounds: int = 3
) -> Dict[str, np.ndarray]:
  """Calls all `turns` in every round; returns what they returned, by round.

  Args:
    turns: What to measure, in the order of the first round; each returns a
      number or a tuple of them.
    deadline: When the last round should be over, by `time.monotonic`.
    min_rounds: How many rounds there are, however late it is.
  """
  results: Dict[str, List[Any]] = {name: [] for name in turns}
  order = list(turns)
  num_rounds, longest = 0, 0.0
  while num_rounds < min_rounds or time.monotonic() + longest < deadline:
    started = time.monotonic()
    for name in order:
      results[name].append(turns[name]())
    order.reverse()
    longest = max(longest, time.monotonic() - started)
    num_rounds += 1
    left = max(0.0, deadline - time.monotonic())
    say(f"Round {num_rounds}, {left:.0f} s left.")
  return {name: np.array(values) for name, values in results.items()}


def say(line: str) -> None:
  """Tells how far the benchmark is."""
  print(line, file=sys.stderr, flush=True)
