"""Sets of tensorflow-datasets, read as the TFRecords that they are on disk."""

import dataclasses
import os
from typing import Any, Optional, Tuple

import numpy as np

from paragan_tf.data import shards


@dataclasses.dataclass(frozen=True)
class Built:
  """A set that was built.

  Attributes:
    info: What tensorflow-datasets knows of it.
    features: Names of the image and of the label in a record.
    channels: Colors of an image.
    label_names: Names of the classes; none without a label.
    splits: Names of the splits.
  """

  info: Any
  features: shards.Features
  channels: int
  label_names: Tuple[str, ...]
  splits: Tuple[str, ...]

  def index(self, split: str) -> shards.Index:
    """Returns where each record of a split, or of a part of one, is."""
    index = records(self.info, split)
    return index._replace(label_names=self.label_names, features=self.features)


def records(info: Any, split: str) -> shards.Index:
  """Returns where each record of a split is; as tfds names them, parts too."""
  try:
    files = info.splits[split].file_instructions
  except (KeyError, ValueError, AssertionError) as e:
    raise ValueError(
      f"`split` of '{info.name}' must be one of {list(info.splits)} or a part "
      f"of one, got '{split}'."
    ) from e
  paths = tuple(str(file.filename) for file in files)
  shard, offset, size = shards.scan(paths)
  skip = np.array([file.skip for file in files])
  take = np.array([file.take for file in files])
  counts = np.bincount(shard, minlength=len(files))
  first = np.cumsum(counts) - counts
  place = np.arange(len(shard)) - first[shard] - skip[shard]
  rows = np.flatnonzero((place >= 0) & (place < take[shard]))
  return shards.Index(
    paths, shard[rows], offset[rows], size[rows], None, (), shards.Features()
  )


def find(name: str, data_dir: Optional[str] = None) -> Built:
  """Returns a set that was built in `data_dir`."""
  return _described(prepared(name, data_dir).info, name)


def prepared(name: str, data_dir: Optional[str] = None) -> Any:
  """Returns the builder of a set that was built in `data_dir`."""
  import tensorflow_datasets as tfds  # Late: it takes seconds.

  try:
    builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
  except (tfds.core.DatasetNotFoundError, ValueError, OSError) as e:
    raise ValueError(
      f"tensorflow-datasets has no set '{name}' ({_first_line(e)}): see `tfds "
      "--help` for the names, or give the `data_dir` where it was built."
    ) from e
  if not builder.info.splits:
    raise ValueError(_not_there(builder, name))
  if builder.info.file_format.value != "tfrecord":
    raise ValueError(
      f"'{name}' must be built as TFRecords, got "
      f"'{builder.info.file_format.value}': build it with `tfds build {name} "
      "--file_format=tfrecord`."
    )
  return builder


def _described(info: Any, name: str) -> Built:
  import tensorflow_datasets as tfds

  kinds = tfds.features
  images = _of_kind(info.features, kinds.Image)
  labels = _of_kind(info.features, kinds.ClassLabel)
  if len(images) != 1 or len(labels) > 1:
    raise ValueError(
      f"'{name}' must have one image and at most one label, got "
      f"{images or 'no image'} and {labels or 'no label'}: write TFRecords of "
      "your own, with the features `image` and `label`."
    )
  names: Tuple[str, ...] = ()
  if labels:
    names = tuple(info.features[labels[0]].names)
  return Built(
    info,
    shards.Features(images[0], labels[0] if labels else "label"),
    int(np.asarray(info.features[images[0]].shape[-1] or 3)),
    names,
    tuple(info.splits),
  )


def _of_kind(features: Any, kind: Any) -> list:
  return [key for key, feature in features.items() if isinstance(feature, kind)]


def _not_there(builder: Any, name: str) -> str:
  folder = os.path.dirname(os.path.dirname(str(builder.data_dir)))
  if builder.builder_config is not None:
    folder = os.path.dirname(folder)
  manual = os.path.join(folder, "downloads", "manual")
  return (
    f"'{name}' is not in '{folder}': build it with `tfds build {name} "
    f"--data_dir={folder}` (what it cannot download itself goes into "
    f"'{manual}' before), or give the `data_dir` where it was built."
  )


def _first_line(error: Exception) -> str:
  lines = str(error).strip().splitlines()
  return lines[0] if lines else type(error).__name__
