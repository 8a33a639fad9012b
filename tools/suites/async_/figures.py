"""The throughput figures of the suite `async`, and their table."""

from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.async_.sides import Cycle, RoleMultiplyAdds
from tools.suites.interleave import add_spread, format_spread

TITLES = {
  "sync": "sync, G draws its own fakes",
  "sync_reuse": "sync, G reuses D's fakes",
  "async_every_step": "async, exchange every step",
  "async": "async, every other step",
}
PARTS = ("compute", "wait", "exchange", "input")
_SHARES = ((1, 1), (2, 1), (3, 1), (1, 2), (1, 3))


class Throughput(NamedTuple):
  """What was measured at one batch size, by side.

  Attributes:
    batch_size: Images a step, for each player.
    seconds: Of the steps of one repetition.
    num_bytes: What a device sends to the other in a step.
    pinned: Seconds on processes with a core of their own.
    cycles: The times of both such devices, a list a repetition.
    multiply_adds: Of each player's update, for one image.
  """

  batch_size: int
  seconds: Dict[str, np.ndarray]
  num_bytes: Dict[str, float]
  pinned: Dict[str, np.ndarray]
  cycles: Dict[str, List[List[Cycle]]]
  multiply_adds: RoleMultiplyAdds


class Bound(NamedTuple):
  """How much faster a role split can be, if only multiply-adds counted.

  Attributes:
    vs_sync: Than sync where G generates fakes of its own.
    vs_reuse: Than sync where G reuses D's fakes.
  """

  vs_sync: float
  vs_reuse: float


def compute_bound(
  cost: RoleMultiplyAdds, g_per_group: int = 1, d_per_group: int = 1
) -> Bound:
  """Returns the bound that the slower role sets.

  In sync, each of n devices computes 1/n of both players' updates; in a role
  split, each of G's devices 1/g_per_group of G's. The images a step are the
  same in all.
  """
  num = g_per_group + d_per_group
  slower = max(cost.g / g_per_group, cost.d / d_per_group)
  both = cost.g + cost.d
  return Bound((both + cost.draw) / num / slower, both / num / slower)


def gather(runs: Sequence[Throughput], num_steps: int) -> Dict[str, float]:
  """Returns the figures by name; the headline is of the best batch size.

  Args:
    runs: What was measured, by batch size.
    num_steps: Steps of a side in a repetition.
  """
  figures: Dict[str, float] = {}
  for run in runs:
    _add_batch(figures, run, num_steps)
  best = max(runs, key=lambda r: figures[f"batch_{r.batch_size}_async_vs_sync"])
  prefix = f"batch_{best.batch_size}_"
  for end in ("", "_low", "_high"):
    for name, source in (
      ("async_vs_sync_throughput", "async_vs_sync"),
      ("async_vs_sync_reuse_throughput", "async_vs_sync_reuse"),
    ):
      figures[f"{name}{end}"] = figures[f"{prefix}{source}{end}"]
  figures["async_vs_sync_bytes"] = (
    best.num_bytes["async"] / best.num_bytes["sync"]
  )
  figures["best_batch_size"] = best.batch_size
  _add_bounds(figures, best.multiply_adds)
  return figures


def _add_bounds(figures: Dict[str, float], cost: RoleMultiplyAdds) -> None:
  limit = compute_bound(cost)
  figures["bound_vs_sync"], figures["bound_vs_sync_reuse"] = limit
  for name, amount in zip(("g", "d", "draw"), cost):
    figures[f"{name}_mflops_per_image"] = 2e-6 * amount
  for g, d in _SHARES:
    limit = compute_bound(cost, g, d)
    figures[f"bound_vs_sync_g{g}_d{d}"] = limit.vs_sync


def _add_batch(
  figures: Dict[str, float], run: Throughput, num_steps: int
) -> None:
  prefix = f"batch_{run.batch_size}_"
  for name, seconds in run.seconds.items():
    speed = num_steps * run.batch_size / seconds
    add_spread(figures, f"{prefix}{name}_images_per_second", speed)
    figures[f"{prefix}{name}_bytes_per_step"] = run.num_bytes[name]
  for kind, by_side in (("", run.seconds), ("pinned_", run.pinned)):
    for name in ("sync", "sync_reuse"):
      if name in by_side:
        ratio = by_side[name] / by_side["async"]
        add_spread(figures, f"{prefix}{kind}async_vs_{name}", ratio)
  for name, cycles in run.cycles.items():
    for device, times in enumerate(split_time(cycles)):
      for part, seconds in zip(PARTS, times):
        figures[f"{prefix}pinned_{name}_device{device}_{part}"] = seconds
  figures[f"{prefix}num_repetitions"] = len(run.seconds["sync"])


