"""What the hardware is like, and how nets are computed on it.

    Layout()             what the config asks for, `None` where it asks nothing
    Layout().resolve()   every option decided, for the hardware at hand

A TPU computes in tiles of 8 rows and 128 lanes. Its compiler pads what does not
fill them, operation by operation. `pad_channels` pads once for a whole net.
"""

import dataclasses
import json
import math
import pathlib
import re
from typing import (
  Any,
  Dict,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
  Union,
)

import gin
import tensorflow as tf

from paragan_tf import collectives

_GIB = 1024**3
# Made by `python -m tools.padding_cycles`.
PADDING_CYCLES = pathlib.Path(__file__).parent / "files/padding_cycles.json"


class Profile(NamedTuple):
  """One core as a program sees it, by published figures and its compiler's.

  Attributes:
    kind: `tpu`, `gpu` or `cpu`.
    lanes: The last axis is padded to a multiple of this; 1 for no padding.
    sublanes: The same for the axis before it, for numbers of 4 bytes.
    precision: The fastest that trains well.
    memory: In bytes, 0 where it is not known; of a TPU, what is left to a
      program.
    hertz: Clock rate, 0 where it varies.
    flops: Peak of its fast units per second, 0 where it is not known.
    padded_widths: Numbers of channels that are faster if they are padded to
      whole lanes, see `list_padded_widths`.
  """

  kind: str
  lanes: int
  sublanes: int
  precision: str
  memory: int
  hertz: float = 0.0
  flops: float = 0.0
  padded_widths: Tuple[int, ...] = ()


def list_padded_widths(
  rows: Sequence[Mapping[str, int]],
) -> Tuple[int, ...]:
  """Returns the widths that are nowhere slower padded, and faster somewhere.

  A layer does not know at which resolution it is called, so all count.

  Args:
    rows: Cycles of pieces of nets, `plain` and `padded`, of each `width` at
      several resolutions.
  """
  gains: Dict[int, List[int]] = {}
  for row in rows:
    gains.setdefault(row["width"], []).append(row["plain"] - row["padded"])
  return tuple(
    width for width, found in gains.items() if min(found) >= 0 < max(found)
  )


def _read_padded_widths(name: str) -> Tuple[int, ...]:
  table = json.loads(PADDING_CYCLES.read_text())
  return list_padded_widths(table.get(name, {"rows": []})["rows"])


def _tpu(name: str, gib: float, hertz: float, flops: float) -> Profile:
  widths, memory = _read_padded_widths(name), int(gib * _GIB)
  return Profile("tpu", 128, 8, "bfloat16", memory, hertz, flops, widths)


def _gpu(precision: str, gib: int, flops: float) -> Profile:
  # Its fast units take sizes that are multiples of 8. Libraries pad others by
  # themselves, and whether padding in advance gains anything was not measured.
  return Profile("gpu", 8, 1, precision, gib * _GIB, 0.0, flops)


# A TPU's row is that of one device of the TPU compiler. Peaks are the maker's
# for a chip, divided by its devices; they are the clock times the units.
# Memory is what the compiler leaves to a program, by its error message:
#
#         maker, a chip        devices of a chip     compiler, a device
#   v2     45 TFLOP/s, 16 GiB  2, each is a core      22.8 TFLOP/s, 7.48 GiB
#   v3    123 TFLOP/s, 32 GiB  2, each is a core      61.4 TFLOP/s, 15.48 GiB
#   v4    275 TFLOP/s, 32 GiB  2, each is a core       137 TFLOP/s, 15.25 GiB
#   v5e   197 TFLOP/s, 16 GiB  1, of one core          197 TFLOP/s, 15.75 GiB
#   v5p   459 TFLOP/s, 95 GiB  1, of two joined cores  394 TFLOP/s, 95.73 GiB
#   v6e   918 TFLOP/s, 32 GiB  1, of one core          918 TFLOP/s, 31.24 GiB
PROFILES = {
  "tpu_v2": _tpu("tpu_v2", 7.48, 0.70e9, 22.9e12),
  "tpu_v3": _tpu("tpu_v3", 15.48, 0.94e9, 61.6e12),
  "tpu_v4": _tpu("tpu_v4", 15.25, 1.05e9, 137.5e12),
  "tpu_v5e": _tpu("tpu_v5e", 15.75, 1.50e9, 197e12),
  "tpu_v5p": _tpu("tpu_v5p", 95.73, 1.75e9, 459e12),
  "tpu_v6e": _tpu("tpu_v6e", 31.24, 1.75e9, 918e12),
  # Peaks of half precision without sparsity, of the SXM form if there is one.
  # The half precision of the first two is float16, which needs a loss scale:
  # it has to be asked for.
  "gpu_v100": _gpu("float32", 16, 125e12),
  "gpu_t4": _gpu("float32", 16, 65e12),
  "gpu_a100": _gpu("bfloat16", 40, 312e12),
  "gpu_a10": _gpu("bfloat16", 24, 125e12),
  "gpu_l4": _gpu("bfloat16", 24, 121e12),
  "gpu_h100": _gpu("bfloat16", 80, 989e12),
  "gpu_b200": _gpu("bfloat16", 180, 2250e12),
  "gpu": Profile("gpu", 1, 1, "float32", 0),
  "cpu": Profile("cpu", 1, 1, "float32", 0),
}
# The profile of a kind when the exact chip is not known.
_TYPICAL = {"tpu": "tpu_v3", "gpu": "gpu", "cpu": "cpu"}
# The first compute capability that has the profile of a GPU.
_BY_CAPABILITY = {
  (7, 0): "gpu_v100",
  (7, 5): "gpu_t4",
  (8, 0): "gpu_a100",
  (8, 6): "gpu_a10",
  (8, 9): "gpu_l4",
  (9, 0): "gpu_h100",
  (10, 0): "gpu_b200",
}

