"""Starts what a config asks for: one run, or a GAN for each label."""

import os
from typing import Callable, Optional, Sequence, Tuple, Union

import gin

from paragan_tf import config, label_queue, start
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import strategies
from paragan_tf.label_pool import LabelPool, LabelsFailedError
from paragan_tf.run import Run
from paragan_tf.start import AGAIN, ERRORS

__all__ = ["AGAIN", "ERRORS", "FAILED", "choose", "prepare", "strategies"]

# What ends a pool whose other labels are done.
FAILED = (LabelsFailedError,)


# Of a pool, whose workers find their device themselves.
_ALONE: Tuple[Optional[strategies.DeviceOptions], ...] = (
  None,
  strategies.DeviceOptions(),
)


@gin.configurable
def choose(
  pool: Optional[Callable[..., LabelPool]] = None,
) -> Optional[Callable[..., LabelPool]]:
  """Returns what makes a pool of labels, `None` for one run."""
  label = gin.get_bindings(InputFn, resolve_references=False).get("label")
  return pool if label is None else None


def is_per_label(gin_files: Sequence[str], gin_bindings: Sequence[str]) -> bool:
  """Returns whether a config trains a GAN for each label."""
  config.load(gin_files, gin_bindings)
  return choose() is not None


def prepare(
  gin_files: Sequence[str],
  gin_bindings: Sequence[str],
  model_dir: str,
  device_options: Optional[strategies.DeviceOptions] = None,
  engine: str = "strategy",
  label_shard: Optional[str] = None,
) -> Union[Run, LabelPool]:
  """Reads the config and builds what it asks for; see `start.prepare`.

  Args:
    gin_files: Config files, read in order.
    gin_bindings: Single bindings, read after them.
    model_dir: The folder of the run, or of all labels.
    device_options: Which devices a run trains on.
    engine: Of a run.
    label_shard: Which part of the labels, as '2/8'.
  """
  start.check_model_dir(model_dir)
  start.check_engine(engine)
  if not is_per_label(gin_files, gin_bindings):
    if label_shard is not None:
      raise ValueError(
        f"`--label_shard` needs a GAN for each label, got '{label_shard}': add "
        "`--gin_file=gin/sync/per_label.gin`, or leave it out."
      )
    return start.prepare(
      gin_files, gin_bindings, model_dir, device_options, engine
    )
  shard = (0, 1)
  if label_shard is not None:
    shard = label_queue.parse_shard(label_shard, os.environ)
  if engine != "strategy" or device_options not in _ALONE:
    raise ValueError(
      "A GAN for each label takes no `--engine` and no devices: its workers "
      "train on one each; set `LabelPool.num_workers`."
    )
  return _make_pool(model_dir, shard)


def _make_pool(model_dir: str, shard: Tuple[int, int]) -> LabelPool:
  pool = choose()
  try:
    return pool(model_dir, shard)
  except config.WRONG as e:
    raise ValueError(config.sentence(e)) from e
