"""Writes samples: single PNGs, one grid, an animation, or arrays."""

import io
import os
from typing import Callable, Dict, Optional, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image

from paragan_tf.outputs import records, samples

_GRID, _ARRAYS, _ANIMATIONS = ".png", ".npz", (".gif", ".webp")
_FRAME_MILLISECONDS = 80


def check_path(path: str, animated: bool = False) -> None:
  """Raises a `ValueError` if nothing can be written to such a path.

  Args:
    path: A file with a known ending, or a folder.
    animated: Whether there is something to animate.
  """
  ending = os.path.splitext(path.rstrip("/"))[1].lower()
  if ending in ("", _GRID, _ARRAYS) or (animated and ending in _ANIMATIONS):
    return
  if ending in _ANIMATIONS:
    raise ValueError(
      f"`output` may end in {ending} for an interpolation only, got '{path}': "
      "add `--interpolate=z`, or give a name that ends in .png."
    )
  raise ValueError(
    "`output` must end in .png (one grid), .npz (arrays), .gif or .webp (an "
    f"interpolation), or be a folder (single PNGs), got '{path}': change its "
    "ending."
  )


def write(
  path: str,
  images: np.ndarray,
  columns: int,
  arrays: Callable[[], Dict[str, np.ndarray]],
  frames: Optional[np.ndarray] = None,
) -> str:
  """Writes images in the form that the path asks for; returns the path.

  Args:
    path: See `check_path`.
    images: uint8, `[n, h, w, 1 or 3]`.
    columns: Of a grid.
    arrays: Makes what an npz file has.
    frames: Of an animation, `[f, n, h, w, 1 or 3]`.
  """
  ending = os.path.splitext(path.rstrip("/"))[1].lower()
  scale = samples.scale_for(images.shape[1])
  try:
    if ending == _GRID:
      samples.write_png(path, samples.grid(images, columns), scale)
    elif ending == _ARRAYS:
      records.write_file(path, _encode_arrays(arrays()))
    elif ending in _ANIMATIONS and frames is not None:
      columns = samples.columns_for(0, frames.shape[1])
      grids = [samples.grid(frame, columns) for frame in frames]
      records.write_file(path, _encode_animation(grids, scale, ending))
    else:
      for i, image in enumerate(images):
        name = os.path.join(path, f"{i:06d}.png")
        records.write_file(name, records.encode_png(image))
  except (tf.errors.OpError, OSError) as e:
    raise ValueError(
      f"`output` must be a path that can be written, got '{path}' "
      f"({str(e).splitlines()[0]}): give another one."
    ) from e
  return path


def _encode_arrays(arrays: Dict[str, np.ndarray]) -> bytes:
  data = io.BytesIO()
  np.savez(data, **arrays)  # type: ignore[arg-type]
  return data.getvalue()


def _encode_animation(
  grids: Sequence[np.ndarray], scale: int, ending: str
) -> bytes:
  """Encodes frames, forth and back, so that they repeat without a jump."""
  pictures = []
  for grid in [*grids, *grids[-2:0:-1]]:
    large = grid.repeat(scale, axis=0).repeat(scale, axis=1)
    gray = large.shape[2] == 1
    pictures.append(Image.fromarray(large[..., 0] if gray else large))
  if ending == ".webp":  # It has no gray.
    pictures = [picture.convert("RGB") for picture in pictures]
  data = io.BytesIO()
  pictures[0].save(
    data,
    "WEBP" if ending == ".webp" else "GIF",
    save_all=True,
    append_images=pictures[1:],
    duration=_FRAME_MILLISECONDS,
    loop=0,
  )
  return data.getvalue()
