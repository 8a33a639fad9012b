"""Sources of images: functions that return a `Source`, and their names.

fashion           the embedded subset of Fashion-MNIST
npz:PATH          arrays
npy:PATH          one array
folder:PATH       image files; sub-folders are labels
tfrecord:PATTERN  TFRecords, or their manifest.json
tfds:NAME         a set of tensorflow-datasets
"""

import contextlib
import importlib.resources
import os
from typing import (
  Any,
  Callable,
  Dict,
  Iterator,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
  Union,
)

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import arrays, shards, tfds_sets
from paragan_tf.data.encoded import EncodedImages
from paragan_tf.data.folder import list_images
from paragan_tf.data.tfrecords import FOOTER_BYTES, HEADER_BYTES

_NUM_HELDOUT, _MAX_CLASSES = 2000, 1_000_000


class Images(NamedTuple):
  """Images in memory.

  Attributes:
    pixels: uint8, shape `[n, h, w, c]`.
    labels: int32 class ids, shape `[n]`, or `None`.
  """

  pixels: np.ndarray
  labels: Optional[np.ndarray]

  @property
  def channels(self) -> int:
    """Colors of an image."""
    return self.pixels.shape[-1]

  def select(self, rows) -> "Images":
    """Returns the images of some rows."""
    labels = None if self.labels is None else self.labels[rows]
    return Images(self.pixels[rows], labels)

  def with_labels(self, labels: np.ndarray) -> "Images":
    """Returns the same images with other labels."""
    return self._replace(labels=labels)


class Source(NamedTuple):
  """A named set: training images, and held-out images for metrics.

  Attributes:
    name: The name of the set.
    train: Training images.
    heldout: Held-out images.
    label_names: Of the classes; none without labels.
    broken: `(file, reason)` of images that were left out.
  """

  name: str
  train: Union[Images, EncodedImages]
  heldout: Union[Images, EncodedImages]
  label_names: Tuple[str, ...]
  broken: Tuple[Tuple[str, str], ...] = ()

  @property
  def num_heldout(self) -> int:
    """The number of held-out images."""
    if isinstance(self.heldout, EncodedImages):
      return len(self.heldout)
    return len(self.heldout.pixels)


# Sources that are loaded once, while `keep` is open.
_kept: Optional[Dict[Any, Source]] = None


@contextlib.contextmanager
def keep() -> Iterator[None]:
  """Loads each source once, for a process that reads it again and again."""
  global _kept
  _kept = {}
  try:
    yield
  finally:
    _kept = None


def load(source: Union[str, Callable[[], Source]]) -> Source:
  """Returns what a text or a function names."""
  key = source if isinstance(source, str) else getattr(source, "__name__", "")
  if _kept is not None and key in _kept:
    return _kept[key]
  found = from_text(source) if isinstance(source, str) else source()
  if _kept is not None:
    _kept[key] = found
  return found


def from_text(text: str) -> Source:
  """Returns the source that a text like 'folder:PATH' names."""
  kind, _, rest = text.partition(":")
  if kind not in KINDS or bool(rest) != (kind != "fashion"):
    known = ", ".join(k if k == "fashion" else f"{k}:..." for k in KINDS)
    raise ValueError(f"`source` must be one of {known}, got '{text}'.")
  make = gin.get_configurable(KINDS[kind])
  return make(rest) if rest else make()


def select_classes(
  source: Source, labels: Sequence[Union[str, int]], name: str = "only_labels"
) -> Source:
  """Returns the images of some classes, renumbered; `name` is for errors."""
  names = source.label_names
  known: Dict[Union[str, int], int] = {i: i for i in range(len(names))}
  known.update({name: i for i, name in enumerate(names)})
  ids = [known.get(label, -1) for label in labels]
  if not ids or -1 in ids:
    raise ValueError(
      f"`{name}` must be names or numbers of classes of '{source.name}', "
      f"{list(names)[:20]}, got {list(labels)}."
    )
  new = np.full(len(names), -1, np.int32)
  new[ids] = np.arange(len(ids))

  def select(images):
    if images.labels is None:
      raise ValueError(
        f"`{name}` needs the labels of '{source.name}' beforehand, and "
        "they are inside of its records: `python -m tools.make_tfrecords "
        "--by_label` writes an index that has them, and files of their own."
      )
    kept = images.select(np.flatnonzero(new[images.labels] >= 0))
    if isinstance(kept, EncodedImages):
      kept = kept.without_other_files()
    return kept.with_labels(new[kept.labels])

  return source._replace(
    train=select(source.train),
    heldout=select(source.heldout),
    label_names=tuple(names[i] for i in ids),
  )


