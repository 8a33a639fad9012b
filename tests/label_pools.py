"""Tiny sets and configs of GANs for each label, for tests."""

import os
import re

import numpy as np

from paragan_tf import config

SIZES = (40, 30, 3, 25, 20)
STEPS = 8
NUM_HELDOUT = 10
BATCH = 8

FILES = ["gin/runs/per_label_fashion.gin"]


def bindings(path, *more):
  """Returns what makes a run of `path` tiny."""
  return [
    f"InputFn.source = 'npz:{path}'",
    "InputFn.resolution = 8",
    "from paragan_tf.data import sources",
    f"sources.npz.num_heldout = {NUM_HELDOUT}",
    "from paragan_tf.nets import linear",
    "g/experiment.player.net = @linear.Generator",
    "d/experiment.player.net = @linear.Discriminator",
    f"Experiment.batch_size = {BATCH}",
    "Experiment.extractor = None",
    "Sequential.num_d_steps = 2",
    "ema.Ema.start_step = 2",
    f"Run.num_steps = {STEPS}",
    "Run.log_every = 2",
    "Run.save_every = 4",
    *more,
  ]


def write_set(path, sizes=SIZES, changed=None, seed=0):
  """Writes images of labels; those of label `changed` are others."""
  parts, names = [], []
  for label, size in enumerate([*sizes, NUM_HELDOUT]):
    random = np.random.RandomState([seed, label, int(label == changed)])
    parts.append(random.randint(0, 256, [size, 8, 8, 1]).astype(np.uint8))
    names.append(np.full(size, label))
  names[-1] = np.arange(NUM_HELDOUT) % len(sizes)
  np.savez(path, images=np.concatenate(parts), labels=np.concatenate(names))
  return path


def load(path, *more):
  """Reads the config of a tiny pool."""
  config.load(FILES, bindings(path, *more))


def flags(path, folder, *more):
  """Returns the flags of `tools.train` for the same."""
  return [
    *(f"--gin_file={file}" for file in FILES),
    *(f"--gin_bindings={x}" for x in bindings(path, *more)),
    f"--model_dir={folder}",
  ]


def read_words(folder, label):
  """Returns what the run of a label printed."""
  with open(os.path.join(folder, "labels", f"{label:05d}", "log.txt")) as f:
    return re.sub(r"\s+", " ", f.read())
