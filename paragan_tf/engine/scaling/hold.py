"""Holds a run to its plan: what was expected, what is, and what to change.

    found = check(expected, measured)        # what broke, a sentence each
    levels = advance(levels, found, options) # what to change at the next stop

Pure functions; `holding.py` measures and applies.
"""

from typing import List, NamedTuple, Sequence

TOLERANCE = 0.2
_NEARLY_FULL = 0.95  # Of the memory limit.


class Measured(NamedTuple):
  """A step as it was expected, or as it is.

  Attributes:
    step_seconds: All of it.
    input_seconds: That it waited for its batch.
    exchange_seconds: Of its exchange; 0 if it is not known.
    memory_bytes: Of a worker; 0 if it is not known.
    memory_limit: Of a worker; 0 if it is not known.
  """

  step_seconds: float
  input_seconds: float = 0.0
  exchange_seconds: float = 0.0
  memory_bytes: int = 0
  memory_limit: int = 0


class Finding(NamedTuple):
  """An assumption of the plan that does not hold.

  Attributes:
    name: `memory`, `input`, `exchange` or `compute`.
    expected: In seconds or bytes.
    measured: The same.
    text: One line for the user.
  """

  name: str
  expected: float
  measured: float
  text: str


class Levels(NamedTuple):
  """What was changed since the plan, as factors.

  Attributes:
    accumulate: Parts that a step's batch is computed in.
    reads: Of what is read ahead.
    period: Of the steps between two exchanges.
  """

  accumulate: int = 1
  reads: int = 1
  period: int = 1


class Options(NamedTuple):
  """What may be changed.

  Attributes:
    accumulate: Whether gradients may be added up: the scheme averages them at
      each update, and the batch can be halved.
    reads: Whether more can be read ahead.
    period: Whether the exchange has a period that may grow.
    max_level: Of each factor.
  """

  accumulate: bool = False
  reads: bool = False
  period: bool = False
  max_level: int = 8


def check(
  expected: Measured, measured: Measured, tolerance: float = TOLERANCE
) -> List[Finding]:
  """Returns what is off by more than a fraction of the plan.

  Times are compared with the whole step: a wait that is twice as long as
  planned is nothing if it is a hundredth of the step. What is left of a longer
  step, after the input and the exchange, is the computation.
  """
  found: List[Finding] = []
  slack = tolerance * expected.step_seconds
  memory = expected.memory_bytes
  limit = expected.memory_limit
  if measured.memory_bytes and (
    (memory and measured.memory_bytes > (1 + tolerance) * memory)
    or (limit and measured.memory_bytes > _NEARLY_FULL * limit)
  ):
    found.append(_memory(memory, measured.memory_bytes, limit))
  waits = measured.input_seconds - expected.input_seconds
  if waits > slack:
    found.append(_time("input", "the input", expected[1], measured[1]))
  if measured.step_seconds - expected.step_seconds - max(waits, 0.0) <= slack:
    return found
  exchanges = measured.exchange_seconds - expected.exchange_seconds
  if measured.exchange_seconds and exchanges > slack:
    found.append(_time("exchange", "the exchange", expected[2], measured[2]))
    waits += exchanges
  if measured.step_seconds - expected.step_seconds - max(waits, 0.0) > slack:
    rest = [
      x.step_seconds - x.input_seconds - x.exchange_seconds
      for x in (expected, measured)
    ]
    found.append(_time("compute", "the computation", rest[0], rest[1]))
  return found


def advance(
  levels: Levels, findings: Sequence[Finding], options: Options
) -> Levels:
  """Returns what to train with from now on; the same if nothing helps."""
  for finding in findings:
    name = {"memory": "accumulate", "input": "reads", "exchange": "period"}.get(
      finding.name
    )
    if name is None or not getattr(options, name):
      continue
    level = 2 * getattr(levels, name)
    if level <= options.max_level:
      levels = levels._replace(**{name: level})
  return levels


def describe(before: Levels, after: Levels) -> str:
  """Returns what changes, in one line."""
  words = {
    "accumulate": "gradients add up over {} parts of a batch",
    "reads": "{} times as much is read ahead",
    "period": "{} times as many steps between exchanges",
  }
  changed = [
    text.format(getattr(after, name))
    for name, text in words.items()
    if getattr(before, name) != getattr(after, name)
  ]
  return "; ".join(changed)


def _memory(expected: int, measured: int, limit: int) -> Finding:
  of = f" of {limit / 1e9:.2f}" if limit else ""
  text = (
    f"A worker takes {measured / 1e9:.2f}{of} GB, and {expected / 1e9:.2f} GB "
    "were planned."
  )
  return Finding("memory", expected, measured, text)


def _time(name: str, words: str, expected: float, measured: float) -> Finding:
  text = (
    f"Of a step, {words} takes {1e3 * measured:.1f} ms, and "
    f"{1e3 * expected:.1f} ms were planned."
  )
  return Finding(name, expected, measured, text)
