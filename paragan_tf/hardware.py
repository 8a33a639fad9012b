"""What the hardware is like, and how nets are laid out for it.

A TPU computes in tiles of 8 rows and 128 lanes: what does not fill them is
padded by its compiler and computed for nothing. So padding by hand gains
nothing there, choosing shapes does.
"""

import dataclasses
import math
from typing import NamedTuple, Sequence, Tuple

import gin
import tensorflow as tf

from paragan_tf import collectives

_GIB = 1024**3


class Profile(NamedTuple):
  """One core, as its program sees it, by its maker's published figures.

  Attributes:
    kind: `tpu`, `gpu` or `cpu`.
    lanes: What the last axis is filled up to, 1 if nothing is.
    sublanes: Likewise the axis before it, for numbers of 4 bytes.
    precision: The fastest that trains well.
    memory: Bytes.
    hertz: Of its clock, 0 where it varies.
    flops: Of its fast units, a second; 0 where it varies.
    multiple: What layers fill products up to: 1 where the compiler does it.
  """

  kind: str
  lanes: int
  sublanes: int
  precision: str
  memory: int
  hertz: float = 0.0
  flops: float = 0.0
  multiple: int = 1


def _tpu(gib: int, hertz: float, flops: float) -> Profile:
  return Profile("tpu", 128, 8, "bfloat16", gib * _GIB, hertz, flops)


def _gpu(precision: str, gib: int, flops: float) -> Profile:
  # Its fast units take sizes in eights, and only those.
  return Profile("gpu", 8, 1, precision, gib * _GIB, 0.0, flops, multiple=8)


# Of a TPU v4 or v5p, both cores of a chip are one.
PROFILES = {
  "tpu_v2": _tpu(8, 0.70e9, 22.9e12),
  "tpu_v3": _tpu(16, 0.94e9, 61.6e12),
  "tpu_v4": _tpu(32, 1.05e9, 275e12),
  "tpu_v5e": _tpu(16, 1.50e9, 197e12),
  "tpu_v5p": _tpu(95, 1.75e9, 459e12),
  "tpu_v6e": _tpu(32, 1.75e9, 918e12),
  # Its half precision is float16, which does not train without scaling.
  "gpu_v100": _gpu("float32", 16, 15.7e12),
  "gpu_a100": _gpu("bfloat16", 40, 312e12),
  "gpu_h100": _gpu("bfloat16", 80, 989e12),
  "cpu": Profile("cpu", 1, 1, "float32", 0),
}
# What a kind stands for while the very chip is not known.
_TYPICAL = {"tpu": "tpu_v3", "gpu": "gpu_a100", "cpu": "cpu"}

RESIZES = ("apart", "folded", "strided")
IMAGE_ENDS = ("plain", "product", "blocks")


class _Parts(NamedTuple):
  """What pays on a kind of hardware; see `Layout`."""

  resizes: str
  rgb_convs: str
  weights_as_matrices: bool
  recompute_attention: bool
  one_pass: bool = True
  gram_on_short_side: bool = True
  join_projections: bool = False
  join_power_iterations: bool = False
  float32_products: bool = False


_PARTS = {
  "tpu": _Parts(
    "strided",
    "blocks",
    True,
    True,
    join_projections=True,
    join_power_iterations=True,
  ),
  "gpu": _Parts("folded", "plain", True, False),
  "cpu": _Parts("folded", "product", True, False, float32_products=True),
}


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Layout:
  """How nets are laid out; all forms compute the same.

  `None` is what pays on the hardware. Per player by gin scope, `g/` or `d/`.

  Attributes:
    hardware: One of `PROFILES`, or `auto`: what this program runs on.
    resizes: A resize beside a convolution is done `apart`, is `folded` into
      its kernel, or folded where it is `strided` and apart where the image
      would have holes, forward or back.
    rgb_convs: Convolutions with the image's few channels are `plain`, a matrix
      `product`, or compute `blocks` of pixels at once.
    weights_as_matrices: A TPU keeps weights and slots in the order they have,
      and turns what a convolution asks for alone.
    recompute_attention: The attention weights, the largest tensors of a net,
      are computed again in the backward pass and not kept.
    one_pass: D judges real and fake images in one pass. In two, its power
      iterations move in the first, so fakes meet norms that are half an
      iteration further on: equal where these have come to rest.
    gram_on_short_side: The orthogonal penalty multiplies a kernel with itself
      on its shorter side, and once less for the gradient.
    join_projections: Norms that follow the same vector, or vectors that have a
      part in common, ask for their scales and shifts in one product.
    join_power_iterations: Those of equal shapes are one batched product.
    float32_products: Linear layers and convolutions in bfloat16 multiply and
      add in float32, then round: as a TPU does, and many times as fast where
      nothing is made for bfloat16.
    multiple: Linear layers, and convolutions of size 1 and 3, are computed on
      rows of the batch, inputs and outputs filled up to multiples of it; not
      so embeddings, joined projections, attention's products and DCGAN's
      kernels. By default that of the profile: 8 on a GPU, which was not tried,
      1 where compilers fill up by themselves.
  """

  hardware: str = "auto"
  resizes: str = None  # type: ignore[assignment]
  rgb_convs: str = None  # type: ignore[assignment]
  weights_as_matrices: bool = None  # type: ignore[assignment]
  recompute_attention: bool = None  # type: ignore[assignment]
  one_pass: bool = None  # type: ignore[assignment]
  gram_on_short_side: bool = None  # type: ignore[assignment]
  join_projections: bool = None  # type: ignore[assignment]
  join_power_iterations: bool = None  # type: ignore[assignment]
  float32_products: bool = None  # type: ignore[assignment]
  multiple: int = None  # type: ignore[assignment]

  def __post_init__(self):
    found = profile(self.hardware)
    pays = {**_PARTS[found.kind]._asdict(), "multiple": found.multiple}
    for name, value in pays.items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)
    for name, known in (("resizes", RESIZES), ("rgb_convs", IMAGE_ENDS)):
      if getattr(self, name) not in known:
        raise ValueError(
          f"`{name}` must be one of {', '.join(known)}, got "
          f"'{getattr(self, name)}'."
        )
    if self.multiple < 1:
      raise ValueError(f"`multiple` must be at least 1, got {self.multiple}.")


def profile(name: str) -> Profile:
  """Returns a profile by its name, or that of what this program runs on."""
  if name == "auto":
    name = _TYPICAL[collectives.device_kind()]
  if name not in PROFILES:
    raise ValueError(
      f"`hardware` must be 'auto' or one of {', '.join(PROFILES)}, got "
      f"'{name}'."
    )
  return PROFILES[name]


def tiled(
  shape: Sequence[int], dtype: tf.DType, found: Profile
) -> Tuple[int, ...]:
  """Returns the shape that is computed with, the last axis in the lanes."""
  rows = found.sublanes
  if rows > 1:
    rows *= max(1, 4 // dtype.size)
  tile = [1] * max(0, len(shape) - 2) + [rows, found.lanes][-len(shape) :]
  return tuple(-(-size // unit) * unit for size, unit in zip(shape, tile))


def waste(shape: Sequence[int], dtype: tf.DType, found: Profile) -> float:
  """Returns the share of the tiles that holds nothing."""
  return 1.0 - math.prod(shape) / math.prod(tiled(shape, dtype, found))
