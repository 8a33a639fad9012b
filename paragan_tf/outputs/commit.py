"""How a checkpoint becomes valid: whole and on disk first, then one rename.

    prefix = stage(path)     # model.ckpt-9.tmp/whole, written by TensorFlow
    commit(path, step)
      fsync every file
      write the manifest: sizes and CRCs
      rename data and manifest into the folder, fsync it
      rename the index       # from here on the checkpoint exists
      fsync the folder

TensorFlow and TPUEstimator take a checkpoint without an index for none, so
the last rename decides for all readers. A checkpoint of an older version has
no manifest; its damage is found by reading all of it.

An object store has neither fsync nor renames: an object is whole and durable as
soon as it is visible, a rename is a copy, and the index still comes last.
"""

import json
import os
import re
import zlib
from typing import Dict, List, NamedTuple, Optional

import tensorflow as tf

_STAGE, _WHOLE = "tmp", "whole"
_INDEX, _MANIFEST = "index", "manifest"
_DATA = r"data-\d{5}-of-\d{5}"
_CHUNK = 1 << 24
# Files that the code of this package or TPUEstimator makes for a checkpoint.
_FILE = re.compile(
  rf"model\.ckpt-(\d+)\.({_INDEX}|{_MANIFEST}|{_DATA}|meta)(\.tempstate\d+)?"
)
# Folders of saves under way; `parts` is that of older versions.
_FOLDER = re.compile(rf"model\.ckpt-(\d+)\.({_STAGE}|parts)/?")
# What reading raises where bytes are damaged.
_DAMAGE = (
  tf.errors.OpError,
  OSError,
  ValueError,
  RuntimeError,
  LookupError,
  TypeError,
  AttributeError,
)


class Files(NamedTuple):
  """What a folder has of checkpoints.

  Attributes:
    by_step: Names of the files of each step.
    stages: Names of folders of saves that did not end.
  """

  by_step: Dict[int, List[str]]
  stages: List[str]

  def committed(self) -> List[int]:
    """Returns the steps of checkpoints that exist, in order."""
    return sorted(
      step for step, names in self.by_step.items() if _index_name(step) in names
    )


def list_files(folder: str) -> Files:
  """Returns what a folder has of checkpoints, by comparing names."""
  found = Files({}, [])
  names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
  for name in names:
    match = _FILE.fullmatch(name)
    if match:
      found.by_step.setdefault(int(match[1]), []).append(name)
    elif _FOLDER.fullmatch(name):
      found.stages.append(name.rstrip("/"))
  return found


def stage(path: str) -> str:
  """Makes the folder of a save under way; returns the prefix to write at."""
  folder = f"{path}.{_STAGE}"
  tf.io.gfile.makedirs(folder)
  return os.path.join(folder, _WHOLE)


def discard_stage(path: str) -> None:
  """Removes what is left of a save under way."""
  folder = f"{path}.{_STAGE}"
  if tf.io.gfile.isdir(folder):
    tf.io.gfile.rmtree(folder)


def commit(path: str) -> None:
  """Makes what was staged a checkpoint; an older one of its step goes."""
  folder, base = os.path.split(path)
  staged = f"{path}.{_STAGE}"
  sources = {
    base + name[len(_WHOLE) :]: os.path.join(staged, name)
    for name in tf.io.gfile.listdir(staged)
    if name.startswith(f"{_WHOLE}.")
  }
  manifest = os.path.join(staged, _MANIFEST)
  described = {name: _describe(file) for name, file in sources.items()}
  with tf.io.gfile.GFile(manifest, "w") as f:
    f.write(json.dumps({"version": 1, "files": described}, indent=2) + "\n")
  for file in (*sources.values(), manifest):
    sync(file)
  sources[f"{base}.{_MANIFEST}"] = manifest
  # The old index goes first: it must not name the new one's data.
  remove(folder, int(base.rpartition("-")[2]))
  last = f"{base}.{_INDEX}"
  for name in sorted(sources, key=lambda x: x == last):
    if name == last:
      sync(folder)
    tf.io.gfile.rename(sources[name], os.path.join(folder, name), True)
  sync(folder)
  discard_stage(path)


