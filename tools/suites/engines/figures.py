"""The figures of the suite `engines`, and their table."""

from typing import Dict, Mapping

import numpy as np

from tools.suites import machine_load
from tools.suites.interleave import add_spread, format_spread

_NAMES = {
  "all_reduce": "weak_scaling_2",
  "every_other_step": "weak_scaling_2_every_other_step",
  "no_exchange": "weak_scaling_2_no_exchange",
}
_TITLES = {
  "one": "one process, one core",
  "all_reduce": "two, gradients averaged at every step",
  "every_other_step": "two, weights on every other step",
  "no_exchange": "two without an exchange",
}


def gather(
  host: np.ndarray,
  results: Mapping[str, np.ndarray],
  images: Mapping[str, int],
  num_steps: int,
) -> Dict[str, float]:
  """Returns the figures by name; `_low` and `_high` are quartiles.

  Args:
    host: A `sides.TimeSplit` a row.
    results: Seconds of each side in each repetition.
    images: Images of one step of each side, of all its processes.
    num_steps: Steps of a side in a repetition.
  """
  figures: Dict[str, float] = {}
  wall, program, wait, steps_per_call = host.T
  add_spread(figures, "host_overhead", 1.0 - (program - wait) / wall)
  add_spread(figures, "host_milliseconds_per_call", 1e3 * (wall - program))
  add_spread(figures, "input_wait", wait / wall)
  figures["steps_per_call"] = int(steps_per_call.max())
  figures["seconds_per_step"] = float(np.median(wall / steps_per_call))
  speeds = {
    side: num_steps * images[side] / seconds
    for side, seconds in results.items()
  }
  for side, speed in speeds.items():
    add_spread(figures, f"{side}_images_per_second", speed)
  for side, name in _NAMES.items():
    add_spread(figures, name, speeds[side] / (2.0 * speeds["one"]))
  figures["num_calls"] = len(host)
  figures["num_repetitions"] = len(results["one"])
  figures["steps_per_repetition"] = num_steps
  return figures


def format_table(figures: Dict[str, float]) -> str:
  """Returns the figures as text: medians and quartiles."""
  lines = [f"{'':40}{'images/s':24}of twice one"]
  for side, title in _TITLES.items():
    speed = format_spread(figures, f"{side}_images_per_second", ".1f")
    name = _NAMES.get(side)
    share = format_spread(figures, name, ".2f") if name else ""
    lines.append(f"{title:40}{speed:24}{share}".rstrip())
  return "\n".join(
    [
      *lines,
      "",
      f"host   {format_spread(figures, 'host_overhead', '.2%')} of the time: "
      f"{format_spread(figures, 'host_milliseconds_per_call', '.1f')} ms a "
      f"call of {figures['steps_per_call']} steps, "
      f"{figures['seconds_per_step']:.2f} s each; "
      f"{figures['input_wait']:.2%} is waiting for data",
      f"{figures['num_calls']} calls, then {figures['num_repetitions']} "
      f"repetitions of {figures['steps_per_repetition']} steps a side; "
      f"{machine_load.describe(figures)}",
    ]
  )