RESIZES = ("apart", "folded", "strided")
RGB_CONVS = ("plain", "product", "blocks")


class ResolvedLayout(NamedTuple):
  """How nets are computed on one kind of hardware, every option decided.

  `Layout` documents the options. The defaults are what is fast everywhere.
  `precision` is the fastest that trains well, see `Profile`, which has `lanes`
  and `padded_widths` as well.
  """

  resizes: str
  rgb_convs: str
  store_kernels: bool = False
  moments_in_one_pass: bool = False
  weights_as_matrices: bool = True
  recompute_attention: bool = False
  sum_after_product: bool = False
  one_pass: bool = True
  gram_on_short_side: bool = True
  join_projections: bool = False
  join_power_iterations: bool = False
  float32_products: bool = False
  select_updates: bool = False
  pad_channels: Union[int, str] = 1
  precision: str = "float32"
  lanes: int = 1
  padded_widths: Tuple[int, ...] = ()

  def padded_width(self, width: int) -> int:
    """Returns the channels that are computed for `width` of them."""
    multiple = self.pad_channels
    if multiple == "auto":
      multiple = self.lanes if width in self.padded_widths else 1
    return -(-width // int(multiple)) * int(multiple)


# The fastest layout of each kind; a profile adds `precision` and `lanes`.
_FASTEST = {
  "tpu": ResolvedLayout(
    resizes="strided",
    rgb_convs="blocks",
    store_kernels=True,
    moments_in_one_pass=True,
    sum_after_product=True,
    join_projections=True,
    join_power_iterations=True,
    select_updates=True,
  ),
  "gpu": ResolvedLayout(resizes="folded", rgb_convs="plain"),
  "cpu": ResolvedLayout(
    resizes="folded", rgb_convs="product", float32_products=True
  ),
}


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Layout:
  """How the config asks nets to be computed; all forms compute the same.

  `None` leaves an option to the hardware, see `resolve`. Gin scopes `g/` and
  `d/` set the options of one player.

  Attributes:
    hardware: One of `PROFILES`, or `auto`: what this program runs on.
    resizes: A resize next to a convolution is a separate operation (`apart`),
      is part of the kernel (`folded`), or is folded where the result is a
      strided convolution and separate where it would be a transposed one, in
      the forward and in the backward pass (`strided`).
    rgb_convs: Convolutions from or to the image's few channels are `plain`
      convolutions, a matrix `product`, or compute `blocks` of pixels at once.
    store_kernels: Kernels with a folded resize are computed before the
      convolution and stored. A TPU's compiler would compute them in it, again
      for each window of the image.
    moments_in_one_pass: Batch norm takes mean and variance of activations in
      half precision in one pass, the variance as `E[x^2] - E[x]^2` in float32.
      What cancels there is less than what rounding x has cost before.
    weights_as_matrices: Spectral norm divides the kernel in the shape of a
      matrix. A TPU then keeps weights and slots in the order they have, and
      transposes only what a convolution asks for.
    recompute_attention: The backward pass computes the attention weights, the
      largest tensors of a net, again instead of keeping them.
    sum_after_product: Attention divides by the sum of its exponentials after
      the product with the values, and has a gradient of its own: fewer passes
      over the attention weights.
    one_pass: D scores real and fake images in one pass. In two passes, the
      power iterations are updated in the first one, so fake images are scored
      with norms that are half an iteration further on. The results are equal
      once the iterations have converged.
    gram_on_short_side: The orthogonal penalty multiplies a kernel with itself
      on its shorter side, and needs one product less for the gradient.
    join_projections: Norms that depend on the same vector, or on vectors that
      have a part in common, compute their scales and shifts in one product.
      So does attention its queries, keys and values.
    join_power_iterations: Power iterations of equal shapes are one batched
      product.
    float32_products: Linear layers and convolutions in bfloat16 multiply and
      add in float32, then round. A TPU does the same; hardware without
      bfloat16 units is many times as fast this way.
    select_updates: Where gradients are not finite, an update is computed and
      the values before it are kept, in place of a branch that skips it. A TPU's
      compiler makes one pass of that, and none across a branch.
    pad_channels: Every layer computes a multiple of this number of channels;
      the last ones are zero, and stay so through the whole net. `auto` pads
      what is faster padded by the compiler's cycles, see
      `Profile.padded_widths`, 1 pads nothing. Variables and checkpoints have
      no padding.
  """

  hardware: str = "auto"
  resizes: Optional[str] = None
  rgb_convs: Optional[str] = None
  store_kernels: Optional[bool] = None
  moments_in_one_pass: Optional[bool] = None
  weights_as_matrices: Optional[bool] = None
  recompute_attention: Optional[bool] = None
  sum_after_product: Optional[bool] = None
  one_pass: Optional[bool] = None
  gram_on_short_side: Optional[bool] = None
  join_projections: Optional[bool] = None
  join_power_iterations: Optional[bool] = None
  float32_products: Optional[bool] = None
  select_updates: Optional[bool] = None
  pad_channels: Union[int, str, None] = None

  def __post_init__(self):
    if self.hardware != "auto":
      profile(self.hardware)
    for name, allowed in (("resizes", RESIZES), ("rgb_convs", RGB_CONVS)):
      value = getattr(self, name)
      if value is not None and value not in allowed:
        raise ValueError(
          f"`{name}` must be one of {', '.join(allowed)}, got '{value}'."
        )
    _check_pad_channels(self.pad_channels)

  def resolve(self) -> ResolvedLayout:
    """Fills in what is fastest on the hardware for what was not asked."""
    found = profile(self.hardware)
    fastest = _FASTEST[found.kind]._replace(
      precision=found.precision,
      lanes=found.lanes,
      padded_widths=found.padded_widths,
    )
    asked = dataclasses.asdict(self)
    del asked["hardware"]
    return fastest._replace(
      **{name: value for name, value in asked.items() if value is not None}
    )


def _check_pad_channels(asked: Union[int, str, None]) -> None:
  if asked in (None, "auto"):
    return
  if isinstance(asked, str) or asked < 1:
    raise ValueError(
      f"`pad_channels` must be 'auto' or at least 1, got {asked!r}."
    )


def resolve_layout() -> ResolvedLayout:
  """Resolves the layout of the current gin scope.

  Layers and nets call it when they are constructed, never while tracing.
  """
  return Layout().resolve()


def profile(name: str) -> Profile:
  """Returns a profile by its name, or that of what this program runs on."""
  if name == "auto":
    kind = collectives.device_kind()
    if kind == "gpu":
      return _first_gpu_profile()
    name = _TYPICAL[kind]
  if name not in PROFILES:
    raise ValueError(
      f"`hardware` must be 'auto' or one of {', '.join(PROFILES)}, got "
      f"'{name}'."
    )
  return PROFILES[name]


def gpu_profile(details: Mapping[str, Any]) -> Profile:
  """Returns the profile of a GPU from what TensorFlow knows of it.

  It is that of the highest known compute capability that is not above the
  GPU's. Memory and peak of that profile are those of one chip, and count only
  if the GPU is named after it; memory that its name states has priority.

  Args:
    details: May have `compute_capability`, a pair, and `device_name`.
  """
  capability = tuple(details.get("compute_capability") or ())
  known = [lowest for lowest in _BY_CAPABILITY if lowest <= capability]
  name = _BY_CAPABILITY[max(known)] if known else _TYPICAL["gpu"]
  found = PROFILES[name]
  device = (details.get("device_name") or "").lower()
  if not re.search(rf"\b{name.partition('_')[2]}\b", device):
    found = found._replace(memory=0, flops=0.0)
  stated = re.findall(r"(\d+) ?gb\b", device)
  if stated:  # The last one, as a slice of a GPU names both.
    found = found._replace(memory=int(stated[-1]) * _GIB)
  return found


def _first_gpu_profile() -> Profile:
  gpus = tf.config.list_physical_devices("GPU")
  if not gpus:
    return PROFILES[_TYPICAL["gpu"]]
  return gpu_profile(tf.config.experimental.get_device_details(gpus[0]))


def padded_shape(
  shape: Sequence[int], dtype: tf.DType, found: Profile
) -> Tuple[int, ...]:
  """Returns a shape as the hardware pads it, the last axis in the lanes."""
  rows = found.sublanes
  if rows > 1:
    rows *= max(1, 4 // dtype.size)
  tile = [1] * max(0, len(shape) - 2) + [rows, found.lanes][-len(shape) :]
  return tuple(-(-size // unit) * unit for size, unit in zip(shape, tile))


def waste(shape: Sequence[int], dtype: tf.DType, found: Profile) -> float:
  """Returns the fraction of the tiles that is padding."""
  return 1.0 - math.prod(shape) / math.prod(padded_shape(shape, dtype, found))