@gin.register
def fashion(num_heldout: int = 2000) -> Source:
  """Returns a subset of Fashion-MNIST (arXiv 1708.07747), embedded, 32x32 gray.

  10,000 images of 10 classes; two black pixels are added on each side.
  """
  package = importlib.resources.files("paragan_tf.data")
  with (package / "files" / "fashion_mnist.npz").open("rb") as f:
    found = arrays.read_npz(f, "The embedded Fashion-MNIST file")
  pixels = np.pad(found["images"], [(0, 0), (2, 2), (2, 2)])[..., None]
  names = tuple(str(name) for name in found["label_names"])
  return _split("fashion", pixels, found["labels"], names, num_heldout)


def fashion_mnist() -> Tuple[np.ndarray, np.ndarray]:
  """Returns the embedded images, uint8 `[10000, 32, 32, 1]`, and class ids."""
  parts = fashion()
  pixels, labels = zip(parts.train, parts.heldout)
  return np.concatenate(pixels), np.concatenate(labels)


@gin.register
def npz(path: str, num_heldout: Optional[int] = None) -> Source:
  """Returns arrays of a file: `images` `[n, h, w(, c)]` uint8, `labels` `[n]`.

  `labels` may be missing. The last `num_heldout` images are held out; by
  default a fifth, at most 2,000.
  """
  return _from_arrays(path, *arrays.load_npz(path), num_heldout)


@gin.register
def npy(
  path: str,
  labels_path: Optional[str] = None,
  num_heldout: Optional[int] = None,
) -> Source:
  """Returns the array of a file, `[n, h, w(, c)]` uint8, with labels `[n]`."""
  return _from_arrays(path, *arrays.load_npy(path, labels_path), num_heldout)


@gin.register
def folder(
  path: str,
  channels: int = 3,
  broken: str = "refuse",
  num_heldout: Optional[int] = None,
  decode: Optional[bool] = None,
) -> Source:
  """Returns the images of a folder; names of sub-folders are their labels.

  Args:
    path: The folder.
    channels: 3 for color, 1 for gray.
    broken: What to do with broken files: "refuse" or "skip" them.
    num_heldout: Number of random images to hold out; by default a fifth, at
      most 2,000.
    decode: Whether to decode all files at every start, which also finds those
      that are damaged in the middle or end early; by default if they are
      skipped. If it takes too long, use `tools.make_tfrecords` once.
  """
  _check_channels(channels)
  decode = broken == "skip" if decode is None else decode
  listing = list_images(path, broken, decode)
  n = len(listing.files)
  images = EncodedImages(
    paths=listing.files,
    path_index=np.arange(n),
    start=np.zeros(n, np.int64),
    size=np.full(n, -1),
    labels=listing.labels,
    channels=channels,
  )
  name = os.path.basename(os.path.abspath(path))
  source = _hold_out(name, images, num_heldout, listing.label_names)
  return source._replace(broken=listing.broken)


@gin.register
def tfrecord(
  pattern: str,
  channels: int = 3,
  num_classes: Optional[int] = None,
  num_heldout: Optional[int] = None,
  image_key: Optional[str] = None,
  label_key: Optional[str] = None,
) -> Source:
  """Returns the images of TFRecords, local, gs:// or http(s)://.

  Args:
    pattern: Of the files, or the path of their manifest.json.
    channels: 3 for color, 1 for gray.
    num_classes: Number of classes, if there is no manifest.
    num_heldout: Number of random images to hold out; by default a fifth, at
      most 2,000.
    image_key: The feature of the image; by default that of the manifest, or
      "image". Some sets call it "image/encoded".
    label_key: The feature of the class id; by default that of the manifest, or
      "label".
  """
  _check_channels(channels)
  index = shards.find(pattern)
  features = shards.Features(
    image_key or index.features.image, label_key or index.features.label
  )
  if features.label != index.features.label:  # The manifest has others.
    index = index._replace(labels=None)
  index = index._replace(features=features)
  names = index.label_names
  if not 0 <= (num_classes or 0) <= _MAX_CLASSES:
    raise ValueError(
      f"`num_classes` must be from 0 to {_MAX_CLASSES:,}, got {num_classes}."
    )
  if not names:
    names = tuple(str(i) for i in range(num_classes or 0))
  images = _encoded_images(index, channels, bool(names))
  return _hold_out(os.path.basename(pattern), images, num_heldout, names)


