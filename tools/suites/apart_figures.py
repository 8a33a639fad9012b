"""How fast G and D are apart: the figures of the suite `async`, and a table."""

from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.apart_sides import Cycle, RoleWork
from tools.suites.rounds import add_spread, spread

TITLES = {
  "sync": "sync, G draws its own fakes",
  "sync_reuse": "sync, G reuses D's fakes",
  "async_every_step": "async, exchange every step",
  "async": "async, every other step",
}
PARTS = ("compute", "wait", "exchange", "input")
_SHARES = ((1, 1), (2, 1), (3, 1), (1, 2), (1, 3))


class Bound(NamedTuple):
  """How much faster roles can be than sync, if only multiply-adds counted.

  Attributes:
    vs_sync: Than G drawing fakes of its own.
    vs_reuse: Than G reusing D's fakes.
  """

  vs_sync: float
  vs_reuse: float


def bound(work: RoleWork, g_per_group: int = 1, d_per_group: int = 1) -> Bound:
  """Returns the bound that the slower role sets.

  On sync, each of n devices makes 1/n of the moves of both; on roles, each of
  G's devices 1/g_per_group of G's, with the same images a step in all.
  """
  num = g_per_group + d_per_group
  slower = max(work.g / g_per_group, work.d / d_per_group)
  both = work.g + work.d
  return Bound((both + work.draw) / num / slower, both / num / slower)


def gather(runs: Sequence, num_steps: int) -> Dict[str, float]:
  """Returns the flat figures; the headline is of the best batch size.

  Args:
    runs: `apart.Throughput`s.
    num_steps: Steps of a side in a round.
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
  work = best.work
  limit = bound(work)
  figures["bound_vs_sync"], figures["bound_vs_sync_reuse"] = limit
  for end, work_of in zip(("g", "d", "draw"), work):
    figures[f"{end}_mflops_per_image"] = 2e-6 * work_of
  for g_per_group, d_per_group in _SHARES:
    figures[f"bound_vs_sync_g{g_per_group}_d{d_per_group}"] = bound(
      work, g_per_group, d_per_group
    ).vs_sync
  return figures


def _add_batch(figures: Dict[str, float], run, num_steps: int) -> None:
  prefix = f"batch_{run.batch_size}_"
  for name, seconds in run.seconds.items():
    speed = num_steps * run.batch_size / seconds
    add_spread(figures, f"{prefix}{name}_images_per_second", speed)
    figures[f"{prefix}{name}_bytes_per_step"] = run.num_bytes[name]
  for kind, seconds in (("", run.seconds), ("pinned_", run.pinned)):
    for name in ("sync", "sync_reuse"):
      if name in seconds:
        ratio = seconds[name] / seconds["async"]
        add_spread(figures, f"{prefix}{kind}async_vs_{name}", ratio)
  for name, cycles in run.cycles.items():
    for device, times in enumerate(parts(cycles)):
      for part, seconds in zip(PARTS, times):
        figures[f"{prefix}pinned_{name}_device{device}_{part}"] = seconds
  figures[f"{prefix}num_rounds"] = len(run.seconds["sync"])


def parts(cycles: Sequence[Sequence[Cycle]]) -> np.ndarray:
  """Returns each device's seconds a step in each of `PARTS`, the median.

  A talk begins when the last device is ready: until then the others wait.
  """
  rows = []
  for both in cycles:
    talks = np.stack([cycle.talks for cycle in both])
    ready = talks[..., 0].max(0)
    wait = (ready - talks[..., 0]).sum(1)
    exchange = np.maximum(talks[..., 1] - ready, 0.0).sum(1)
    waited = np.array([cycle.waited for cycle in both])
    wall = np.array([cycle.ended - cycle.began for cycle in both])
    compute = wall - wait - exchange - waited
    rows.append(np.stack([compute, wait, exchange, waited], 1))
  return np.median(np.stack(rows), 0) / cycles[0][0].num_steps


def table(figures: Dict[str, float], runs: Sequence) -> str:
  """Returns the figures as lines, median and quartiles."""
  lines = [
    f"moves of one image, in MFLOP: G {figures['g_mflops_per_image']:.0f}, "
    f"D {figures['d_mflops_per_image']:.0f}; drawing a fake "
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
    lines += ["", *_batch_lines(figures, run)]
  lines += [
    "",
    f"best at batch {figures['best_batch_size']}: async is "
    f"{spread(figures, 'async_vs_sync_throughput', '.2f')} of sync, "
    f"{spread(figures, 'async_vs_sync_reuse_throughput', '.2f')} of sync that "
    "reuses fakes; it sends "
    f"{figures['async_vs_sync_bytes']:.2f} of the bytes",
  ]
  return "\n".join(lines)


def _batch_lines(figures: Dict[str, float], run) -> List[str]:
  prefix = f"batch_{run.batch_size}_"
  lines = [
    f"{f'batch {run.batch_size}, two logical devices':36}"
    f"{'images/s':24}{'async is':24}MB a step"
  ]
  for name, title in TITLES.items():
    speed = spread(figures, f"{prefix}{name}_images_per_second", ".1f")
    key = f"{prefix}async_vs_{name}"
    ratio = spread(figures, key, ".2f") if key in figures else ""
    megabytes = 1e-6 * figures[f"{prefix}{name}_bytes_per_step"]
    lines.append(f"{title:36}{speed:24}{ratio:24}{megabytes:.2f}")
  lines.append(
    f"{f'batch {run.batch_size}, a core for each device':36}"
    f"{'async is':24}ms a step: {', '.join(PARTS)}"
  )
  for name in run.cycles:
    key = f"{prefix}pinned_async_vs_{name}"
    ratio = spread(figures, key, ".2f") if key in figures else ""
    lines.append(f"{TITLES[name]:36}{ratio:24}{_parts(figures, prefix, name)}")
  return lines


def _parts(figures: Dict[str, float], prefix: str, name: str) -> str:
  """Returns what the two devices did, in words."""
  who = ("G", "D") if name.startswith("async") else ("1st", "2nd")
  words = []
  for device, title in enumerate(who):
    times = (
      f"{1e3 * figures[f'{prefix}pinned_{name}_device{device}_{part}']:.0f}"
      for part in PARTS
    )
    words.append(f"{title} {'/'.join(times)}")
  return "  ".join(words)


def sides(runs: Sequence) -> List[Tuple[str, str]]:
  """Returns the names and titles of the sides that were measured."""
  measured = runs[0].seconds if runs else {}
  return [(name, TITLES[name]) for name in TITLES if name in measured]
