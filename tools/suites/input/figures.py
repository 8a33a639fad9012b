"""The figures of the suite `input`, and their table."""

from typing import Dict, List, Mapping

import numpy as np

from tools.suites import machine_load
from tools.suites.input.sides import Trace
from tools.suites.input.storage import PROFILES
from tools.suites.interleave import add_spread, format_spread

SIDES = ("step_timing", "threads", "prefetch_2", "autotune", "autotune_default")
SCENARIOS = (*PROFILES, "decoding")
# Of our sides; the first one's figures are named by the profile alone.
_OURS = {"step_timing": "", "threads": "threads_"}

_CONGESTED = ("bursts", "heavy_tail")
# By latency profile and side, one trace a seed.
Traces = Dict[str, Dict[str, List[Trace]]]


def gather(traces: Traces, rates: Mapping[str, np.ndarray]) -> Dict[str, float]:
  """Returns the figures by name.

  Args:
    traces: What devices have seen.
    rates: Decoded images a second in each repetition, of "ours" and "bare".
  """
  figures: Dict[str, float] = {}
  for profile, sides in traces.items():
    _add_profile(figures, profile, sides)
  _add_claims(figures)
  add_spread(figures, "decode_vs_bare", rates["ours"] / rates["bare"])
  add_spread(figures, "decode_images_per_second", rates["ours"])
  figures["num_seeds"] = len(traces["calm"]["threads"])
  return figures


def _add_profile(
  figures: Dict[str, float], profile: str, sides: Mapping[str, List[Trace]]
) -> None:
  speeds, sizes, peaks = {}, {}, {}
  for name, traces in sides.items():
    speeds[name] = np.array([trace.images_per_second for trace in traces])
    sizes[name] = np.array([trace.num_bytes.mean() for trace in traces])
    peaks[name] = np.array([trace.num_bytes.max() for trace in traces])
    prefix = f"{profile}_{name}"
    figures[f"{prefix}_images_per_second"] = float(speeds[name].mean())
    idle = [trace.waits.sum() / trace.times[-1] for trace in traces]
    figures[f"{prefix}_idle"] = float(np.mean(idle))
    figures[f"{prefix}_bytes"] = float(sizes[name].mean())
    figures[f"{prefix}_peak_bytes"] = float(peaks[name].max())
    figures[f"{prefix}_depth"] = float(max(x.depths.max() for x in traces))
  best = np.max([speeds[name] for name in SIDES], 0)
  for side, prefix in _OURS.items():
    for name, values in (
      ("vs_autotune", speeds),
      ("bytes_vs_autotune", sizes),
      ("peak_bytes_vs_autotune", peaks),
    ):
      ratio = values[side] / values["autotune"]
      add_spread(figures, f"{profile}_{prefix}{name}", ratio)
    ratio = speeds[side] / speeds["autotune_default"]
    add_spread(figures, f"{profile}_{prefix}starved_vs_autotune", ratio)
    add_spread(figures, f"{profile}_{prefix}vs_best", speeds[side] / best)


def _add_claims(figures: Dict[str, float]) -> None:
  """Adds the worse of bursts and heavy tail, for the depth by step timing."""
  for name, choose in (("bytes", max), ("starved", min)):
    figures[f"{name}_vs_autotune"] = choose(
      figures[f"{profile}_{name}_vs_autotune"] for profile in _CONGESTED
    )


def format_table(figures: Dict[str, float]) -> str:
  """Returns the figures as text."""
  lines = [
    f"{'':14}{'':18}{'images/s':12}{'device idle':14}{'MB held':12}at most"
  ]
  for profile in SCENARIOS:
    for name in SIDES:
      key = f"{profile}_{name}"
      lines.append(
        f"{profile if name == SIDES[0] else '':14}{name:18}"
        f"{figures[f'{key}_images_per_second']:<12.0f}"
        f"{figures[f'{key}_idle']:<14.1%}"
        f"{figures[f'{key}_bytes'] / 1e6:<12.2f}"
        f"{figures[f'{key}_peak_bytes'] / 1e6:.2f}"
      )
  return "\n".join([*lines, "", *_format_ratios(figures)])


def _format_ratios(figures: Dict[str, float]) -> List[str]:
  lines = []
  for side, prefix in _OURS.items():
    for profile in _CONGESTED:
      speed, size, starved = (
        format_spread(figures, f"{profile}_{prefix}{name}_autotune", ".2f")
        for name in ("vs", "bytes_vs", "starved_vs")
      )
      lines.append(
        f"{profile:14}{side}: {speed} of AUTOTUNE's images/s, {size} of its "
        f"bytes; {starved} with TensorFlow's threads"
      )
  deepest = figures["decoding_step_timing_depth"]
  speed = format_spread(figures, "decoding_vs_autotune", ".2f")
  lines.append(
    f"{'decoding':14}step_timing: {speed} of AUTOTUNE's images/s, depth "
    f"{deepest:.0f} at most"
  )
  best = format_spread(figures, "calm_vs_best", ".2f")
  bare = format_spread(figures, "decode_vs_bare", ".2f")
  return [
    *lines,
    f"{'calm':14}{best} of the best",
    f"{'decode':14}{bare} of a bare loop, "
    f"{figures['decode_images_per_second']:.0f} images/s on one core",
    f"seeds {figures['num_seeds']}; {machine_load.describe(figures)}",
  ]
