"""What the suite `step` says: its figures, and the table of them."""

from typing import Dict

from tools.suites.rounds import Quartiles, quartiles

TITLES = {
  "ours": "ours",
  "tfgan_plain": "TF-GAN, nets as in the papers",
  "tfgan_estimator": "the same, as its Estimator trains",
  "tfgan": "TF-GAN, our very nets",
  "tfgan_our_allocator": "TF-GAN, our nets and allocator",
}


def gather(results, work, num_steps: int, images: int) -> Dict[str, float]:
  """Returns the flat figures; a spread is `_low` and `_high`, the quartiles."""
  figures: Dict[str, float] = {}

  def add(name: str, values: Quartiles) -> None:
    figures[name] = values.median
    figures[f"{name}_low"], figures[f"{name}_high"] = values.low, values.high

  steps_per_second = {name: num_steps / results[name] for name in TITLES}
  for name, speed in steps_per_second.items():
    prefix = "" if name == "ours" else f"{name}_"
    add(f"{prefix}images_per_second", quartiles(images * speed))
    if name != "ours":
      add(f"vs_{name}", quartiles(steps_per_second["ours"] / speed))
  executed = work["ours"].executed * steps_per_second["ours"]
  add("fraction_of_peak", quartiles(executed / results["peak"]))
  add("peak_gflops", quartiles(2e-9 * results["peak"]))
  figures["best_peak_gflops"] = 2e-9 * results["peak"].max()
  figures["gflops_per_step"] = 2e-9 * work["ours"].executed
  figures["gflops_per_step_as_written"] = 2e-9 * work["ours"].as_written
  figures["tfgan_plain_gflops_per_step"] = 2e-9 * work["tfgan_plain"].executed
  figures["tfgan_gflops_per_step"] = 2e-9 * work["tfgan"].executed
  figures["vs_tfgan_per_flop"] = (
    figures["vs_tfgan"] * work["ours"].executed / work["tfgan"].executed
  )
  figures["num_rounds"] = len(results["peak"])
  figures["steps_per_round"] = num_steps
  return figures


def table(figures: Dict[str, float]) -> str:
  """Returns the figures as lines, median and quartiles."""

  def spread(name: str, form: str) -> str:
    ends = (format(figures[f"{name}_{end}"], form) for end in ("low", "high"))
    return f"{format(figures[name], form)} ({' - '.join(ends)})"

  lines = [f"{'':34} {'images/s':22} ours is faster by"]
  for name, title in TITLES.items():
    prefix = "" if name == "ours" else f"{name}_"
    speed = spread(f"{prefix}images_per_second", ".1f")
    ratio = "" if name == "ours" else spread(f"vs_{name}", ".2f")
    lines.append(f"{title:34} {speed:22} {ratio}".rstrip())
  return "\n".join(
    [
      *lines,
      "",
      f"work   {figures['gflops_per_step']:.1f} GFLOP a step, TF-GAN "
      f"{figures['tfgan_gflops_per_step']:.1f}, with nets as in the papers "
      f"{figures['tfgan_plain_gflops_per_step']:.1f}",
      f"peak   {spread('peak_gflops', '.1f')} GFLOP/s by matmul; "
      f"we reach {spread('fraction_of_peak', '.0%')}",
      f"rounds {figures['num_rounds']} of {figures['steps_per_round']} step(s) "
      f"a side; load {figures['load_before']:.1f} before",
    ]
  )
