"""Checks the input before the first step: errors on a device are obscure."""

import contextlib
import math
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import tensorflow as tf
from PIL import Image

from paragan_tf.data import folder, reading
from paragan_tf.data.encoded import EncodedImages
from paragan_tf.types import ImageSpec

_MAX_IMAGES, _MAX_HELDOUT = 64, 8  # To check.
_MAX_SIZES = 64  # Files whose size is looked at.
_ROUNDING = 1e-3


def check(
  input_fn: Any, images_per_step: int, num_shards: int = 1, python: bool = True
) -> List[str]:
  """Raises a `ValueError` if training could not work on this input.

  Returns what looks odd in its first batch.

  Args:
    input_fn: An `InputFn` or `AdaptedInput`.
    images_per_step: Real images that one step takes, over all replicas.
    num_shards: Number of shards of the global batch.
    python: Whether the pipeline may call Python.
  """
  count = input_fn.num_images
  label = getattr(input_fn, "label", None)
  if label is None and count is not None and count < images_per_step:
    raise ValueError(
      f"'{input_fn.name}' must have as many images as one step takes, "
      f"{images_per_step}, got {count}: lower `Experiment.batch_size`, or keep "
      "fewer to measure with (`num_heldout`)."
    )
  if hasattr(input_fn, "check_shards"):
    input_fn.check_shards(num_shards)
  source = getattr(input_fn, "source", None)
  if source is not None:
    if source.train.labels is not None:
      check_labels(input_fn.name, source.train.labels, len(source.label_names))
    _check_heldout(input_fn)
  if hasattr(input_fn, "check_heldout"):
    with _raise_value_errors(input_fn):
      input_fn.check_heldout()
  size = min(images_per_step, _MAX_IMAGES)
  data = input_fn({"batch_size": size, "python": python})
  first = read_first(input_fn, data)
  check_batch(input_fn.name, first, input_fn.spec)
  return _find_odd_values(input_fn.name, first[0])


def _find_odd_values(name: str, images: np.ndarray) -> List[str]:
  low, high = float(images.min()), float(images.max())
  if low < 0 or high < 0.5:
    return []
  return [
    f"Images of '{name}' are in [{low:.2g}, {high:.2g}], and G makes [-1, 1]: "
    "if they are floats from 0 to 1, multiply them by 2 and subtract 1."
  ]


def _check_heldout(input_fn: Any) -> None:
  """Checks some held-out images, which are first used after training."""
  try:
    labels = input_fn.source.heldout.labels
    if isinstance(input_fn.source.heldout, EncodedImages):
      some = input_fn.heldout(_MAX_HELDOUT).labels
      labels = some if labels is None else labels
    if labels is not None and input_fn.spec.num_classes:
      check_labels(input_fn.name, labels, input_fn.spec.num_classes)
  except ValueError as e:
    raise ValueError(
      f"Images to measure with (`num_heldout`, `heldout_split`): {e}"
    ) from e


def read_first(input_fn: Any, data: tf.data.Dataset) -> List[np.ndarray]:
  """Returns the first element; raises a `ValueError` if there is none."""
  with _raise_value_errors(input_fn):
    found = next(iter(data), None)
  if found is None:
    raise ValueError(
      f"'{input_fn.name}' must give images, and its stream ends before the "
      "first batch: see that it is not empty, and repeats."
    )
  return [x.numpy() for x in found]


@contextlib.contextmanager
def _raise_value_errors(input_fn: Any) -> Iterator[None]:
  """Turns errors of TensorFlow into a `ValueError` with the reason."""
  try:
    yield
  except reading.OP_ERRORS as e:
    reason = input_fn.find_failure() or reading.clean_message(e)
    raise ValueError(f"'{input_fn.name}' gives no batch: {reason}") from e


def check_batch(
  name: str, batch: Sequence[np.ndarray], spec: ImageSpec
) -> None:
  """Raises a `ValueError` if images or labels of a batch are wrong."""
  images = batch[0]
  shape = (spec.resolution, spec.resolution, spec.channels)
  if images.dtype != np.float32 or images.shape[1:] != shape:
    raise ValueError(
      f"Images of '{name}' must be float32 [b, {', '.join(map(str, shape))}], "
      f"got {images.dtype} {list(images.shape)}."
    )
  if not np.all(np.isfinite(images)):
    raise ValueError(
      f"Images of '{name}' must be numbers, and some pixels are NaN or "
      "infinite: look at how they are decoded."
    )
  low, high = float(images.min()), float(images.max())
  if low < -1 - _ROUNDING or high > 1 + _ROUNDING:
    raise ValueError(
      f"Images of '{name}' must be in [-1, 1], got [{low:.4g}, {high:.4g}]: "
      "give uint8, or divide by 127.5 and subtract 1."
    )
  if low == high:
    raise ValueError(
      f"Images of '{name}' must differ, and all pixels of the first "
      f"{len(images)} are {low:.4g}: look at how they are decoded."
    )
  if spec.num_classes:
    check_labels(name, batch[1], spec.num_classes)


