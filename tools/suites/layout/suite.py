"""What the layout pass gains on this machine's CPU.

    plain    no layout pass, the nets as their papers write them
    cpu      the layout of the CPU's hardware profile
    ...      the same, with one part changed

BigGAN at 32 px; each side has a process of its own, and all run interleaved.
`padded128_gap` is what padding to 128 channels changes, see `padding_gap`;
`padded16_WIDTH` how many times as fast a convolution of that width is if it is
padded to 16 channels, see `padded_convs`.
With `--quality`: the default run in float32 and in bfloat16, see
`bfloat16_quality`.
"""

import functools
import time
from typing import Any, Callable, Dict, Sequence

import numpy as np

from tools.suites import machine_load
from tools.suites.interleave import (
  add_spread,
  format_spread,
  interleave,
  log_progress,
)
from tools.suites.layout import bfloat16_quality
from tools.suites.layout.padded_convs import WIDTHS, PaddedConvs
from tools.suites.layout.padding_gap import PaddingGap
from tools.suites.machine_load import MachineLoad
from tools.suites.ours import Ours
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, call_all, close_all

_NET = "gin/nets/biggan.gin"
_SMALL = (
  "Experiment.batch_size = 16",
  "biggan.Generator.width = 32",
  "biggan.Discriminator.width = 32",
)
# Name: gin bindings.
SIDES: Dict[str, Sequence[str]] = {
  "cpu": (),
  "resizes_apart": ("hardware.Layout.resizes = 'apart'",),
  "rgb_convs_plain": ("hardware.Layout.rgb_convs = 'plain'",),
  "two_passes": ("hardware.Layout.one_pass = False",),
  "weights_as_they_are": ("hardware.Layout.weights_as_matrices = False",),
  "joined_projections": ("hardware.Layout.join_projections = True",),
  "joined_power_iterations": ("hardware.Layout.join_power_iterations = True",),
}
_QUICK_SECONDS, _FULL_SECONDS = 75, 300
_NUM_STEPS = 2


def run(options: Options) -> Result:
  """Returns a table and the figures by name."""
  if options.quality:
    return bfloat16_quality.run(options.quick)
  machine = MachineLoad()
  log_progress(
    f"Starting {len(SIDES) + 1} processes; the load is {machine.load:.1f}."
  )
  workers = _start_workers()
  with close_all(workers.values()):
    call_all(workers.values(), "run", 1)
    tasks = {
      name: functools.partial(worker.call, "run", _NUM_STEPS)
      for name, worker in workers.items()
    }
    seconds = _QUICK_SECONDS if options.quick else _FULL_SECONDS
    results = interleave(tasks, time.monotonic() + seconds)
  figures = gather(results)
  figures["padded128_gap"] = _measure("padded128", PaddingGap)
  for width, gains in _measure("padded16", PaddedConvs).items():
    add_spread(figures, f"padded16_{width}", np.array(gains))
  figures.update(machine.figures())
  return Result(format_table(figures), figures)


def _measure(name: str, make: Callable[[], Any]) -> Any:
  """Returns what an object measures, in a process of its own."""
  worker = Worker(name, make)
  with close_all([worker]):
    return worker.call("measure")


def _start_workers() -> Dict[str, Worker]:
  plain = functools.partial(Ours, _SMALL, (_NET, "gin/layout/off.gin"))
  workers = {"plain": Worker("plain", plain)}
  for name, bindings in SIDES.items():
    make = functools.partial(Ours, (*_SMALL, *bindings), (_NET,))
    workers[name] = Worker(name, make)
  return workers


def gather(results: Dict[str, np.ndarray]) -> Dict[str, float]:
  """Returns the figures by name: ratios of speeds within a repetition."""
  figures: Dict[str, float] = {}
  add_spread(figures, "cpu_vs_plain", results["plain"] / results["cpu"])
  for name in list(SIDES)[1:]:
    add_spread(figures, f"{name}_vs_cpu", results["cpu"] / results[name])
  figures["num_repetitions"] = len(results["cpu"])
  return figures


def format_table(figures: Dict[str, float]) -> str:
  """Returns the figures as text: medians and quartiles."""
  lines = ["BigGAN, 32 px, batch 16, width 32; images a second"]
  names = ["cpu_vs_plain", *(f"{name}_vs_cpu" for name in list(SIDES)[1:])]
  lines += [f"{name:32}{format_spread(figures, name, '.2f')}" for name in names]
  if "padded128_gap" in figures:
    gap = figures["padded128_gap"]
    lines.append(f"{'padded128_gap':32}{gap:.1e} of the values")
  for name in (f"padded16_{width}" for width in WIDTHS):
    if name in figures:
      lines.append(f"{name:32}{format_spread(figures, name, '.2f')}")
  lines.append(
    f"{figures['num_repetitions']} repetitions; "
    f"{machine_load.describe(figures)}"
  )
  return "\n".join(lines)
