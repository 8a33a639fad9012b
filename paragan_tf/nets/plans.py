"""How wide a net is at each resolution, and which block attention follows."""

from typing import Any, Optional, Sequence, Tuple, Union

# Channels at 4, 8, 16, ... pixels in units of `width`: 64 px as in SNGAN, from
# 128 to 512 px as in BigGAN's appendix, and one step further.
_UNITS = {
  64: (16, 8, 4, 2, 1),
  128: (16, 16, 8, 4, 2, 1),
  256: (16, 16, 8, 8, 4, 2, 1),
  512: (16, 16, 8, 8, 4, 2, 1, 1),
  1024: (16, 16, 8, 8, 4, 2, 1, 1, 1),
}
RESOLUTIONS = (32, *_UNITS)

# A resolution; "auto" for half the image's, but at most 64; or no attention.
Attention = Union[int, str, None]


def check_resolution(resolution: int) -> None:
  """Raises a `ValueError` for a resolution that no net supports."""
  if resolution not in RESOLUTIONS:
    raise ValueError(
      f"`resolution` must be one of {list(RESOLUTIONS)}, got {resolution}: "
      "set the data's `resolution` to one of them."
    )


def widths(resolution: int, width: int, at_32: int = 1) -> Tuple[int, ...]:
  """Returns the channels at 4, 8, 16, ... pixels.

  Args:
    resolution: The image's.
    width: The unit.
    at_32: The channels of every layer of a 32 px net, in units.
  """
  check_resolution(resolution)
  if width < 1:
    raise ValueError(f"`width` must be at least 1, got {width}.")
  units = _UNITS.get(resolution, (at_32,) * 4)
  return tuple(width * unit for unit in units)


def downs(resolution: int) -> Tuple[bool, ...]:
  """Returns whether each block of a residual D halves the resolution."""
  check_resolution(resolution)
  if resolution == 32:  # Ends on two blocks of 8 px, as SNGAN's paper does.
    return (True, True, False, False)
  return (True,) * (len(_UNITS[resolution]) - 1) + (False,)


def after(resolution: int, halved: Sequence[bool]) -> Tuple[int, ...]:
  """Returns the resolution after each block of a D."""
  sizes = []
  for down in halved:
    resolution //= 1 + down
    sizes.append(resolution)
  return tuple(sizes)


def attention_block(
  attention: Attention, resolution: int, sizes: Sequence[int]
) -> Optional[int]:
  """Returns which block attention follows.

  Args:
    attention: At which resolution, see above.
    resolution: The image's.
    sizes: The resolution after each block.
  """
  if attention is None:
    return None
  size: Any = min(64, resolution // 2) if attention == "auto" else attention
  if size not in sizes:
    raise ValueError(
      "`attention` must be None, 'auto' or one of the resolutions "
      f"{sorted(set(sizes))} inside the net, got {attention!r}."
    )
  return list(sizes).index(size)
