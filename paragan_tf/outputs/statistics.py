"""What metrics need to know of a set of images: computed once, kept in a file.

    real = cached("data/reference", extractor, ImageSet(pixels, labels))
    samples = gather(extractor, images_fn, count, labels)

The moments are those of all images; of features, logits and labels at most
10,000 are kept, so memory does not grow with the number of images.
"""

import dataclasses
import hashlib
import io
import json
import os
import re
from typing import Any, Callable, Dict, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from paragan_tf import array_files
from paragan_tf.outputs import distances, records, streaming
from paragan_tf.outputs.distances import Moments
from paragan_tf.outputs.features import Extractor, hash_arrays

MAX_FEATURES = 10_000
_KEPT = ("features", "logits", "labels", "split_scores")
# From the first and last index to images, `[n, h, w, c]`: uint8, or floats in
# [-1, 1].
ImagesFn = Callable[[int, int], Any]
# Called with the number of images done and their total.
Progress = Callable[[int, int], None]


class ImageSet(NamedTuple):
  """Images to compare with.

  Attributes:
    pixels: Anything with a length whose slices are images, `[n, h, w, c]`:
      uint8, or floats in [-1, 1].
    labels: Class ids, `[n]`, or `None`.
    split: Its name, for the protocol.
  """

  pixels: Any
  labels: Optional[np.ndarray] = None
  split: str = "train"


