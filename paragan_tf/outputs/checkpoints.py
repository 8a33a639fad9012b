"""Checkpoints: a flat map from variable names to values.

The keys are the variables' own names, so any engine reads any other's files. If
the replicas of a variable may differ, each value is stored: that of replica 0
under the variable's name, the others under `name/replica_1`, `name/replica_2`,
...

With several processes the chief writes the variables whose replicas agree. Each
process writes the others for its own replicas, and the chief merges the parts:

    write(folder/model.ckpt-9.parts/00001, own replicas)   # each process
    wait()
    merge(parts -> model.ckpt-9)                           # the chief
    wait()
"""

import itertools
import json
import os
from typing import (
  Callable,
  Dict,
  List,
  NamedTuple,
  Optional,
  Sequence,
)

import tensorflow as tf

from paragan_tf.outputs.records import write_file
from paragan_tf.types import Entry

KEEP = 3  # Checkpoints of a run; the oldest is removed after the next save.
_PREFIX = "model.ckpt"


class Writers(NamedTuple):
  """The processes that write a checkpoint together.

  Attributes:
    place: Index of this process; 0 is the chief.
    num: Number of processes.
    wait: A barrier: returns when all processes have called it.
  """

  place: int = 0
  num: int = 1
  wait: Callable[[], None] = lambda: None


class Checkpoints:
  """The newest checkpoints of one run, in its folder."""

  def __init__(
    self,
    folder: str,
    keep: int = KEEP,
    writers: Writers = Writers(),  # noqa: B008 - It is immutable.
  ):
    if keep < 1:
      raise ValueError(f"`keep` must be at least 1, got {keep}.")
    self._folder = folder
    self._keep = keep
    self._writers = writers

  def save(self, step: int, entries: Sequence[Entry]) -> str:
    """Writes a checkpoint; earlier ones stay valid until it is complete.

    All processes must call it.
    """
    path = self.path(step)
    if self._writers.num > 1 and not all(e.agrees for e in entries):
      self._save_parts(path, entries)
    elif self._writers.place == 0:
      _write(path, _by_key(entries))
    if self._writers.place == 0:
      self._list(path)
    return path

  def _save_parts(self, path: str, entries: Sequence[Entry]) -> None:
    folder = f"{path}.parts"
    parts = [f"{folder}/{i:05d}" for i in range(self._writers.num)]
    own = [e for e in entries if not (e.agrees and self._writers.place)]
    _write(parts[self._writers.place], _by_key(own))
    self._writers.wait()
    if self._writers.place == 0:
      tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts,
        destination_prefix=path,
        delete_old_dirs=True,
      )
    self._writers.wait()

  def _list(self, path: str) -> None:
    """Lists `path` as the newest checkpoint, and removes the oldest."""
    paths = [*(p for p in self.paths() if p != path), path]
    # The list is replaced by renaming, after the files are complete. Names have
    # no folder, so that the run's folder can be moved.
    names = [json.dumps(os.path.basename(p)) for p in paths[-self._keep :]]
    lines = [f"model_checkpoint_path: {names[-1]}"]
    lines += [f"all_model_checkpoint_paths: {name}" for name in names]
    write_file(
      os.path.join(self._folder, "checkpoint"), "\n".join(lines).encode()
    )
    for old in paths[: -self._keep]:
      _remove(old)

  def path(self, step: int) -> str:
    """Returns the path of a step's checkpoint."""
    return os.path.join(self._folder, f"{_PREFIX}-{step}")

  def paths(self) -> List[str]:
    """Returns the paths of existing checkpoints, oldest first."""
    state = tf.train.get_checkpoint_state(self._folder)
    listed = state.all_model_checkpoint_paths if state else []
    return [path for path in listed if tf.io.gfile.exists(f"{path}.index")]

  def latest(self) -> Optional[str]:
    """Returns the path of the newest checkpoint, or `None`."""
    paths = self.paths()
    return paths[-1] if paths else None


def restore(path: str, entries: Sequence[Entry]) -> None:
  """Restores all entries; nothing is assigned before all values are read."""
  stored = _stored_keys(path)
  _check_replicas(path, stored, entries)
  _by_key(entries)  # Refuses duplicate names.
  sources = [_sources(entry, stored) for entry in entries]
  wanted: Dict[str, tf.TensorSpec] = {}
  for entry, keys in zip(entries, sources):
    first = entry.copies[0]
    spec = tf.TensorSpec(first.shape, first.dtype)
    wanted.update((key, spec) for key in itertools.chain(*keys))
    wanted.update(_absorbed_specs(entry, stored))
  missing = sorted(set(wanted) - set(stored))
  if missing:
    raise ValueError(
      f"Checkpoint '{path}' lacks {_abbreviate(missing)}: it belongs to "
      "another model; set another `model_dir`."
    )
  values = _read(path, wanted)
  for entry, keys in zip(entries, sources):
    absorbed = [values[key] for key in _absorbed_specs(entry, stored)]
    for copy, copy_keys in zip(entry.copies, keys):
      value = _merge(entry, [values[key] for key in copy_keys])
      copy.assign(_add_absorbed(entry, value, absorbed))


