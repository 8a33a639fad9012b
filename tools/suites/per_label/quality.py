"""What one conditional GAN learns, and what a GAN for each label does.

Both have the same nets, loss, optimizers and batch, and the same compute: the
product of images and multiply-adds for an image. So each of K labels gets a
K-th of the conditional GAN's steps. Each side is a run of `tools.train`, which
measures samples at the data's label frequencies, all seeds after each other.

    hinge      DCGAN with hinge loss, as the default run
    wgan_gp    WGAN-GP's residual pair, five updates of the critic
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from tools.suites.interleave import log_progress
from tools.suites.suite import Options

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
    "Fashion-MNIST, DCGAN, hinge, 4 times as long",
    ("gin/runs/fashion.gin",),
    _DCGAN,
    16000,
  ),
  "fashion_wgan_gp": Game(
    "Fashion-MNIST, WGAN-GP", ("gin/runs/per_label_fashion.gin",), _WGAN, 2000
  ),
  "cifar10_hinge": Game(
    "CIFAR-10, DCGAN, hinge",
    ("gin/runs/fashion.gin", *_CIFAR),
    (*_DCGAN, "Run.num_metric_samples = 2000"),
    3000,
    seeds=1,
  ),
}
QUICK = ("fashion_hinge",)
SIDES = ("conditional", "per_label")


def run(options: Options) -> Dict[str, float]:
  """Returns the metrics of each game, side and seed, and their means."""
  names = options.select_sides(GAMES)
  if options.quick and not options.only:
    names = QUICK
  figures: Dict[str, float] = {}
  for name in names:
    game = GAMES[name]
    seeds = _SEEDS[: 1 if options.quick else game.seeds]
    for seed in seeds:
      for side in SIDES:
        log_progress(f"{game.title}: {side}, seed {seed}.")
        found = train(game, side, seed)
        key = f"{name}.{side}"
        figures.update({f"{key}.seed{seed}.{k}": v for k, v in found.items()})
    figures.update(_average(name, seeds, figures))
  return figures


def train(game: Game, side: str, seed: int) -> Dict[str, float]:
  """Trains one side of a game; returns its metrics and its cost."""
  with tempfile.TemporaryDirectory() as folder:
    num_steps = game.num_steps
    files, bindings = list(game.gin_files), list(game.bindings)
    bindings.append(f"Experiment.seed = {seed}")
    if side == "per_label":
      files.insert(0, _POOL)
      num_steps //= _NUM_LABELS
    else:
      bindings.append("training.choose.pool = None")
      files.insert(0, _POOL)
    bindings += [
      f"Run.num_steps = {num_steps}",
      "Run.log_every = 20",
      f"Run.save_every = {num_steps}",
      f"Run.sample_every = {num_steps}",
    ]
    command = [sys.executable, "-m", "paragan_tf", "train"]
    command += [f"--gin_file={file}" for file in files]
    command += [f"--gin_bindings={binding}" for binding in bindings]
    command.append(f"--model_dir={os.path.join(folder, 'run')}")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return _read(os.path.join(folder, "run"), side)


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
