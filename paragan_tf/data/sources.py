"""Where images come from: a few functions that each return a `Source`.

fashion           the embedded part of Fashion-MNIST
npz:PATH          arrays
npy:PATH          one array
folder:PATH       image files; sub-folders are labels
tfrecord:PATTERN  TFRecords, or their manifest.json
tfds:NAME         a set of tensorflow-datasets
"""

import importlib.resources
import os
import zipfile
import zlib
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import shards, tfds_sets
from paragan_tf.data.encoded import Encoded
from paragan_tf.data.folder import list_images
from paragan_tf.data.layout import channels_last

_NUM_HELDOUT = 2000


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

  def part(self, rows) -> "Images":
    """Returns some of the images."""
    labels = None if self.labels is None else self.labels[rows]
    return Images(self.pixels[rows], labels)

  def with_labels(self, labels: np.ndarray) -> "Images":
    """Returns the same images, numbered otherwise."""
    return self._replace(labels=labels)


class Source(NamedTuple):
  """A named set: a part to train on, and a part kept to measure with.

  Attributes:
    name: What it is called.
    train: To train on.
    heldout: To measure with.
    label_names: Of the classes; none without labels.
    broken: `(file, reason)` of images that were left out.
  """

  name: str
  train: Union[Images, Encoded]
  heldout: Union[Images, Encoded]
  label_names: Tuple[str, ...]
  broken: Tuple[Tuple[str, str], ...] = ()


def from_text(text: str) -> Source:
  """Returns the source that a text as 'folder:PATH' names."""
  kind, _, rest = text.partition(":")
  if kind not in KINDS or bool(rest) != (kind != "fashion"):
    known = ", ".join(k if k == "fashion" else f"{k}:..." for k in KINDS)
    raise ValueError(f"`source` must be one of {known}, got '{text}'.")
  make = gin.get_configurable(KINDS[kind])
  return make(rest) if rest else make()


def only(source: Source, labels: Sequence[Union[str, int]]) -> Source:
  """Returns the images of some classes, numbered anew."""
  names = source.label_names
  known: Dict[Union[str, int], int] = {i: i for i in range(len(names))}
  known.update({name: i for i, name in enumerate(names)})
  ids = [known.get(label, -1) for label in labels]
  if not ids or -1 in ids:
    raise ValueError(
      f"`only_labels` must be names or numbers of classes of '{source.name}', "
      f"{list(names)[:20]}, got {list(labels)}."
    )
  new = np.full(len(names), -1, np.int32)
  new[ids] = np.arange(len(ids))

  def part(images):
    if images.labels is None:
      raise ValueError(
        f"`only_labels` needs the labels of '{source.name}' beforehand, and "
        "they are inside of its records: `python -m tools.make_tfrecords` "
        "writes an index that has them."
      )
    kept = images.part(np.flatnonzero(new[images.labels] >= 0))
    return kept.with_labels(new[kept.labels])

  return source._replace(
    train=part(source.train),
    heldout=part(source.heldout),
    label_names=tuple(names[i] for i in ids),
  )


@gin.register
def fashion(num_heldout: int = 2000) -> Source:
  """Returns the embedded part of Fashion-MNIST (arXiv 1708.07747), 32x32 grey.

  10,000 images of 10 classes; two black pixels are added on each side.
  """
  package = importlib.resources.files("paragan_tf.data")
  with (package / "files" / "fashion_mnist.npz").open("rb") as f:
    arrays = _read(f, "the embedded Fashion-MNIST file")
  pixels = np.pad(arrays["images"], [(0, 0), (2, 2), (2, 2)])[..., None]
  names = tuple(str(name) for name in arrays["label_names"])
  return _split("fashion", pixels, arrays["labels"], names, num_heldout)


