"""What a checkpoint has, and how variables are restored from it.

    stored.restore(path, entries)          # all of them, or nothing changes
    stored.read_values(path, specs, mean)  # of some variables, by name

If the replicas of a variable may differ, each value is stored: that of replica
0 under the variable's name, the others under `name/replica_1`,
`name/replica_2`, ...
"""

import itertools
import os
import re
from typing import Dict, List, Sequence, Tuple

import tensorflow as tf

from paragan_tf.types import Entry

_REPLICA = re.compile(r"/replica_(\d+)$")


def restore(path: str, entries: Sequence[Entry]) -> None:
  """Restores all entries; nothing is assigned before all values are read."""
  stored = _Stored(path)
  entries = [entry.complete() for entry in entries if entry.copies]
  by_key(entries)  # Refuses duplicate names.
  sources = [stored.find_sources(entry) for entry in entries]
  wanted: Dict[str, tf.TensorSpec] = {}
  for entry, keys in zip(entries, sources):
    first = entry.copies[0]
    spec = tf.TensorSpec(first.shape, first.dtype)
    wanted.update((key, spec) for key in itertools.chain(*keys))
    wanted.update(_residual_specs(entry, stored))
  values = stored.read(wanted)
  for entry, keys in zip(entries, sources):
    residuals = [values[key] for key in _residual_specs(entry, stored)]
    for copy, copy_keys in zip(entry.copies, keys):
      value = _merge(entry, [values[key] for key in copy_keys])
      copy.assign(_add_residuals(entry, value, residuals))


def read_shapes(path: str) -> Dict[str, List[int]]:
  """Returns the shapes of all stored values, without those of replicas."""
  shapes = _Stored(path).shapes
  return {k: v for k, v in shapes.items() if not _REPLICA.search(k)}


def read_values(
  path: str, specs: Dict[str, tf.TensorSpec], mean: bool
) -> Dict[str, tf.Tensor]:
  """Returns one value of each variable.

  Args:
    path: Of the checkpoint.
    specs: By name.
    mean: Whether that is the mean over replicas, or the first one's.
  """
  stored = _Stored(path)
  keys = {name: stored.find_keys(name, mean) for name in specs}
  values = stored.read({k: specs[n] for n in specs for k in keys[n]})
  return {n: _mean([values[k] for k in keys[n]]) for n in specs}


class _Stored:
  """The variables of a checkpoint."""

  def __init__(self, path: str):
    self._path = path
    try:
      reader = tf.train.load_checkpoint(path)
      self.shapes = reader.get_variable_to_shape_map()
      self._dtypes = reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError, RuntimeError) as e:
      raise _damage_error(path, e) from e
    ids = (_REPLICA.search(key) for key in self.shapes)
    self._num = 1 + max((int(found[1]) for found in ids if found), default=0)

  def replicas(self, name: str) -> Tuple[int, ...]:
    """Returns the ids of the replicas whose values are stored."""
    ids = range(self._num)
    return tuple(i for i in ids if _replica_key(name, i) in self.shapes)

  def find_keys(self, name: str, all_replicas: bool) -> List[str]:
    """Returns the keys of a variable on all replicas, or on the first."""
    keys = [_replica_key(name, i) for i in self.replicas(name)] or [name]
    return keys if all_replicas else keys[:1]

  def find_sources(self, entry: Entry) -> List[List[str]]:
    """Returns for each copy the keys that it is restored from."""
    ids = self.replicas(entry.name)
    keys = [_replica_key(entry.name, i) for i in ids]
    if not ids:
      keys = [] if entry.optional else [entry.name]  # The latter is missing.
    elif len(ids) > 1 and ids in (entry.all_replicas, _all_of_run(entry)):
      return [[_replica_key(entry.name, i)] for i in entry.replicas]
    elif not entry.merge_rule and not (entry.agrees and len(ids) == 1):
      self._check_replicas(entry, len(ids))
    return [keys] * len(entry.copies)

  def _check_replicas(self, entry: Entry, num_stored: int) -> None:
    num = len(entry.all_replicas)
    if num != num_stored:
      raise ValueError(
        f"Checkpoint '{self._path}' has `{entry.name}` of {num_stored} "
        f"replicas and this run has {num} replicas: state that differs between "
        f"replicas needs the same number; start {num_stored} of them."
      )

  def read(self, wanted: Dict[str, tf.TensorSpec]) -> Dict[str, tf.Tensor]:
    """Returns the values of keys; refuses other shapes and types."""
    missing = sorted(set(wanted) - set(self.shapes))
    if missing:
      raise ValueError(
        f"Checkpoint '{self._path}' lacks {_abbreviate(missing)}: it belongs "
        "to another model; set another `model_dir`."
      )
    for key, spec in wanted.items():
      self._check(key, "shape", list(spec.shape), self.shapes[key])
      self._check(key, "type", spec.dtype.name, self._dtypes[key].name)
    try:
      values = tf.raw_ops.RestoreV2(
        prefix=self._path,
        tensor_names=list(wanted),
        shape_and_slices=[""] * len(wanted),
        dtypes=[spec.dtype for spec in wanted.values()],
      )
    except tf.errors.OpError as e:
      raise _damage_error(self._path, e) from e
    return dict(zip(wanted, values))

  def _check(self, key: str, what: str, expected, got) -> None:
    if expected != got:
      raise ValueError(
        f"`{key}` in checkpoint '{self._path}' must have {what} {expected}, "
        f"got {got}: it belongs to another model; set another `model_dir`."
      )