def _absorbed_specs(entry: Entry, stored) -> Dict[str, tf.TensorSpec]:
  """Returns the specs of the vectors that an entry absorbs, by key."""
  part = entry.absorbs
  if part is None or part.key not in stored:
    return {}
  keys = [
    _replica_key(part.key, i) for i in range(_num_stored(part.key, stored))
  ]
  return {k: tf.TensorSpec([part.size], entry.copies[0].dtype) for k in keys}


def _add_absorbed(
  entry: Entry, value: tf.Tensor, vectors: Sequence[tf.Tensor]
) -> tf.Tensor:
  """Returns the value plus its part of the absorbed vectors."""
  if entry.absorbs is None or not vectors:
    return value
  start, size = entry.absorbs.start, value.shape.num_elements()
  part = tf.add_n(vectors)[start : start + size]
  return value + tf.reshape(part, value.shape)


def _read(path: str, wanted: Dict[str, tf.TensorSpec]) -> Dict[str, tf.Tensor]:
  """Returns the values of keys; refuses other shapes."""
  try:
    values = tf.raw_ops.RestoreV2(
      prefix=path,
      tensor_names=list(wanted),
      shape_and_slices=[""] * len(wanted),
      dtypes=[spec.dtype for spec in wanted.values()],
    )
  except tf.errors.OpError as e:
    raise _damage_error(path, e) from e
  by_key = dict(zip(wanted, values))
  for key, spec in wanted.items():
    if by_key[key].shape != spec.shape:
      raise ValueError(
        f"`{key}` in checkpoint '{path}' must have shape "
        f"{list(spec.shape)}, got {list(by_key[key].shape)}: it belongs to "
        "another model; set another `model_dir`."
      )
  return by_key


def _sources(entry: Entry, stored) -> List[List[str]]:
  """Returns for each copy the keys that it is restored from."""
  if entry.optional and entry.name not in stored:
    return [[] for _ in entry.copies]
  num = _num_stored(entry.name, stored)
  if entry.agrees or num == (entry.num_replicas or len(entry.copies)):
    return [[_key(entry, i)] for i in range(len(entry.copies))]
  all_keys = [_replica_key(entry.name, i) for i in range(num)]
  return [all_keys for _ in entry.copies]


def _merge(entry: Entry, values: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns the mean or the sum of the replicas' values; zeros for none."""
  if not values:
    return tf.zeros_like(entry.copies[0])
  # Integers are counts, which agree on all replicas.
  if len(values) == 1 or not values[0].dtype.is_floating:
    return values[0]
  total = tf.add_n(values)
  return total if entry.merged == "sum" else total / len(values)


def _write(path: str, by_key: Dict[str, tf.Variable]) -> None:
  tf.raw_ops.SaveV2(
    prefix=path,
    tensor_names=list(by_key),
    shape_and_slices=[""] * len(by_key),
    tensors=[variable.read_value() for variable in by_key.values()],
  )


def _key(entry: Entry, index: int) -> str:
  """Returns the key of one of this process's copies."""
  replica = 0 if entry.agrees else entry.first_replica + index
  return _replica_key(entry.name, replica)


def _replica_key(name: str, replica: int) -> str:
  return name if not replica else f"{name}/replica_{replica}"


def _by_key(entries: Sequence[Entry]) -> Dict[str, tf.Variable]:
  """Returns the variables to save, by key."""
  by_key: Dict[str, tf.Variable] = {}
  for entry in entries:
    for i, copy in enumerate(entry.copies[: 1 if entry.agrees else None]):
      if _key(entry, i) in by_key:
        raise ValueError(f"Two variables are named `{_key(entry, i)}`.")
      by_key[_key(entry, i)] = copy
  return by_key


def _stored_keys(path: str):
  try:
    return tf.train.load_checkpoint(path).get_variable_to_shape_map()
  except (tf.errors.OpError, ValueError, RuntimeError) as e:
    raise _damage_error(path, e) from e


def _check_replicas(path: str, keys, entries: Sequence[Entry]) -> None:
  for entry in entries:
    if entry.agrees or entry.merged:
      continue
    stored = _num_stored(entry.name, keys)
    running = entry.num_replicas or len(entry.copies)
    if stored != running:
      raise ValueError(
        f"Checkpoint '{path}' has `{entry.name}` of {stored} replicas and "
        f"this run has {running} replicas: state that differs between "
        f"replicas needs the same number; start {stored} of them."
      )


def _num_stored(name: str, keys) -> int:
  stored = 1
  while _replica_key(name, stored) in keys:
    stored += 1
  return stored


def _damage_error(path: str, error: Exception) -> ValueError:
  reason = str(error).split("\n")[0][:200]
  return ValueError(
    f"Checkpoint '{path}' cannot be read ({reason}): it is damaged; remove "
    f"its files ({os.path.basename(path)}.*) to resume from the one before."
  )


def _remove(path: str) -> None:
  for name in tf.io.gfile.glob(f"{path}.*"):
    tf.io.gfile.remove(name)


def _abbreviate(names: Sequence[str]) -> str:
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(f"`{name}`" for name in names[:3]) + more