def remove(folder: str, step: int) -> None:
  """Removes the checkpoint of a step, the index first."""
  names = list_files(folder).by_step.get(step, [])
  for name in sorted(names, key=lambda x: x != _index_name(step)):
    tf.io.gfile.remove(os.path.join(folder, name))


def remove_debris(folder: str) -> List[str]:
  """Removes what killed runs left of their saves; returns the names.

  Nobody else may be saving in the folder.
  """
  found = list_files(folder)
  committed = set(found.committed())
  left = [
    name
    for step, names in found.by_step.items()
    for name in names
    if step not in committed or "tempstate" in name
  ]
  for name in left:
    tf.io.gfile.remove(os.path.join(folder, name))
  for name in found.stages:
    tf.io.gfile.rmtree(os.path.join(folder, name))
  return sorted([*left, *found.stages])


def find_damage(path: str, only_sizes: bool = False) -> Optional[str]:
  """Returns what is wrong with a checkpoint in a few words, or `None`.

  Args:
    path: Of the checkpoint.
    only_sizes: Whether to trust files of the right size; reads no data.
  """
  manifest = f"{path}.{_MANIFEST}"
  if not tf.io.gfile.exists(f"{path}.{_INDEX}"):
    return "it has no index"
  try:
    if tf.io.gfile.exists(manifest):
      return _compare(manifest, only_sizes)
    if not only_sizes:
      _read_all(path)
    return None
  except _DAMAGE as e:
    return str(e).split("\n")[0][:200] or type(e).__name__


def copy(source: str, path: str) -> None:
  """Copies a whole checkpoint, unless that is done."""
  damage = find_damage(source)
  if damage is not None:
    raise ValueError(f"Checkpoint '{source}' cannot be copied: {damage}.")
  if _checksums(source) == _checksums(path) and find_damage(path) is None:
    return
  discard_stage(path)
  staged = stage(path)
  folder, base = os.path.split(source)
  step = int(base.rpartition("-")[2])
  for name in list_files(folder).by_step[step]:
    end = name[len(base) :]
    if end != f".{_MANIFEST}":  # The copy has one of its own.
      tf.io.gfile.copy(os.path.join(folder, name), staged + end, True)
  commit(path)


def sync(path: str) -> None:
  """Waits until a file or the names in a folder are on disk."""
  if not is_local(path):
    return
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def is_local(path: str) -> bool:
  """Returns whether a path is one of this machine's file systems."""
  return "://" not in path


def _index_name(step: int) -> str:
  return f"model.ckpt-{step}.{_INDEX}"


def _checksums(path: str) -> Dict[str, Dict[str, int]]:
  """Returns sizes and CRCs by what file names end in; none of older ones."""
  manifest = f"{path}.{_MANIFEST}"
  if not tf.io.gfile.exists(manifest):
    return {}
  with tf.io.gfile.GFile(manifest) as f:
    files = json.loads(f.read())["files"]
  return {name.rpartition(".")[2]: x for name, x in files.items()}


def _compare(manifest: str, only_sizes: bool) -> Optional[str]:
  with tf.io.gfile.GFile(manifest) as f:
    files = json.loads(f.read())["files"]
  for name, expected in files.items():
    file = os.path.join(os.path.dirname(manifest), name)
    size = tf.io.gfile.stat(file).length
    if size != expected["size"]:
      return f"'{name}' has {size:,} bytes of {expected['size']:,}"
    if not only_sizes and _describe(file) != expected:
      return f"'{name}' has another checksum than its manifest says"
  return None


def _describe(file: str) -> Dict[str, int]:
  size = crc = 0
  with tf.io.gfile.GFile(file, "rb") as f:
    while True:
      chunk = f.read(_CHUNK)
      if not chunk:
        return {"size": size, "crc32": crc}
      size += len(chunk)
      crc = zlib.crc32(chunk, crc)


def _read_all(path: str) -> None:
  """Reads every value, by which TensorFlow compares its own checksums."""
  reader = tf.train.load_checkpoint(path)
  for name in reader.get_variable_to_shape_map():
    reader.get_tensor(name)
