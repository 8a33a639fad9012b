"""The plot of the suite `quality`."""

from typing import Any, List

from tools.suites.panels import draw_panels
from tools.suites.quality.results import SEEDS, Results
from tools.suites.quality.sides import SIDES

_COLORS = (
  "#2b6cb0",
  "#dd6b20",
  "#2f855a",
  "#805ad5",
  "#d53f8c",
  "#319795",
  "#4a5568",
  "#ecc94b",
  "#9b2c2c",
)


def draw(results: Results, path: str) -> None:
  """Writes a PNG: the FID of all seeds, and curves of one."""
  draw_panels(
    [
      lambda axes: _draw_finals(axes, results),
      lambda axes: _draw_curves(axes, results),
    ],
    path,
  )


def _draw_finals(axes: Any, results: Results) -> None:
  """Draws the mean of each side as a bar, and its seeds as dots."""
  titles: List[str] = []
  for name, side in SIDES.items():
    fids = [point.fid for point in results.finals(name).values()]
    if fids:
      y = len(titles)
      axes.barh(y, sum(fids) / len(fids), color=_color(name), alpha=0.5)
      axes.plot(fids, [y] * len(fids), ".", color=_color(name))
      titles.append(side.title)
  axes.set_yticks(range(len(titles)), titles)
  axes.invert_yaxis()
  axes.set_xlabel(f"FID, {results.settings.num_samples:,} samples")


def _draw_curves(axes: Any, results: Results) -> None:
  for name, side in SIDES.items():
    points = results.curve(name, SEEDS[0])
    if points:
      seconds = [x.seconds for x in points]
      fids = [x.fid for x in points]
      axes.plot(seconds, fids, ".-", color=_color(name), label=side.title)
  count = results.settings.num_curve_samples
  axes.set_xlabel("seconds of training, two cores")
  axes.set_ylabel(f"FID, {count:,} samples, seed {SEEDS[0]}")
  if axes.lines:
    axes.legend(fontsize=7, frameon=False)


def _color(name: str) -> str:
  return _COLORS[list(SIDES).index(name)]
