"""Plots with several panels."""

from typing import Any, Callable, Sequence


def draw_panels(panels: Sequence[Callable[[Any], None]], path: str) -> None:
  """Writes a PNG, two panels a row.

  Args:
    panels: Each draws into the axes that it is given.
    path: Of the PNG.
  """
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  rows = (len(panels) + 1) // 2
  figure, grid = pyplot.subplots(rows, 2, figsize=(12, 4 * rows))
  for panel, axes in zip(panels, grid.flat):
    panel(axes)
    axes.spines[["top", "right"]].set_visible(False)
  for axes in grid.flat[len(panels) :]:
    axes.set_visible(False)
  figure.tight_layout()
  figure.savefig(path, dpi=110)
  pyplot.close(figure)
