"""What compiled programs cost: cycles, time that is left out, empty tiles.

    f32[16,8,8,96]{3,0,2,1:T(8,128)}

Axes in braces are ordered from the minor-most, in the lanes, to the major-most;
`T` is the tile that the last two are padded to.
"""

import collections
import math
import re
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from tools.tpu import hlo
from tools.tpu.hlo import Operation, Program

_SIZES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_ARRAY = re.compile(
  r"([a-z]+\d*)\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?)?"
)
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Operations without memory of their own.
_VIEWS = {"parameter", "bitcast", "get-tuple-element", "tuple", "constant"}
# Custom calls outside of fusions that the compiler's cost model knows. It
# counts minus one second for any other, as `X64SplitLow` and `X64Combine`,
# halves of a 64-bit count, and `ConcatBitcast`, weights fetched in slices. Seen
# by compiling small programs with each for v2 to v6e; `tpu_custom_call`, the
# attention of BigGAN on v5e, by that run's step.
_KNOWN_CALLS = {"AllocateBuffer", "PartialReduce", "TopK", "tpu_custom_call"}

PRODUCTS = "convolutions and products"
COLLECTIVES = "collectives"
LOOKUPS = "gather, scatter and sort"
REDUCTIONS = "reductions"
COPIES = "copies and transposes"
ELEMENTWISE = "element by element"
GROUPS = (PRODUCTS, REDUCTIONS, ELEMENTWISE, COPIES, LOOKUPS, COLLECTIVES)
_GROUP_OF = {
  "convolution": PRODUCTS,
  "dot": PRODUCTS,
  "all-reduce": COLLECTIVES,
  "all-gather": COLLECTIVES,
  "all-to-all": COLLECTIVES,
  "reduce-scatter": COLLECTIVES,
  "collective-permute": COLLECTIVES,
  "gather": LOOKUPS,
  "scatter": LOOKUPS,
  "sort": LOOKUPS,
  "reduce": REDUCTIONS,
  "reduce-window": REDUCTIONS,
  "select-and-scatter": REDUCTIONS,
}
_MOVES = {
  *_VIEWS,
  "broadcast",
  "concatenate",
  "copy",
  "copy-done",
  "copy-start",
  "dynamic-slice",
  "dynamic-update-slice",
  "iota",
  "pad",
  "reshape",
  "reverse",
  "slice",
  "transpose",
}


class Waste(NamedTuple):
  """Tensors of one shape, and how much of their tiles is empty."""

  shape: str
  num: int
  empty_bytes: int
  share: float
  name: str


def count_cycles(
  program: Program, name: Optional[str] = None
) -> Dict[str, int]:
  """Returns the compiler's estimate of the whole, for each of `GROUPS`.

  A core takes one branch of a conditional: the one with most cycles counts. The
  body of a loop counts as often as it is known to run, or else once.
  """
  name = name or program.main
  total: Dict[str, int] = collections.Counter()
  for operation in program.computations[name]:
    if operation.cycles:
      total[_find_group(program, operation)] += operation.cycles
    if operation.kind not in hlo.CALLERS:
      continue
    called = [count_cycles(program, call) for call in operation.calls]
    turns = None
    if operation.kind == "conditional":
      called = [max(called, key=lambda branch: sum(branch.values()))]
    elif operation.kind == "while":
      turns = hlo.count_turns(program, name, operation)
    for group, cycles in (item for one in called for item in one.items()):
      total[group] += cycles * (1 if turns is None else turns)
  return dict(total)


def count_unknown_loops(program: Program) -> int:
  """Returns how many loops run a number of times that the text does not say."""
  return sum(
    operation.kind == "while"
    and hlo.count_turns(program, name, operation) is None
    for name, operation in hlo.list_operations(program)
  )


def count_kernels(program: Program) -> int:
  """Returns how many kernels, as of attention, have no estimate of cycles."""
  return sum(
    'custom_call_target="tpu_custom_call"' in operation.text
    and not operation.cycles
    for _, operation in hlo.list_operations(program)
  )


def _find_group(program: Program, operation: Operation) -> str:
  kinds = _list_kinds(program, operation)
  found = {_GROUP_OF.get(kind.removesuffix("-start")) for kind in kinds}
  for group in (PRODUCTS, COLLECTIVES, LOOKUPS, REDUCTIONS):
    if group in found:
      return group
  return COPIES if kinds <= _MOVES else ELEMENTWISE


def _list_kinds(program: Program, operation: Operation) -> FrozenSet[str]:
  """Returns the kind of an operation, or those inside a fusion."""
  if operation.kind != "fusion":
    return frozenset([operation.kind])
  inside = (
    _list_kinds(program, inner)
    for call in operation.calls
    for inner in program.computations.get(call, ())
  )
  return frozenset().union(*inside)


def count_uncounted(
  program: Program, name: Optional[str] = None
) -> Optional[int]:
  """Returns how many operations count minus one second in the cost model.

  Its time is then that many seconds too short. It takes the longest branch of
  a conditional: `None` where branches differ in their number of such
  operations, because it cannot be said which branch was taken.
  """
  total = 0
  for operation in program.computations[name or program.main]:
    target = _TARGET.search(operation.text)
    if target:
      total += target[1] not in _KNOWN_CALLS
    if operation.kind not in hlo.CALLERS:
      continue
    called = [count_uncounted(program, call) for call in operation.calls]
    if operation.kind == "conditional":
      called = list(set(called))
    if None in called or (operation.kind == "conditional" and len(called) > 1):
      return None
    total += sum(number for number in called if number is not None)
  return total


def count_bytes(array: Tuple[str, str, str, str]) -> Tuple[int, int]:
  """Returns the bytes of an array's numbers, and of its tiles."""
  dtype, dims, order, tile = array
  sizes = [int(size) for size in dims.split(",") if size]
  each = _SIZES.get(dtype) or max(1, int(dtype[1:]) // 8)
  full = each * math.prod(sizes)
  if not tile or not sizes:
    return full, full
  laid_out = [sizes[int(axis)] for axis in order.split(",")][::-1]
  units = [int(unit) for unit in tile.split(",")][-len(laid_out) :]
  units = [1] * (len(laid_out) - len(units)) + units
  padded = math.prod(-(-n // unit) * unit for n, unit in zip(laid_out, units))
  return full, each * padded


def find_waste(program: Program, count: int = 10) -> List[Waste]:
  """Returns the shapes that leave most of their tiles empty, in bytes."""
  found: Dict[str, Waste] = {}
  for _, operation in hlo.list_operations(program):
    if operation.kind in _VIEWS or operation.kind in hlo.CALLERS:
      continue
    for match in _ARRAY.finditer(operation.shape):
      array = (match[1], match[2], match[3] or "", match[4] or "")
      full, padded = count_bytes(array)
      key = f"{match[1]}[{match[2]}]"
      old = found.get(key, Waste(key, 0, 0, 0.0, operation.name))
      found[key] = old._replace(
        num=old.num + 1,
        empty_bytes=old.empty_bytes + padded - full,
        share=max(old.share, 1.0 - full / max(padded, 1)),
      )
  ranked = sorted(found.values(), key=lambda waste: -waste.empty_bytes)
  return [waste for waste in ranked[:count] if waste.empty_bytes]
