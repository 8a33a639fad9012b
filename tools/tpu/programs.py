"""Parses compiled programs: their operations, cycles and tiles.

    %fusion.3 = f32[16,8,8,96]{3,0,2,1:T(8,128)} fusion(%a, %b), ...,
      backend_config={.. "estimated_cycles":"2585" ..}

Axes in braces are ordered from the minor-most, in the lanes, to the major-most;
`T` is the tile that the last two are padded to.
"""

import math
import re
from typing import Dict, Iterator, List, NamedTuple, Tuple

_SIZES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(")
_ARRAY = re.compile(
  r"([a-z]+\d*)\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?)?"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
# Operations without memory of their own.
_VIEWS = {"parameter", "bitcast", "get-tuple-element", "tuple", "constant"}


class Operation(NamedTuple):
  """One line of the program.

  Attributes:
    shape: Of the result, with tiles, as text.
    kind: Of instruction.
    cycles: The compiler's estimate, 0 if there is none.
    name: Of the TensorFlow operation that it comes from.
    text: The line.
  """

  shape: str
  kind: str
  cycles: int
  name: str
  text: str


class Waste(NamedTuple):
  """Tensors of one shape, and how much of their tiles is empty."""

  shape: str
  num: int
  empty_bytes: int
  share: float
  name: str


def parse_operations(text: str) -> Iterator[Operation]:
  """Yields the operations of the main computation; a fusion is one."""
  for line in text[text.index("\nENTRY") :].splitlines():
    found = _LINE.match(line)
    if found:
      cycles, name = _CYCLES.search(line), _NAME.search(line)
      yield Operation(
        found[2],
        found[3],
        int(cycles[1]) if cycles else 0,
        name[1] if name else "",
        line,
      )


def count_cycles(text: str) -> int:
  """Returns the compiler's estimate of the whole program."""
  return sum(operation.cycles for operation in parse_operations(text))


def count_x64_calls(text: str) -> int:
  """Returns how often a 64-bit count is split into halves or joined.

  Each counts as minus one second in the compiler's `optimal_seconds`.
  """
  return len(re.findall(r'custom_call_target="X64\w+"', text))


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


def find_waste(text: str, count: int = 10) -> List[Waste]:
  """Returns the shapes that leave most of their tiles empty, in bytes."""
  found: Dict[str, Waste] = {}
  for operation in parse_operations(text):
    if operation.kind in _VIEWS:
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
