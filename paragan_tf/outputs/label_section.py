"""The labels of a pool on its page: a row of samples and a curve for each."""

import io
import os
from typing import List

import numpy as np
import tensorflow as tf
from PIL import Image

from paragan_tf.outputs import (
  charts,
  embedded,
  html_parts,
  labels,
  records,
  run_history,
)
from paragan_tf.outputs.charts import Series
from paragan_tf.outputs.curves import duration
from paragan_tf.outputs.html_parts import Cell
from paragan_tf.outputs.labels import LabelState

_GRID_ROWS = 8  # Of a run's sample grid, of which the first is shown.
_MAX_SHOWN = 100  # Labels with pictures and curves; the table has all.
_LOSS = "d/loss"


def make(model_dir: str) -> str:
  """Returns the section; empty if the folder is that of one run."""
  if not labels.is_pool(model_dir):
    return ""
  states = labels.read_manifest(model_dir)
  shown = [_make_label(model_dir, x) for x in states[:_MAX_SHOWN]]
  more = len(states) - len(shown)
  note = f"Pictures of {more:,} more labels are in their own folders."
  return html_parts.make_section(
    "Labels",
    html_parts.make_card(_make_table(states)),
    charts.make_grid([x for x in shown if x]),
    html_parts.make_paragraph(note) if more > 0 else "",
  )


def _make_table(states: List[LabelState]) -> str:
  head = ("Label", "Name", "Images", "State", "Steps", "Time", "Restarts")
  rows = [
    [
      Cell(str(x.label)),
      Cell(x.name),
      Cell(f"{x.images:,}"),
      Cell(x.state, x.reason) if x.reason else Cell(x.state),
      Cell(f"{x.steps:,}"),
      Cell(duration(x.seconds)),
      Cell(str(x.restarts)),
    ]
    for x in states
  ]
  return html_parts.make_table([Cell(x) for x in head], rows)


def _make_label(model_dir: str, state: LabelState) -> str:
  """Returns the samples and the curve of a label, if there are any."""
  history = run_history.read(labels.folder(model_dir, state.label))
  parts = []
  if history.grids:
    picture = _make_row(list(history.grids.values())[-1], model_dir, state)
    parts.append(embedded.make_figure(picture, f"{state.label} {state.name}"))
  scalar = history.curves.get(_LOSS)
  if scalar is not None:
    title = f"Critic loss of {state.name}"
    series = Series(_LOSS, history, scalar)
    if series.varies:
      parts.append(charts.draw([series], title=title))
  return html_parts.make_card(*parts) if parts else ""


def _make_row(path: str, model_dir: str, state: LabelState) -> str:
  """Returns the first row of a grid as a picture."""
  target = os.path.join(model_dir, "samples", f"label_{state.label:05d}.png")
  with tf.io.gfile.GFile(path, "rb") as f:
    grid = np.asarray(Image.open(io.BytesIO(f.read())))
  row = grid[: grid.shape[0] // _GRID_ROWS]
  row = row[..., None] if row.ndim == 2 else row
  records.write_file(target, records.encode_png(row))
  return embedded.embed(target, f"Samples of {state.name}")
