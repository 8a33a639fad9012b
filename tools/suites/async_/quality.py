"""What is learned with split roles, over steps and over time.

The embedded set, DCGAN with the learning rates and batch of its paper, scored
by the Fréchet distance on the embedded classifier. All sides of a seed train
interleaved, a slice each, on two logical devices of one thread each. The clock
runs only while a side trains; faster sides make as many more steps as fit into
sync's time.

    sync            G and D train one after the other, on 128 images a step; G
                    on fakes of its own, as the papers write it; gradients
                    averaged at every step
    sync_reuse      the same, but G trains on the fakes that D has just seen,
                    which saves a pass of G: the default of a run
    sync_optimistic, sync_adabelief_adam
                    sync with the optimizers of the async sides of that name
    async           the same number of images, split roles, both optimistic
    async_d64       G 128 images, D 64: the shape that ParaGAN's poster plots
    and async with other optimizers for G and D, and with an exchange at every
    other step
"""

import functools
import time
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.async_.sides import FRESH_FAKES, Learner
from tools.suites.interleave import interleave, log_progress
from tools.suites.suite import Options
from tools.suites.workers import Worker, call_all, close_all

_GIN_FILE = "gin/runs/fashion.gin"
_SMALL = (
  "Experiment.batch_size = 128",
  "dcgan.Generator.width = 12",
  "dcgan.Discriminator.width = 16",
)
# Learning rates of DCGAN's paper, for sides whose gin files set none.
_ADAM = (
  "g/Adam.learning_rate = 2e-4",
  "d/Adam.learning_rate = 2e-4",
  "Adam.beta1 = 0.0",
  "Adam.beta2 = 0.999",
)
_ASYNC = ("gin/sync/async.gin",)
_OPTIMISTIC = ("gin/optimizers/optimistic.gin",)
_ADABELIEF = ("gin/optimizers/adabelief_adam.gin",)
_D64 = (
  "Experiment.batch_size = 64",
  "schedule.Asynchronous.g_batch_size = 128",
)
# Name: title, gin files, gin bindings.
SIDES: Dict[str, Tuple[str, Sequence[str], Sequence[str]]] = {
  "sync": (
    "sync, G 128 / D 128, Adam / Adam",
    (),
    (*_ADAM, *FRESH_FAKES),
  ),
  "sync_reuse": ("sync, G reuses D's fakes, Adam / Adam", (), _ADAM),
  "sync_optimistic": ("sync, optimistic Adam / Adam", _OPTIMISTIC, FRESH_FAKES),
  "sync_adabelief_adam": ("sync, AdaBelief / Adam", _ADABELIEF, FRESH_FAKES),
  "async": (
    "async, G 128 / D 128, optimistic Adam / Adam",
    (*_ASYNC, *_OPTIMISTIC),
    (),
  ),
  "async_d64": (
    "async, G 128 / D 64, optimistic Adam / Adam",
    (*_ASYNC, *_OPTIMISTIC),
    _D64,
  ),
  "async_adam_adam": ("async, Adam / Adam", _ASYNC, _ADAM),
  "paragan_adam_adam": (
    "async at every other step, Adam / Adam",
    ("gin/sync/paragan.gin",),
    _ADAM,
  ),
  "async_adabelief_adam": (
    "async, AdaBelief / Adam",
    (*_ASYNC, *_ADABELIEF),
    (),
  ),
  "async_lars_adam": (
    "async, LARS / Adam",
    (*_ASYNC, "gin/optimizers/lars_adam.gin"),
    (),
  ),
  "async_ttur": (
    "async, Adam / Adam, D four times as fast",
    (*_ASYNC, "gin/optimizers/ttur.gin"),
    (),
  ),
}
_QUICK = ("sync", "async", "async_d64")
# The panels of the plot: batch sizes and schedules, pairs of optimizers.
PLAIN = ("sync", "sync_reuse", "async", "async_d64", "paragan_adam_adam")
PAIRS = ("sync", "async", *(name for name in SIDES if name not in PLAIN))
_SEEDS = (0, 1, 2)
_PACE_STEPS, _PACE_SECONDS = 10, 60  # Of measuring the speed of each side.


class Curve(NamedTuple):
  """How one side learned.

  Attributes:
    steps: The steps at which it was measured.
    seconds: Of training up to each of them, a row a seed.
    distances: The Fréchet distances there, a row a seed.
  """

  steps: np.ndarray
  seconds: np.ndarray
  distances: np.ndarray


Quality = Dict[str, Curve]


def run(options: Options) -> Quality:
  """Trains sync and all selected sides, with all seeds."""
  num_slices, num_steps = (4, 180) if options.quick else (8, 200)
  selected = ("sync", *options.select_sides(SIDES))
  if options.quick and not options.only:
    selected = _QUICK
  names = [name for name in SIDES if name in selected]
  num_fair = find_fair_steps(num_steps, names)
  rows: Dict[str, List[np.ndarray]] = {name: [] for name in num_fair}
  for seed in _SEEDS:
    for name, points in _train(seed, num_slices, num_fair).items():
      rows[name].append(np.array(points).T)
  return {
    name: Curve(
      num_fair[name] * np.arange(1, num_slices + 1),
      *np.stack(points).transpose(1, 0, 2),
    )
    for name, points in rows.items()
  }


