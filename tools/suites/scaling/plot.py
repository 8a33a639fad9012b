"""The plot of the suite `scaling`."""

from typing import Any, Dict, Mapping, Sequence

from paragan_tf.engine.scaling.costs import SCHEMES
from tools.suites.panels import draw_panels
from tools.suites.scaling import paper
from tools.suites.scaling.measure import Measured

_PARTS = ("compute", "wait", "wire", "input")


def draw(
  figures: Dict[str, float], measured: Sequence[Measured], path: str
) -> None:
  """Writes a PNG: real runs, efficiency over cores, and where it goes."""
  panels = [
    lambda axes: _draw_runs(axes, figures, measured),
    lambda axes: _draw_efficiency(axes, figures),
    *(lambda axes, m=m: _draw_parts(axes, figures, m) for m in paper.SIMULATED),
  ]
  draw_panels(panels if measured else panels[1:], path)


def _draw_runs(
  axes: Any, figures: Mapping[str, float], measured: Sequence[Measured]
) -> None:
  names = [f"{x.scheme}_{x.link}_{x.num_workers}" for x in measured]
  real, found = (
    [figures[f"{how}_images_per_second_{name}"] for name in names]
    for how in ("measured", "predicted")
  )
  ends = [0.9 * min(*real, *found), 1.1 * max(*real, *found)]
  axes.plot(ends, ends, color="gray", linewidth=1)
  axes.fill_between(
    ends,
    [0.85 * x for x in ends],
    [1.15 * x for x in ends],
    color="gray",
    alpha=0.2,
  )
  for num in sorted({x.num_workers for x in measured}):
    chosen = [i for i, x in enumerate(measured) if x.num_workers == num]
    axes.scatter(
      [real[i] for i in chosen],
      [found[i] for i in chosen],
      s=18,
      label=f"{num} processes",
    )
  axes.set(
    xscale="log",
    yscale="log",
    xlim=ends,
    xlabel="images/s, measured",
    ylabel="predicted",
    title="Real processes: the band is 15 %",
  )
  for axis in (axes.xaxis, axes.yaxis):
    _number(axis)
  axes.legend(frameon=False)


def _number(axis: Any) -> None:
  """Lets a logarithmic axis have plain numbers, few enough to read."""
  from matplotlib import ticker

  axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
  axis.set_minor_formatter(ticker.NullFormatter())


def _draw_efficiency(axes: Any, figures: Mapping[str, float]) -> None:
  for name in SCHEMES:
    values = [figures[f"planned_efficiency_{m}_{name}"] for m in paper.CORES]
    axes.plot(paper.CORES, values, marker=".", label=name)
  axes.plot(
    [1024], [paper.PAPER_EFFICIENCY], "k*", markersize=9, label="the paper"
  )
  axes.set(
    xscale="log",
    ylim=(0, 1.05),
    xlabel="TPU v3 cores, 16 images each",
    ylabel="efficiency",
    title="BigGAN 128: estimates of the TPU compiler",
  )
  axes.legend(frameon=False, fontsize=7)


def _draw_parts(axes: Any, figures: Mapping[str, float], m: int) -> None:
  left = [0.0] * len(SCHEMES)
  for part in _PARTS:
    values = [figures[f"simulated_{part}_share_{m}_{n}"] for n in SCHEMES]
    axes.barh(list(SCHEMES), values, left=left, label=part)
    left = [a + b for a, b in zip(left, values)]
  axes.set(xlim=(0, 1), title=f"Shares of a step, simulated, {m} cores")
  axes.invert_yaxis()
  axes.legend(
    frameon=False,
    fontsize=8,
    ncols=len(_PARTS),
    loc="upper center",
    bbox_to_anchor=(0.5, -0.06),
  )
