"""Sets of tensorflow-datasets, read directly from their TFRecord files."""

import dataclasses
import os
from typing import Any, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.data import reading, shards


@dataclasses.dataclass(frozen=True)
class BuiltSet:
  """A set that `tfds build` has prepared.

  Attributes:
    info: Its `tfds.core.DatasetInfo`.
    features: Keys of the image and of the label in a record.
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
    """Returns the index of a split or a slice of one."""
    index = index_split(self.info, split)
    return index._replace(label_names=self.label_names, features=self.features)

  def default_heldout(self, split: str) -> Optional[str]:
    """Returns the held-out split, if there is one with labels."""
    others = [x for x in ("test", "validation") if x in self.splits]
    if split in others:
      return None
    return next(filter(self._has_labels, others), None)

  def _has_labels(self, split: str) -> bool:
    """Returns whether the first record has a label, as do all or none."""
    if not self.label_names:
      return True
    index = self.index(split)
    path = index.paths[index.shard[0]]
    record = reading.read(path, int(index.offset[0]), int(index.size[0]))
    feature = tf.train.Example.FromString(record).features.feature
    (label,) = feature[self.features.label].int64_list.value
    return label >= 0


def index_split(info: Any, split: str) -> shards.Index:
  """Returns the index of a split; tfds slices such as 'train[:10%]' work."""
  try:
    files = info.splits[split].file_instructions
  except (KeyError, ValueError, AssertionError) as e:
    raise ValueError(
      f"`split` of '{info.name}' must be one of {list(info.splits)} or a slice "
      f"of one, got '{split}'."
    ) from e
  paths = tuple(str(file.filename) for file in files)
  shard, offset, size = shards.scan(paths)
  skip = np.array([file.skip for file in files])
  take = np.array([file.take for file in files])
  counts = np.bincount(shard, minlength=len(files))
  first = np.cumsum(counts) - counts
  position = np.arange(len(shard)) - first[shard] - skip[shard]
  rows = np.flatnonzero((position >= 0) & (position < take[shard]))
  return shards.Index(
    paths, shard[rows], offset[rows], size[rows], None, (), shards.Features()
  )


def find(
  name: str,
  data_dir: Optional[str] = None,
  image_key: Optional[str] = None,
  label_key: Optional[str] = None,
) -> BuiltSet:
  """Returns a set that was built in `data_dir`, and which features to take."""
  info = load_builder(name, data_dir).info
  kinds = dict(info.features.items())
  features = choose_features(kinds, name, image_key, label_key)
  label = kinds.get(features.label)
  return BuiltSet(
    info,
    features,
    int(np.asarray(kinds[features.image].shape[-1] or 3)),
    tuple(getattr(label, "names", None) or ()),
    tuple(info.splits),
  )


def load_builder(name: str, data_dir: Optional[str] = None) -> Any:
  """Returns the tfds builder of a set that was built in `data_dir`."""
  import tensorflow_datasets as tfds  # Late: it takes seconds.

  if ":" in name:  # Of a community: fetched code, which would be run.
    raise ValueError(
      f"`name` must be that of a set in tensorflow-datasets, got '{name}': "
      "sets with a colon are programs from elsewhere; build it as TFRecords."
    )
  try:
    builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
  except (tfds.core.DatasetNotFoundError, ValueError, OSError) as e:
    raise ValueError(
      f"tensorflow-datasets has no set '{name}' ({_first_line(e)}): see `tfds "
      "--help` for the names, or give the `data_dir` where it was built."
    ) from e
  if not builder.info.splits:
    raise ValueError(_how_to_build(builder, name))
  if builder.info.file_format.value != "tfrecord":
    raise ValueError(
      f"'{name}' must be built as TFRecords, got "
      f"'{builder.info.file_format.value}': build it with `tfds build {name} "
      "--file_format=tfrecord`."
    )
  return builder


def choose_features(
  features: Mapping[str, Any],
  name: str,
  image_key: Optional[str] = None,
  label_key: Optional[str] = None,
) -> shards.Features:
  """Returns the keys of the image and of the label.

  By default "image" and "label", or the only features of that type.
  """
  import tensorflow_datasets as tfds

  images = _keys_of_type(features, tfds.features.Image)
  labels = _keys_of_type(features, tfds.features.ClassLabel)
  image = _choose("image", image_key, images, name)
  label = _choose("label", label_key, labels, name)
  if image is None:
    raise ValueError(
      f"'{name}' must have an image, got {', '.join(sorted(features))}: "
      "write "
      "TFRecords of your own, with the features `image` and `label`."
    )
  return shards.Features(image, label or "label")


def _choose(
  default: str, key: Optional[str], known: List[str], name: str
) -> Optional[str]:
  if key is None and not known:
    return None
  if key is None and (default in known or len(known) == 1):
    return default if default in known else known[0]
  if key in known:
    return key
  got = "several" if key is None else f"'{key}'"
  raise ValueError(
    f"`{default}_key` must be one of {sorted(known)}, the {default}s of "
    f"'{name}', got {got}: set `sources.tfds.{default}_key`."
  )


def _keys_of_type(features: Mapping[str, Any], type_: Any) -> List[str]:
  return [
    key for key, feature in features.items() if isinstance(feature, type_)
  ]


def _how_to_build(builder: Any, name: str) -> str:
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
