"""The compiler's figures of one program, read from what it wrote."""

import json
import math
import pathlib
import types
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from tools import cli
from tools.tpu import hlo, programs

_MANY = 2**20  # Images: more than any core has.
_WORDS = {
  "off": "layout off, float32",
  "layout": "layout on, float32",
  "bfloat16": "layout on, bfloat16",
}


class Row(NamedTuple):
  """The compiler's figures of one program.

  Attributes:
    seconds: The compiler's estimate of the whole, by multiply-adds and bytes;
      `None` if its `optimal_seconds` cannot be corrected.
    seconds_by_cycles: The sum of its estimates of all operations.
    hbm_bytes: Arguments, results and temporary buffers.
    mxu: The share of the MXU's peak that the multiply-adds reach, by cycles.
    images: Of a core.
    images_fitting: That would fit into the memory of a core.
    error: Why there are no figures.
    optimal_seconds: As the compiler reports them.
    seconds_rounding: The largest error of `seconds` by rounding.
    seconds_reason: Why there are no `seconds`.
    cycles: The cycles of each of `programs.GROUPS`.
    num_loops: Loops whose number of turns is not known, which count once.
    num_kernels: Kernels without cycles, which `seconds_by_cycles` leaves out.
  """

  name: str
  flops: float = 0.0
  bytes: float = 0.0
  seconds: Optional[float] = 0.0
  seconds_by_cycles: float = 0.0
  hbm_bytes: int = 0
  mxu: float = 0.0
  images: int = 0
  images_fitting: int = 0
  wastes: Sequence[programs.Waste] = ()
  error: Optional[str] = None
  optimal_seconds: float = 0.0
  seconds_rounding: float = 0.0
  seconds_reason: Optional[str] = None
  cycles: Mapping[str, int] = types.MappingProxyType({})
  num_loops: int = 0
  num_kernels: int = 0


def get_profiles() -> Dict[str, Any]:
  """Returns the profiles by their names."""
  return cli.import_quietly("paragan_tf.hardware").PROFILES


def read_row(
  name: str, path: pathlib.Path, num_images: int, chip_name: str
) -> Row:
  """Reads the compiler's output."""
  stats = json.loads(path.with_suffix(".json").read_text())
  if "error" in stats:
    return Row(name, error=stats["error"])
  program = hlo.parse(path.with_suffix(".txt").read_text())
  profile = get_profiles()[chip_name]
  cycles = programs.count_cycles(program)
  by_cycles = sum(cycles.values()) / profile.hertz
  total = stats["argument_bytes"] + stats["output_bytes"] + stats["temp_bytes"]
  row = Row(
    name,
    stats["flops"],
    stats["bytes"],
    None,
    by_cycles,
    total + stats["code_bytes"] - stats["alias_bytes"],
    stats["flops"] / by_cycles / profile.flops if by_cycles else 0.0,
    num_images,
    _count_fitting(stats, num_images, profile),
    programs.find_waste(program),
    optimal_seconds=stats["optimal_seconds"],
    seconds_rounding=_find_rounding(program, stats["optimal_seconds"]),
    cycles=cycles,
    num_loops=programs.count_unknown_loops(program),
    num_kernels=programs.count_kernels(program),
  )
  return _add_seconds(row, programs.count_uncounted(program), profile)


def _add_seconds(row: Row, uncounted: Optional[int], profile) -> Row:
  """Adds the time by the roofline, or why it cannot be known.

  A roofline is never below the time of its multiply-adds alone. A second too
  much, for an operation that was counted after all, exceeds the cycles by far.
  """
  if uncounted is None:
    return row._replace(
      seconds_reason="branches of a conditional have different numbers of "
      "operations that `optimal_seconds` counts as minus one second"
    )
  seconds = row.optimal_seconds + uncounted
  least = 0.9 * row.flops / profile.flops - row.seconds_rounding
  if max(0.0, least) < seconds < 2 * row.seconds_by_cycles + 0.5:
    return row._replace(seconds=seconds)
  return row._replace(
    seconds_reason=f"`optimal_seconds` is {row.optimal_seconds:.3f}, and with "
    f"one second more for each of {uncounted} operations it is {seconds:.3f}, "
    "which cannot be"
  )


def _find_rounding(program: hlo.Program, seconds: float) -> float:
  """Returns the largest error of a sum of all operations in 32 bits."""
  num = sum(op.cycles > 0 for _, op in hlo.list_operations(program))
  return num * 2.0 ** (math.frexp(seconds)[1] - 25)


def _count_fitting(stats: Dict[str, Any], num_images: int, profile) -> int:
  """Returns how many images fit, if temporary buffers grow with them."""
  batch_shape = cli.import_quietly("paragan_tf.data.batch_shape")
  each = stats["temp_bytes"] / num_images
  fixed = stats["argument_bytes"] + stats["code_bytes"]
  return batch_shape.batch_per_core(profile, _MANY, fixed, each)


def describe(name: str) -> str:
  """Returns the name of a program in words."""
  role, _, variant = name.partition("_")
  words = _WORDS.get(variant) or variant.replace("only_", "only ")
  return f"{role.upper()}, {words}" if role in ("g", "d") else words or name


def format_gb(num_bytes: float) -> str:
  """Returns a number of bytes in GB, or in MB if there are few."""
  if num_bytes < 1e8:
    return f"{num_bytes / 1e6:.1f} MB"
  return f"{num_bytes / 1e9:.2f} GB"