def _residual_specs(entry: Entry, stored: _Stored) -> Dict[str, tf.TensorSpec]:
  """Returns the specs of an entry's residual vectors, by key."""
  part = entry.residual_source
  if part is None:
    return {}
  keys = [_replica_key(part.key, i) for i in stored.replicas(part.key)]
  return {k: tf.TensorSpec([part.size], entry.copies[0].dtype) for k in keys}


def _add_residuals(
  entry: Entry, value: tf.Tensor, vectors: Sequence[tf.Tensor]
) -> tf.Tensor:
  """Returns the value plus its part of the residual vectors."""
  if entry.residual_source is None or not vectors:
    return value
  start, size = entry.residual_source.start, value.shape.num_elements()
  part = tf.add_n(vectors)[start : start + size]
  return value + tf.reshape(part, value.shape)


def _merge(entry: Entry, values: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns the mean or the sum of the replicas' values; zeros for none."""
  if not values:
    return tf.zeros_like(entry.copies[0])
  if entry.merge_rule == "sum" and values[0].dtype.is_floating:
    return tf.add_n(values)
  return _mean(values)


def _mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
  # Integers are counts, which agree on all replicas.
  if len(values) == 1 or not values[0].dtype.is_floating:
    return values[0]
  return tf.add_n(values) / len(values)


def _all_of_run(entry: Entry) -> Tuple[int, ...]:
  """Returns all replicas of the run, which older checkpoints have."""
  return tuple(range(entry.num_replicas))


def _replica_key(name: str, replica: int) -> str:
  return name if not replica else f"{name}/replica_{replica}"


def by_key(entries: Sequence[Entry]) -> Dict[str, tf.Variable]:
  """Returns the variables that this process saves, by key."""
  found: Dict[str, tf.Variable] = {}
  for entry in entries:
    pairs = list(zip(entry.replicas, entry.copies))
    if entry.agrees:
      pairs = [(0, c) for r, c in pairs if r == entry.all_replicas[0]]
    for replica, copy in pairs:
      key = _replica_key(entry.name, replica)
      if key in found:
        raise ValueError(f"Two variables are named `{key}`.")
      found[key] = copy
  return found


def _damage_error(path: str, error: Exception) -> ValueError:
  reason = str(error).split("\n")[0][:200]
  return ValueError(
    f"Checkpoint '{path}' cannot be read ({reason}): it is damaged; remove "
    f"its files ({os.path.basename(path)}.*) to resume from the one before."
  )


def _abbreviate(names: Sequence[str]) -> str:
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(f"`{name}`" for name in names[:3]) + more