@gin.register
def npz(path: str, num_heldout: int = 2000) -> Source:
  """Returns arrays of a file: `images` `[n, h, w(, c)]` uint8, `labels` `[n]`.

  `labels` may be missing. The last `num_heldout` images are kept to measure
  with.
  """
  if not os.path.isfile(path):
    raise ValueError(f"`path` must be an npz file, got '{path}': not there.")
  with open(path, "rb") as f:
    arrays = _read(f, f"'{path}'")
  return _from_arrays(path, arrays, num_heldout)


@gin.register
def npy(
  path: str,
  labels_path: Optional[str] = None,
  num_heldout: int = 2000,
) -> Source:
  """Returns the array of a file, `[n, h, w(, c)]` uint8, with labels `[n]`."""
  arrays = {"images": _load(path)}
  if labels_path is not None:
    arrays["labels"] = _load(labels_path)
  return _from_arrays(path, arrays, num_heldout)


@gin.register
def folder(
  path: str,
  channels: int = 3,
  broken: str = "refuse",
  num_heldout: Optional[int] = None,
) -> Source:
  """Returns the images of a folder; names of sub-folders are their labels.

  Args:
    path: The folder.
    channels: 3 for color, 1 for grey.
    broken: What to do about files that are no images: "refuse" or "skip" them.
      To skip those that are damaged in the middle, too, all are decoded once;
      where that takes too long, `tools.make_tfrecords` does it for good.
    num_heldout: How many, by chance, are kept to measure with; a fifth of them,
      and no more than 2,000, by default.
  """
  listing = list_images(path, broken, decode=broken == "skip")
  n = len(listing.files)
  images = Encoded(
    paths=listing.files,
    path=np.arange(n),
    start=np.zeros(n, np.int64),
    size=np.full(n, -1),
    labels=listing.labels,
    channels=channels,
  )
  name = os.path.basename(os.path.abspath(path))
  made = _apart(name, images, num_heldout, listing.label_names)
  return made._replace(broken=listing.broken)


@gin.register
def tfrecord(
  pattern: str,
  channels: int = 3,
  num_classes: Optional[int] = None,
  num_heldout: Optional[int] = None,
) -> Source:
  """Returns the images of TFRecords, local, gs:// or http(s)://.

  Args:
    pattern: Of the files, or the path of their manifest.json.
    channels: 3 for color, 1 for grey.
    num_classes: How many labels there are, where no manifest says it.
    num_heldout: How many, by chance, are kept to measure with; a fifth of them,
      and no more than 2,000, by default.
  """
  index = shards.find(pattern)
  names = index.label_names
  if not names:
    names = tuple(str(i) for i in range(num_classes or 0))
  images = _records(index, channels, bool(names))
  return _apart(os.path.basename(pattern), images, num_heldout, names)


@gin.register
def tfds(
  name: str,
  data_dir: Optional[str] = None,
  split: str = "train",
  heldout_split: Optional[str] = None,
  num_heldout: Optional[int] = None,
) -> Source:
  """Returns a set of tensorflow-datasets that was built before.

  Args:
    name: As `tfds build` takes it.
    data_dir: Where it was built; tensorflow-datasets' own folder by default.
    split: What to train on.
    heldout_split: What to measure with; by default "test" or "validation", or
      some of `split` where there is neither.
    num_heldout: How many of those; no more than 2,000 by default.
  """
  built = tfds_sets.find(name, data_dir)
  images = _records(built.index(split), built.channels, bool(built.label_names))
  if heldout_split is None:
    others = [x for x in ("test", "validation") if x in built.splits]
    heldout_split = others[0] if others and split not in others else None
  if heldout_split is None:
    return _apart(name, images, num_heldout, built.label_names)
  heldout = _records(
    built.index(heldout_split), built.channels, bool(built.label_names)
  )
  rows = _some(len(heldout), min(num_heldout or _NUM_HELDOUT, len(heldout)))
  return Source(name, images, heldout.part(rows), built.label_names)


KINDS: Dict[str, Callable[..., Source]] = {
  "fashion": fashion,
  "npz": npz,
  "npy": npy,
  "folder": folder,
  "tfrecord": tfrecord,
  "tfds": tfds,
}


