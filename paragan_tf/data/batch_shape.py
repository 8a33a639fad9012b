"""Shapes of batches: channels last, and the number of images per core."""

import math
from typing import Sequence

import numpy as np

from paragan_tf.hardware import Profile

_CHANNELS = (1, 3)


def is_channels_first(shape: Sequence[int]) -> bool:
  """Returns whether the shape is `[n, c, h, w]`."""
  return len(shape) == 4 and shape[1] in _CHANNELS and shape[3] not in _CHANNELS


def to_channels_last(pixels: np.ndarray) -> np.ndarray:
  """Transposes `[n, c, h, w]` to `[n, h, w, c]`; keeps `[n, h, w, c]`.

  Every backend here computes on channels last: TPUs keep them in their lanes.
  """
  if not is_channels_first(pixels.shape):
    return pixels
  return np.ascontiguousarray(np.moveaxis(pixels, 1, -1))


def batch_per_core(
  profile: Profile, wanted: int, fixed_bytes: float = 0, image_bytes: float = 0
) -> int:
  """Returns how many images a core should process, at most `wanted`.

  They fit into its memory. If there are enough, they are a multiple of the
  rows of its tiles, or of the size that matrix products are padded to. This is
  only a proposal: `tools/tpu_report.py` prints it, a run uses its config.

  Args:
    profile: Of the core.
    wanted: The core's shard of the global batch, in images.
    fixed_bytes: Memory of weights, optimizer slots and the like.
    image_bytes: Additional memory per image.
  """
  if wanted < 1:
    raise ValueError(f"`wanted` must be at least 1 image a core, got {wanted}.")
  fitting = wanted
  if profile.memory and image_bytes:
    fitting = math.floor((profile.memory - fixed_bytes) / image_bytes)
  if fitting < 1:
    raise ValueError(
      f"One image needs {(fixed_bytes + image_bytes) / 1e9:.1f} GB with the "
      f"weights, and a core has {profile.memory / 1e9:.1f} GB: take smaller "
      "nets, `remat = True`, or bfloat16."
    )
  size = min(wanted, fitting)
  unit = profile.sublanes
  return size - size % unit if size > unit else size
