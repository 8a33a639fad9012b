"""Parses compiled programs: their operations, cycles and tiles.

    %fusion.3 = f32[16,8,8,96]{3,0,2,1:T(8,128)} fusion(%a, %b), ...,
      backend_config={.. "estimated_cycles":"2585" ..}

Axes in braces are ordered from the minor-most, in the lanes, to the major-most;
`T` is the tile that the last two are padded to. A program is a list of
computations. Operations of the main one, and of those that it calls, take time;
those inside a fusion are part of the fusion.
"""

import collections
import math
import re
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

_SIZES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(")
_ARRAY = re.compile(
  r"([a-z]+\d*)\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?)?"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(
  r"\b(?:body|condition|calls|to_apply|true_computation|false_computation)="
  r"%?([\w.\-]+)|branch_computations=\{([^}]*)\}"
)
# Operations that run other computations, apart from fusions.
_CALLERS = {"while", "conditional", "call", "async-start"}
# Operations without memory of their own.
_VIEWS = {"parameter", "bitcast", "get-tuple-element", "tuple", "constant"}
# Custom calls outside of fusions that the compiler's cost model knows. It
# counts minus one second for any other, as `X64SplitLow` and `X64Combine`,
# halves of a 64-bit count, and `ConcatBitcast`, weights fetched in slices. Seen
# by compiling small programs with each for v2 to v6e.
_KNOWN_CALLS = {"AllocateBuffer", "TopK", "PartialReduce"}

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


class Operation(NamedTuple):
  """One line of the program.

  Attributes:
    shape: Of the result, with tiles, as text.
    kind: Of instruction.
    cycles: The compiler's estimate, 0 if there is none.
    name: Of the TensorFlow operation that it comes from.
    text: The line.
    calls: Computations that it runs, or consists of if it is a fusion.
  """

  shape: str
  kind: str
  cycles: int
  name: str
  text: str
  calls: Tuple[str, ...] = ()


class Program(NamedTuple):
  """The operations of each computation, and the name of the main one."""

  computations: Dict[str, List[Operation]]
  main: str


class Waste(NamedTuple):
  """Tensors of one shape, and how much of their tiles is empty."""

  shape: str
  num: int
  empty_bytes: int
  share: float
  name: str


def parse(text: str) -> Program:
  """Returns the program of a compiled text."""
  computations: Dict[str, List[Operation]] = {}
  main, operations = "", []
  for line in text.splitlines():
    head = _HEAD.match(line)
    if head:
      operations = computations[head[2]] = []
      main = head[2] if head[1] else main
      continue
    found = _LINE.match(line)
    if found:
      operations.append(_parse_operation(found, line))
  return Program(computations, main)


def _parse_operation(found: re.Match, line: str) -> Operation:
  cycles, name = _CYCLES.search(line), _NAME.search(line)
  calls: List[str] = []
  if found[3] in _CALLERS or found[3] == "fusion":
    for one, several in _CALLED.findall(line):
      calls += [one] if one else re.findall(r"[\w.\-]+", several)
  return Operation(
    found[2],
    found[3],
    int(cycles[1]) if cycles else 0,
    name[1] if name else "",
    line,
    tuple(calls),
  )


def list_operations(program: Program) -> Iterator[Operation]:
  """Yields all operations that run: the main ones, and those they call."""
  seen, waiting = {program.main}, [program.main]
  while waiting:
    for operation in program.computations[waiting.pop()]:
      yield operation
      if operation.kind in _CALLERS:
        waiting += [name for name in operation.calls if name not in seen]
        seen.update(operation.calls)


def count_cycles(
  program: Program, name: Optional[str] = None
) -> Dict[str, int]:
  """Returns the compiler's estimate of the whole, for each of `GROUPS`.

  A core takes one branch of a conditional: the one with most cycles counts. The
  body of a loop counts as often as it is known to run, or else once.
  """
  total: Dict[str, int] = collections.Counter()
  for operation in program.computations[name or program.main]:
    if operation.cycles:
      total[_find_group(program, operation)] += operation.cycles
    if operation.kind not in _CALLERS:
      continue
    called = [count_cycles(program, call) for call in operation.calls]
    if operation.kind == "conditional":
      called = [max(called, key=lambda branch: sum(branch.values()))]
    turns = _TURNS.search(operation.text)
    for group, cycles in (item for one in called for item in one.items()):
      total[group] += cycles * (int(turns[1]) if turns else 1)
  return dict(total)


def count_unknown_loops(program: Program) -> int:
  """Returns how many loops run a number of times that the text does not say."""
  return sum(
    operation.kind == "while" and not _TURNS.search(operation.text)
    for operation in list_operations(program)
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
    if operation.kind not in _CALLERS:
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
  for operation in list_operations(program):
    if operation.kind in _VIEWS or operation.kind in _CALLERS:
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
