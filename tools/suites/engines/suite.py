"""What the engine costs beside the step: the host, and a second process.

`host_overhead` is the share of a run's time that is not spent in its steps. A
whole run trains, with its records and progress lines, and logs every 20 steps
as by default. The TensorFlow program reads the clock at its first and at its
last operation; the rest of the wall time is the host's: Python, the call, logs
and files. The time in which steps waited for a batch counts as the host's, too.
Both times are of the same steps, so variations of the machine's speed cancel.

`weak_scaling_2` is the throughput of two processes over twice that of one. Each
process is pinned to a core and has a full batch of its own; the two average the
gradients of G and of D at every step, over the loopback device.
`_every_other_step` averages the weights on every second step instead, and
`_no_exchange` is two processes without any exchange: what the machine itself
loses when both cores are busy. While one side is measured, the others sleep.
"""

import functools
import tempfile
import time
from typing import Dict, List, Sequence

from tools.suites.engines import figures
from tools.suites.engines.sides import Trainer
from tools.suites.interleave import interleave, log_progress
from tools.suites.machine_load import MachineLoad
from tools.suites.pinned import PinnedProcess, make_cluster_environments
from tools.suites.suite import Options, Result
from tools.suites.workers import (
  Worker,
  call_all,
  close_all,
  find_cores,
  time_all,
)

_QUICK_SECONDS, _FULL_SECONDS = 160, 480
_HOST_SHARE = 0.4  # Of the time that is left when all are ready.
_LOG_EVERY = 20  # The default of `Run`.
_EVERY_OTHER_STEP = ("gin/sync/every_other_step.gin",)


def run(options: Options) -> Result:
  """Returns a table and the figures by name."""
  quick = options.quick
  cores = find_cores("engines")
  deadline = time.monotonic() + (_QUICK_SECONDS if quick else _FULL_SECONDS)
  machine = MachineLoad()
  num_steps = 2 if quick else 4
  log_progress(f"Starting seven processes; the load is {machine.load:.1f}.")
  with tempfile.TemporaryDirectory() as folder:
    trainer = Worker("trainer", functools.partial(Trainer, folder))
    sides = _start_sides(cores)
    with close_all({trainer, *(w for side in sides.values() for w in side)}):
      summary = trainer.call("summarize")
      images = {name: _count_images(side) for name, side in sides.items()}
      left = deadline - time.monotonic()
      host = interleave(
        {"host": functools.partial(trainer.call, "run", _LOG_EVERY)},
        time.monotonic() + _HOST_SHARE * left,
        min_repetitions=2,  # Long ones: 20 steps each.
      )
      tasks = {
        name: functools.partial(time_all, side, "run", num_steps)
        for name, side in sides.items()
      }
      results = interleave(tasks, deadline)
  values = figures.gather(host["host"], results, images, num_steps)
  values.update(machine.figures())
  return Result(f"{summary}\n\n{figures.format_table(values)}", values)


def _start_sides(cores: Sequence[int]) -> Dict[str, List[Worker]]:
  """Starts the processes of each side, named by their exchange."""
  alone = [
    Worker(f"alone on core {core}", functools.partial(PinnedProcess, core, 1))
    for core in cores
  ]

  def start_pair(name: str, files: Sequence[str] = ()) -> List[Worker]:
    environments = make_cluster_environments(len(cores))
    return [
      Worker(
        f"{name} on core {core}",
        functools.partial(PinnedProcess, core, len(cores), files),
        environment,
      )
      for core, environment in zip(cores, environments)
    ]

  return {
    "one": alone[:1],
    "no_exchange": alone,
    "all_reduce": start_pair("all_reduce"),
    "every_other_step": start_pair("every_other_step", _EVERY_OTHER_STEP),
  }


def _count_images(side: Sequence[Worker]) -> int:
  """Returns the images that all processes of a side train on in one step."""
  return sum(call_all(side, "get_images_per_step"))
