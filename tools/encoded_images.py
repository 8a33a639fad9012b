"""Encoded images of a folder or a tfds set, in any order.

    images = encoded_images.open_source("folder:photos", ...)
    for image in images.part(np.array([7, 3])): ...

A part is small and can be sent to another process, which then reads the bytes.
"""

import dataclasses
import functools
import os
from typing import Iterator, NamedTuple, Optional, Tuple, Union

import numpy as np

from tools import cli

# Names of the image and the label in a record; `None` to find them out.
Keys = Tuple[Optional[str], Optional[str]]


class Image(NamedTuple):
  """One image; `label` is `None` where there are none."""

  data: bytes
  label: Optional[int]
  name: str


@dataclasses.dataclass(frozen=True)
class FolderImages:
  """Files of a folder, without broken ones; `names` are relative to it."""

  title: str
  root: str
  names: Tuple[str, ...]
  sizes: np.ndarray
  labels: Optional[np.ndarray]
  label_names: Tuple[str, ...]
  num_broken: int = 0

  def part(self, rows: np.ndarray) -> "FolderImages":
    """Returns these images, in this order."""
    return dataclasses.replace(
      self,
      names=tuple(self.names[row] for row in rows),
      sizes=self.sizes[rows],
      labels=None if self.labels is None else self.labels[rows],
    )

  def __iter__(self) -> Iterator[Image]:
    for i, name in enumerate(self.names):
      with open(os.path.join(self.root, name), "rb") as f:
        data = f.read()
      label = None if self.labels is None else int(self.labels[i])
      yield Image(data, label, name)


@dataclasses.dataclass(frozen=True)
class TfdsImages:
  """Records of a tfds set; `labels` are `None` until `load_labels`.

  `keys` are the names of the image and the label in a record.
  """

  title: str
  folder: str
  keys: Tuple[str, str]
  paths: Tuple[str, ...]
  shards: np.ndarray
  offsets: np.ndarray
  sizes: np.ndarray
  names: Tuple[str, ...]
  labels: Optional[np.ndarray]
  label_names: Tuple[str, ...]
  num_broken: int = 0

  def part(self, rows: np.ndarray) -> "TfdsImages":
    """Returns these images, in this order."""
    return dataclasses.replace(
      self,
      shards=self.shards[rows],
      offsets=self.offsets[rows],
      sizes=self.sizes[rows],
      names=tuple(self.names[row] for row in rows),
      labels=None if self.labels is None else self.labels[rows],
    )

  def __iter__(self) -> Iterator[Image]:
    read = _make_record_reader(self.folder, *self.keys)
    tf = cli.import_quietly("tensorflow")
    for i, name in enumerate(self.names):
      # Opening is cheap beside the rest, and a set may have many files.
      with tf.io.gfile.GFile(self.paths[self.shards[i]], "rb") as f:
        f.seek(self.offsets[i])
        yield read(f.read(self.sizes[i]), name)


Images = Union[FolderImages, TfdsImages]


def open_source(
  source: str,
  split: str,
  data_dir: Optional[str],
  broken: str,
  keys: Keys = (None, None),
) -> Images:
  """Returns the images of `folder:PATH` or `tfds:NAME`, unread.

  `keys` are the features of a tfds set to take; `None` chooses one.
  """
  kind, _, name = source.partition(":")
  if kind == "folder" and name:
    return _open_folder(name, broken)
  if kind == "tfds" and name:
    return _open_tfds(name, split, data_dir, keys)
  raise ValueError(
    f"`--source` must be folder:PATH or tfds:NAME, got {source}."
  )


def load_labels(images: Images) -> Images:
  """Returns the images with their labels, which may have to read them all."""
  if images.labels is not None:
    return images
  labels = [image.label for image in images] if images.label_names else [None]
  if None in labels:
    raise ValueError(f"`--by_label` needs labels, '{images.title}' has none.")
  return dataclasses.replace(images, labels=np.array(labels, np.int32))


def _open_folder(path: str, broken: str) -> FolderImages:
  listing = cli.import_quietly("paragan_tf.data.folder").list_images(
    path, broken
  )
  root = os.path.abspath(path)
  for file, reason in listing.broken:
    print(f"Left out: {os.path.relpath(file, root)} ({reason})", flush=True)
  return FolderImages(
    os.path.basename(root),
    root,
    tuple(os.path.relpath(file, root) for file in listing.files),
    np.array([os.path.getsize(file) for file in listing.files], np.int64),
    listing.labels,
    listing.label_names,
    len(listing.broken),
  )


def _open_tfds(
  name: str, split: str, data_dir: Optional[str], keys: Keys
) -> TfdsImages:
  sets = cli.import_quietly("paragan_tf.data.tfds_sets")
  info = sets.load_builder(name, data_dir).info
  features = dict(info.features.items())
  image, label = _choose_features(features, name, keys)
  index = sets.index_split(info, split)
  return TfdsImages(
    info.full_name,
    str(info.data_dir),
    (image, label),
    index.paths,
    index.shard,
    index.offset,
    index.size,
    tuple(f"{split}-{i}" for i in range(len(index.shard))),
    None,
    tuple(getattr(features.get(label), "names", None) or ()),
  )


def _choose_features(features, name: str, keys: Keys) -> Tuple[str, str]:
  """Returns the names of the image and the label; an array is an image too."""
  image = features.get(keys[0] or "image")
  tfds = cli.import_quietly("tensorflow_datasets")
  is_array = (
    image is not None
    and not isinstance(image, tfds.features.Image)
    and image.np_dtype == np.uint8
    and len(image.shape) == 3
  )
  if is_array:
    return keys[0] or "image", keys[1] or "label"
  sets = cli.import_quietly("paragan_tf.data.tfds_sets")
  return tuple(sets.choose_features(features, name, *keys))


@functools.cache
def _make_record_reader(folder: str, image: str, label: str):
  """Returns a function from a record of a set to an `Image`."""
  tfds = cli.import_quietly("tensorflow_datasets")
  features = tfds.builder_from_directory(folder).info.features
  kinds = dict(features.items())
  is_encoded = isinstance(kinds[image], tfds.features.Image)
  has_label = isinstance(kinds.get(label), tfds.features.ClassLabel)
  decoders = {image: tfds.decode.SkipDecoding()} if is_encoded else {}

  def read(record: bytes, name: str) -> Image:
    example = features.deserialize_example_np(record, decoders=decoders)
    data = example[image]
    if not is_encoded:
      tf = cli.import_quietly("tensorflow")
      data = tf.io.encode_png(data).numpy()
    file_name = example.get("file_name")
    if isinstance(file_name, bytes):
      name = file_name.decode()
    # tfds writes -1 where there is a feature and no label.
    known = has_label and example[label] >= 0
    return Image(data, example[label] if known else None, name)

  return read
