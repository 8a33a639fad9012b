"""What G and D learn apart, over steps and over time: suite `async`.

The embedded set, DCGAN, the Frechet distance on the embedded classifier. All
sides of a seed train in turns, a slice of steps each, on two logical devices
of one thread each; the clock runs while they train only.

    sync          G and D 128 images a step, gradients averaged at every step
    async         the same number, ParaGAN's scheme
    async_d64     G 128 images, D 64: the shape that ParaGAN's poster plots
    and async with other optimizers for G and D
"""

import functools
from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.apart_sides import Learner
from tools.suites.rounds import say
from tools.suites.workers import Worker, ask_all, closing

_GIN_FILE = "gin/runs/fashion.gin"
_SMALL = (
  "Experiment.batch_size = 128",
  "dcgan.Generator.width = 16",
  "dcgan.Discriminator.width = 16",
  "Adam.beta1 = 0.0",
)
_PARAGAN = ("gin/sync/paragan.gin",)
# Late views want a slower D; sync is best with the same rate for both.
_SLOW_D = ("d/Adam.learning_rate = 5e-4",)
_D64 = (
  *_SLOW_D,
  "Experiment.batch_size = 64",
  "schedule.Asynchronous.g_batch_size = 128",
)
# Name: title, gin files, gin bindings.
SIDES: Dict[str, Tuple[str, Sequence[str], Sequence[str]]] = {
  "sync": ("sync, G 128 / D 128", (), ()),
  "async": ("async, G 128 / D 128, Adam / Adam", _PARAGAN, _SLOW_D),
  "async_d64": ("async, G 128 / D 64", _PARAGAN, _D64),
  "async_adabelief_adam": (
    "async, AdaBelief / Adam",
    (*_PARAGAN, "gin/policy/adabelief_adam.gin"),
    ("g/AdaBelief.learning_rate = 1e-3", *_SLOW_D),
  ),
  "async_lars_adam": (
    "async, LARS / Adam",
    (*_PARAGAN, "gin/policy/lars_adam.gin"),
    ("g/LARS.learning_rate = 0.2", *_SLOW_D),
  ),
  "async_ttur": (
    "async, Adam / Adam, D four times as fast",
    (*_PARAGAN, "gin/policy/ttur.gin"),
    ("g/rates.linear.rate = 5e-4", "d/rates.linear.rate = 2e-3"),
  ),
  "async_optimistic": (
    "async at every step, optimistic Adam / Adam",
    ("gin/sync/async.gin", "gin/policy/optimistic.gin"),
    (
      "g/OptimisticAdam.learning_rate = 1e-3",
      "d/OptimisticAdam.learning_rate = 5e-4",
    ),
  ),
}
PLAIN = ("sync", "async", "async_d64")
PAIRS = tuple(name for name in SIDES if name not in ("sync", "async_d64"))
_SEEDS = (0, 1, 2)


class Curve(NamedTuple):
  """How one side learned: a row a seed, a column a measurement."""

  seconds: np.ndarray
  distances: np.ndarray


class Quality(NamedTuple):
  """What was learned: steps of the measurements, and a curve a side."""

  steps: np.ndarray
  curves: Dict[str, Curve]


def run(quick: bool) -> Quality:
  """Trains all sides with all seeds."""
  num_slices, num_steps = (4, 80) if quick else (8, 126)
  steps = num_steps * np.arange(1, num_slices + 1)
  rows: Dict[str, List[np.ndarray]] = {name: [] for name in SIDES}
  for seed in _SEEDS:
    say(f"Seed {seed} of {_SEEDS}: starting {len(SIDES)} sides.")
    for name, points in _train(seed, num_slices, num_steps).items():
      rows[name].append(np.array(points).T)
  curves = {
    name: Curve(*np.stack(points).transpose(1, 0, 2))
    for name, points in rows.items()
  }
  return Quality(steps, curves)


def _train(seed: int, num_slices: int, num_steps: int):
  """Returns seconds and distance of each side after each slice."""
  workers = {
    name: Worker(
      name,
      functools.partial(
        Learner,
        _GIN_FILE,
        files,
        (*_SMALL, f"Experiment.seed = {seed}", *more),
      ),
    )
    for name, (_, files, more) in SIDES.items()
  }
  points: Dict[str, List[Tuple[float, float]]] = {name: [] for name in SIDES}
  with closing(workers.values()):
    ask_all(workers.values(), "warm_up")
    order = list(workers)
    for index in range(num_slices):
      for name in order:
        before = points[name][-1][0] if points[name] else 0.0
        seconds = before + workers[name].ask("run", num_steps)
        points[name].append((seconds, workers[name].ask("distance")))
      order.reverse()
      say(f"Seed {seed}, {index + 1} of {num_slices} slices.")
  return points


def gather(quality: Quality) -> Dict[str, float]:
  """Returns the flat figures: final distances, seconds, time to quality."""
  figures: Dict[str, float] = {"quality_num_steps": int(quality.steps[-1])}
  for name, curve in quality.curves.items():
    final = curve.distances[:, -1]
    figures[f"{name}_frechet"] = float(final.mean())
    figures[f"{name}_frechet_std"] = float(final.std(ddof=1))
    figures[f"{name}_seconds"] = float(curve.seconds[:, -1].mean())
  sync = quality.curves["sync"]
  for name, curve in quality.curves.items():
    if name != "sync":
      level = max(lowest(sync), lowest(curve))
      seconds = [time_to(level, one) for one in (sync, curve)]
      figures[f"{name}_vs_sync_time_to_quality"] = seconds[0] / seconds[1]
      figures[f"{name}_level"] = level
      figures[f"{name}_reaches_sync"] = float(lowest(curve) <= lowest(sync))
  return figures


def lowest(curve: Curve) -> float:
  """Returns the lowest mean over seeds."""
  return float(curve.distances.mean(0).min())


def time_to(level: float, curve: Curve) -> float:
  """Returns when the mean over seeds first is at `level`, which it reaches.

  Between two measurements the logarithm of the distance is taken for a line.
  """
  seconds, distances = curve.seconds.mean(0), curve.distances.mean(0)
  i = int(np.argmax(distances <= level))
  if i == 0:
    return float(seconds[0])
  ends = np.log(distances[i - 1 : i + 1])
  part = (ends[0] - np.log(level)) / (ends[0] - ends[1])
  return float(seconds[i - 1] + part * (seconds[i] - seconds[i - 1]))


def table(figures: Dict[str, float], quality: Quality) -> str:
  """Returns the figures as lines."""
  lines = [
    f"{f'after {quality.steps[-1]} steps, {len(_SEEDS)} seeds':44}"
    f"{'Frechet distance':22}{'seconds':10}times as fast as sync to"
  ]
  for name in quality.curves:
    key = f"{name}_vs_sync_time_to_quality"
    speed = ""
    if key in figures:
      speed = f"{figures[key]:.2f} to {figures[f'{name}_level']:.1f}"
    mean, deviation = (figures[f"{name}_frechet{x}"] for x in ("", "_std"))
    distance = f"{mean:.1f} +- {deviation:.1f}"
    lines.append(
      f"{SIDES[name][0]:44}{distance:22}"
      f"{figures[f'{name}_seconds']:<10.1f}{speed}"
    )
    lines[-1] = lines[-1].rstrip()
  return "\n".join(lines)