def check_labels(name: str, labels: np.ndarray, num_classes: int) -> None:
  """Raises a `ValueError` if a label is no class id."""
  low, high = int(np.min(labels)), int(np.max(labels))
  if low < 0 or high >= num_classes:
    raise ValueError(
      f"Labels of '{name}' must be from 0 to {num_classes - 1}, got {low} to "
      f"{high}: count classes from 0, or fix `num_classes`."
    )


def describe_repeats(input_fn: Any, images_per_step: int) -> List[str]:
  """Returns a remark if a label has fewer images than a step takes."""
  label, count = getattr(input_fn, "label", None), input_fn.num_images
  if label is None or count >= images_per_step:
    return []
  return [
    f"'{input_fn.source.label_names[0]}' has {count} images and a step takes "
    f"{images_per_step}: they repeat."
  ]


def remarks(input_fn: Any) -> List[str]:
  """Returns warnings about the input."""
  found = []
  if input_fn.drops_labels:
    found.append(
      f"Labels of '{input_fn.name}' are not used: set `InputFn.conditional = "
      "True`, or `num_classes` of an `Estimator`, to train on classes."
    )
  source = getattr(input_fn, "source", None)
  if source is None:
    return found
  train = source.train
  if source.broken:
    total = len(train) + len(source.heldout) + len(source.broken)
    found.append(
      f"{len(source.broken):,} of {total:,} images are broken and left out: "
      f"{folder.describe_broken(source.broken)}; a run lists all in its folder."
    )
  if isinstance(train, EncodedImages):
    used = np.bincount(train.path_index, minlength=len(train.paths))
    heldout = source.heldout
    if isinstance(heldout, EncodedImages) and heldout.paths == train.paths:
      used += np.bincount(heldout.path_index, minlength=len(train.paths))
    empty = [train.paths[i] for i in np.flatnonzero(used == 0)]
    if empty:
      found.append(f"{len(empty)} files have no images, as '{empty[0]}'.")
  if train.labels is not None and source.label_names:
    counts = np.bincount(train.labels, minlength=len(source.label_names))
    found += _find_imbalance(dict(zip(source.label_names, counts)))
  return found


def describe_fit(input_fn: Any) -> List[str]:
  """Returns how images of other sizes are made to fit, if some are looked at.

  Of a folder some files are; of arrays all are known.
  """
  source = getattr(input_fn, "source", None)
  sizes = [] if source is None else _find_sizes(source.train)
  side = input_fn.spec.resolution
  if all(size == (side, side) for size in sizes):
    return []
  first, last = min(sizes, key=math.prod), max(sizes, key=math.prod)
  listed = " to ".join(f"{w}x{h}" for w, h in dict.fromkeys([first, last]))
  small = min(map(min, sizes)) < side
  return [
    f"Images of {listed} become {side}x{side}: "
    f"{input_fn.train_set.preprocessing}"
    f"{'; small ones are enlarged' if small else ''}. `Transform.crop`, "
    "`Transform.resize` and `InputFn.resolution` change it."
  ]


def _find_sizes(train: Any) -> List[Tuple[int, int]]:
  """Returns width and height of some images."""
  if not isinstance(train, EncodedImages):
    return [(train.pixels.shape[2], train.pixels.shape[1])]
  rows = np.flatnonzero(train.size < 0)  # The others are records.
  sizes = []
  for row in rows[:: max(1, len(rows) // _MAX_SIZES)][:_MAX_SIZES]:
    path = train.paths[train.path_index[row]]
    # What cannot be read is reported by the checks.
    with contextlib.suppress(OSError), Image.open(path) as image:
      sizes.append(image.size)
  return sizes


def _find_imbalance(counts: Dict[str, int]) -> List[str]:
  missing = [name for name, count in counts.items() if not count]
  if missing:
    return [f"{len(missing)} classes have no images, as '{missing[0]}'."]
  ordered = sorted(counts.items(), key=lambda item: item[1])
  (least, few), (most, many) = ordered[0], ordered[-1]
  if many <= 10 * few:
    return []
  return [
    f"Classes are uneven: '{least}' has {few:,} images, '{most}' {many:,}."
  ]
