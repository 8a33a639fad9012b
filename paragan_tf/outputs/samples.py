"""Sample grids: G's samples in one picture."""

import math
import os

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import records

_GAP = 1  # Pixels between two images, before they are scaled up.
_WHITE = 255
_MAX_COLUMNS = 16  # Of one class each.
_SIDE = 96  # Images of fewer pixels are hard to see on a screen.


def grid(images: np.ndarray, columns: int) -> np.ndarray:
  """Lays images out row by row, with a thin white gap between them.

  Args:
    images: `[n, h, w, 1 or 3]`, uint8, or floats in [-1, 1]. Other values are
      clipped, and NaN becomes gray.
    columns: Images in a row; the last row may have fewer.

  Returns:
    One picture, `[H, W, 1 or 3]`, uint8.
  """
  if images.ndim != 4 or images.shape[3] not in (1, 3) or not len(images):
    raise ValueError(
      "`images` must have shape `[n, h, w, 1 or 3]` with n at least 1, got "
      f"{list(images.shape)}."
    )
  if columns < 1:
    raise ValueError(f"`columns` must be at least 1, got {columns}.")
  n, h, w, c = images.shape
  columns = min(columns, n)
  rows = -(-n // columns)
  cells = np.full(
    [rows * columns, h + _GAP, w + _GAP, c], _WHITE, dtype=np.uint8
  )
  cells[:n, :h, :w] = to_pixels(images)
  cells = cells.reshape([rows, columns, h + _GAP, w + _GAP, c])
  picture = cells.transpose([0, 2, 1, 3, 4])
  picture = picture.reshape([rows * (h + _GAP), columns * (w + _GAP), c])
  return picture[:-_GAP, :-_GAP]


def columns_for(num_classes: int, num: int = 64) -> int:
  """Returns how many of `num` images, classes in turn, make a row.

  Each column has one class, if there are at most 16: few classes take several
  columns each.
  """
  square = max(1, math.isqrt(num - 1) + 1)
  if not 0 < num_classes <= _MAX_COLUMNS:
    return square
  return num_classes * max(1, round(square / num_classes))


def scale_for(resolution: int) -> int:
  """Returns the integer factor that makes images large enough to see."""
  return max(1, -(-_SIDE // resolution))


def png_path(model_dir: str, step: int) -> str:
  """Returns the path of a step's grid."""
  return os.path.join(model_dir, "samples", f"{step:08d}.png")


def interpolation_path(model_dir: str) -> str:
  """Returns the path of the interpolation between classes."""
  return os.path.join(model_dir, "samples", "interpolation.png")


def png_paths(model_dir: str) -> dict[int, str]:
  """Returns the grids of a run by step, oldest first."""
  folder = os.path.join(model_dir, "samples")
  names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
  grids = [x for x in names if x.endswith(".png") and x[:-4].isdecimal()]
  grids.sort(key=lambda name: int(name[:-4]))
  return {int(name[:-4]): os.path.join(folder, name) for name in grids}


def write_png(path: str, grid: np.ndarray, scale: int = 1) -> None:
  """Writes `[H, W, 1 or 3]` uint8 pixels, enlarged `scale` times."""
  records.write_file(path, records.encode_png(enlarge(grid, scale)))


def enlarge(grid: np.ndarray, scale: int) -> np.ndarray:
  """Returns a picture whose pixels are squares of `scale` pixels."""
  if scale < 1:
    raise ValueError(f"`scale` must be at least 1, got {scale}.")
  return grid.repeat(scale, axis=0).repeat(scale, axis=1)


def to_pixels(images: np.ndarray) -> np.ndarray:
  """Maps [-1, 1] to 0..255, rounded; uint8 stays as it is."""
  if images.dtype == np.uint8:
    return images
  images = np.nan_to_num(images.astype(np.float32), nan=0.0)
  return np.rint((np.clip(images, -1, 1) + 1) * 127.5).astype(np.uint8)
