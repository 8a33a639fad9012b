"""What is learned with exchanges that send little: `--quality`.

The embedded set, DCGAN, the Fréchet distance on the embedded classifier. Four
logical replicas of one process train both players at the same time with
optimistic Adam, for the same number of steps and so of images:

    central           gradients averaged at every step
    accumulated       gradients added up, averaged at every other step
    gossip            weights mixed with the neighbors' on a ring
    gossip_by_label   the same, and no class is seen by two replicas
    dq8, dq4, top1    updates in 8 bits, in 4, the largest 1 %

Sides that end with `_sgd` have plain optimistic gradients, as their papers do,
and are compared with each other.
"""

import functools
from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.interleave import log_progress
from tools.suites.learner import Learner
from tools.suites.suite import Options
from tools.suites.wire.sides import ACCUMULATED, GOSSIP, QUANTIZED, TOP
from tools.suites.workers import Worker, call_all, close_all

_GIN_FILE = "gin/runs/fashion.gin"
_CENTRAL = ("gin/optimizers/optimistic.gin",)
_GOSSIP_SGD = ("gin/sync/gossip_sgd.gin",)
_CENTRAL_SGD = (*_GOSSIP_SGD, "gin/sync/all_reduce.gin")
_BASE = (
  "from paragan_tf.data import input_fn",
  "from paragan_tf.sync import compress",
  "Experiment.schedule = @schedule.Simultaneous",
  "Experiment.batch_size = 128",
  "dcgan.Generator.width = 16",
  "dcgan.Discriminator.width = 16",
  "g/OptimisticAdam.learning_rate = 5e-4",
  "d/OptimisticAdam.learning_rate = 5e-4",
)
# Name: title, gin files, gin bindings.
SIDES: Dict[str, Tuple[str, Sequence[str], Sequence[str]]] = {
  "central": ("all-reduce", _CENTRAL, ()),
  "accumulated": ("gradients, 2nd steps", (*_CENTRAL, *ACCUMULATED), ()),
  "gossip": ("ring gossip", GOSSIP, ()),
  "gossip_by_label": (
    "ring gossip, own classes",
    GOSSIP,
    ("InputFn.by_label = True",),
  ),
  "dq8": ("DQGAN, 8 bits", QUANTIZED, ()),
  "dq4": ("DQGAN, 4 bits", QUANTIZED, ("Stochastic.bits = 4",)),
  "top1": ("DQGAN, largest 1 %", QUANTIZED, TOP),
  "central_sgd": ("all-reduce, SGD", _CENTRAL_SGD, ()),
  "gossip_sgd": ("ring gossip, SGD", _GOSSIP_SGD, ()),
  "dq8_sgd": ("DQGAN, 8 bits, SGD", ("gin/sync/quantized_sgd.gin",), ()),
}
_SEEDS = (0, 1, 2)
_NUM_REPLICAS = 4


class Quality(NamedTuple):
  """The number of steps, and the distance after them, one a seed."""

  num_steps: int
  distances: Dict[str, np.ndarray]


class Replicas(Learner):
  """A run on logical CPU devices of one process."""

  def __init__(self, files: Sequence[str], bindings: Sequence[str]):
    super().__init__(_GIN_FILE, files, (*_BASE, *bindings), _NUM_REPLICAS)

  def train(self, num_steps: int, num_samples: int = 2000) -> float:
    """Trains; returns the Fréchet distance of the consolidated replicas."""
    self.advance(num_steps)
    return self.measure(num_samples, only=["fid"])[0]["value"]


def run(options: Options) -> Quality:
  """Trains the selected sides with all seeds."""
  num_steps = 400 if options.quick else 600
  names = select_sides(options)
  rows: Dict[str, List[float]] = {name: [] for name in names}
  for seed in _SEEDS:
    log_progress(
      f"Seed {seed} of {_SEEDS}: {len(names)} sides, {num_steps} steps."
    )
    for name, distance in train(seed, num_steps, names).items():
      rows[name].append(distance)
  return Quality(num_steps, {n: np.array(row) for n, row in rows.items()})


def select_sides(options: Options) -> Tuple[str, ...]:
  """Returns the sides to train, with those that they are compared with."""
  selected = options.select_sides(SIDES)
  needed = {*selected, *map(_find_central, selected)}
  return tuple(name for name in SIDES if name in needed)


def train(seed: int, num_steps: int, names: Sequence[str]) -> Dict[str, float]:
  """Returns the distance of each side after `num_steps`."""
  workers = {}
  for name in names:
    _, files, more = SIDES[name]
    bindings = (f"Experiment.seed = {seed}", *more)
    make = functools.partial(Replicas, files, bindings)
    workers[name] = Worker(name, make)
  with close_all(workers.values()):
    return dict(zip(names, call_all(workers.values(), "train", num_steps)))


def gather(quality: Quality) -> Dict[str, float]:
  """Returns the figures by name: mean and deviation over seeds."""
  figures: Dict[str, float] = {"quality_num_steps": quality.num_steps}
  for name, distances in quality.distances.items():
    figures[f"{name}_frechet"] = float(distances.mean())
    figures[f"{name}_frechet_std"] = float(distances.std(ddof=1))
  for name, distances in quality.distances.items():
    central = quality.distances[_find_central(name)]
    if name != _find_central(name):
      figures[f"{name}_frechet_gap"] = float(distances.mean() - central.mean())
      figures[f"{name}_frechet_noise"] = estimate_noise(distances, central)
  return figures


def _find_central(name: str) -> str:
  """Returns the side with which one is compared: the same optimizer."""
  return "central_sgd" if name.endswith("_sgd") else "central"


def estimate_noise(one: np.ndarray, other: np.ndarray) -> float:
  """Returns how much two means over seeds may differ by chance.

  Twice the deviation of their difference, which chance exceeds about one time
  in twenty.
  """
  squares = [x.var(ddof=1) / len(x) for x in (one, other)]
  return float(2.0 * np.sqrt(sum(squares)))


def format_table(figures: Dict[str, float]) -> str:
  """Returns the figures as text."""
  num_steps = figures["quality_num_steps"]
  lines = [
    f"{_NUM_REPLICAS} replicas, {num_steps:.0f} steps, {len(_SEEDS)} seeds",
    f"{'':30}{'Fréchet distance':20}gap to all-reduce (seed noise)",
  ]
  for name, (title, _, _) in SIDES.items():
    if f"{name}_frechet" not in figures:
      continue
    mean, deviation = (figures[f"{name}_frechet{x}"] for x in ("", "_std"))
    distance = f"{mean:.1f} +- {deviation:.1f}"
    lines.append(
      f"{title:30}{distance:20}{_format_gap(figures, name)}".rstrip()
    )
  return "\n".join(lines)


def _format_gap(figures: Dict[str, float], name: str) -> str:
  if f"{name}_frechet_gap" not in figures:
    return ""
  gap, chance = (figures[f"{name}_frechet_{x}"] for x in ("gap", "noise"))
  verdict = "worse" if gap > 0.0 else "better"
  if abs(gap) <= chance:
    verdict = "within seed noise"
  return f"{gap:+.1f} ({chance:.1f}): {verdict}"
