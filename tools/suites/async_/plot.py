"""The plot of the suite `async`."""

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence

from tools.suites.async_.figures import (
  PARTS,
  Throughput,
  list_sides,
  name_devices,
)
from tools.suites.async_.quality import PAIRS, PLAIN, SIDES, Quality
from tools.suites.panels import draw_panels

_COLORS = {
  "sync": "#4a5568",
  "sync_reuse": "#a0aec0",
  "async_every_step": "#f6ad55",
  "async": "#dd6b20",
  "async_d64": "#2b6cb0",
  "async_adabelief_adam": "#2f855a",
  "async_lars_adam": "#805ad5",
  "async_ttur": "#d53f8c",
  "async_adam_adam": "#319795",
  "paragan_adam_adam": "#9b2c2c",
  "sync_optimistic": "#a0aec0",
  "sync_adabelief_adam": "#68d391",
}
_PART_COLORS = ("#2b6cb0", "#e2e8f0", "#dd6b20", "#ecc94b")


def draw(
  figures: Dict[str, float],
  runs: Sequence[Throughput],
  quality: Optional[Quality],
  path: str,
) -> None:
  """Writes a PNG with a panel for each thing that was measured."""
  panels: List[Callable[[Any], None]] = []
  if runs:
    panels.append(lambda axes: _draw_speeds(axes, figures, runs))
    panels.append(lambda axes: _draw_parts(axes, figures, runs))
  if quality is not None:
    for names in (PLAIN, PAIRS):
      for over in ("steps", "seconds"):
        panels.append(
          functools.partial(
            _draw_curves, quality=quality, names=names, over=over
          )
        )
  draw_panels(panels, path)


def _draw_speeds(
  axes, figures: Dict[str, float], runs: Sequence[Throughput]
) -> None:
  """Draws the throughput of each side, as a multiple of sync's."""
  shown = list_sides(runs)
  width = 0.8 / len(shown)
  for i, (name, title) in enumerate(shown):
    heights = []
    for run in runs:
      prefix = f"batch_{run.batch_size}_"
      speeds = [
        figures[f"{prefix}{who}_images_per_second"] for who in (name, "sync")
      ]
      heights.append(speeds[0] / speeds[1])
    offset = width * (i - len(shown) / 2 + 0.5)
    places = [place + offset for place in range(len(runs))]
    axes.bar(places, heights, width, color=_COLORS[name], label=title)
  axes.axhline(
    figures["bound_vs_sync"],
    color="black",
    linestyle=":",
    label="bound of async by multiply-adds",
  )
  axes.set_xticks(range(len(runs)), [str(run.batch_size) for run in runs])
  axes.set_xlabel("images a step, for each player")
  axes.set_ylabel("images/s, sync is 1")
  axes.set_title("Speed of two logical devices of one thread each")
  axes.legend(fontsize=8, loc="lower right")


def _draw_parts(
  axes, figures: Dict[str, float], runs: Sequence[Throughput]
) -> None:
  """Draws where the time of each device goes, with a core for each."""
  run = runs[-1]
  for run in runs:
    if run.batch_size == figures["best_batch_size"]:
      break
  labels, rows = [], []
  for name in run.cycles:
    for device, title in enumerate(name_devices(name)):
      prefix = f"batch_{run.batch_size}_pinned_{name}_device{device}_"
      labels.append(f"{name}\n{title}")
      rows.append([1e3 * figures[prefix + p] for p in PARTS])
  left = [0.0] * len(rows)
  for i, part in enumerate(PARTS):
    values = [row[i] for row in rows]
    axes.barh(labels, values, left=left, color=_PART_COLORS[i], label=part)
    left = [a + b for a, b in zip(left, values)]
  axes.invert_yaxis()
  axes.set_xlabel("milliseconds a step")
  axes.set_title(f"Where the time goes, batch {run.batch_size}, a core each")
  axes.legend(fontsize=8)


def _draw_curves(
  axes, quality: Quality, names: Sequence[str], over: str
) -> None:
  """Draws the distances of some sides, mean and spread over seeds."""
  for name in filter(quality.__contains__, names):
    curve = quality[name]
    x = curve.steps if over == "steps" else curve.seconds.mean(0)
    mean, deviation = curve.distances.mean(0), curve.distances.std(0, ddof=1)
    title = SIDES[name][0]
    axes.plot(x, mean, marker="o", ms=3, color=_COLORS[name], label=title)
    axes.fill_between(
      x, mean - deviation, mean + deviation, color=_COLORS[name], alpha=0.15
    )
  axes.set_yscale("log")
  axes.set_xlabel(over)
  axes.set_ylabel("Fréchet distance")
  axes.set_title(f"Quality over {over}, mean and deviation of 3 seeds")
  axes.legend(fontsize=8)
