"""What the layout gives on this machine's CPU: suite `layout`.

    plain    no layout pass, the nets as their papers write them
    cpu      what the CPU's profile takes
    ...      the same, with one part changed

BigGAN at 32 px, each side in a process of its own, in turns. With `--quality`:
the default run in float32 and in bfloat16, see `halves.py`.
"""

import functools
import time
from typing import Dict, Sequence

import numpy as np

from tools.suites import halves, meanwhile
from tools.suites.meanwhile import Meanwhile
from tools.suites.ours import Ours
from tools.suites.rounds import add_spread, say, spread, take_turns
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, ask_all, closing

_NET = "gin/nets/biggan.gin"
_SMALL = (
  "Experiment.batch_size = 16",
  "biggan.Generator.width = 32",
  "biggan.Discriminator.width = 32",
)
# Name: gin files, and bindings.
SIDES: Dict[str, Sequence[str]] = {
  "cpu": (),
  "resizes_apart": ("hardware.Layout.resizes = 'apart'",),
  "image_ends_plain": ("hardware.Layout.rgb_convs = 'plain'",),
  "two_passes": ("hardware.Layout.one_pass = False",),
  "weights_as_they_are": ("hardware.Layout.weights_as_matrices = False",),
  "joined_projections": ("hardware.Layout.join_projections = True",),
  "joined_power_iterations": ("hardware.Layout.join_power_iterations = True",),
}
_QUICK_SECONDS, _FULL_SECONDS = 75, 300
_NUM_STEPS = 2


def run(options: Options) -> Result:
  """Returns a table to read and the figures by name."""
  if options.quality:
    return halves.run(options.quick)
  watch = Meanwhile()
  say(f"Starting {len(SIDES) + 1} processes; the load is {watch.load:.1f}.")
  plain = functools.partial(Ours, _SMALL, (_NET, "gin/layout/off.gin"))
  workers = {"plain": Worker("plain", plain)}
  for name, bindings in SIDES.items():
    make = functools.partial(Ours, (*_SMALL, *bindings), (_NET,))
    workers[name] = Worker(name, make)
  with closing(workers.values()):
    ask_all(workers.values(), "run", 1)
    turns = {
      name: functools.partial(worker.ask, "run", _NUM_STEPS)
      for name, worker in workers.items()
    }
    seconds = _QUICK_SECONDS if options.quick else _FULL_SECONDS
    results = take_turns(turns, time.monotonic() + seconds)
  figures = gather(results)
  figures.update(watch.figures())
  return Result(table(figures), figures)


def gather(results: Dict[str, np.ndarray]) -> Dict[str, float]:
  """Returns how fast each side is, in parts of another, round by round."""
  figures: Dict[str, float] = {}
  add_spread(figures, "cpu_vs_plain", results["plain"] / results["cpu"])
  for name in list(SIDES)[1:]:
    add_spread(figures, f"{name}_vs_cpu", results["cpu"] / results[name])
  figures["num_rounds"] = len(results["cpu"])
  return figures


def table(figures: Dict[str, float]) -> str:
  """Returns the figures as lines, median and quartiles."""
  lines = ["BigGAN, 32 px, batch 16, width 32; images a second"]
  names = ["cpu_vs_plain", *(f"{name}_vs_cpu" for name in list(SIDES)[1:])]
  lines += [f"{name:32}{spread(figures, name, '.2f')}" for name in names]
  lines.append(f"rounds {figures['num_rounds']}; {meanwhile.words(figures)}")
  return "\n".join(lines)
