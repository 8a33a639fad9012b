"""Keeps what a scan of TFRecord files found, beside the run.

    with reading_from(model_dir), recording() as scans:
      scan(paths)              # reads the headers, unless `model_dir` has them
    save(model_dir, scans)     # for the next start

Headers lead from one to the next, so on gs:// a scan reads whole files. If a
file has another size or time than before, all are scanned again.
"""

import concurrent.futures
import contextlib
import hashlib
import io
import json
import os
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf import array_files
from paragan_tf.data import tfrecords

_FOLDER = "index"
_NUM_THREADS = 16
_DAMAGED = (ValueError, KeyError, OSError, tf.errors.OpError)

# The columns `shard`, `offset` and `size`, as `tfrecords.scan` returns them.
Columns = Tuple[np.ndarray, np.ndarray, np.ndarray]
Scans = Dict[str, Columns]

_folders: List[str] = []  # The last one is read from.
_records: List[Scans] = []  # The last one is added to.


@contextlib.contextmanager
def reading_from(folder: str) -> Iterator[None]:
  """Lets `scan` take what was saved in a run's folder."""
  _folders.append(folder)
  try:
    yield
  finally:
    _folders.pop()


@contextlib.contextmanager
def recording() -> Iterator[Scans]:
  """Yields a dict, which gets all new scans, to be saved."""
  scans: Scans = {}
  _records.append(scans)
  try:
    yield scans
  finally:
    _records.pop()


def scan(paths: Sequence[str]) -> Columns:
  """Returns `tfrecords.scan(paths)`, maybe from an earlier scan."""
  if not (_folders or _records):
    return tfrecords.scan(paths)
  key = _hash_files(paths)
  scans = _records[-1] if _records else {}
  if key in scans:
    return scans[key]
  found = _load(_path(_folders[-1], key)) if _folders else None
  if found is None:
    found = scans[key] = tfrecords.scan(paths)
  return found


def save(folder: str, scans: Scans) -> None:
  """Writes scans into a run's folder."""
  for key, (shard, offset, size) in scans.items():
    data = io.BytesIO()
    np.savez_compressed(data, shard=shard, offset=offset, size=size)
    path = _path(folder, key)
    tf.io.gfile.makedirs(os.path.dirname(path))
    partial = f"{path}.part{os.getpid()}"
    with tf.io.gfile.GFile(partial, "wb") as f:
      f.write(data.getvalue())
    tf.io.gfile.rename(partial, path, overwrite=True)


def _load(path: str) -> Optional[Columns]:
  """Returns the columns of a file, `None` if it is missing or damaged."""
  if not tf.io.gfile.exists(path):
    return None
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      arrays = array_files.read(io.BytesIO(f.read()))
    return arrays["shard"], arrays["offset"], arrays["size"]
  except _DAMAGED:
    return None


def _path(folder: str, key: str) -> str:
  return os.path.join(folder, _FOLDER, f"{key}.npz")


def _hash_files(paths: Sequence[str]) -> str:
  """Returns a hash of the files' names, sizes and times."""

  def describe(path):
    try:
      found = tf.io.gfile.stat(path)
    except tf.errors.OpError:
      return path, None, None  # The scan will name it.
    return path, found.length, found.mtime_nsec

  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    files = list(pool.map(describe, paths))
  return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:24]
