"""Drives runs into collapse, trains healthy ones, and counts who is stopped.

python -m tests.watchdog_sweep --seeds=0,1,2,3,4

Each run has the watchdog's own thresholds, a look every 50 steps, and ends at
the first evidence that lasts. A healthy run that ends is a false alarm, a
driven one that does not is a miss; the exit code is 1 if there is any.
"""

import contextlib
import io
import os
import re
import sys
import tempfile

import gin
import tensorflow as tf
from absl import app, flags

from paragan_tf import config
from paragan_tf import experiment as experiments
from paragan_tf.run import Run

_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Of the runs.")
_ONLY = flags.DEFINE_list("only", None, "Trains these kinds of runs only.")
_BASE = (
  "run.Run.log_every = 50",
  "run.Run.sample_every = 1000000",
  "run.Run.save_every = 50",
  "Experiment.batch_size = 16",
  "dcgan.Generator.width = 8",
  "dcgan.Discriminator.width = 8",
  "from paragan_tf.game import losses",
  "from paragan_tf import watchdog",
  "watchdog.Watchdog.every = 50",
  "watchdog.Watchdog.on_collapse = 'stop'",
)
LOSSES = ("hinge", "non_saturating", "wasserstein", "least_squares")


def _rates(g=1e-3, d=1e-3):
  return (
    f"g/optimizers.Adam.learning_rate = {g}",
    f"d/optimizers.Adam.learning_rate = {d}",
  )


def _loss(name):
  return f"Experiment.loss = @losses.{name}"


# What is bound, for 1,000 steps.
HEALTHY = {
  **{f"{name}, rates of 1e-3": (_loss(name),) for name in LOSSES},
  "hinge, without classes": ("InputFn.conditional = False",),
  "gin/runs/fashion.gin": (
    "dcgan.Generator.width = 32",
    "dcgan.Discriminator.width = 32",
    "Experiment.batch_size = 64",
  ),
}
# The same, for 600 steps.
DRIVEN = {
  **{
    f"{name}, rates of 1e6": (_loss(name), *_rates(1e6, 1e6)) for name in LOSSES
  },
  "rates of 10": _rates(10.0, 10.0),
  "rates of 1": _rates(1.0, 1.0),
  "G's rate of 1": _rates(g=1.0),
  "D's rate of 1": _rates(d=1.0),
  "D hardly learns": _rates(d=1e-9),
  "D hardly learns, G fast": _rates(0.02, 1e-9),
  "D slow, G fast": _rates(0.01, 1e-5),
  "D slow, G has 5 updates a step": (
    "schedule.Sequential.num_g_steps = 5",
    *_rates(d=1e-5),
  ),
}


def find_stop(folder, num_steps, bindings, seed):
  """Trains; returns at which step the watchdog ended it, or `None`."""
  more = [f"run.Run.num_steps = {num_steps}", *_BASE, *bindings]
  config.load(["gin/runs/smoke.gin"], [*more, f"Experiment.seed = {seed}"])
  strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
  words = io.StringIO()
  with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
    made = Run(experiments.Experiment(strategy), folder)
    made.restore()
    made.open()
    try:
      made.train(num_steps)
    except FloatingPointError as e:
      return int(re.findall(r"by step (\d+)", str(e))[0])
    finally:
      made.close_progress()
      made.control.saver.join()
      made.folder.close()
      gin.clear_config()
      tf.keras.backend.clear_session()
  return None


def sweep(kinds, num_steps, seeds):
  """Yields each kind, and at which steps its runs were ended."""
  for name, bindings in kinds.items():
    if _ONLY.value is None or name in _ONLY.value:
      found = []
      for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
          path = os.path.join(folder, "run")
          found.append(find_stop(path, num_steps, bindings, seed))
      yield name, found


def main(argv):
  """Prints a row for each kind of runs, and what went wrong in all."""
  del argv
  wrong = {"false alarms": 0, "misses": 0}
  seeds = [int(x) for x in _SEEDS.value]
  print(f"{'run':34}{'runs':>6}{'ended':>7}  at step")
  for kinds, num_steps, is_wrong, what in (
    (HEALTHY, 1000, lambda step: step is not None, "false alarms"),
    (DRIVEN, 600, lambda step: step is None, "misses"),
  ):
    for name, found in sweep(kinds, num_steps, seeds):
      steps = sorted(step for step in found if step is not None)
      at = ", ".join(map(str, steps)) or "-"
      print(f"{name:34}{len(found):>6}{len(steps):>7}  {at}", flush=True)
      wrong[what] += sum(map(is_wrong, found))
  print(", ".join(f"{count} {what}" for what, count in wrong.items()))
  sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
  app.run(main)
