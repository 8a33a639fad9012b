"""Folders as runs leave them, made in milliseconds."""

import json
import os

import numpy as np

from paragan_tf.outputs import records, samples

PROTOCOL = {
  "extractor": "fashion_classifier",
  "extractor_sha256": "0123456789abcdef" * 4,
  "resizer": "none",
  "num_samples": 2000,
  "num_reference": 8000,
  "reference_split": "train",
  "ema": True,
  "truncation": None,
  "bn_mode": "stored",
  "seed": 2,
}
FACTS = {
  "num_devices": 2,
  "device_kind": "Tesla V100",
  "num_replicas": 2,
  "num_processes": 1,
  "engine": "strategy",
  "batch_size": 64,
  "images_per_step": 64,
  "resolution": 8,
  "num_classes": 10,
  "z_dim": 16,
  "truncation": None,
  "platform": "Linux",
  "versions": {"Python": "3.11.7", "tensorflow": "2.15.1"},
  "num_steps": 1000,
}


def make_metric(value=9.25, name="frechet_fashion", **protocol):
  """Returns an entry of a metric."""
  return {
    "name": name,
    "value": value,
    "real_score": 1.5,
    "protocol": {**PROTOCOL, **protocol},
  }


def make_grid(seed, rows=8, columns=10, side=24):
  """Returns a picture of samples, as if they became clearer with the seed."""
  rng = np.random.default_rng(seed)
  places = np.linspace(-1, 1, side)
  radii = np.hypot(*np.meshgrid(places, places))[None, ..., None]
  sizes = rng.uniform(0.3, 0.9, [rows * columns, 1, 1, 1])
  images = np.tanh((sizes - radii) * 8)
  noise = rng.normal(0, 2.0 / (1 + seed % 10), images.shape)
  return samples.grid(images + noise, columns)


def write(
  folder,
  num_steps=1000,
  scale=1.0,
  num_grids=6,
  metrics=None,
  facts=FACTS,
  config="run.Run.num_steps = 1000\n",
):
  """Writes a run of `num_steps` steps with 50 lines, and returns its folder.

  Args:
    folder: To be made.
    num_steps: Trained so far.
    scale: Of the losses and of seconds.
    num_grids: How many pictures there are.
    metrics: From steps to lists of entries; by default a metric at five steps.
    facts: Of its only start; none if `None`.
    config: The text of config.gin; none if `None`.
  """
  os.makedirs(folder)
  steps = np.linspace(num_steps / 50, num_steps, 50).astype(int)
  rng = np.random.default_rng(int(scale * 10))
  lines = []
  for step in map(int, steps):
    lines.append(
      {
        "step": step,
        "seconds": 5.0 + 0.25 * scale * step,
        "d/loss": scale
        * (0.4 + float(np.exp(-step / 300) + rng.normal(0, 0.05))),
        "g/loss": scale
        * (1.5 - float(np.exp(-step / 200) + rng.normal(0, 0.1))),
        "d/grad_norm": float(rng.gamma(4.0)),
        "g/grad_norm": float(rng.gamma(3.0)),
        "d/loss_scale": 1.0,
        "input_wait": 0.0,
        "images_per_second": 240 / scale + float(rng.normal(0, 5)),
      }
    )
  if metrics is None:
    metrics = {
      int(x): [make_metric(200.0 * scale / (1 + i))]
      for i, x in enumerate(steps[9::10])
    }
  seconds = {x["step"]: x["seconds"] for x in lines}
  for step, entries in metrics.items():
    at = seconds.get(step, 0.0)
    lines.append({"step": step, "seconds": at + 2.0, "metrics": entries})
  _write_lines(folder, "metrics.jsonl", lines)
  if facts is not None:
    _write_lines(folder, "starts.jsonl", [{"step": 0, "seconds": 0.0, **facts}])
  if config is not None:
    records.write_file(os.path.join(folder, "config.gin"), config.encode())
  for i in range(num_grids):
    step = num_steps * (i + 1) // num_grids
    samples.write_png(samples.png_path(folder, step), make_grid(i), 4)
  if num_grids:
    path = samples.interpolation_path(folder)
    samples.write_png(path, make_grid(9, 8, 8), 4)
  return folder


def _write_lines(folder, name, lines):
  text = "".join(f"{json.dumps(line)}\n" for line in lines)
  records.write_file(os.path.join(folder, name), text.encode())
