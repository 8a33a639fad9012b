"""What the suite `step` says: its figures, and the table of them."""

from typing import Dict

from tools.suites import meanwhile
from tools.suites.rounds import add_spread, spread

TITLES = {
  "ours": "ours",
  "tfgan": "TF-GAN's GANEstimator",
  "tfgan_session": "TF-GAN's updates in a session",
  "tfgan_plain": "the same, nets as in the papers",
}


def gather(results, work, num_steps: int, images: int) -> Dict[str, float]:
  """Returns the flat figures; a spread is `_low` and `_high`, the quartiles.

  Args:
    results: Seconds of each side in each round; for `peak`, multiply-adds a
      second.
    work: The `Work` of one step of each side.
    num_steps: Steps of a side in a round.
    images: Images of a step.
  """
  figures: Dict[str, float] = {}
  steps_per_second = {name: num_steps / results[name] for name in TITLES}
  for name, speed in steps_per_second.items():
    prefix = _prefix(name)
    add_spread(figures, f"{prefix}images_per_second", images * speed)
    figures[f"{prefix}gflops_per_step"] = 2e-9 * work[name].executed
    if name != "ours":
      add_spread(figures, f"vs_{name}", steps_per_second["ours"] / speed)
  executed = work["ours"].executed * steps_per_second["ours"]
  add_spread(figures, "fraction_of_peak", executed / results["peak"])
  add_spread(figures, "peak_gflops", 2e-9 * results["peak"])
  figures["best_peak_gflops"] = 2e-9 * results["peak"].max()
  figures["gflops_per_step_as_written"] = 2e-9 * work["ours"].as_written
  figures["vs_tfgan_per_flop"] = (
    figures["vs_tfgan"] * work["ours"].executed / work["tfgan"].executed
  )
  figures["num_rounds"] = len(results["peak"])
  figures["steps_per_round"] = num_steps
  return figures


def table(figures: Dict[str, float]) -> str:
  """Returns the figures as lines, median and quartiles."""
  lines = [f"{'':33}{'images/s':23}{'GFLOP a step':14}ours is faster by"]
  for name, title in TITLES.items():
    prefix = _prefix(name)
    speed = spread(figures, f"{prefix}images_per_second", ".1f")
    work = figures[f"{prefix}gflops_per_step"]
    ratio = "" if name == "ours" else spread(figures, f"vs_{name}", ".2f")
    lines.append(f"{title:33}{speed:23}{work:<14.1f}{ratio}".rstrip())
  return "\n".join(
    [
      *lines,
      "",
      f"peak   {spread(figures, 'peak_gflops', '.1f')} GFLOP/s by matmul; "
      f"we reach {spread(figures, 'fraction_of_peak', '.0%')}",
      f"rounds {figures['num_rounds']} of {figures['steps_per_round']} step(s) "
      f"a side; {meanwhile.words(figures)}",
    ]
  )


def _prefix(name: str) -> str:
  return "" if name == "ours" else f"{name}_"
