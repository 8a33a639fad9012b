"""What a run records about itself when it starts."""

import platform
from typing import Any, Dict

from paragan_tf.engine import devices
from paragan_tf.experiment import Experiment
from paragan_tf.outputs import environment


def collect(experiment: Experiment, estimator=None) -> Dict[str, Any]:
  """Returns the devices, sizes and versions of a run, for starts.jsonl.

  Args:
    experiment: What is trained.
    estimator: The TPUEstimator that trains it, if one does.
  """
  cluster = None if estimator is None else estimator.config.cluster
  return {
    **devices.describe(experiment.strategy, cluster),
    "engine": "strategy" if estimator is None else "tpu_estimator",
    "batch_size": experiment.batch_size,
    "images_per_step": experiment.images_per_step,
    "resolution": experiment.spec.resolution,
    "num_classes": experiment.spec.num_classes,
    "z_dim": experiment.sampler.z_dim,
    "truncation": experiment.sampler.truncation,
    "platform": platform.platform(),
    "versions": environment.read_versions(),
  }
