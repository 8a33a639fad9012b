"""How often TPUEstimator builds its graph in one run: it should be once.

python -m tools.suites.rehearsal.estimator_builds
"""

import tempfile
from typing import Any

from tools.suites.ours import load_config

# Three saves and three samples, none at the same step.
_BINDINGS = (
  "from paragan_tf.nets import linear",
  "g/experiment.player.net = @linear.Generator",
  "d/experiment.player.net = @linear.Discriminator",
  "experiment.Experiment.batch_size = 8",
  "experiment.Experiment.extractor = None",
  "run.Run.num_steps = 15",
  "run.Run.log_every = 3",
  "run.Run.sample_every = 4",
  "run.Run.save_every = 5",
)


def count_builds() -> int:
  """Returns the calls of `model_fn` in a tiny run on the CPU."""
  module = load_config(_BINDINGS, gin_file="gin/runs/fashion.gin")
  import tensorflow as tf

  base: Any = module.Experiment
  calls = []

  class Experiment(base):
    """An experiment that counts: each call of `model_fn` makes a step."""

    def make_step(self, count=None):
      """Makes a step; one with a given `count` is TPUEstimator's."""
      if count is not None:
        calls.append(count)
      return super().make_step(count)

  experiment = Experiment(tf.distribute.OneDeviceStrategy("/cpu:0"))
  with tempfile.TemporaryDirectory() as folder:
    estimator = experiment.estimator(folder, saves=False)
    run = module.Run(experiment, folder, estimator)
    run.restore()
    run.open()
    run.train(run.num_steps)
    run.close_progress()
    run.folder.close()
  return len(calls)


if __name__ == "__main__":
  print(count_builds())
