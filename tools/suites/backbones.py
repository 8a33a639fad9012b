"""How fast each backbone trains: suite `backbones`.

All at one resolution, batch and number of channels next to the image, with the
same loss and optimizers; each in a process of its own, in turns. The fraction
of the peak counts the multiply-adds that the step executes, against a large
matrix product measured in the same round.
"""

import functools
import time
from typing import Any, Dict

import numpy as np

from tools.suites import learning, meanwhile
from tools.suites.meanwhile import Meanwhile
from tools.suites.ours import Ours
from tools.suites.rounds import add_spread, say, spread, take_turns
from tools.suites.suite import Options, Result
from tools.suites.work import Work
from tools.suites.workers import Worker, ask_all, closing

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
  """Returns a table to read and the figures by name."""
  if options.quality:
    return learning.run(options)
  watch = Meanwhile()
  say(f"Starting {len(NAMES)} processes; the load is {watch.load:.1f}.")
  workers = {name: _worker(name) for name in NAMES}
  with closing(workers.values()):
    ask_all(workers.values(), "run", 1)
    work = dict(zip(NAMES, ask_all(workers.values(), "work")))
    turns: Dict[str, Any] = {
      name: functools.partial(worker.ask, "run", 2)
      for name, worker in workers.items()
    }
    turns["peak"] = functools.partial(workers["dcgan"].ask, "peak")
    seconds = _QUICK_SECONDS if options.quick else _FULL_SECONDS
    results = take_turns(turns, time.monotonic() + seconds)
  figures = gather(results, work, num_steps=2)
  figures.update(watch.figures())
  return Result(table(figures), figures)


def _worker(name: str) -> Worker:
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
  results: Dict[str, np.ndarray], work: Dict[str, Work], num_steps: int
) -> Dict[str, float]:
  """Returns the flat figures; a spread is `_low` and `_high`, the quartiles.

  Args:
    results: Seconds of each backbone in each round; for `peak`, multiply-adds
      a second.
    work: The `Work` of one step of each.
    num_steps: Steps of a backbone in a round.
  """
  figures: Dict[str, float] = {}
  for name, amount in work.items():
    steps_per_second = num_steps / results[name]
    add_spread(
      figures, f"{name}_images_per_second", _BATCH_SIZE * steps_per_second
    )
    figures[f"{name}_gflops_per_step"] = 2e-9 * amount.executed
    reached = amount.executed * steps_per_second / results["peak"]
    add_spread(figures, f"{name}_fraction_of_peak", reached)
  add_spread(figures, "peak_gflops", 2e-9 * results["peak"])
  figures["num_rounds"] = len(results["peak"])
  return figures


def table(figures: Dict[str, float]) -> str:
  """Returns the figures as lines, median and quartiles."""
  lines = [
    f"32 px, batch {_BATCH_SIZE}, width {_WIDTH}",
    f"{'':14}{'images/s':24}{'GFLOP a step':14}of the peak",
  ]
  for name in NAMES:
    speed = spread(figures, f"{name}_images_per_second", ".1f")
    share = spread(figures, f"{name}_fraction_of_peak", ".0%")
    work = figures[f"{name}_gflops_per_step"]
    lines.append(f"{name:14}{speed:24}{work:<14.1f}{share}")
  lines += [
    "",
    f"peak   {spread(figures, 'peak_gflops', '.1f')} GFLOP/s by matmul",
    f"rounds {figures['num_rounds']}; {meanwhile.words(figures)}",
  ]
  return "\n".join(lines)