def find_fair_steps(num_steps: int, names: Sequence[str]) -> Dict[str, int]:
  """Returns the steps that each side makes while sync makes `num_steps`."""
  log_progress(f"Measuring speeds: starting {len(names)} sides.")
  workers = _start_workers(_SEEDS[0], names)
  with close_all(workers.values()):
    cycles = call_all(workers.values(), "warm_up")
    tasks = {
      name: functools.partial(worker.call, "run", _PACE_STEPS)
      for name, worker in workers.items()
    }
    seconds = interleave(tasks, time.monotonic() + _PACE_SECONDS)
  num_fair = {}
  for name, cycle in zip(workers, cycles):
    faster = float(np.median(seconds["sync"] / seconds[name]))
    num_fair[name] = max(1, round(num_steps * faster / cycle)) * cycle
  return num_fair


def _start_workers(seed: int, names: Iterable[str]) -> Dict[str, Worker]:
  workers = {}
  for name in names:
    files = SIDES[name][1]
    bindings = (f"Experiment.seed = {seed}", *make_bindings(name))
    make = functools.partial(Learner, _GIN_FILE, files, bindings)
    workers[name] = Worker(name, make)
  return workers


def make_bindings(name: str) -> Sequence[str]:
  """Returns the gin bindings over the files of a side."""
  return (*_SMALL, *SIDES[name][2])


def _train(seed: int, num_slices: int, num_fair: Mapping[str, int]):
  """Returns seconds and distance of each side after each slice."""
  log_progress(f"Seed {seed} of {_SEEDS}: starting {len(num_fair)} sides.")
  workers = _start_workers(seed, num_fair)
  points: Dict[str, List[Tuple[float, float]]] = {name: [] for name in num_fair}
  with close_all(workers.values()):
    call_all(workers.values(), "warm_up")
    order = list(workers)
    for index in range(num_slices):
      for name in order:
        before = points[name][-1][0] if points[name] else 0.0
        seconds = before + workers[name].call("run", num_fair[name])
        distance = workers[name].call("measure_distance")
        points[name].append((seconds, distance))
      order.reverse()
      now = ", ".join(f"{name} {p[-1][1]:.0f}" for name, p in points.items())
      log_progress(f"Seed {seed}, {index + 1} of {num_slices} slices: {now}.")
  return points


def gather(quality: Quality) -> Dict[str, float]:
  """Returns the figures by name: distances, seconds, time to quality."""
  figures: Dict[str, float] = {}
  for name, curve in quality.items():
    figures[f"{name}_num_steps"] = int(curve.steps[-1])
    final = curve.distances[:, -1]
    figures[f"{name}_frechet"] = float(final.mean())
    figures[f"{name}_frechet_std"] = float(final.std(ddof=1))
    figures[f"{name}_seconds"] = float(curve.seconds[:, -1].mean())
  sync = quality["sync"]
  for name, curve in quality.items():
    if name != "sync":
      level = max(find_lowest(sync), find_lowest(curve))
      seconds = [find_time_to(level, one) for one in (sync, curve)]
      figures[f"{name}_vs_sync_time_to_quality"] = seconds[0] / seconds[1]
      figures[f"{name}_level"] = level
      reaches = find_lowest(curve) <= find_lowest(sync)
      figures[f"{name}_reaches_sync"] = float(reaches)
  return figures


def find_lowest(curve: Curve) -> float:
  """Returns the lowest mean distance over seeds."""
  return float(curve.distances.mean(0).min())


def find_time_to(level: float, curve: Curve) -> float:
  """Returns when the mean over seeds first is at `level`, which it reaches.

  The logarithm of the distance is interpolated between two measurements.
  """
  seconds, distances = curve.seconds.mean(0), curve.distances.mean(0)
  i = int(np.argmax(distances <= level))
  if i == 0:
    return float(seconds[0])
  ends = np.log(distances[i - 1 : i + 1])
  part = (ends[0] - np.log(level)) / (ends[0] - ends[1])
  return float(seconds[i - 1] + part * (seconds[i] - seconds[i - 1]))


def format_table(figures: Dict[str, float], quality: Quality) -> str:
  """Returns the figures as text."""
  lines = [
    f"{f'{len(_SEEDS)} seeds':48}{'Fréchet distance':18}{'steps':7}"
    f"{'seconds':9}times as fast as sync to"
  ]
  for name in quality:
    mean, deviation, steps, seconds = (
      figures[f"{name}_{what}"]
      for what in ("frechet", "frechet_std", "num_steps", "seconds")
    )
    key = f"{name}_vs_sync_time_to_quality"
    speed = ""
    if key in figures:
      speed = f"{figures[key]:.2f} to {figures[f'{name}_level']:.1f}"
    lines.append(
      f"{SIDES[name][0]:48}{f'{mean:.1f} +- {deviation:.1f}':18}"
      f"{steps:<7.0f}{seconds:<9.1f}{speed}".rstrip()
    )
  return "\n".join(lines)