@gin.register
def tfds(
  name: str,
  data_dir: Optional[str] = None,
  split: str = "train",
  heldout_split: Optional[str] = None,
  num_heldout: Optional[int] = None,
  image_key: Optional[str] = None,
  label_key: Optional[str] = None,
) -> Source:
  """Returns a set of tensorflow-datasets that was built before.

  Args:
    name: As in `tfds build`.
    data_dir: Where it was built; tensorflow-datasets' own folder by default.
    split: The training images.
    heldout_split: The held-out images; by default "test" or "validation",
      whichever has labels, or some of `split` if there is neither.
    num_heldout: How many of those; at most 2,000 by default.
    image_key: The feature of the image; by default "image", or the only one.
    label_key: The feature of the label; by default "label", or the only one.
  """
  built = tfds_sets.find(name, data_dir, image_key, label_key)
  names = built.label_names

  def load(split):
    return _encoded_images(built.index(split), built.channels, bool(names))

  images = load(split)
  if heldout_split is None:
    heldout_split = built.default_heldout(split)
  if heldout_split is None:
    return _hold_out(name, images, num_heldout, names)
  heldout = load(heldout_split)
  rows = _sample_rows(
    len(heldout), min(num_heldout or _NUM_HELDOUT, len(heldout))
  )
  return Source(name, images, heldout.select(rows), names)


KINDS: Dict[str, Callable[..., Source]] = {
  "fashion": fashion,
  "npz": npz,
  "npy": npy,
  "folder": folder,
  "tfrecord": tfrecord,
  "tfds": tfds,
}


def _encoded_images(
  index: shards.Index, channels: int, has_labels: bool
) -> EncodedImages:
  features = {index.features.image: tf.io.FixedLenFeature([], tf.string)}
  if has_labels:
    features[index.features.label] = tf.io.FixedLenFeature([], tf.int64)

  def parse(content: tf.Tensor):
    found = tf.io.parse_example(content, features)
    images = found[index.features.image]
    return images, found.get(
      index.features.label, tf.zeros_like(images, tf.int64)
    )

  return EncodedImages(
    index.paths,
    index.shard,
    index.offset,
    index.size,
    index.labels if has_labels else None,
    channels,
    parse,
    _number_records(index),
  )


def _number_records(index: shards.Index) -> Optional[np.ndarray]:
  """Returns the number of each record, `None` if the index skips some."""
  is_next = index.offset[1:] == index.offset[:-1] + index.size[:-1] + (
    HEADER_BYTES + FOOTER_BYTES
  )
  if not np.all(is_next | (np.diff(index.shard) != 0)):
    return None
  return np.arange(len(index.shard))


def _check_channels(channels: int) -> None:
  if channels not in (1, 3):
    raise ValueError(f"`channels` must be 1 or 3, got {channels}.")


def _sample_rows(n: int, count: int) -> np.ndarray:
  """Returns `count` random rows of `n`, sorted."""
  return np.sort(np.random.RandomState(0).permutation(n)[:count])


def _hold_out(
  name: str,
  images: EncodedImages,
  num_heldout: Optional[int],
  label_names: Tuple[str, ...],
) -> Source:
  """Holds out random images, because files may be sorted by class."""
  n = len(images)
  count = _default_num_heldout(n) if num_heldout is None else num_heldout
  _check_heldout(count, n)
  rows = _sample_rows(n, count)
  others = np.setdiff1d(np.arange(n), rows)
  return Source(name, images.select(others), images.select(rows), label_names)


def _from_arrays(path: str, pixels, labels, num_heldout) -> Source:
  count = 0 if labels is None else int(labels.max()) + 1
  names = tuple(str(i) for i in range(count))
  if num_heldout is None:
    num_heldout = _default_num_heldout(len(pixels))
  return _split(os.path.basename(path), pixels, labels, names, num_heldout)


def _split(name, pixels, labels, label_names, num_heldout) -> Source:
  _check_heldout(num_heldout, len(pixels))
  cut = len(pixels) - num_heldout
  if labels is not None:
    labels = labels.astype(np.int32)

  def select(rows):
    return Images(pixels[rows], None if labels is None else labels[rows])

  return Source(name, select(slice(cut)), select(slice(cut, None)), label_names)


def _default_num_heldout(n: int) -> int:
  return min(_NUM_HELDOUT, n // 5)


def _check_heldout(num_heldout: int, n: int) -> None:
  if not 1 < num_heldout < n:
    raise ValueError(
      f"`num_heldout` must leave images to train on: between 2 and {n - 1}, "
      f"got {num_heldout}."
    )
