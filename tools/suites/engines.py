"""What the engine costs beside the step: the host, and a second process.

`host_overhead` is the share of a run's time that is not spent in its steps. A
whole run trains, with its record and its progress, and logs every 20 steps as
by default. The TensorFlow program takes the time at its own first and last
operation; all that the wall clock shows beyond it is the host's: Python, the
call, logs, writing, showing. So is the time that steps waited for a batch.
Both times are of the very same steps, so the machine's moods cancel.

`weak_scaling_2` is what two processes train in a second, over twice what one
does. Each process is pinned to a core and has a full batch of its own; the two
average the gradients of G and of D at every step, over the loopback device.
`_every_other_step` averages the weights on every second step instead, and
`_no_exchange` is two processes that do not talk: what the machine itself loses
when both cores work. While some measure, the others sleep.
"""

import functools
import os
import tempfile
import time
from typing import Dict, List, Sequence

from tools.suites import engines_figures
from tools.suites.engines_sides import Pinned, Trainer, cluster_of
from tools.suites.meanwhile import Meanwhile
from tools.suites.rounds import say, take_turns
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, ask_all, closing

_QUICK_SECONDS, _FULL_SECONDS = 160, 480
_HOST_SHARE = 0.4  # Of the time that is left when all are ready.
_LOG_EVERY = 20  # The default of `Run`.
_EVERY_OTHER_STEP = ("gin/sync/every_other_step.gin",)


def run(options: Options) -> Result:
  """Returns a table to read and the figures by name."""
  quick = options.quick
  cores = sorted(os.sched_getaffinity(0))[:2]
  if len(cores) < 2:
    raise ValueError(
      f"The suite `engines` needs two cores, got {len(cores)}: let this "
      "program use another one."
    )
  deadline = time.monotonic() + (_QUICK_SECONDS if quick else _FULL_SECONDS)
  meanwhile = Meanwhile()
  num_steps = 2 if quick else 4
  say(f"Starting seven processes; the load is {meanwhile.load:.1f}.")
  with tempfile.TemporaryDirectory() as folder:
    trainer = Worker("trainer", functools.partial(Trainer, folder))
    sides = _sides(cores)
    with closing({trainer, *(w for side in sides.values() for w in side)}):
      summary = trainer.ask("summary")
      images = {name: _images(side) for name, side in sides.items()}
      left = deadline - time.monotonic()
      host = take_turns(
        {"host": functools.partial(trainer.ask, "run", _LOG_EVERY)},
        time.monotonic() + _HOST_SHARE * left,
        min_rounds=2,  # Long ones: 20 steps each.
      )
      turns = {
        name: functools.partial(_seconds, side, num_steps)
        for name, side in sides.items()
      }
      results = take_turns(turns, deadline)
  figures = engines_figures.gather(host["host"], results, images, num_steps)
  figures.update(meanwhile.figures())
  return Result(f"{summary}\n\n{engines_figures.table(figures)}", figures)


def _sides(cores: Sequence[int]) -> Dict[str, List[Worker]]:
  """Starts the processes that are compared, by how they work together."""
  alone = [
    Worker(f"alone on core {core}", functools.partial(Pinned, core, 1))
    for core in cores
  ]

  def pair(name: str, files: Sequence[str] = ()) -> List[Worker]:
    return [
      Worker(
        f"{name} on core {core}",
        functools.partial(Pinned, core, len(cores), files),
        environment,
      )
      for core, environment in zip(cores, cluster_of(len(cores)))
    ]

  return {
    "one": alone[:1],
    "no_exchange": alone,
    "all_reduce": pair("all_reduce"),
    "every_other_step": pair("every_other_step", _EVERY_OTHER_STEP),
  }


def _images(side: Sequence[Worker]) -> int:
  """Returns the images that the processes train on in one step."""
  return sum(ask_all(side, "images_per_step"))


def _seconds(side: Sequence[Worker], num_steps: int) -> float:
  """Lets all of a side train; returns the seconds until the last is done."""
  started = time.perf_counter()
  ask_all(side, "run", num_steps)
  return time.perf_counter() - started
