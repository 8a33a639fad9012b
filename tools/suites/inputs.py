"""Whether the input starves the device: suite `input`.

A storage in a process of its own answers over HTTP: always as late (calm), with
a heavy tail, or with bursts of congestion. Our pipeline, `prefetch(2)` and
`AUTOTUNE` read it in turns, with as many reads and bytes allowed; each feeds a
device that sleeps for its step. Then images are decoded as fast as it goes.
"""

import functools
import tempfile
import time
from typing import Dict, List

import numpy as np

from tools.suites import input_plot, input_sides, meanwhile
from tools.suites.decoding import Decoder, write_photos
from tools.suites.input_sides import LATENCY, Side, Trace
from tools.suites.meanwhile import Meanwhile
from tools.suites.rounds import add_spread, say, spread, take_turns
from tools.suites.storage import LAWS, Storage
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, ask_all, closing

SIDES = ("ours", "prefetch_2", "autotune")
_WARM_SECONDS = 4.0
_DECODE_SECONDS = 3.0

# By law and side, a trace a seed.
Traces = Dict[str, Dict[str, List[Trace]]]


def run(options: Options) -> Result:
  """Returns a table to read, the figures by name, and the plot."""
  watch = Meanwhile()
  num_seeds, seconds = (1, 9.0) if options.quick else (3, 16.0)
  with tempfile.TemporaryDirectory() as folder:
    maker = Worker("maker", Maker)
    with closing([maker]):
      maker.ask("write", folder)
    traces = _read(folder, num_seeds, seconds)
    rates = _decode(folder, 10 if options.quick else 40)
  figures = gather(traces, rates)
  figures.update(watch.figures())
  return Result(
    table(figures),
    figures,
    lambda path: input_plot.draw(traces["bursts"], path),
  )


class Maker:
  """Writes what is read."""

  def write(self, folder: str) -> None:
    """Writes both sets."""
    input_sides.write_set(folder)
    write_photos(folder)


def _read(folder: str, num_seeds: int, seconds: float) -> Traces:
  storage = Worker("storage", functools.partial(Storage, folder))
  with closing([storage]):
    address = storage.ask("address")
    sides = {
      name: Worker(name, functools.partial(Side, name, address))
      for name in SIDES
    }
    with closing(sides.values()):
      ask_all(sides.values(), "run", 0.0, 0.5)  # Traces what is traced.
      traces: Traces = {law: {name: [] for name in SIDES} for law in LAWS}
      order = list(SIDES)
      for seed in range(num_seeds):
        for law in LAWS:
          for name in order:
            side = sides[name]
            traces[law][name].append(_turn(storage, side, law, seed, seconds))
          order.reverse()
          say(f"Seed {seed + 1} of {num_seeds}: {law}.")
  return traces


def _turn(
  storage: Worker, side: Worker, law: str, seed: int, seconds: float
) -> Trace:
  """Lets one side read: first in calm, then by the law."""
  storage.ask("begin", "calm", LATENCY, seed)
  side.tell("run", _WARM_SECONDS, seconds)
  time.sleep(_WARM_SECONDS)
  storage.ask("begin", law, LATENCY, seed)
  return side.answer()


def _decode(folder: str, seconds: float) -> Dict[str, np.ndarray]:
  """Returns images a second of one core: ours, and a bare loop's."""
  workers = {
    name: Worker(name, functools.partial(Decoder, name, folder))
    for name in ("ours", "bare")
  }
  with closing(workers.values()):
    ask_all(workers.values(), "run", 1.0)
    turns = {
      name: functools.partial(worker.ask, "run", _DECODE_SECONDS)
      for name, worker in workers.items()
    }
    return take_turns(turns, time.monotonic() + seconds)


def gather(traces: Traces, rates: Dict[str, np.ndarray]) -> Dict[str, float]:
  """Returns the flat figures."""
  figures: Dict[str, float] = {}
  for law, sides in traces.items():
    speeds = {
      name: np.array([trace.images_per_second for trace in seen])
      for name, seen in sides.items()
    }
    sizes = {
      name: np.array([trace.num_bytes.mean() for trace in seen])
      for name, seen in sides.items()
    }
    peaks = {
      name: np.array([trace.num_bytes.max() for trace in seen])
      for name, seen in sides.items()
    }
    for name, seen in sides.items():
      figures[f"{law}_{name}_images_per_second"] = float(speeds[name].mean())
      idle = [trace.waits.sum() / trace.times[-1] for trace in seen]
      figures[f"{law}_{name}_idle"] = float(np.mean(idle))
      figures[f"{law}_{name}_bytes"] = float(sizes[name].mean())
      figures[f"{law}_{name}_peak_bytes"] = float(peaks[name].max())
    add_spread(
      figures, f"{law}_vs_autotune", speeds["ours"] / speeds["autotune"]
    )
    add_spread(
      figures, f"{law}_bytes_vs_autotune", sizes["ours"] / sizes["autotune"]
    )
    add_spread(
      figures,
      f"{law}_peak_bytes_vs_autotune",
      peaks["ours"] / peaks["autotune"],
    )
    best = np.max([speeds[name] for name in SIDES], 0)
    add_spread(figures, f"{law}_vs_best", speeds["ours"] / best)
  add_spread(figures, "decode_vs_bare", rates["ours"] / rates["bare"])
  add_spread(figures, "decode_images_per_second", rates["ours"])
  figures["num_seeds"] = len(traces["calm"]["ours"])
  return figures


def table(figures: Dict[str, float]) -> str:
  """Returns the figures as lines."""
  lines = [
    f"{'':14}{'':14}{'images/s':12}{'device idle':14}{'MB held':12}at most"
  ]
  for law in LAWS:
    for name in SIDES:
      key = f"{law}_{name}"
      lines.append(
        f"{law if name == SIDES[0] else '':14}{name:14}"
        f"{figures[f'{key}_images_per_second']:<12.0f}"
        f"{figures[f'{key}_idle']:<14.1%}"
        f"{figures[f'{key}_bytes'] / 1e6:<12.2f}"
        f"{figures[f'{key}_peak_bytes'] / 1e6:.2f}"
      )
  lines.append("")
  for law in ("bursts", "heavy_tail"):
    speed = spread(figures, f"{law}_vs_autotune", ".2f")
    size = spread(figures, f"{law}_bytes_vs_autotune", ".2f")
    lines.append(f"{law:14}{speed} of AUTOTUNE's images/s, {size} of its bytes")
  lines += [
    f"{'calm':14}{spread(figures, 'calm_vs_best', '.2f')} of the best",
    f"{'decode':14}{spread(figures, 'decode_vs_bare', '.2f')} of a bare loop, "
    f"{figures['decode_images_per_second']:.0f} images/s on one core",
    f"seeds {figures['num_seeds']}; {meanwhile.words(figures)}",
  ]
  return "\n".join(lines)
