"""G and D on devices of their own against both on every device: suite `async`.

    sync         data-parallel, gradients averaged at every step, G answers on
                 fakes of its own, as the papers write it
    sync_reuse   the same, G answers on the fakes that D has just seen, which
                 is our default
    async        ParaGAN: one device plays G, the other D; weights and fakes
                 are exchanged on every second step
    async_every_step   the same, exchanged at every step

All see the same number of images a step, for each player. Two devices of one
thread each are measured twice: as logical devices of one process, and as
processes on a core of their own, where the waits of each are seen.

What is learned is the work of `apart_quality`.
"""

import functools
import os
import time
from typing import Dict, List, NamedTuple, Sequence

import numpy as np

from tools.suites import apart_figures, apart_plot, apart_quality
from tools.suites.apart_sides import (
  FRESH,
  Cycle,
  PinnedDevice,
  RoleWork,
  TwoDevices,
)
from tools.suites.engines_sides import cluster_of
from tools.suites.meanwhile import Meanwhile
from tools.suites.rounds import say, take_turns
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, ask_all, closing

_GIN_FILE = "gin/runs/benchmark_step.gin"
# A little wider than G, so that both roles have the same work.
_BALANCED = ("sngan.Discriminator.width = 72",)
_QUICK_BATCHES, _FULL_BATCHES = (16,), (8, 16, 32)
_QUICK_SECONDS, _FULL_SECONDS = 40, 75  # Of taking turns, for each batch.
_STEPS = 4


class Throughput(NamedTuple):
  """What was measured at one batch size, by side.

  Attributes:
    batch_size: Images a step, for each player.
    seconds: Of the steps of one round.
    num_bytes: What a device gives to the other in a step.
    pinned: Seconds on processes with a core of their own.
    cycles: The times of both such devices, a list a round.
    work: Of each player's move, for one image.
  """

  batch_size: int
  seconds: Dict[str, np.ndarray]
  num_bytes: Dict[str, float]
  pinned: Dict[str, np.ndarray]
  cycles: Dict[str, List[List[Cycle]]]
  work: RoleWork


def run(options: Options) -> Result:
  """Returns a table, the figures and a plot."""
  options.asked(apart_quality.SIDES)
  meanwhile = Meanwhile()
  tables, figures, runs, quality = [], {}, [], None
  if not options.quality:
    batches = _QUICK_BATCHES if options.quick else _FULL_BATCHES
    for batch_size in batches:
      runs.append(_throughput(batch_size, options.quick))
    figures.update(apart_figures.gather(runs, _STEPS))
    tables.append(apart_figures.table(figures, runs))
  if options.quality or not options.quick:
    quality = apart_quality.run(options)
    figures.update(apart_quality.gather(quality))
    tables.append(apart_quality.table(figures, quality))
  figures.update(meanwhile.figures())
  draw = functools.partial(apart_plot.draw, figures, runs, quality)
  return Result("\n\n".join(tables), figures, draw)


def _sides() -> Dict[str, Sequence[Sequence[str]]]:
  """Returns the gin files and bindings of each side."""
  return {
    "sync": ((), FRESH),
    "sync_reuse": ((), ()),
    "async": (("gin/sync/paragan.gin",), ()),
    "async_every_step": (("gin/sync/async.gin",), ()),
  }


def _throughput(batch_size: int, quick: bool) -> Throughput:
  """Measures all sides in turns."""
  cores = sorted(os.sched_getaffinity(0))[:2]
  if len(cores) < 2:
    raise ValueError(
      f"The suite `async` needs two cores, got {len(cores)}: let this program "
      "use another one."
    )
  say(
    f"Batch {batch_size}: starting {4 + 2 * len(_pinned_names(quick))} sides."
  )
  binding = (f"Experiment.batch_size = {batch_size}", *_BALANCED)
  logical = {
    name: Worker(
      name,
      functools.partial(TwoDevices, _GIN_FILE, files, (*binding, *more)),
    )
    for name, (files, more) in _sides().items()
  }
  pinned = {
    name: [
      Worker(
        f"{name} on core {core}",
        functools.partial(PinnedDevice, core, files, (*binding, *more)),
        environment,
      )
      for core, environment in zip(cores, cluster_of(2))
    ]
    for name, (files, more) in _sides().items()
    if name in _pinned_names(quick)
  }
  everyone = [*logical.values(), *(w for pair in pinned.values() for w in pair)]
  with closing(everyone):
    ask_all(logical.values(), "warm_up")
    for pair in pinned.values():
      ask_all(pair, "cycle")
    turns = {
      name: functools.partial(worker.ask, "run", _STEPS)
      for name, worker in logical.items()
    }
    for name, pair in pinned.items():
      turns[f"pinned {name}"] = functools.partial(_seconds, pair)
    seconds = _QUICK_SECONDS if quick else _FULL_SECONDS
    results = take_turns(turns, time.monotonic() + seconds)
    cycles = {
      name: [ask_all(pair, "cycle") for _ in range(3 if quick else 8)]
      for name, pair in pinned.items()
    }
    return Throughput(
      batch_size,
      {name: results[name] for name in logical},
      {n: worker.ask("bytes_per_step") for n, worker in logical.items()},
      {name: results[f"pinned {name}"] for name in pinned},
      cycles,
      logical["sync"].ask("work"),
    )


def _pinned_names(quick: bool) -> Sequence[str]:
  return ("sync", "async") if quick else ("sync", "sync_reuse", "async")


def _seconds(pair: Sequence[Worker]) -> float:
  """Lets both devices train; returns the seconds until the last is done."""
  started = time.perf_counter()
  ask_all(pair, "run", _STEPS)
  return time.perf_counter() - started
