"""Which devices a strategy trains on, as a run records it."""

import os
from typing import Any, Dict, Optional

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine.processes import Processes


def describe(
  strategy: tf.distribute.Strategy,
  tpu: Optional[tf.distribute.cluster_resolver.ClusterResolver] = None,
) -> Dict[str, Any]:
  """Returns number and kind of the devices, of replicas and of processes.

  A device is a TPU core, a GPU, or all of the CPU that a process has: its
  logical devices are no hardware of their own.

  Args:
    strategy: Of the run.
    tpu: The TPU of an estimator, which `strategy` does not know.
  """
  if isinstance(strategy, tf.distribute.TPUStrategy):
    tpu = strategy.cluster_resolver
  num_processes = Processes(strategy).count
  if tpu is not None:
    count, kind = tpu.get_tpu_system_metadata().num_cores, "TPU core"
  elif _on_gpus(strategy):
    count, kind = strategy.num_replicas_in_sync, _name_gpu()
  else:
    count, kind = num_processes, f"CPU with {os.cpu_count()} cores"
  return {
    "num_devices": count,
    "device_kind": kind,
    "num_replicas": strategy.num_replicas_in_sync,
    "num_processes": num_processes,
  }


def _on_gpus(strategy: tf.distribute.Strategy) -> bool:
  if strategy is tf.distribute.get_strategy():  # The default one has no names.
    return collectives.device_kind() == "gpu"
  return any("GPU" in x.upper() for x in strategy.extended.worker_devices)


def _name_gpu() -> str:
  """Returns the model of this machine's first GPU."""
  gpus = tf.config.list_physical_devices("GPU")
  found = (tf.config.experimental.get_device_details(gpu) for gpu in gpus[:1])
  return next((x["device_name"] for x in found if x.get("device_name")), "GPU")
