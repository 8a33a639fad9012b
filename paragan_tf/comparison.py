"""Compares runs: one page, and one table for a terminal.

    result = compare(["runs/a", "runs/b"])
    print(result.table)
    result.write("compare.html")

Samples of all runs are drawn with the same latent codes and classes.
"""

import os
import time
from typing import (
  Dict,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Union,
)

import tensorflow as tf

from paragan_tf import config, trained
from paragan_tf.generator import Classes, Generator
from paragan_tf.outputs import comparison_page, records, run_history, samples
from paragan_tf.outputs.compared_runs import Comparison
from paragan_tf.outputs.compared_samples import CODES, Drawn
from paragan_tf.outputs.html_parts import Cell
from paragan_tf.outputs.run_history import RunHistory

_NUM, _MAX_CLASSES = 64, 10


class Result(NamedTuple):
  """A comparison as HTML, and as a table of plain text."""

  page: str
  table: str

  def write(self, path: str) -> None:
    """Writes the page, one file that needs no network."""
    records.write_file(path, self.page.encode())


class Drawing(NamedTuple):
  """How samples are drawn, as in `Generator.sample`.

  Attributes:
    num: How many; by default about 64, in rows that begin with one class.
    classes: Ids or names; by default all, the first ten of many.
    seed: Of the latent codes.
    truncation: By default that of each run.
  """

  num: Optional[int] = None
  classes: Optional[Classes] = None
  seed: int = 0
  truncation: Optional[float] = None


def compare(
  paths: Sequence[str],
  price: Optional[float] = None,
  drawing: Optional[Drawing] = None,
  generators: Optional[Mapping[str, Generator]] = None,
) -> Result:
  """Compares the runs in these folders; what is wrong is a `ValueError`.

  Gin's config is that of one of the runs afterwards.

  Args:
    paths: Folders of runs.
    price: Of an hour of one device, if costs are wanted.
    drawing: How samples are drawn, if not by default.
    generators: The G of some paths; the others are loaded.
  """
  if price is not None and not 0 <= price < float("inf"):
    raise ValueError(f"`price` must be 0 or more, got {price}.")
  histories = [_read(path) for path in paths]
  names = _name(paths)
  comparison = Comparison(dict(zip(names, histories)), price, time.time())
  texts = [x.config for x in histories if x.config is not None]
  drawing, given = drawing or Drawing(), generators or {}
  drawn = {
    name: _draw(history, given.get(path), drawing)
    for name, path, history in zip(names, paths, histories)
  }
  page = comparison_page.render(comparison, config.compare(texts), drawn)
  return Result(page, _make_table(comparison))


def _draw(
  history: RunHistory, g: Optional[Generator], drawing: Drawing
) -> Union[Drawn, str]:
  """Returns samples of a run, or why its G cannot be loaded."""
  if g is None and history.config is None:
    return "It has no config.gin."
  if g is None:
    try:
      g = trained.load(history.path)
    except (ValueError, tf.errors.OpError) as e:
      return str(e).partition(": ")[0] + "."  # What to do is said elsewhere.
  info, classes = g.info, drawing.classes
  if not info.num_classes:
    classes = None
  elif not classes:
    classes = range(min(info.num_classes, _MAX_CLASSES))
  columns = samples.columns_for(len(classes or ()), _NUM)
  num = _NUM // columns * columns if drawing.num is None else drawing.num
  found = g.sample(num, classes, drawing.seed, drawing.truncation)
  grid = samples.grid(found.images, columns)
  large = samples.enlarge(grid, samples.scale_for(info.resolution))
  truncation = g.choose_truncation(drawing.truncation)
  codes = (info.z_dim, truncation, info.num_classes)
  png = records.encode_png(large)
  return Drawn(png, info.step or 0, drawing.seed, dict(zip(CODES, codes)))


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
