"""Whether the input pipeline keeps the device busy.

A storage in a process of its own serves files over HTTP with a latency profile:
calm, with a heavy tail, or with bursts of congestion. Our pipelines (`tf.data`
with depth from step timing, and threads), `prefetch(2)` and `AUTOTUNE` read it
one after the other, with the same limits of concurrent reads and of bytes; so
does `AUTOTUNE` with TensorFlow's own number of threads. Each feeds a device
that sleeps for its step. Then all read large JPEGs, where decoding takes all of
the time and depth does not help. Last, images are decoded at full speed, by our
pipeline and by a bare loop.
"""

import functools
import os
import tempfile
import time
from typing import Callable, Dict, Iterable, List, Sequence

import numpy as np

from tools.suites.input import figures, plot
from tools.suites.input.decoding import Decoder
from tools.suites.input.figures import SIDES, Traces
from tools.suites.input.images import LARGE_SIZE, write_photos, write_set
from tools.suites.input.sides import LATENCY, Side, Trace
from tools.suites.input.storage import PROFILES, Storage
from tools.suites.interleave import interleave, log_progress
from tools.suites.machine_load import MachineLoad
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, call_all, close_all

_WARM_SECONDS = 4.0
_DECODE_SECONDS = 3.0


def run(options: Options) -> Result:
  """Returns a table, the figures by name, and a plot."""
  machine = MachineLoad()
  num_seeds, seconds = (1, 9.0) if options.quick else (3, 16.0)
  with tempfile.TemporaryDirectory() as folder:
    writer = Worker("writer", Writer)
    with close_all([writer]):
      writer.call("write", folder)
    traces = _read(folder, PROFILES, num_seeds, seconds)
    # Nothing but decoding takes time.
    large = _read(f"{folder}/large", ["calm"], 1, seconds, latency=0.0)
    traces["decoding"] = large["calm"]
    rates = _decode(folder, 10 if options.quick else 40)
  values = figures.gather(traces, rates)
  values.update(machine.figures())
  return Result(
    figures.format_table(values),
    values,
    lambda path: plot.draw(traces["bursts"], path),
  )


class Writer:
  """Writes the images that are read, in a process that has TensorFlow."""

  def write(self, folder: str) -> None:
    """Writes all sets."""
    write_set(folder)
    os.mkdir(f"{folder}/large")
    write_set(f"{folder}/large", LARGE_SIZE)
    write_photos(folder)


def _read(
  folder: str,
  profiles: Iterable[str],
  num_seeds: int,
  seconds: float,
  latency: float = LATENCY,
) -> Traces:
  """Traces all sides under some profiles."""
  storage = Worker("storage", functools.partial(Storage, folder))
  with close_all([storage]):
    address = storage.call("get_address")
    sides = {
      name: Worker(name, functools.partial(Side, name, address))
      for name in SIDES
    }
    with close_all(sides.values()):
      call_all(sides.values(), "run", 0.0, 0.5)  # Traces the graphs.
      run_profile = functools.partial(
        _trace_side, storage, seconds=seconds, latency=latency
      )
      return _trace_sides(run_profile, sides, list(profiles), num_seeds)


def _trace_sides(
  run_profile: Callable[..., Trace],
  sides: Dict[str, Worker],
  profiles: Sequence[str],
  num_seeds: int,
) -> Traces:
  traces: Dict[str, Dict[str, List[Trace]]] = {
    profile: {name: [] for name in SIDES} for profile in profiles
  }
  order = list(SIDES)
  for seed in range(num_seeds):
    for profile in profiles:
      for name in order:
        trace = run_profile(sides[name], profile, seed)
        traces[profile][name].append(trace)
      order.reverse()
      log_progress(f"Seed {seed + 1} of {num_seeds}: {profile}.")
  return traces


def _trace_side(
  storage: Worker,
  side: Worker,
  profile: str,
  seed: int,
  seconds: float,
  latency: float,
) -> Trace:
  """Traces one side: a warm-up in calm, then the profile."""
  storage.call("set_profile", "calm", latency, seed)
  side.submit("run", _WARM_SECONDS, seconds)
  time.sleep(_WARM_SECONDS)
  storage.call("set_profile", profile, latency, seed)
  return side.wait()


def _decode(folder: str, seconds: float) -> Dict[str, np.ndarray]:
  """Returns images a second of one core: ours, and a bare loop's."""
  workers = {
    name: Worker(name, functools.partial(Decoder, name, folder))
    for name in ("ours", "bare")
  }
  with close_all(workers.values()):
    call_all(workers.values(), "run", 1.0)
    tasks = {
      name: functools.partial(worker.call, "run", _DECODE_SECONDS)
      for name, worker in workers.items()
    }
    return interleave(tasks, time.monotonic() + seconds)
