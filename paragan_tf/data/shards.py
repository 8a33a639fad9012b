"""Indexes TFRecord files, so that any record can be read by its position.

    index = find("data/train-*.tfrecord")    # or a manifest.json
    path, start = index.paths[index.shard[i]], index.offset[i]
    example = bytes `start` to `start + index.size[i]` of `path`

A manifest beside the files, with `index.npz`, stores the result of a scan, and
the labels.
"""

import concurrent.futures
import dataclasses
import http.client
import io
import json
import os
import urllib.parse
import urllib.request
from typing import (
  Any,
  Dict,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
)

import numpy as np
import tensorflow as tf

from paragan_tf import array_files
from paragan_tf.data.index_files import scan

_MANIFEST, _INDEX = "manifest.json", "index.npz"
_VERSION = 1
_MAX_CLASSES = 1_000_000
_TIMEOUT_SECONDS = 10.0
_NUM_THREADS = 16
_REMEDY = "copy it again with its index.npz, or delete it to scan the files"


class Features(NamedTuple):
  """The keys of the features of a `tf.train.Example`."""

  image: str = "image"
  label: str = "label"


class Index(NamedTuple):
  """The file, offset and size of each record of a set.

  Attributes:
    paths: The files.
    shard: int32 indices into `paths`, shape `[n]`.
    offset: int64 bytes before the payload in its file, shape `[n]`.
    size: int64 bytes of the payload, shape `[n]`.
    labels: int32 class ids, shape `[n]`, or `None` if the index has none.
    label_names: Names of the classes, empty if unknown.
    features: Keys in a record.
  """

  paths: Tuple[str, ...]
  shard: np.ndarray
  offset: np.ndarray
  size: np.ndarray
  labels: Optional[np.ndarray]
  label_names: Tuple[str, ...]
  features: Features


@dataclasses.dataclass(frozen=True)
class Shard:
  """One file of a set, as it was written."""

  file: str
  count: int
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
  """A set, as it was written: its files, and an index with relative paths."""

  name: str
  shards: Tuple[Shard, ...]
  index: Index


def find(pattern: str) -> Index:
  """Returns the index of a set.

  Args:
    pattern: Pattern of TFRecord files, local or gs://; or the path or http(s)
      address of a manifest.json that `tools.make_tfrecords` wrote. Files behind
      an address are not compared with the manifest.
  """
  if os.path.basename(_url_path(pattern)) == _MANIFEST:
    index = _read_index(pattern)
  elif _is_http(pattern):
    raise ValueError(
      f"`pattern` must end with {_MANIFEST} if it is an address, got "
      f"'{pattern}': name the manifest that `tools.make_tfrecords` wrote."
    )
  else:
    index = _match_files(pattern)
  if not len(index.shard):
    raise ValueError(
      f"`pattern` must give images, the {len(index.paths)} files of "
      f"'{pattern}' are empty: make them with `tools.make_tfrecords`."
    )
  return index


def read_manifest(path: str) -> Manifest:
  """Reads a manifest.json and its index.npz, and compares them."""
  text, data = _read(path), _read(_sibling(path, _INDEX))
  try:
    return _parse(json.loads(text), _load_arrays(data))
  except (
    AttributeError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
  ) as e:
    raise ValueError(
      f"'{path}' is damaged or was not written by `tools.make_tfrecords` "
      f"({e!r}): {_REMEDY}."
    ) from e


def write_manifest(folder: str, manifest: Manifest) -> None:
  """Writes index.npz and manifest.json, each atomically."""
  index = manifest.index
  content = {
    "version": _VERSION,
    "name": manifest.name,
    "label_names": index.label_names,
    "features": index.features._asdict(),
    "num_images": len(index.shard),
    "label_counts": _label_counts(index.labels, index.label_names),
    "shards": [dataclasses.asdict(shard) for shard in manifest.shards],
  }
  columns = {"shard": index.shard, "offset": index.offset, "size": index.size}
  if index.labels is not None:
    columns["labels"] = index.labels
  data = io.BytesIO()
  np.savez_compressed(data, **columns)
  _write(os.path.join(folder, _INDEX), data.getvalue())
  # Last, so that there is never a manifest without its index.
  text = json.dumps(content, indent=1, ensure_ascii=False)
  _write(os.path.join(folder, _MANIFEST), f"{text}\n".encode())


def _match_files(pattern: str) -> Index:
  """Returns the index of a pattern, from its manifest or by a scan."""
  try:
    paths = tuple(sorted(tf.io.gfile.glob(pattern)))
  except (tf.errors.OpError, UnicodeError, ValueError) as e:
    raise ValueError(f"`pattern` '{pattern}' cannot be listed: {e}") from e
  if not paths:
    raise ValueError(f"`pattern` must match a file, '{pattern}' matches none.")
  path = os.path.join(os.path.dirname(paths[0]), _MANIFEST)
  if tf.io.gfile.exists(path):
    manifest = read_manifest(path)
    known = {_sibling(path, x.file): x.bytes for x in manifest.shards}
    if [known.get(x) for x in paths] == _sizes(paths):
      return _select_files(manifest.index._replace(paths=tuple(known)), paths)
  return Index(paths, *scan(paths), None, (), Features())


def _read_index(path: str) -> Index:
  """Returns the index of a manifest; checks the sizes of its files."""
  manifest = read_manifest(path)
  paths = tuple(_sibling(path, shard.file) for shard in manifest.shards)
  sizes = [] if _is_http(path) else _sizes(paths)
  for full, shard, size in zip(paths, manifest.shards, sizes):
    if size != shard.bytes:
      now = "does not exist" if size is None else f"has {size:,}"
      raise ValueError(
        f"'{full}' must have {shard.bytes:,} bytes as '{path}' says, and "
        f"{now}: copy it again."
      )
  return manifest.index._replace(paths=paths)


