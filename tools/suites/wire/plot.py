"""The plot of the suite `wire`."""

import functools
from typing import Any, Callable, Dict, List, Mapping, Sequence

from tools.suites.panels import draw_panels
from tools.suites.wire.figures import LINKS, Timing
from tools.suites.wire.sides import EXCHANGES, Payload

_COLORS = {
  "all_reduce": "#4a5568",
  "periodic": "#a0aec0",
  "accumulated": "#805ad5",
  "gossip": "#2b6cb0",
  "gossip_3": "#90cdf4",
  "dq8": "#dd6b20",
  "dq8_two_phase": "#ecc94b",
  "dq4": "#2f855a",
  "top1": "#d53f8c",
}


def draw(
  figures: Dict[str, float],
  payloads: Mapping[int, Mapping[str, Payload]],
  timings: Sequence[Timing],
  path: str,
) -> None:
  """Writes a PNG: bytes, then the times of each number of workers."""
  panels: List[Callable[[Any], None]] = [
    lambda axes: _draw_bytes(axes, figures, list(payloads)),
    lambda axes: _draw_hops(axes, figures, list(payloads)),
  ]
  for m in sorted({one.num_workers for one in timings}):
    own = [one for one in timings if one.num_workers == m]
    for over in ("rate", "latency"):
      chosen = _select(own, over)
      if len(chosen) > 1:
        panels.append(
          functools.partial(
            _draw_times, figures=figures, timings=chosen, over=over
          )
        )
  draw_panels(panels, path)


def _draw_bytes(axes, figures: Dict[str, float], counts: Sequence[int]) -> None:
  _draw_bars(axes, figures, counts, "bytes", 1e-6)
  axes.set_yscale("log")
  axes.set_ylabel("MB over a worker's link, a step")
  axes.set_title("Bytes")


def _draw_hops(axes, figures: Dict[str, float], counts: Sequence[int]) -> None:
  _draw_bars(axes, figures, counts, "hops", 1.0)
  axes.set_ylabel("messages one after the other, a step")
  axes.set_title("Hops")
  axes.legend(fontsize=8, loc="upper left")


def _draw_bars(
  axes, figures, counts: Sequence[int], what: str, unit: float
) -> None:
  width = 0.8 / len(EXCHANGES)
  for i, (name, (title, _, _)) in enumerate(EXCHANGES.items()):
    offset = width * (i - len(EXCHANGES) / 2 + 0.5)
    places = [place + offset for place in range(len(counts))]
    heights = [unit * figures[f"{name}_{what}_{m}"] for m in counts]
    axes.bar(places, heights, width, color=_COLORS[name], label=title)
  axes.set_xticks(range(len(counts)), [f"{m} workers" for m in counts])


def _select(timings: Sequence[Timing], over: str) -> List[Timing]:
  """Returns those of the lowest latency by rate, or of the highest rate."""
  least = min(link.latency for link in LINKS.values())
  most = max(link.rate for link in LINKS.values())
  chosen = [
    one
    for one in timings
    if (LINKS[one.link].latency == least and over == "rate")
    or (LINKS[one.link].rate == most and over == "latency")
  ]
  return sorted(chosen, key=lambda one: getattr(LINKS[one.link], over))


def _draw_times(axes, figures, timings: Sequence[Timing], over: str) -> None:
  """Draws the time of a step over the rate or the latency, by exchange."""
  unit = 8e-6 if over == "rate" else 1e3
  for name in timings[0].seconds:
    keys = [f"{name}_ms_{one.link}_{one.num_workers}" for one in timings]
    ends = [[figures[f"{key}_{e}"] for key in keys] for e in ("low", "high")]
    x = [unit * getattr(LINKS[one.link], over) for one in timings]
    middle = [figures[key] for key in keys]
    color = _COLORS[name]
    axes.plot(x, middle, "o-", ms=3, color=color, label=EXCHANGES[name][0])
    axes.fill_between(x, *ends, color=color, alpha=0.15)
  axes.set_xscale("log")
  axes.set_yscale("log")
  axes.set_xlabel("Mbit/s, as set" if over == "rate" else "ms, as set")
  axes.set_ylabel("ms a step")
  axes.set_title(f"{timings[0].num_workers} workers, over {over}")
  axes.legend(fontsize=8)