@dataclasses.dataclass(frozen=True)
class Origin:
  """Where statistics come from; the name of their file.

  Attributes:
    data_sha256: Hash of the images and labels.
    num_images: How many; `None` if a file does not say it.
  """

  extractor: str
  extractor_sha256: str
  resizer: str
  data_sha256: str
  split: str
  num_images: Optional[int]
  max_features: int = MAX_FEATURES

  @property
  def file_name(self) -> str:
    """A file name that is different for each origin."""
    text = json.dumps(dataclasses.asdict(self), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    split = re.sub(r"\W+", "_", self.split)[:40]
    return f"{split}-{self.extractor}-{self.num_images}-{digest}.npz"


class Statistics(NamedTuple):
  """Statistics of a set of images.

  Attributes:
    moments: Mean and covariance of all features.
    num_images: How many; `None` if a file does not say it.
    features: Features of at most `MAX_FEATURES` images, or `None`.
    logits: Their class scores, or `None`.
    labels: Their class ids, or `None`.
    split_scores: Inception scores of splits of all images, or `None`.
    origin: Where they come from; `None` for samples.
  """

  moments: Moments
  num_images: Optional[int]
  features: Optional[np.ndarray] = None
  logits: Optional[np.ndarray] = None
  labels: Optional[np.ndarray] = None
  split_scores: Optional[np.ndarray] = None
  origin: Optional[Origin] = None


def gather(
  extractor: Extractor,
  images_fn: ImagesFn,
  count: int,
  labels: Optional[np.ndarray] = None,
  batch_size: int = 256,
  progress: Optional[Progress] = None,
  max_features: int = MAX_FEATURES,
) -> Statistics:
  """Returns the statistics of `images_fn(i, j)`, batch by batch.

  Args:
    extractor: Computes the features.
    images_fn: Returns images by index.
    count: How many there are.
    labels: Their class ids, `[count]`.
    batch_size: How many to ask `images_fn` for at once.
    progress: Called after each batch.
    max_features: Of how many images features are kept.
  """
  if count < 2:
    raise ValueError(f"At least 2 images are needed for metrics, got {count}.")
  moments = streaming.MomentSums()
  scores = streaming.ScoreSums(count)
  features = streaming.KeptRows(count, max_features)
  logits = streaming.KeptRows(count, max_features)
  has_logits = False
  for i in range(0, count, batch_size):
    j = min(i + batch_size, count)
    images = to_floats(images_fn(i, j))
    _check_batch(images, j - i, extractor)
    for part in _parts(extractor, images):
      distances.check_finite("features", part[0])
      moments.add(part[0])
      features.add(part[0])
      has_logits = part[1] is not None
      if has_logits:
        scores.add(part[1])
        logits.add(part[1])
    if progress is not None:
      progress(j, count)
  return Statistics(
    moments.result(),
    count,
    features.result(),
    logits.result() if has_logits else None,
    None if labels is None else np.asarray(labels, np.int32)[features.rows],
    scores.result() if has_logits else None,
  )


def cached(
  folder: Optional[str],
  extractor: Extractor,
  images: ImageSet,
  batch_size: int = 256,
  progress: Optional[Progress] = None,
) -> Statistics:
  """Returns the statistics of images; reads or writes their file in `folder`.

  Without a folder they are computed and not kept.
  """
  origin = describe(extractor, images)
  path = os.path.join(folder, origin.file_name) if folder else None
  if path is not None and tf.io.gfile.exists(path):
    return load(path)
  found = gather(
    extractor,
    lambda i, j: images.pixels[i:j],
    len(images.pixels),
    images.labels,
    batch_size,
    progress,
  )._replace(origin=origin)
  if path is not None:
    save(path, found)
  return found


def describe(extractor: Extractor, images: ImageSet) -> Origin:
  """Returns where the statistics of images will come from."""
  return Origin(
    extractor.name,
    extractor.sha256,
    extractor.resizer,
    hash_images(images),
    images.split,
    len(images.pixels),
  )


def hash_images(images: ImageSet) -> str:
  """Returns the sha256 of images and labels."""
  digest = hashlib.sha256()
  for i in range(0, len(images.pixels), 1000):
    part = np.ascontiguousarray(images.pixels[i : i + 1000])
    digest.update(f"{part.dtype}{part.shape[1:]}".encode())
    digest.update(part.tobytes())
  if images.labels is not None:
    digest.update(np.asarray(images.labels, np.int32).tobytes())
  return digest.hexdigest()


def save(path: str, statistics: Statistics) -> None:
  """Writes statistics of known origin as one npz file, atomically."""
  assert statistics.origin is not None
  arrays: Dict[str, Any] = {
    "mu": statistics.moments.mean,
    "sigma": statistics.moments.covariance,
    "origin": json.dumps(dataclasses.asdict(statistics.origin)),
  }
  for name in _KEPT:
    value = getattr(statistics, name)
    if value is not None:
      arrays[name] = value
  file = io.BytesIO()
  np.savez(file, **arrays)
  records.write_file(path, file.getvalue())


def load(path: str) -> Statistics:
  """Reads a file of `save`, or one of another project: `mu` and `sigma`."""
  arrays = _read(path)
  if not {"mu", "sigma"} <= arrays.keys():
    raise ValueError(
      f"'{path}' must have the arrays `mu` and `sigma`, got "
      f"{sorted(arrays)}: it holds no statistics."
    )
  mean, covariance = (
    np.asarray(arrays[x], np.float64) for x in ("mu", "sigma")
  )
  if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
    raise ValueError(
      f"`mu` and `sigma` of '{path}' must have shapes [d] and [d, d], got "
      f"{mean.shape} and {covariance.shape}."
    )
  if "origin" not in arrays:
    name = os.path.basename(path)
    digest = hash_arrays({"mu": mean, "sigma": covariance})
    origin = Origin("", "", "", digest, name, None)
    return Statistics(Moments(mean, covariance), None, origin=origin)
  try:
    origin = Origin(**json.loads(str(arrays["origin"])))
  except (TypeError, ValueError) as e:
    raise ValueError(
      f"'{path}' must be a file of statistics that `evaluate` wrote, or of "
      f"another project, got an `origin` that cannot be read ({e}): remove it."
    ) from e
  return Statistics(
    Moments(mean, covariance),
    origin.num_images,
    origin=origin,
    **{name: arrays[name] for name in _KEPT if name in arrays},
  )


def _read(path: str) -> Dict[str, np.ndarray]:
  if not tf.io.gfile.exists(path):
    raise ValueError(f"There are no statistics at '{path}'.")
  array_files.check_regular(path)
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      content = io.BytesIO(f.read())
    return array_files.read(content)
  except (ValueError, tf.errors.OpError) as e:
    raise ValueError(
      f"'{path}' must be an npz file of statistics, but cannot be read: {e}."
    ) from e


def to_floats(images: Any) -> np.ndarray:
  """Returns images in [-1, 1], each color one of 256 values.

  Samples are rounded as a PNG file would round them, so that they get the same
  values as files.
  """
  images = np.asarray(images)
  if images.dtype != np.uint8:
    pixels = (np.clip(images.astype(np.float32), -1, 1) + 1) * 127.5
    images = np.rint(pixels)
  return images.astype(np.float32) / 127.5 - 1.0


def _parts(extractor: Extractor, images: np.ndarray):
  """Yields features and logits, as many images at once as memory allows."""
  size = getattr(extractor, "batch_size", len(images))
  for i in range(0, len(images), size):
    found = extractor(images[i : i + size])
    features = np.asarray(found.features)
    yield features, None if found.logits is None else np.asarray(found.logits)


def _check_batch(images: np.ndarray, count: int, extractor: Extractor) -> None:
  if images.ndim != 4 or len(images) != count:
    raise ValueError(
      f"Images must have shape [{count}, h, w, c], got {images.shape}: "
      "`sample_fn` returns one image for each label."
    )
  check_channels(extractor, images.shape[3])


def check_channels(extractor: Extractor, num_channels: int) -> None:
  """Raises a `ValueError` if an extractor does not take such images."""
  channels = getattr(extractor, "channels", (num_channels,))
  if num_channels not in channels:
    raise ValueError(
      f"The extractor `{extractor.name}` takes images with "
      f"{' or '.join(map(str, channels))} channels, got {num_channels}: "
      "set another `experiment.Experiment.extractor`, e.g. 'inception' after "
      "`make inception`."
    )
