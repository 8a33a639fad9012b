"""The plot of the suite `per_label`."""

from typing import Any, Callable, Dict, List

from tools.suites.panels import draw_panels
from tools.suites.per_label.quality import GAMES, SIDES

_COLORS = {"conditional": "#4a5568", "per_label": "#dd6b20"}


def draw(figures: Dict[str, float], path: str) -> None:
  """Writes a PNG with a panel for each thing that was measured."""
  panels: List[Callable[[Any], None]] = []
  if any(".conditional." in name for name in figures):
    panels.append(lambda axes: _draw_metric(axes, figures, "frechet"))
    panels.append(lambda axes: _draw_metric(axes, figures, "recall"))
  if any(name.startswith("simulated.") for name in figures):
    panels.append(lambda axes: _draw_simulation(axes, figures))
  if any(name.startswith("memory.") for name in figures):
    panels.append(lambda axes: _draw_memory(axes, figures))
  draw_panels(panels, path)


def _draw_metric(axes, figures: Dict[str, float], metric: str) -> None:
  """Draws a metric of all games, both sides beside each other."""
  names = [x for x in GAMES if f"{x}.conditional.{metric}" in figures]
  for i, side in enumerate(SIDES):
    keys = [f"{name}.{side}.{metric}" for name in names]
    values = [figures.get(key, 0.0) for key in keys]
    spreads = [figures.get(f"{key}.spread", 0.0) / 2 for key in keys]
    places = [k + 0.4 * i for k in range(len(names))]
    axes.bar(
      places, values, 0.36, yerr=spreads, label=side, color=_COLORS[side]
    )
  axes.set_xticks(
    [k + 0.2 for k in range(len(names))],
    [GAMES[name].title.replace(", ", "\n") for name in names],
    fontsize=8,
  )
  if metric == "frechet":  # Two networks' features differ in their scale.
    axes.set_yscale("log")
    axes.set_ylim(bottom=10)
  axes.set_title(f"{metric} of the mixture, equal compute")
  axes.legend(frameon=False)


def _draw_simulation(axes, figures: Dict[str, float]) -> None:
  for kind in ("weak_seconds", "weak_epochs", "strong_seconds"):
    for hours in ("1h", "8h"):
      rows = []
      for name, value in figures.items():
        parts = name.split(".")
        if parts[0] == "simulated" and parts[1] == hours and parts[3] == kind:
          rows.append((int(parts[2].replace("workers", "")), value))
      axes.plot(*zip(*sorted(rows)), marker="o", label=f"{kind}, {hours}")
  axes.set_xscale("log")
  axes.set_ylim(0, 1.05)
  axes.set_xlabel("workers")
  axes.set_title("Efficiency, simulated with the measured start-up")
  axes.legend(frameon=False, fontsize=8)


def _draw_memory(axes, figures: Dict[str, float]) -> None:
  rows = sorted(
    (int(name.split("_")[1]), value)
    for name, value in figures.items()
    if name.startswith("memory.")
  )
  axes.plot(*zip(*rows), marker="o", color=_COLORS["per_label"])
  axes.set_ylim(0, 1.2 * max(value for _, value in rows))
  axes.set_xlabel("labels trained by one process")
  axes.set_title("Peak memory of a worker, MB")