def split_time(cycles: Sequence[Sequence[Cycle]]) -> np.ndarray:
  """Returns each device's seconds a step in each of `PARTS`, the median.

  A collective begins when the last device is ready: the others wait for it.
  """
  rows = []
  for both in cycles:
    times = np.stack([cycle.collectives for cycle in both])
    ready = times[..., 0].max(0)
    wait = (ready - times[..., 0]).sum(1)
    exchange = np.maximum(times[..., 1] - ready, 0.0).sum(1)
    input_wait = np.array([cycle.input_wait for cycle in both])
    wall = np.array([cycle.ended - cycle.began for cycle in both])
    compute = wall - wait - exchange - input_wait
    rows.append(np.stack([compute, wait, exchange, input_wait], 1))
  return np.median(np.stack(rows), 0) / cycles[0][0].num_steps


def format_table(figures: Dict[str, float], runs: Sequence[Throughput]) -> str:
  """Returns the figures as text: medians and quartiles."""
  lines = [
    f"updates by one image, in MFLOP: G {figures['g_mflops_per_image']:.0f}, "
    f"D {figures['d_mflops_per_image']:.0f}; generating a fake "
    f"{figures['draw_mflops_per_image']:.0f}",
    f"bound by multiply-adds, two devices: async is "
    f"{figures['bound_vs_sync']:.2f} of sync, "
    f"{figures['bound_vs_sync_reuse']:.2f} of sync that reuses fakes",
    "bound against sync by shares of G : D  "
    + "  ".join(
      f"{g}:{d} {figures[f'bound_vs_sync_g{g}_d{d}']:.2f}" for g, d in _SHARES
    ),
  ]
  for run in runs:
    lines += ["", *_format_batch(figures, run)]
  lines += [
    "",
    f"best at batch {figures['best_batch_size']}: async is "
    f"{format_spread(figures, 'async_vs_sync_throughput', '.2f')} of sync, "
    f"{format_spread(figures, 'async_vs_sync_reuse_throughput', '.2f')} of "
    "sync that reuses fakes; it sends "
    f"{figures['async_vs_sync_bytes']:.2f} of the bytes",
  ]
  return "\n".join(lines)


def _format_batch(figures: Dict[str, float], run: Throughput) -> List[str]:
  prefix = f"batch_{run.batch_size}_"
  lines = [
    f"{f'batch {run.batch_size}, two logical devices':36}"
    f"{'images/s':24}{'async is':24}MB a step"
  ]
  for name, title in TITLES.items():
    speed = format_spread(figures, f"{prefix}{name}_images_per_second", ".1f")
    key = f"{prefix}async_vs_{name}"
    ratio = format_spread(figures, key, ".2f") if key in figures else ""
    megabytes = 1e-6 * figures[f"{prefix}{name}_bytes_per_step"]
    lines.append(f"{title:36}{speed:24}{ratio:24}{megabytes:.2f}")
  lines.append(
    f"{f'batch {run.batch_size}, a core for each device':36}"
    f"{'async is':24}ms a step: {', '.join(PARTS)}"
  )
  for name in run.cycles:
    key = f"{prefix}pinned_async_vs_{name}"
    ratio = format_spread(figures, key, ".2f") if key in figures else ""
    lines.append(
      f"{TITLES[name]:36}{ratio:24}{_format_parts(figures, prefix, name)}"
    )
  return lines


def _format_parts(figures: Dict[str, float], prefix: str, name: str) -> str:
  """Returns the milliseconds of the two devices as text."""
  cells = []
  for device, title in enumerate(name_devices(name)):
    times = (
      f"{1e3 * figures[f'{prefix}pinned_{name}_device{device}_{part}']:.0f}"
      for part in PARTS
    )
    cells.append(f"{title} {'/'.join(times)}")
  return "  ".join(cells)


def name_devices(side: str) -> Tuple[str, str]:
  """Returns what the two devices of a side are called."""
  return ("G", "D") if side.startswith("async") else ("1st", "2nd")


def list_sides(runs: Sequence[Throughput]) -> List[Tuple[str, str]]:
  """Returns the names and titles of the sides that were measured."""
  measured = runs[0].seconds if runs else {}
  return [(name, TITLES[name]) for name in TITLES if name in measured]
