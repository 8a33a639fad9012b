"""What the suite `scaling` measures: one worker, the machine, and real runs."""

import functools
import time
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.interleave import interleave, log_progress
from tools.suites.scaling.sides import (
  ONE_THREAD,
  ExchangeWorker,
  PlayerWorker,
  SoloWorker,
  make_trainer,
)
from tools.suites.wire.figures import LINKS, LinkCheck
from tools.suites.wire.network_emulator import Link, NetworkEmulator
from tools.suites.workers import Worker, call_all, close_all, time_all

# Our names of schemes, and those of the suite `wire`.
EXCHANGES = {
  "sync": "all_reduce",
  "every_other_step": "periodic",
  "quantized": "dq8",
}
# Those that compute something else than `sync`, alone.
_PROFILED = ("all_reduce", "dq8")
BATCHES = (8, 16, 32)
BATCH = 16  # Of a worker, in real runs.
LOOPBACK = "loopback"
_SIZES = (1 << 10, 1 << 18, 1 << 20, 1 << 22)  # Bytes of a vector.
_COLLECTIVES = ("all_reduce", "gather")
_REPEATS = 20
_STEPS = 16  # Of a call of one worker.
# Of a call of many, as training calls its loop for a second or two. All begin
# at once, so that the first exchanges take latencies that later ones do not.
_CALL_SECONDS = 1.0


class Solo(NamedTuple):
  """One worker, measured.

  Attributes:
    alone: Seconds of a step, by exchange and batch; the median.
    together: The same of two workers that know nothing of each other, at once;
      the mean of both.
    steps: Seconds of single steps of `sync`, to see how they scatter.
    counts: Bytes and codec, see `PlayerWorker.count`.
  """

  alone: Mapping[Tuple[str, int], float]
  together: Mapping[Tuple[str, int], float]
  steps: Sequence[float]
  counts: Mapping[str, Any]


class Exchanged(NamedTuple):
  """Seconds of an exchange over loopback, of workers that train nothing."""

  num_workers: int
  collective: str
  num_bytes: int
  seconds: float


class Measured(NamedTuple):
  """Seconds of a step of a real run, in each repetition."""

  scheme: str
  num_workers: int
  link: str
  seconds: np.ndarray


def measure_solo(seconds: float) -> Solo:
  """Measures one worker, and two that run at once.

  Args:
    seconds: For all, about.
  """
  log_progress("One worker: tracing.")
  counter = Worker("counter", PlayerWorker, ONE_THREAD)
  with close_all([counter]):
    counts = counter.call("count")
  make = functools.partial(SoloWorker, _PROFILED, BATCHES)
  pair = [Worker(f"worker {i}", make, ONE_THREAD) for i in range(2)]
  tasks = {}
  for name in _PROFILED:
    for batch in BATCHES:
      args = ("run", name, batch, _STEPS)
      tasks[name, batch, 1] = functools.partial(pair[0].call, *args)
      tasks[name, batch, 2] = functools.partial(_mean_of_all, pair, *args)
  with close_all(pair):
    call_all(pair, "wait_until_ready")
    found = interleave(tasks, time.monotonic() + seconds)  # type: ignore
    steps = pair[0].call("run_steps", "all_reduce", BATCH, 100)
  medians = {key: float(np.median(x)) for key, x in found.items()}
  alone, together = (
    {
      (name, batch): medians[name, batch, num]  # type: ignore
      for name in _PROFILED
      for batch in BATCHES
    }
    for num in (1, 2)
  )
  return Solo(alone, together, steps, counts)


def _mean_of_all(workers: Sequence[Worker], *args: Any) -> float:
  return float(np.mean(call_all(workers, *args)))


def measure_exchanges(seconds: float, num_workers: int) -> List[Exchanged]:
  """Measures exchanges of workers that train nothing, over loopback.

  An exchange takes what a step of other work takes longer with it.
  """
  log_progress(f"Exchanges of {num_workers} workers.")
  emulator = Worker("emulator", functools.partial(NetworkEmulator, num_workers))
  workers = [
    Worker(f"worker {i}", ExchangeWorker, {**environment, **ONE_THREAD})
    for i, environment in enumerate(emulator.call("make_environments"))
  ]
  cases = [("", _SIZES[0])]
  cases += [(name, size) for name in _COLLECTIVES for size in _SIZES]
  with close_all([emulator, *workers]):
    call_all(workers, "wait_until_ready")
    tasks = {
      f"{name} {size}": functools.partial(_exchange, workers, name, size)
      for name, size in cases
    }
    found = interleave(tasks, time.monotonic() + seconds)
  work = found[f" {_SIZES[0]}"]
  return [
    Exchanged(
      num_workers,
      name,
      size,
      float(np.median(found[f"{name} {size}"] - work)),
    )
    for name, size in cases[1:]
  ]


def _exchange(workers: Sequence[Worker], name: str, size: int) -> float:
  return max(call_all(workers, "run", name, size // 4, _REPEATS))


def measure_runs(
  num_workers: int,
  names: Sequence[str],
  seconds: float,
  checks: Mapping[str, LinkCheck],
) -> List[Measured]:
  """Trains on real processes, over each link.

  Args:
    num_workers: How many train.
    names: Of links, as in `wire.figures.LINKS`, or `LOOPBACK`.
    seconds: For each link.
    checks: The emulator's overhead, which is subtracted.
  """
  log_progress(f"Starting {num_workers} workers.")
  emulator = Worker("emulator", functools.partial(NetworkEmulator, num_workers))
  exchanges = tuple(EXCHANGES.values())
  make = functools.partial(make_trainer, num_workers, exchanges, BATCH)
  workers = [
    Worker(f"worker {i} of {num_workers}", make, {**environment, **ONE_THREAD})
    for i, environment in enumerate(emulator.call("make_environments"))
  ]
  found = []
  with close_all([emulator, *workers]):
    call_all(workers, "wait_until_ready")
    for name in names:
      log_progress(f"{num_workers} workers, {name}.")
      link = LINKS.get(name, Link())
      overhead = checks[name].overhead if name in checks else 0.0
      emulator.call("set_link", link, overhead)
      tasks = {
        scheme: functools.partial(
          _time_step, workers, exchange, _count_steps(workers, exchange)
        )
        for scheme, exchange in EXCHANGES.items()
      }
      times = interleave(tasks, time.monotonic() + seconds)
      found += [Measured(s, num_workers, name, x) for s, x in times.items()]
  return found


def _count_steps(workers: Sequence[Worker], name: str) -> int:
  """Returns the steps of a call, an even number; TCP adapts to the link."""
  return 2 * max(2, round(_CALL_SECONDS / 2 / _time_step(workers, name, 4)))


def _time_step(workers: Sequence[Worker], name: str, num_steps: int) -> float:
  """Trains on all; returns the seconds of a step, until the last has ended."""
  return time_all(workers, "run", name, num_steps) / num_steps
