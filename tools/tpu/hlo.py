"""Parses the text of compiled programs into computations and operations.

    %fusion.3 = f32[16,8,8,96]{3,0,2,1:T(8,128)} fusion(%a, %b), ...,
      backend_config={.. "estimated_cycles":"2585" ..}

A program is a list of computations. Operations of the main one, and of those
that it calls, take time; those inside a fusion are part of the fusion.
"""

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(
  r"\b(?:condition|body|calls|to_apply|true_computation|false_computation)="
  r"%([\w.\-]+)|branch_computations=\{([^}]*)\}"
)
# Operations that run other computations, apart from fusions.
CALLERS = {"while", "conditional", "call", "async-start"}


class Operation(NamedTuple):
  """One line of the program.

  Attributes:
    shape: Of the result, with tiles, as text.
    kind: Of instruction.
    cycles: The compiler's estimate, 0 if there is none.
    name: Of the TensorFlow operation that it comes from.
    text: The line.
    result: The name of the result.
    calls: Computations that it runs, or consists of if it is a fusion.
    operands: Names of results that it takes.
  """

  shape: str
  kind: str
  cycles: int
  name: str
  text: str
  result: str
  calls: Tuple[str, ...]
  operands: Tuple[str, ...]


class Program(NamedTuple):
  """The operations of each computation, and the name of the main one."""

  computations: Dict[str, List[Operation]]
  main: str


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
  if found[3] in CALLERS or found[3] == "fusion":
    for one, several in _CALLED.findall(line):
      calls += [one] if one else re.findall(r"[\w.\-]+", several)
  operands = line[found.end() :].split(")", 1)[0]
  return Operation(
    found[2],
    found[3],
    int(cycles[1]) if cycles else 0,
    name[1] if name else "",
    line,
    found[1],
    tuple(calls),
    tuple(re.findall(r"%([\w.\-]+)", operands)),
  )


def list_operations(program: Program) -> Iterator[Tuple[str, Operation]]:
  """Yields all operations that run, each with the name of its computation."""
  seen, waiting = {program.main}, [program.main]
  while waiting:
    name = waiting.pop()
    for operation in program.computations[name]:
      yield name, operation
      if operation.kind in CALLERS:
        waiting += [call for call in operation.calls if call not in seen]
        seen.update(operation.calls)


def count_turns(program: Program, name: str, loop: Operation) -> Optional[int]:
  """Returns how often the loop of a computation runs, if the text says so.

  It does where a counter starts at a constant, is increased by a constant and
  compared with one.
  """
  known = _TURNS.search(loop.text)
  if known:
    return int(known[1])
  if len(loop.calls) != 2:
    return None
  condition, body = (_Values(program, call) for call in loop.calls)
  compare, after = condition.root, body.root
  if compare.kind != "compare" or "direction=LT" not in compare.text:
    return None
  index, limit = (
    find(operand)
    for find, operand in zip(
      (condition.find_index, condition.find_constant), compare.operands
    )
  )
  start = _Values(program, name).find_part(loop.operands[0], index)
  step = body.find_increase(after.result, index)
  if limit is None or start is None or not step or step < 0:
    return None
  return max(0, -(-(limit - start) // step))


class _Values:
  """What the results of one computation are, as far as they are constant."""

  def __init__(self, program: Program, name: str):
    self._made = {op.result: op for op in program.computations[name]}
    roots = (
      op for op in self._made.values() if op.text.lstrip().startswith("ROOT")
    )
    self.root = next(roots, program.computations[name][-1])

  def _find(self, result: str) -> Optional[Operation]:
    """Returns the operation that made a result which may be copied."""
    made = self._made.get(result)
    while made is not None and made.kind in ("copy", "bitcast"):
      made = self._made.get(made.operands[0])
    return made

  def find_constant(self, result: str) -> Optional[int]:
    made = self._find(result)
    found = made and re.search(r" constant\((-?\d+)\)", made.text)
    return int(found[1]) if found else None

  def find_index(self, result: str) -> Optional[int]:
    """Returns which part of the computation's parameter a result is."""
    made = self._find(result)
    if made is None or made.kind != "get-tuple-element":
      return None
    found = re.search(r"index=(\d+)", made.text)
    return int(found[1]) if found else None

  def _find_element(self, result: str, index: Optional[int]) -> Optional[str]:
    made = self._find(result)
    if made is None or made.kind != "tuple" or index is None:
      return None
    return made.operands[index]

  def find_part(self, result: str, index: Optional[int]) -> Optional[int]:
    """Returns the constant that is a part of a tuple."""
    element = self._find_element(result, index)
    return self.find_constant(element) if element else None

  def find_increase(self, result: str, index: Optional[int]) -> Optional[int]:
    """Returns by how much a part of a tuple exceeds that of the parameter."""
    made = self._find(self._find_element(result, index) or "")
    if made is None or made.kind != "add":
      return None
    for one, other in (made.operands, made.operands[::-1]):
      if self.find_index(one) == index:
        return self.find_constant(other)
    return None
