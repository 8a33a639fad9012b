"""How fast each backbone trains.

All have the same resolution, batch, number of channels next to the image, loss
and optimizers. Each runs in a process of its own, interleaved. The fraction of
the peak compares the multiply-adds that the step executes with those of a large
matrix product in the same repetition.
"""

import functools
import time
from typing import Any, Dict

import numpy as np

from tools.suites import machine_load
from tools.suites.backbones import quality
from tools.suites.flops import MultiplyAdds
from tools.suites.interleave import (
  add_spread,
  format_spread,
  interleave,
  log_progress,
)
from tools.suites.machine_load import MachineLoad
from tools.suites.ours import Ours
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, call_all, close_all

NAMES = (
  "dcgan",
  "sngan",
  "sagan",
  "wgan_gp",
  "biggan",
  "biggan_deep",
  "contragan",
)
_NETS = ("Generator", "Discriminator")
_BATCH_SIZE, _WIDTH = 16, 32
_QUICK_SECONDS, _FULL_SECONDS = 60, 240
# Gradients of gradients, as WGAN-GP is trained.
_MORE = {
  "wgan_gp": (
    "from paragan_tf.game import penalties",
    "d/player.penalties = [@penalties.GradientPenalty()]",
  ),
  "contragan": (
    "from paragan_tf.game import class_losses",
    "player.penalties = [@class_losses.Contrastive()]",
  ),
}


def run(options: Options) -> Result:
  """Returns a table and the figures by name."""
  if options.quality:
    return quality.run(options)
  machine = MachineLoad()
  log_progress(
    f"Starting {len(NAMES)} processes; the load is {machine.load:.1f}."
  )
  workers = {name: _start_worker(name) for name in NAMES}
  with close_all(workers.values()):
    call_all(workers.values(), "run", 1)
    counts = call_all(workers.values(), "count_multiply_adds")
    tasks: Dict[str, Any] = {
      name: functools.partial(worker.call, "run", 2)
      for name, worker in workers.items()
    }
    tasks["peak"] = functools.partial(workers["dcgan"].call, "measure_peak")
    seconds = _QUICK_SECONDS if options.quick else _FULL_SECONDS
    results = interleave(tasks, time.monotonic() + seconds)
  figures = gather(results, dict(zip(NAMES, counts)), num_steps=2)
  figures.update(machine.figures())
  return Result(format_table(figures), figures)


def _start_worker(name: str) -> Worker:
  widths = [f"{name}.{net}.width = {_WIDTH}" for net in _NETS]
  bindings = (
    f"Experiment.batch_size = {_BATCH_SIZE}",
    *widths,
    *_MORE.get(name, ()),
  )
  return Worker(
    name, functools.partial(Ours, bindings, (f"gin/nets/{name}.gin",))
  )


def gather(
  results: Dict[str, np.ndarray],
  multiply_adds: Dict[str, MultiplyAdds],
  num_steps: int,
) -> Dict[str, float]:
  """Returns the figures by name; `_low` and `_high` are quartiles.

  Args:
    results: Seconds of each backbone in each repetition; for `peak`,
      multiply-adds a second.
    multiply_adds: Those of one step of each.
    num_steps: Steps of a backbone in a repetition.
  """
  figures: Dict[str, float] = {}
  for name, amount in multiply_adds.items():
    steps_per_second = num_steps / results[name]
    add_spread(
      figures, f"{name}_images_per_second", _BATCH_SIZE * steps_per_second
    )
    figures[f"{name}_gflops_per_step"] = 2e-9 * amount.executed
    reached = amount.executed * steps_per_second / results["peak"]
    add_spread(figures, f"{name}_fraction_of_peak", reached)
  add_spread(figures, "peak_gflops", 2e-9 * results["peak"])
  figures["num_repetitions"] = len(results["peak"])
  return figures


def format_table(figures: Dict[str, float]) -> str:
  """Returns the figures as text: medians and quartiles."""
  lines = [
    f"32 px, batch {_BATCH_SIZE}, width {_WIDTH}",
    f"{'':14}{'images/s':24}{'GFLOP a step':14}of the peak",
  ]
  for name in NAMES:
    speed = format_spread(figures, f"{name}_images_per_second", ".1f")
    share = format_spread(figures, f"{name}_fraction_of_peak", ".0%")
    gflops = figures[f"{name}_gflops_per_step"]
    lines.append(f"{name:14}{speed:24}{gflops:<14.1f}{share}")
  lines += [
    "",
    f"peak   {format_spread(figures, 'peak_gflops', '.1f')} GFLOP/s by matmul",
    f"{figures['num_repetitions']} repetitions; "
    f"{machine_load.describe(figures)}",
  ]
  return "\n".join(lines)
