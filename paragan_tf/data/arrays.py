"""Images as arrays in npz and npy files."""

import os
import zipfile
import zlib
from typing import Any, Dict, Optional, Tuple

import numpy as np

from paragan_tf.data.batch_shape import to_channels_last

# uint8 pixels `[n, h, w, c]`, and class ids `[n]` if there are any.
Arrays = Tuple[np.ndarray, Optional[np.ndarray]]
_UNREADABLE = (
  zipfile.BadZipFile,
  zlib.error,
  ValueError,
  EOFError,
  OSError,
  KeyError,
  TypeError,
  RuntimeError,
)


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
    found = np.load(file)
    if not isinstance(found, np.ndarray):
      with found:
        return dict(found)
  except _UNREADABLE as e:
    raise ValueError(
      f"{what} cannot be read as an npz file ({e}): it is damaged; copy it "
      "again."
    ) from e
  raise ValueError(
    f"{what} must be an npz file, and it is a single array, npy: name it "
    "'npy:PATH'."
  )


def _load_array(path: str) -> np.ndarray:
  try:
    found = np.load(path)
  except _UNREADABLE as e:
    raise ValueError(
      f"`path` must be an npy file that can be read, got '{path}' ({e})."
    ) from e
  if not isinstance(found, np.ndarray):
    found.close()
    raise ValueError(
      f"`path` must be an npy file, and '{path}' is an npz file: name it "
      "'npz:PATH'."
    )
  return found


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
    return pixels[..., None], labels
  return to_channels_last(pixels), labels
