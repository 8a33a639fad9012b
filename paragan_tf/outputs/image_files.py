"""Images in folders and arrays, as metrics take them: in their own size.

    images = open_images("photos")         # a folder, with sub-folders
    images = open_images("samples.npz")    # arrays: `images`, maybe `labels`
    images.pixels[0:8]                     # uint8, `[8, h, w, c]`

Files are read when they are asked for.
"""

import io
import os
import struct
from typing import List, Optional, Tuple

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from paragan_tf import array_files
from paragan_tf.outputs.statistics import ImageSet

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


class Files:
  """Image files as an array, `[n, h, w, c]`; a slice reads its files.

  Args:
    paths: Of the files.
    resolution: Cuts a square out of the middle and resizes it to this size; all
      files must have one size if it is `None`.
  """

  def __init__(self, paths: List[str], resolution: Optional[int] = None):
    self._paths, self._resolution = paths, resolution
    first = _open(paths[0])
    self._mode = "L" if first.mode in ("1", "L", "I;16") else "RGB"
    self._size = first.size if resolution is None else (resolution, resolution)

  def __len__(self) -> int:
    return len(self._paths)

  @property
  def channels(self) -> int:
    """1 if the first file is gray, else 3."""
    return 1 if self._mode == "L" else 3

  def __getitem__(self, rows: slice) -> np.ndarray:
    """Returns the images of a slice, uint8."""
    found = np.stack([self._read(path) for path in self._paths[rows]])
    return found[..., None] if found.ndim == 3 else found

  def _read(self, path: str) -> np.ndarray:
    image = _open(path).convert(self._mode)
    if self._resolution is not None:
      image = _crop(image, self._resolution)
    if image.size != self._size:
      raise ValueError(
        f"Images must have one size, '{path}' has {_format(image.size)} and "
        f"'{self._paths[0]}' has {_format(self._size)}: set `--resolution`, "
        "which crops and resizes all of them."
      )
    return np.asarray(image)


def open_images(
  path: str, resolution: Optional[int] = None, most: Optional[int] = None
) -> ImageSet:
  """Returns the images of a folder or an npz file, at most `most`."""
  name = os.path.basename(os.path.normpath(path))
  if not tf.io.gfile.exists(path):
    raise ValueError(f"There are no images at '{path}': it does not exist.")
  if tf.io.gfile.isdir(path):
    paths = list_files(path)[:most]
    if len(paths) < 2:
      raise ValueError(
        f"'{path}' must have at least 2 images ({', '.join(ENDINGS)}), got "
        f"{len(paths)}."
      )
    return ImageSet(Files(paths, resolution), None, name)
  array_files.check_regular(path)
  pixels, labels = _read_arrays(path)
  labels = None if labels is None else labels[:most]
  return ImageSet(pixels[:most], labels, name)


def count_channels(images: ImageSet) -> int:
  """Returns the colors of a set's images."""
  if isinstance(images.pixels, Files):
    return images.pixels.channels
  return images.pixels.shape[-1]


def list_files(folder: str) -> List[str]:
  """Returns all images of a folder and its sub-folders, sorted."""
  return sorted(
    os.path.join(parent, name)
    for parent, _, names in tf.io.gfile.walk(folder)
    for name in names
    if name.lower().endswith(ENDINGS)
  )


def _open(path: str) -> Image.Image:
  array_files.check_regular(path)
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      image = Image.open(io.BytesIO(f.read()))
    image.load()
    return ImageOps.exif_transpose(image)
  except (
    ArithmeticError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tf.errors.OpError,
    Image.DecompressionBombError,
  ) as e:
    raise ValueError(
      f"'{path}' cannot be read as an image ({e}): remove it."
    ) from e


def _crop(image: Image.Image, resolution: int) -> Image.Image:
  side = min(image.size)
  left, top = ((length - side) // 2 for length in image.size)
  box = (left, top, left + side, top + side)
  return image.crop(box).resize(
    (resolution, resolution), Image.Resampling.LANCZOS
  )


def _read_arrays(path: str) -> Tuple[np.ndarray, Optional[np.ndarray]]:
  try:
    with tf.io.gfile.GFile(path, "rb") as f:
      content = io.BytesIO(f.read())
    arrays = array_files.read(content)
  except (ValueError, tf.errors.OpError) as e:
    raise ValueError(
      f"'{path}' must be a folder of images or an npz file, but cannot be read "
      f"({e})."
    ) from e
  found = [name for name in ("images", *arrays) if _is_images(arrays.get(name))]
  if not found:
    shapes = {name: (x.dtype.name, x.shape) for name, x in arrays.items()}
    raise ValueError(
      f"'{path}' must have an array of images, uint8 and [n, h, w, 1 or 3], "
      f"got {shapes}."
    )
  return arrays[found[0]], arrays.get("labels")


def _is_images(array: Optional[np.ndarray]) -> bool:
  return (
    array is not None
    and array.ndim == 4
    and array.dtype == np.uint8
    and array.shape[3] in (1, 3)
  )


def _format(size: Tuple[int, int]) -> str:
  return "x".join(map(str, size))
