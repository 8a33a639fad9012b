"""Compares runs: one page, and one table for a terminal."""

import os
import time
from typing import Dict, List, NamedTuple, Optional, Sequence

from paragan_tf import config
from paragan_tf.outputs import comparison_page, run_history
from paragan_tf.outputs.compared_runs import Comparison
from paragan_tf.outputs.html_parts import Cell
from paragan_tf.outputs.run_history import RunHistory


class Result(NamedTuple):
  """A comparison as HTML, and as a table of plain text."""

  page: str
  table: str


def compare(paths: Sequence[str], price: Optional[float] = None) -> Result:
  """Compares the runs in these folders; what is wrong is a `ValueError`.

  Args:
    paths: Folders of runs.
    price: Of an hour of one device, if costs are wanted.
  """
  if price is not None and not 0 <= price < float("inf"):
    raise ValueError(f"`price` must be 0 or more, got {price}.")
  histories = [_read(path) for path in paths]
  names = _name(paths)
  comparison = Comparison(dict(zip(names, histories)), price, time.time())
  texts = [x.config for x in histories if x.config is not None]
  page = comparison_page.render(comparison, config.compare(texts))
  return Result(page, _make_table(comparison))


def _read(path: str) -> RunHistory:
  history = run_history.read(path)
  if history.is_run:
    return history
  why = "it has no metrics, config, samples or checkpoints"
  inside = history.list_runs_inside()
  if not history.exists:
    why = "there is no such folder"
  elif inside:
    why += f"; there are runs in {', '.join(inside)}"
  raise ValueError(f"A run must be its folder, got '{path}': {why}.")


def _name(paths: Sequence[str]) -> List[str]:
  """Returns the shortest ends of the paths that differ."""
  parts = [os.path.abspath(path).split(os.sep) for path in paths]
  for i, part in enumerate(parts):
    if part in parts[:i]:
      raise ValueError(
        f"Runs must be different folders, got '{paths[i]}' twice: name it once."
      )
  length = 1
  names = [part[-1] for part in parts]
  while len(set(names)) < len(names):
    length += 1
    names = ["/".join(part[-length:]) for part in parts]
  return names


def _make_table(comparison: Comparison) -> str:
  """Returns the facts and metrics of all runs, in columns."""
  facts, fact_rows = comparison.list_facts()
  _, metric_rows = comparison.list_metrics()
  head = ["run", *(x.text.lower() for x in facts)]
  head += comparison.metrics.name_columns()
  lines = [head]
  for run, row, values in zip(comparison.runs, fact_rows, metric_rows):
    cells: List[Cell] = [*row, *values]
    lines.append([run.name, *(cell.text or "-" for cell in cells)])
  widths: Dict[int, int] = {
    i: max(len(line[i]) for line in lines) for i in range(len(head))
  }
  return "\n".join(
    "  ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip()
    for line in lines
  )