def _records(index: shards.Index, channels: int, has_labels: bool) -> Encoded:
  features = {index.features.image: tf.io.FixedLenFeature([], tf.string)}
  if has_labels:
    features[index.features.label] = tf.io.FixedLenFeature([], tf.int64)

  def parse(content: tf.Tensor):
    found = tf.io.parse_example(content, features)
    images = found[index.features.image]
    return images, found.get(
      index.features.label, tf.zeros_like(images, tf.int64)
    )

  return Encoded(
    index.paths,
    index.shard,
    index.offset,
    index.size,
    index.labels if has_labels else None,
    channels,
    parse,
  )


def _some(n: int, count: int) -> np.ndarray:
  """Returns `count` of `n` rows by chance, sorted."""
  return np.sort(np.random.RandomState(0).permutation(n)[:count])


def _apart(
  name: str,
  images: Encoded,
  num_heldout: Optional[int],
  label_names: Tuple[str, ...],
) -> Source:
  """Keeps some images back, from anywhere: files may be sorted by class."""
  n = len(images)
  count = min(_NUM_HELDOUT, n // 5) if num_heldout is None else num_heldout
  _check_heldout(count, n)
  rows = _some(n, count)
  others = np.setdiff1d(np.arange(n), rows)
  return Source(name, images.part(others), images.part(rows), label_names)


def _load(path: str) -> np.ndarray:
  try:
    return np.load(path)
  except (OSError, ValueError, EOFError) as e:
    raise ValueError(
      f"`path` must be an npy file that can be read, got '{path}' ({e})."
    ) from e


def _from_arrays(
  path: str, arrays: Dict[str, np.ndarray], num_heldout: int
) -> Source:
  pixels, labels = arrays.get("images"), arrays.get("labels")
  if pixels is None or pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
    found = {k: f"{v.dtype}{list(v.shape)}" for k, v in arrays.items()}
    raise ValueError(
      f"'{path}' must hold `images`, uint8 [n, h, w], [n, h, w, c] or "
      f"[n, c, h, w], got {found}."
    )
  if labels is not None and labels.shape != pixels.shape[:1]:
    raise ValueError(
      f"`labels` of '{path}' must have one id an image, got shape "
      f"{list(labels.shape)} for {len(pixels)} images."
    )
  if labels is not None and (labels.dtype.kind not in "iu" or labels.min() < 0):
    raise ValueError(
      f"`labels` of '{path}' must be integers from 0 up, got "
      f"{labels.dtype} from {labels.min()}."
    )
  pixels = pixels[..., None] if pixels.ndim == 3 else channels_last(pixels)
  count = 0 if labels is None else int(labels.max()) + 1
  names = tuple(str(i) for i in range(count))
  return _split(os.path.basename(path), pixels, labels, names, num_heldout)


def _read(file, what: str):
  try:
    with np.load(file) as arrays:
      return dict(arrays)
  except (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    EOFError,
    OSError,
    KeyError,
    TypeError,
    RuntimeError,
  ) as e:
    raise ValueError(
      f"{what[0].upper()}{what[1:]} cannot be read as an npz file ({e}): it is "
      "damaged; copy it again."
    ) from e


def _split(name, pixels, labels, label_names, num_heldout) -> Source:
  _check_heldout(num_heldout, len(pixels))
  cut = len(pixels) - num_heldout
  if labels is not None:
    labels = labels.astype(np.int32)

  def part(rows):
    return Images(pixels[rows], None if labels is None else labels[rows])

  return Source(name, part(slice(cut)), part(slice(cut, None)), label_names)


def _check_heldout(num_heldout: int, n: int) -> None:
  if not 1 < num_heldout < n:
    raise ValueError(
      f"`num_heldout` must leave images to train on: between 2 and {n - 1}, "
      f"got {num_heldout}."
    )
