"""Sets of tensorflow-datasets, read as the TFRecords that they are on disk."""

import dataclasses
import os
from typing import Any, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.data import reading, shards


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

  def usual_heldout(self, split: str) -> Optional[str]:
    """Returns the split to measure with, if there is one with labels."""
    others = [x for x in ("test", "validation") if x in self.splits]
    if split in others:
      return None
    return next(filter(self._has_labels, others), None)

  def _has_labels(self, split: str) -> bool:
    """Tells by its first record, for either all are known or none is."""
    if not self.label_names:
      return True
    index = self.index(split)
    path = index.paths[index.shard[0]]
    record = reading.read(path, int(index.offset[0]), int(index.size[0]))
    feature = tf.train.Example.FromString(record).features.feature
    (label,) = feature[self.features.label].int64_list.value
    return label >= 0


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


def find(
  name: str,
  data_dir: Optional[str] = None,
  image_key: Optional[str] = None,
  label_key: Optional[str] = None,
) -> Built:
  """Returns a set that was built in `data_dir`, and which features to take."""
  info = prepared(name, data_dir).info
  kinds = dict(info.features.items())
  features = choose(kinds, name, image_key, label_key)
  label = kinds.get(features.label)
  return Built(
    info,
    features,
    int(np.asarray(kinds[features.image].shape[-1] or 3)),
    tuple(getattr(label, "names", None) or ()),
    tuple(info.splits),
  )


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


def choose(
  features: Mapping[str, Any],
  name: str,
  image_key: Optional[str] = None,
  label_key: Optional[str] = None,
) -> shards.Features:
  """Returns which features are the image and the label.

  Those that are asked for; else those called so, or the only ones of the kind.
  """
  import tensorflow_datasets as tfds

  images = _of_kind(features, tfds.features.Image)
  labels = _of_kind(features, tfds.features.ClassLabel)
  image = _chosen("image", image_key, images, name)
  label = _chosen("label", label_key, labels, name)
  if image is None:
    raise ValueError(
      f"'{name}' must have an image, got {', '.join(features)}: write "
      "TFRecords of your own, with the features `image` and `label`."
    )
  return shards.Features(image, label or "label")


def _chosen(
  usual: str, asked: Optional[str], known: List[str], name: str
) -> Optional[str]:
  if asked is None and not known:
    return None
  if asked is None and (usual in known or len(known) == 1):
    return usual if usual in known else known[0]
  if asked in known:
    return asked
  got = "several" if asked is None else f"'{asked}'"
  raise ValueError(
    f"`{usual}_key` must be one of {known}, the {usual}s of '{name}', got "
    f"{got}: set `sources.tfds.{usual}_key`."
  )


def _of_kind(features: Mapping[str, Any], kind: Any) -> List[str]:
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
