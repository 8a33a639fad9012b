"""Batches in the order and of the size that the hardware likes."""

import math
from typing import Sequence

import numpy as np

from paragan_tf.hardware import Profile

_CHANNELS = (1, 3)


def is_channels_first(shape: Sequence[int]) -> bool:
  """Returns whether images `[n, ...]` have their channels before the pixels."""
  return len(shape) == 4 and shape[1] in _CHANNELS and shape[3] not in _CHANNELS


def channels_last(pixels: np.ndarray) -> np.ndarray:
  """Maps `[n, c, h, w]` to `[n, h, w, c]`; what is so already stays.

  Every backend here computes on channels last: TPUs keep them in their lanes.
  """
  if not is_channels_first(pixels.shape):
    return pixels
  return np.ascontiguousarray(np.moveaxis(pixels, 1, -1))


def core_batch(
  profile: Profile, wanted: int, fixed_bytes: float = 0, image_bytes: float = 0
) -> int:
  """Returns how many images a core should have: at most `wanted`.

  As many as fit into its memory, in whole rows of its tiles, or multiples that
  products are filled up to, if there are as many as one. It is a proposal:
  `tools/tpu_report.py` says it, and a run has the batch that its config has.

  Args:
    profile: Of the core.
    wanted: The share of the batch that it would have.
    fixed_bytes: What weights, slots and the like take.
    image_bytes: What an image takes on top.
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
  unit = max(profile.sublanes, profile.multiple)
  return size - size % unit if size > unit else size