def _select_files(index: Index, paths: Tuple[str, ...]) -> Index:
  """Returns the index of some of its files, in their order."""
  old = [index.paths.index(path) for path in paths]
  new = np.full([len(index.paths)], len(paths), np.int32)
  new[old] = np.arange(len(paths))
  shard = new[index.shard]
  rows = np.argsort(shard, kind="stable")[: np.sum(shard < len(paths))]
  return index._replace(
    paths=paths,
    shard=shard[rows],
    offset=index.offset[rows],
    size=index.size[rows],
    labels=None if index.labels is None else index.labels[rows],
  )


def _parse(content: Dict[str, Any], arrays: Dict[str, np.ndarray]) -> Manifest:
  """Returns a manifest; raises a `ValueError` if its content does not fit."""
  if content["version"] != _VERSION:
    raise ValueError(f"`version` is {content['version']}, not {_VERSION}")
  shards = tuple(Shard(**entry) for entry in content["shards"])
  for shard in shards:
    if os.path.basename(shard.file) != shard.file or not shard.file:
      raise ValueError(f"`file` '{shard.file}' is not the name of a file")
  labels = arrays.get("labels")
  _check_columns(len(shards), arrays)
  index = Index(
    tuple(shard.file for shard in shards),
    arrays["shard"].astype(np.int32),
    arrays["offset"].astype(np.int64),
    arrays["size"].astype(np.int64),
    None if labels is None else labels.astype(np.int32),
    tuple(content["label_names"]),
    Features(**content["features"]),
  )
  _check_index(content, shards, index)
  return Manifest(content["name"], shards, index)


def _check_index(
  content: Dict[str, Any], shards: Sequence[Shard], index: Index
) -> None:
  """Refuses an index that does not fit the files or labels of its manifest."""
  if not all(isinstance(x, str) for x in (*index.label_names, *index.features)):
    raise ValueError("`label_names` or `features` are not texts")
  counts = np.bincount(index.shard, minlength=len(shards)).tolist()
  ends = np.array([shard.bytes for shard in shards], np.int64)
  lengths = {len(index.shard), len(index.offset), len(index.size)}
  if (
    counts != [shard.count for shard in shards]
    or lengths != {content["num_images"]}
    or np.any(index.offset + index.size > ends[index.shard])
  ):
    raise ValueError(f"`shards` do not fit the {sum(counts)} of {_INDEX}")
  if index.labels is not None and len(index.labels) != len(index.shard):
    raise ValueError(f"`labels` of {_INDEX} are {len(index.labels)}")
  if _label_counts(index.labels, index.label_names) != content["label_counts"]:
    raise ValueError(f"`label_counts` do not fit the labels of {_INDEX}")


def _check_columns(num_shards: int, arrays: Mapping[str, np.ndarray]) -> None:
  """Refuses numbers that could be none of an index, before they are used."""
  bounds = {
    "shard": num_shards,
    "offset": np.iinfo(np.int64).max // 2,
    "size": np.iinfo(np.int32).max,
    "labels": _MAX_CLASSES,
  }
  for name, end in bounds.items():
    column = arrays.get(name)
    if column is None:
      continue
    if column.ndim != 1 or column.dtype.kind not in "iu":
      raise ValueError(f"`{name}` of {_INDEX} is no list of whole numbers")
    if len(column) and not 0 <= column.min() <= column.max() < end:
      raise ValueError(f"`{name}` of {_INDEX} is not from 0 to {end - 1:,}")


def _label_counts(
  labels: Optional[np.ndarray], names: Sequence[str]
) -> List[int]:
  if labels is None:
    return []
  return np.bincount(labels, minlength=len(names)).tolist()


def _load_arrays(data: bytes) -> Dict[str, np.ndarray]:
  try:
    return array_files.read(io.BytesIO(data))
  except ValueError as e:
    raise ValueError(f"{_INDEX} is no npz file: {e}") from e


def _is_http(path: str) -> bool:
  return path.startswith(("http://", "https://"))


def _url_path(path: str) -> str:
  return urllib.parse.urlsplit(path).path if _is_http(path) else path


def _sibling(path: str, file: str) -> str:
  if _is_http(path):
    return urllib.parse.urljoin(path, urllib.parse.quote(file))
  return os.path.join(os.path.dirname(path), file)


def _sizes(paths: Sequence[str]) -> List[Optional[int]]:
  """Returns the size of each file, `None` if it does not exist."""

  def size(path):
    return tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else None

  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    return list(pool.map(size, paths))


def _read(path: str) -> bytes:
  array_files.check_regular(path)
  try:
    if not _is_http(path):
      with tf.io.gfile.GFile(path, "rb") as f:
        return f.read()
    with urllib.request.urlopen(path, timeout=_TIMEOUT_SECONDS) as response:
      return response.read()
  except (OSError, http.client.HTTPException, tf.errors.OpError) as e:
    raise ValueError(
      f"'{path}' cannot be read ({e}): check that it is there."
    ) from e


def _write(path: str, data: bytes) -> None:
  partial = f"{path}.part{os.getpid()}"
  with tf.io.gfile.GFile(partial, "wb") as f:
    f.write(data)
  tf.io.gfile.rename(partial, path, overwrite=True)
