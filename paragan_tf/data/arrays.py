"""Images as arrays in npz and npy files."""

import os
from typing import Any, Dict, Optional, Tuple

import numpy as np

from paragan_tf import array_files
from paragan_tf.data.batch_shape import to_channels_last

# uint8 pixels `[n, h, w, c]`, and class ids `[n]` if there are any.
Arrays = Tuple[np.ndarray, Optional[np.ndarray]]
_CHANNELS = (1, 3)
_MIN_SIDE, _MAX_CLASSES = 4, 1_000_000


def load_npz(path: str) -> Arrays:
  """Returns `images` and `labels` of an npz file; `labels` may be missing."""
  if not os.path.isfile(path):
    raise ValueError(f"`path` must be an npz file, got '{path}': not there.")
  with open(path, "rb") as f:
    return _check_arrays(path, read_npz(f, f"'{path}'"))


def load_npy(path: str, labels_path: Optional[str] = None) -> Arrays:
  """Returns the array of an npy file, and labels from another file."""
  found = {"images": _load_array(path)}
  if labels_path is not None:
    found["labels"] = _load_array(labels_path)
  return _check_arrays(path, found)


def read_npz(file: Any, what: str) -> Dict[str, np.ndarray]:
  """Returns the arrays of an open file; `what` names it in errors."""
  try:
    return array_files.read(file)
  except ValueError as e:
    if "single array" in str(e):
      raise ValueError(
        f"{what} must be an npz file, and it is a single array, npy: name it "
        "'npy:PATH'."
      ) from e
    raise ValueError(
      f"{what} cannot be read as an npz file ({e}): it is damaged; copy it "
      "again."
    ) from e


def _load_array(path: str) -> np.ndarray:
  try:
    return array_files.read_one(path)
  except ValueError as e:
    if "several arrays" in str(e):
      raise ValueError(
        f"`path` must be an npy file, and '{path}' is an npz file: name it "
        "'npz:PATH'."
      ) from e
    raise ValueError(
      f"`path` must be an npy file that can be read, got '{path}' ({e})."
    ) from e


def _check_arrays(path: str, arrays: Dict[str, np.ndarray]) -> Arrays:
  pixels, labels = arrays.get("images"), arrays.get("labels")
  if pixels is None or pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
    found = {k: f"{v.dtype}{list(v.shape)}" for k, v in arrays.items()}
    raise ValueError(
      f"'{path}' must hold `images`, uint8 [n, h, w], [n, h, w, c] or "
      f"[n, c, h, w], got {found}."
    )
  if not len(pixels):
    raise ValueError(f"'{path}' must hold images, got none: it is empty.")
  _check_sizes(path, pixels)
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
  if labels is not None and labels.max() >= _MAX_CLASSES:
    raise ValueError(
      f"`labels` of '{path}' must be below {_MAX_CLASSES:,}, got "
      f"{labels.max()}: number the classes from 0."
    )
  if pixels.ndim == 3:
    return pixels[..., None], labels
  return to_channels_last(pixels), labels


def _check_sizes(path: str, pixels: np.ndarray) -> None:
  """Raises a `ValueError` if images are empty, or not gray or of 3 colors."""
  shape = to_channels_last(pixels[:1]).shape
  if min(shape[1:3]) < _MIN_SIDE:
    raise ValueError(
      f"`images` of '{path}' must be at least {_MIN_SIDE}x{_MIN_SIDE}, got "
      f"{shape[1]}x{shape[2]}: look at how the file was written."
    )
  if len(shape) == 4 and shape[3] not in _CHANNELS:
    raise ValueError(
      f"`images` of '{path}' must have 1 or 3 channels, got {shape[3]}: leave "
      "out transparency, and convert others to color or gray."
    )
