"""The figures of the suite `step`, and their table."""

from typing import Dict, Mapping

import numpy as np

from tools.suites import machine_load
from tools.suites.flops import MultiplyAdds
from tools.suites.interleave import add_spread, format_spread

TITLES = {
  "ours": "ours",
  "tfgan": "TF-GAN's GANEstimator",
  "tfgan_session": "TF-GAN's updates in a session",
  "tfgan_plain": "the same, nets as in the papers",
}


def gather(
  results: Mapping[str, np.ndarray],
  multiply_adds: Mapping[str, MultiplyAdds],
  num_steps: int,
  images: int,
) -> Dict[str, float]:
  """Returns the figures by name; `_low` and `_high` are quartiles.

  Args:
    results: Seconds of each side in each repetition; for `peak`, multiply-adds
      a second.
    multiply_adds: Those of one step of each side.
    num_steps: Steps of a side in a repetition.
    images: Images of a step.
  """
  figures: Dict[str, float] = {}
  steps_per_second = {name: num_steps / results[name] for name in TITLES}
  for name, speed in steps_per_second.items():
    prefix = _prefix(name)
    add_spread(figures, f"{prefix}images_per_second", images * speed)
    figures[f"{prefix}gflops_per_step"] = 2e-9 * multiply_adds[name].executed
    if name != "ours":
      add_spread(figures, f"vs_{name}", steps_per_second["ours"] / speed)
  own = multiply_adds["ours"]
  executed = own.executed * steps_per_second["ours"]
  add_spread(figures, "fraction_of_peak", executed / results["peak"])
  add_spread(figures, "peak_gflops", 2e-9 * results["peak"])
  figures["best_peak_gflops"] = 2e-9 * results["peak"].max()
  figures["gflops_per_step_as_written"] = 2e-9 * own.as_written
  figures["vs_tfgan_per_flop"] = (
    figures["vs_tfgan"] * own.executed / multiply_adds["tfgan"].executed
  )
  figures["num_repetitions"] = len(results["peak"])
  figures["steps_per_repetition"] = num_steps
  return figures


def format_table(figures: Dict[str, float]) -> str:
  """Returns the figures as text: medians and quartiles."""
  lines = [f"{'':33}{'images/s':23}{'GFLOP a step':14}ours is faster by"]
  for name, title in TITLES.items():
    prefix = _prefix(name)
    speed = format_spread(figures, f"{prefix}images_per_second", ".1f")
    gflops = figures[f"{prefix}gflops_per_step"]
    ratio = (
      "" if name == "ours" else format_spread(figures, f"vs_{name}", ".2f")
    )
    lines.append(f"{title:33}{speed:23}{gflops:<14.1f}{ratio}".rstrip())
  return "\n".join(
    [
      *lines,
      "",
      f"peak   {format_spread(figures, 'peak_gflops', '.1f')} GFLOP/s by "
      f"matmul; we reach {format_spread(figures, 'fraction_of_peak', '.0%')}",
      f"{figures['num_repetitions']} repetitions of "
      f"{figures['steps_per_repetition']} step(s) a side; "
      f"{machine_load.describe(figures)}",
    ]
  )


def _prefix(name: str) -> str:
  return "" if name == "ours" else f"{name}_"
