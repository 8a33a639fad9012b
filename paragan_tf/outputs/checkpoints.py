"""Checkpoints: a flat map from variable names to values.

The keys are the variables' own names, so any engine reads any other's files. A
variable whose replicas may differ is kept for each of them: replica 0 under the
name itself, the others under `name/replica_1`, `name/replica_2`, ...
"""

import os
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

_PREFIX = "model.ckpt"


class Entry(NamedTuple):
  """One variable of a run.

  Attributes:
    name: Its key.
    copies: Its plain variable on each replica.
    agrees: Whether all copies hold the same value, so that one is kept.
  """

  name: str
  copies: Tuple[tf.Variable, ...]
  agrees: bool


class Checkpoints:
  """The newest checkpoints of one run, in its folder."""

  def __init__(self, folder: str, keep: int = 3):
    if keep < 1:
      raise ValueError(f"`keep` must be at least 1, got {keep}.")
    self._folder = folder
    self._keep = keep

  def save(self, step: int, entries: Sequence[Entry]) -> str:
    """Writes one; those before stay whole until it is complete."""
    path = self.path(step)
    keyed = _keyed(entries)
    tf.raw_ops.SaveV2(
      prefix=path,
      tensor_names=list(keyed),
      shape_and_slices=[""] * len(keyed),
      tensors=[variable.read_value() for variable in keyed.values()],
    )
    paths = [*(p for p in self.paths() if p != path), path]
    # The list is replaced after the files are there, and by renaming.
    tf.compat.v1.train.update_checkpoint_state(
      self._folder, path, paths[-self._keep :]
    )
    for old in paths[: -self._keep]:
      _remove(old)
    return path

  def path(self, step: int) -> str:
    """Returns where the checkpoint of a step is kept."""
    return os.path.join(self._folder, f"{_PREFIX}-{step}")

  def paths(self) -> List[str]:
    """Returns those that are there, oldest first."""
    state = tf.train.get_checkpoint_state(self._folder)
    listed = state.all_model_checkpoint_paths if state else []
    return [path for path in listed if tf.io.gfile.exists(f"{path}.index")]

  def latest(self) -> Optional[str]:
    """Returns the newest, or `None`."""
    paths = self.paths()
    return paths[-1] if paths else None


def restore(path: str, entries: Sequence[Entry]) -> None:
  """Sets every entry from a checkpoint; all of it is read before any is set."""
  keys = _stored_keys(path)
  _check_replicas(path, keys, entries)
  keyed = _keyed(entries)
  missing = sorted(set(keyed) - set(keys))
  if missing:
    raise ValueError(
      f"Checkpoint '{path}' lacks {_few(missing)}: it belongs to another "
      "model; give another `model_dir`."
    )
  try:
    values = tf.raw_ops.RestoreV2(
      prefix=path,
      tensor_names=list(keyed),
      shape_and_slices=[""] * len(keyed),
      dtypes=[variable.dtype for variable in keyed.values()],
    )
  except tf.errors.OpError as e:
    raise _damaged(path, e) from e
  by_key = dict(zip(keyed, values))
  for key, variable in keyed.items():
    if by_key[key].shape != variable.shape:
      raise ValueError(
        f"`{key}` in checkpoint '{path}' must have shape "
        f"{list(variable.shape)}, got {list(by_key[key].shape)}: it belongs to "
        "another model; give another `model_dir`."
      )
  for entry in entries:
    for i, copy in enumerate(entry.copies):
      copy.assign(by_key[_key(entry, 0 if entry.agrees else i)])


def _key(entry: Entry, replica: int) -> str:
  return entry.name if not replica else f"{entry.name}/replica_{replica}"


def _keyed(entries: Sequence[Entry]) -> Dict[str, tf.Variable]:
  keyed: Dict[str, tf.Variable] = {}
  for entry in entries:
    for i, copy in enumerate(entry.copies[: 1 if entry.agrees else None]):
      if _key(entry, i) in keyed:
        raise ValueError(f"Two variables are named `{_key(entry, i)}`.")
      keyed[_key(entry, i)] = copy
  return keyed


def _stored_keys(path: str):
  try:
    return tf.train.load_checkpoint(path).get_variable_to_shape_map()
  except (tf.errors.OpError, ValueError, RuntimeError) as e:
    raise _damaged(path, e) from e


def _check_replicas(path: str, keys, entries: Sequence[Entry]) -> None:
  for entry in entries:
    if entry.agrees:
      continue
    stored = 1
    while f"{entry.name}/replica_{stored}" in keys:
      stored += 1
    if stored != len(entry.copies):
      raise ValueError(
        f"Checkpoint '{path}' has {stored} replicas' own `{entry.name}` and "
        f"this run has {len(entry.copies)} replicas: state that differs "
        f"between replicas resumes on as many; start {stored} of them."
      )


def _damaged(path: str, error: Exception) -> ValueError:
  reason = str(error).split("\n")[0][:200]
  return ValueError(
    f"Checkpoint '{path}' cannot be read ({reason}): it is damaged; remove "
    f"its files ({os.path.basename(path)}.*) to go on from the one before."
  )


def _remove(path: str) -> None:
  for name in tf.io.gfile.glob(f"{path}.*"):
    tf.io.gfile.remove(name)


def _few(names: Sequence[str]) -> str:
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(f"`{name}`" for name in names[:3]) + more
