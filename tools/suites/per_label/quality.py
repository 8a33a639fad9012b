"""What one conditional GAN learns, and what a GAN for each label does.

Both have the same nets, loss, optimizers and batch, and the same compute, which
is images times multiply-adds: each of K labels gets a K-th of the conditional
GAN's multiply-adds, which are counted in the graphs of a step. Each side is a
run of `tools.train`, which measures samples at the data's label frequencies.

    hinge      DCGAN with hinge loss, as the default run
    wgan_gp    WGAN-GP's residual pair, five updates of the critic
"""

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from tools.suites.interleave import log_progress
from tools.suites.ours import count_step
from tools.suites.suite import Options
from tools.suites.workers import Worker, close_all

_POOL = "gin/sync/per_label.gin"
_NUM_LABELS = 10
_METRICS = ("frechet", "intra_frechet", "recall", "precision")
_SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Game:
  """What both sides of a comparison play.

  Attributes:
    title: In the table.
    gin_files: Of both sides; those of the pool come before.
    bindings: Of both sides.
    num_steps: Of the conditional GAN.
    seeds: How many.
  """

  title: str
  gin_files: Sequence[str]
  bindings: Sequence[str]
  num_steps: int
  seeds: int = len(_SEEDS)


_DCGAN = (
  "dcgan.Generator.width = 12",
  "dcgan.Discriminator.width = 12",
  "Experiment.batch_size = 32",
  "ema.Ema.start_step = 50",
  "d/experiment.player.penalties = ()",
)
_WGAN = (
  "wgan_gp.Generator.width = 8",
  "wgan_gp.Discriminator.width = 8",
  "Experiment.batch_size = 16",
  "ema.Ema.start_step = 20",
)
_CIFAR = ("gin/data/cifar10.gin",)
GAMES: Dict[str, Game] = {
  "fashion_hinge": Game(
    "Fashion-MNIST, DCGAN, hinge", ("gin/runs/fashion.gin",), _DCGAN, 3000
  ),
  "fashion_hinge_long": Game(
    "Fashion-MNIST, DCGAN, hinge, 5 times as long",
    ("gin/runs/fashion.gin",),
    _DCGAN,
    16000,
    seeds=1,
  ),
  "fashion_wgan_gp": Game(
    "Fashion-MNIST, WGAN-GP", ("gin/runs/per_label_fashion.gin",), _WGAN, 2000
  ),
  "cifar10_hinge": Game(
    "CIFAR-10, DCGAN, hinge, by MobileNetV2",
    ("gin/runs/fashion.gin", *_CIFAR),
    # Of a color set the features are those of MobileNetV2 (`make cifar10`),
    # whether the network of FID was fetched or not.
    (
      *_DCGAN,
      "Run.num_metric_samples = 2000",
      "Experiment.extractor = 'mobilenet'",
    ),
    3000,
    seeds=1,
  ),
}
QUICK = ("fashion_hinge",)
SIDES = ("conditional", "per_label")


class Cost:
  """Counts what one step of a side costs; in a process of its own."""

  def __init__(self, game: Game, side: str):
    from paragan_tf import config, experiment
    from paragan_tf.engine import strategies

    files, bindings = _list_config(game, side, seed=0)
    bindings += ["InputFn.label = 0"] if side == "per_label" else []
    config.load(files, bindings)
    self._experiment = experiment.Experiment(strategies.choose_alone())

  def count(self) -> float:
    """Returns the multiply-adds of a step."""
    return float(count_step(self._experiment).executed)


def run(options: Options) -> Dict[str, float]:
  """Returns the metrics of each game, side and seed, and their means."""
  names = options.select_sides(GAMES)
  if options.quick and not options.only:
    names = QUICK
  figures: Dict[str, float] = {}
  for name in names:
    game = GAMES[name]
    seeds = _SEEDS[: 1 if options.quick else game.seeds]
    steps = count_steps(game)
    figures.update({f"{name}.{side}.steps": steps[side] for side in SIDES})
    for seed in seeds:
      for side in SIDES:
        log_progress(f"{game.title}: {side}, seed {seed}.")
        found = train(game, side, seed, steps[side])
        key = f"{name}.{side}"
        figures.update({f"{key}.seed{seed}.{k}": v for k, v in found.items()})
    figures.update(_average(name, seeds, figures))
  return figures


