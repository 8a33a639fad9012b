"""Where images come from: a few functions that each return a `Source`."""

import importlib.resources
import os
import zipfile
import zlib
from typing import NamedTuple, Optional, Tuple

import gin
import numpy as np


class Images(NamedTuple):
  """Images in memory.

  Attributes:
    pixels: uint8, shape `[n, h, w, c]`.
    labels: int32 class ids, shape `[n]`, or `None`.
  """

  pixels: np.ndarray
  labels: Optional[np.ndarray]


class Source(NamedTuple):
  """A named set: a part to train on, and a part kept to measure with."""

  name: str
  train: Images
  heldout: Images
  label_names: Tuple[str, ...]


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
  pixels, labels = arrays.get("images"), arrays.get("labels")
  if pixels is None or pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
    found = {k: f"{v.dtype}{list(v.shape)}" for k, v in arrays.items()}
    raise ValueError(
      f"'{path}' must hold `images`, uint8 [n, h, w] or [n, h, w, c], "
      f"got {found}."
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
  if pixels.ndim == 3:
    pixels = pixels[..., None]
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
  if not 1 < num_heldout < len(pixels):
    raise ValueError(
      f"`num_heldout` must leave images to train on: between 2 and "
      f"{len(pixels) - 1}, got {num_heldout}."
    )
  cut = len(pixels) - num_heldout
  if labels is not None:
    labels = labels.astype(np.int32)

  def part(rows):
    return Images(pixels[rows], None if labels is None else labels[rows])

  return Source(name, part(slice(cut)), part(slice(cut, None)), label_names)
