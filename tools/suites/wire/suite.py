"""What exchanges send, and what that costs on a slow link.

Bytes and hops are counted. Times are of real processes that train together, as
`tools.launch` starts them, over a `NetworkEmulator`. Its links change while
the processes run, and all exchanges run interleaved on each. So only the
exchange differs, and variations of the machine's speed affect all alike.

`quality` measures what is learned.
"""

import functools
import socket
import time
from typing import (
  Dict,
  Iterable,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
)

import numpy as np

from tools.suites.interleave import interleave, log_progress
from tools.suites.machine_load import MachineLoad
from tools.suites.suite import Options, Result
from tools.suites.wire import figures, plot, quality
from tools.suites.wire import network_emulator_check as check
from tools.suites.wire.figures import LINKS, LinkCheck, Timing
from tools.suites.wire.network_emulator import Link, NetworkEmulator
from tools.suites.wire.sides import EXCHANGES, PayloadCounter, TrainingWorker
from tools.suites.workers import Worker, call_all, close_all, time_all

_COUNTED = (2, 4, 8)
_NUM_TRIES = 5
_SECONDS_OF_PINGS, _SECONDS_OF_BULK = 0.3, 0.5
_MIN_PINGS = 11
_STEPS = 2  # Of a task: a cycle of the exchange that sends on second steps.


class Plan(NamedTuple):
  """What to time: a number of workers, with some exchanges, on some links."""

  num_workers: int
  exchanges: Sequence[str]
  links: Sequence[str]
  seconds: float  # For each link.


_QUICK = (
  Plan(8, ("all_reduce", "gossip"), ("10ms",), 20.0),
  Plan(
    4,
    ("all_reduce", "gossip", "dq8"),
    ("10gbit", "100mbit", "10ms"),
    15.0,
  ),
  Plan(2, ("all_reduce", "dq8"), ("10gbit", "100mbit"), 6.0),
)
_FULL = tuple(Plan(m, tuple(EXCHANGES), tuple(LINKS), 15.0) for m in (8, 4, 2))


def run(options: Options) -> Result:
  """Returns a table, the figures and a plot."""
  machine = MachineLoad()
  if options.quality:
    learned = quality.run(options)
    values = {**quality.gather(learned), **machine.figures()}
    return Result(quality.format_table(values), values)
  plans = _QUICK if options.quick else _FULL
  checks = check_links(dict.fromkeys(name for p in plans for name in p.links))
  counter = Worker("counter", functools.partial(PayloadCounter, max(_COUNTED)))
  with close_all([counter]):
    payloads = {m: counter.call("count", tuple(EXCHANGES), m) for m in _COUNTED}
  timings = [one for plan in plans for one in measure(plan, checks=checks)]
  values = figures.gather(payloads, timings, checks)
  values.update(machine.figures())
  draw = functools.partial(plot.draw, values, payloads, timings)
  table = figures.format_table(values, payloads, timings)
  return Result(table, values, draw)


def check_links(names: Iterable[str]) -> Dict[str, LinkCheck]:
  """Measures each link with plain sockets."""
  log_progress("Checking the links.")
  emulator = Worker("emulator", functools.partial(NetworkEmulator, 2))
  with close_all([emulator]):
    here, there = (emulator.call("get_address", j, 1) for j in (0, 1))
    with socket.create_server(there) as server:
      near, far = check.connect_pair(here, server)
      with near, far:
        latencies = {
          name: _check_latency(emulator, (near, far), LINKS[name])
          for name in names
        }
    with check.run_receiver(there):
      return {
        name: LinkCheck(
          *latencies[name], _check_rate(emulator, here, LINKS[name])
        )
        for name in names
      }


def _check_latency(emulator: Worker, pair, link: Link) -> Tuple[float, float]:
  """Returns the emulator's overhead, and the latency with that subtracted."""
  num = max(_MIN_PINGS, int(_SECONDS_OF_PINGS / link.latency))
  overhead = 0.0
  for i in range(_NUM_TRIES):
    emulator.call("set_link", link, overhead)
    error = check.measure_latency(pair, num) - link.latency
    overhead += error / (1 + i)  # The mean of all tries, so that it settles.
  emulator.call("set_link", link, overhead)
  return overhead, check.measure_latency(pair, num)


def _check_rate(emulator: Worker, here: check.Address, link: Link) -> float:
  """Returns the best of some tries: other load on the machine reduces it."""
  emulator.call("set_link", link)
  num_bytes = int(link.rate * _SECONDS_OF_BULK)
  tries = range(_NUM_TRIES)
  return max(check.measure_rate([here], num_bytes) for _ in tries)


def measure(
  plan: Plan,
  bindings: Sequence[str] = (),
  checks: Optional[Mapping[str, LinkCheck]] = None,
) -> List[Timing]:
  """Starts the workers of a plan, and times all exchanges on all links.

  The emulator subtracts the overhead of `checks`, see its `set_link`.
  """
  num = plan.num_workers
  overheads = {name: one.overhead for name, one in (checks or {}).items()}
  log_progress(f"Starting {num} workers, for {len(plan.exchanges)} exchanges.")
  emulator = Worker("emulator", functools.partial(NetworkEmulator, num))
  make = functools.partial(TrainingWorker, num, plan.exchanges, bindings)
  workers = [
    Worker(f"worker {i} of {num}", make, environment)
    for i, environment in enumerate(emulator.call("make_environments"))
  ]
  with close_all([emulator, *workers]):
    call_all(workers, "wait_until_ready")
    timings = []
    for name in plan.links:
      log_progress(f"{num} workers, {LINKS[name]}.")
      emulator.call("set_link", LINKS[name], overheads.get(name, 0.0))
      timings.append(Timing(num, name, _time_exchanges(workers, plan)))
    return timings


def _time_exchanges(
  workers: Sequence[Worker], plan: Plan
) -> Dict[str, np.ndarray]:
  """Returns the seconds of a step, by exchange."""
  tasks = {
    name: functools.partial(_time_step, workers, name)
    for name in plan.exchanges
  }
  for task in tasks.values():
    task()  # TCP adapts its windows to the new link.
  return interleave(tasks, time.monotonic() + plan.seconds)


def _time_step(workers: Sequence[Worker], name: str) -> float:
  """Trains on all; returns the seconds of a step, until the last has ended."""
  return time_all(workers, "run", name, _STEPS) / _STEPS