def count_steps(game: Game) -> Dict[str, int]:
  """Returns the steps of each side, of each label, for the same compute."""
  costs = {}
  for side in SIDES:
    worker = Worker("cost", functools.partial(Cost, game, side))
    with close_all([worker]):
      costs[side] = worker.call("count")
  share = costs["conditional"] / costs["per_label"] / _NUM_LABELS
  return {
    "conditional": game.num_steps,
    "per_label": max(1, round(game.num_steps * share)),
  }


def train(game: Game, side: str, seed: int, num_steps: int) -> Dict[str, float]:
  """Trains one side of a game; returns its metrics and its cost."""
  files, bindings = _list_config(game, side, seed)
  bindings += [
    f"Run.num_steps = {num_steps}",
    "Run.log_every = 20",
    f"Run.save_every = {num_steps}",
    f"Run.sample_every = {num_steps}",
  ]
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "run")
    command = [sys.executable, "-m", "paragan_tf", "train"]
    command += [f"--gin_file={file}" for file in files]
    command += [f"--gin_bindings={binding}" for binding in bindings]
    subprocess.run(
      [*command, f"--model_dir={path}"], check=True, stdout=subprocess.DEVNULL
    )
    return _read(path, side)


def _list_config(
  game: Game, side: str, seed: int
) -> Tuple[List[str], List[str]]:
  """Returns gin files and bindings of a side."""
  bindings = [*game.bindings, f"Experiment.seed = {seed}"]
  if side == "conditional":
    bindings.append("training.choose.pool = None")
  return [_POOL, *game.gin_files], bindings


def _read(folder: str, side: str) -> Dict[str, float]:
  # Only now: TensorFlow is slow to import.
  from paragan_tf.outputs import labels, records

  lines = [x for x in records.read(folder) if x.get("metrics")]
  found: Dict[str, float] = {}
  for entry in lines[-1]["metrics"]:
    name = _plain_name(entry["name"])
    if name in _METRICS and entry["value"] is not None:
      found[name] = float(entry["value"])
  if side == "per_label":
    states = labels.read_manifest(folder)
    found["seconds"] = sum(x.seconds for x in states)
  else:
    found["seconds"] = float(lines[-1]["seconds"])
  return found


def _plain_name(name: str) -> str:
  """Returns the name of a metric without its extractor."""
  known = (x for x in sorted(_METRICS, key=len, reverse=True))
  short = {"fid": "frechet", "intra_fid": "intra_frechet"}
  return next((x for x in known if name.startswith(x)), short.get(name, name))


def _average(
  name: str, seeds: Sequence[int], figures: Mapping[str, float]
) -> Dict[str, float]:
  """Returns mean and spread over the seeds of each metric."""
  found: Dict[str, float] = {}
  for side in SIDES:
    for metric in (*_METRICS, "seconds"):
      keys = [f"{name}.{side}.seed{seed}.{metric}" for seed in seeds]
      values = [figures[key] for key in keys if key in figures]
      if values:
        found[f"{name}.{side}.{metric}"] = float(np.mean(values))
        found[f"{name}.{side}.{metric}.spread"] = float(np.ptp(values))
  return found


def format_table(figures: Mapping[str, Any]) -> str:
  """Returns the means of all games in columns."""
  rows: List[Tuple[str, ...]] = [
    ("game", "side", "mixture", "per label", "recall", "precision")
  ]
  for name, game in GAMES.items():
    for side in SIDES:
      key = f"{name}.{side}"
      if f"{key}.frechet" not in figures:
        continue
      cells = [_format(figures, f"{key}.{metric}") for metric in _METRICS]
      rows.append((game.title, side, *cells))
  widths = [max(map(len, column)) for column in zip(*rows)]
  return "\n".join(
    "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    for row in rows
  )


def _format(figures: Mapping[str, Any], key: str) -> str:
  if key not in figures:
    return "-"
  value, spread = figures[key], figures.get(f"{key}.spread", 0.0)
  return f"{value:.3g} ± {spread / 2:.2g}" if spread else f"{value:.3g}"
