"""The throughput of a role split, compared with data-parallel training.

    sync         data-parallel: gradients averaged at every step; G trains on
                 fakes of its own, as the papers write it
    sync_reuse   the same, but G trains on the fakes that D has just seen, which
                 is our default
    async        ParaGAN's role split: one device trains G, the other D; weights
                 and fakes are exchanged on every second step
    async_every_step   the same, exchanged at every step

All train each player on the same number of images a step. Two devices of one
thread each are measured in two ways: as logical devices of one process, and as
two processes on a core of their own, which shows how long each of them waits.

`quality` measures what is learned.
"""

import functools
import time
from typing import Dict, List, Sequence

from tools.suites.async_ import figures, plot, quality
from tools.suites.async_.figures import Throughput
from tools.suites.async_.sides import FRESH_FAKES, PinnedDevice, TwoDevices
from tools.suites.interleave import interleave, log_progress
from tools.suites.machine_load import MachineLoad
from tools.suites.pinned import make_cluster_environments
from tools.suites.suite import Options, Result
from tools.suites.workers import (
  Worker,
  call_all,
  close_all,
  find_cores,
  time_all,
)

_GIN_FILE = "gin/runs/benchmark_step.gin"
# D is a little wider than G, so that both roles have the same work.
_BALANCED = ("sngan.Discriminator.width = 72",)
_QUICK_BATCHES, _FULL_BATCHES = (16,), (8, 16, 32)
_QUICK_SECONDS, _FULL_SECONDS = 40, 75  # Of interleaved steps, per batch size.
_STEPS = 4
# Name: gin files, gin bindings.
_SIDES: Dict[str, Sequence[Sequence[str]]] = {
  "sync": ((), FRESH_FAKES),
  "sync_reuse": ((), ()),
  "async": (("gin/sync/paragan.gin",), ()),
  "async_every_step": (("gin/sync/async.gin",), ()),
}


def run(options: Options) -> Result:
  """Returns a table, the figures and a plot."""
  options.select_sides(quality.SIDES)
  machine = MachineLoad()
  tables, values, runs, curves = [], {}, [], None
  if not options.quality:
    batches = _QUICK_BATCHES if options.quick else _FULL_BATCHES
    for batch_size in batches:
      runs.append(_measure_throughput(batch_size, options.quick))
    values.update(figures.gather(runs, _STEPS))
    tables.append(figures.format_table(values, runs))
  if options.quality or not options.quick:
    curves = quality.run(options)
    values.update(quality.gather(curves))
    tables.append(quality.format_table(values, curves))
  values.update(machine.figures())
  draw = functools.partial(plot.draw, values, runs, curves)
  return Result("\n\n".join(tables), values, draw)


def _measure_throughput(batch_size: int, quick: bool) -> Throughput:
  """Measures all sides at one batch size, interleaved."""
  cores = find_cores("async")
  names = ("sync", "async") if quick else ("sync", "sync_reuse", "async")
  log_progress(
    f"Batch {batch_size}: starting {len(_SIDES) + 2 * len(names)} processes."
  )
  logical = _start_logical(batch_size)
  pinned = {name: _start_pinned(name, batch_size, cores) for name in names}
  with close_all([*logical.values(), *(w for p in pinned.values() for w in p)]):
    call_all(logical.values(), "warm_up")
    for pair in pinned.values():
      call_all(pair, "run_cycle")
    tasks = {
      name: functools.partial(worker.call, "run", _STEPS)
      for name, worker in logical.items()
    }
    for name, pair in pinned.items():
      tasks[f"pinned {name}"] = functools.partial(time_all, pair, "run", _STEPS)
    seconds = _QUICK_SECONDS if quick else _FULL_SECONDS
    results = interleave(tasks, time.monotonic() + seconds)
    cycles = {
      name: [call_all(pair, "run_cycle") for _ in range(3 if quick else 8)]
      for name, pair in pinned.items()
    }
    return Throughput(
      batch_size,
      {name: results[name] for name in logical},
      {n: w.call("get_bytes_per_step") for n, w in logical.items()},
      {name: results[f"pinned {name}"] for name in pinned},
      cycles,
      logical["sync"].call("count_multiply_adds"),
    )


def _start_logical(batch_size: int) -> Dict[str, Worker]:
  """Starts a process with two logical devices for each side."""
  return {
    name: Worker(
      name,
      functools.partial(
        TwoDevices, _GIN_FILE, files, _make_bindings(batch_size, bindings)
      ),
    )
    for name, (files, bindings) in _SIDES.items()
  }


def _start_pinned(
  name: str, batch_size: int, cores: Sequence[int]
) -> List[Worker]:
  """Starts two processes of a side, each on a core of its own."""
  files, bindings = _SIDES[name]
  bindings = _make_bindings(batch_size, bindings)
  return [
    Worker(
      f"{name} on core {core}",
      functools.partial(PinnedDevice, core, files, bindings),
      environment,
    )
    for core, environment in zip(cores, make_cluster_environments(2))
  ]


def _make_bindings(batch_size: int, bindings: Sequence[str]) -> Sequence[str]:
  return (f"Experiment.batch_size = {batch_size}", *_BALANCED, *bindings)
