"""How far to read ahead: a pure controller of readers and depth.

    state = advance(state, observed, bounds)
    num_readers, depth = state.plan(bounds)

By what was seen of the latency lately, the plan covers it: with a latency of
ten steps, be ten batches ahead. Waiting for a batch all the same doubles what
was short: the readers if all of them were busy, else the depth. A calm window
gives a quarter of that back; when it was too much, the next calm must last
longer. ParaGAN (arXiv 2411.03999) tunes both by the latency it sees; the rule
is ours.
"""

import dataclasses
import math
from typing import Any, NamedTuple, Sequence, Tuple

_NOISE_SECONDS = 0.002  # What threads need to wake up is no waiting.
_NEED = 0.1  # Share of the time spent waiting at which it grows, if
_NEED_WAITS = 2  # so many waited
_RECENT = 16  # of the last batches.
_CALM = 0.01  # Share, since the last change, at which it shrinks
_WINDOW = 64  # after so many batches.
_MAX_PATIENCE = 16 * _WINDOW
_REMEMBERED = 256  # Batches whose latency is covered,
_COVERED = 0.95  # but for the rest of them,
_MARGIN = 1.25  # with this to spare.


class Observation(NamedTuple):
  """What one batch saw.

  Attributes:
    wait: Seconds for which it was waited for.
    interval: Seconds since the batch before.
    latency: Seconds that the slowest of its reads took, if it needed any.
    work: Seconds that all its reads took together.
    blocked: Whether, meanwhile, readers stood still for the depth was used up.
  """

  wait: float
  interval: float
  latency: float = 0.0
  work: float = 0.0
  blocked: bool = False


class Plan(NamedTuple):
  """How to read ahead: that many readers, that many batches."""

  num_readers: int
  depth: int


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Between which plans to choose; bytes are for the buffer to keep."""

  least: Plan
  most: Plan
  max_bytes: int

  def __post_init__(self):
    if not 1 <= self.least.num_readers <= self.most.num_readers:
      raise ValueError(
        f"`max_readers` must be at least {max(self.least.num_readers, 1)}, "
        f"got {self.most.num_readers}."
      )
    if not 1 <= self.least.depth <= self.most.depth:
      raise ValueError(
        f"`max_depth` must be at least {max(self.least.depth, 1)}, "
        f"got {self.most.depth}."
      )
    if self.max_bytes < 1:
      raise ValueError(f"`max_bytes` must be above 0, got {self.max_bytes}.")

  def within(self, num_readers: int, depth: int) -> Plan:
    """Returns the nearest plan that is allowed."""
    return Plan(
      min(max(num_readers, self.least.num_readers), self.most.num_readers),
      min(max(depth, self.least.depth), self.most.depth),
    )


class State(NamedTuple):
  """What the controller remembers.

  Attributes:
    grown: What waiting has taught; the plan is at least that.
    patience: Batches without need before it shrinks.
    shrunk: Whether the last change was to shrink.
    num_seen: Batches since the last change.
    waited: Seconds of waiting for them.
    passed: Seconds in all.
    recent: The last of them: waits and intervals.
    reads: Of the last batches, changes or not: latency and work.
    steps: Their intervals without the waiting.
  """

  grown: Plan
  patience: int = _WINDOW
  shrunk: bool = False
  num_seen: int = 0
  waited: float = 0.0
  passed: float = 0.0
  recent: Tuple[Tuple[float, float], ...] = ()
  reads: Tuple[Tuple[float, float], ...] = ()
  steps: Tuple[float, ...] = ()

  @property
  def in_need(self) -> bool:
    """Whether the last batches came late."""
    waits, intervals = zip(*self.recent)
    num_late = sum(wait > 0.0 for wait in waits)
    return num_late >= _NEED_WAITS and sum(waits) > _NEED * sum(intervals)

  def plan(self, bounds: Bounds) -> Plan:
    """Returns how to read: what covers the latency, or more if it was short."""
    num_readers, depth = self.grown
    if len(self.steps) >= _RECENT:
      step = max(sorted(self.steps)[len(self.steps) // 2], 1e-6)
      latency, work = (_almost_all(x) / step for x in zip(*self.reads))
      num_readers = max(num_readers, math.ceil(_MARGIN * work))
      depth = max(depth, math.ceil(_MARGIN * latency) + 1)
    return bounds.within(num_readers, depth)


def _almost_all(values: Sequence[float]) -> float:
  """Returns what almost all values are no larger than."""
  return sorted(values)[int(_COVERED * (len(values) - 1))]


def advance(state: State, observed: Observation, bounds: Bounds) -> State:
  """Returns the state after one more batch."""
  wait = observed.wait if observed.wait > _NOISE_SECONDS else 0.0
  step = max(observed.interval - observed.wait, 0.0)
  state = state._replace(
    num_seen=state.num_seen + 1,
    waited=state.waited + wait,
    passed=state.passed + observed.interval,
    recent=(*state.recent, (wait, observed.interval))[-_RECENT:],
  )
  if observed.latency:
    read = (observed.latency, observed.work)
    state = state._replace(
      reads=(*state.reads, read)[-_REMEMBERED:],
      steps=(*state.steps, step)[-_REMEMBERED:],
    )
  if wait and state.in_need:
    return _grown(state, observed.blocked, bounds)
  if state.num_seen < state.patience:
    return state
  if state.waited > _CALM * state.passed:
    return _changed(state)
  return _shrunk(state, bounds)


def _changed(state: State, **changes: Any) -> State:
  """Returns a state that begins to count anew, its patience kept or changed."""
  begun = State(state.grown, reads=state.reads, steps=state.steps)
  return begun._replace(**{"patience": state.patience, **changes})


def _grown(state: State, blocked: bool, bounds: Bounds) -> State:
  num_readers, depth = state.plan(bounds)
  patience = state.patience
  if state.shrunk and state.num_seen <= _WINDOW:
    patience = min(2 * patience, _MAX_PATIENCE)
  if blocked:
    grown = bounds.within(state.grown.num_readers, 2 * depth)
  else:
    grown = bounds.within(2 * num_readers, state.grown.depth)
  return _changed(state, grown=grown, patience=patience)


def _shrunk(state: State, bounds: Bounds) -> State:
  num_readers, depth = state.grown
  grown = bounds.within(3 * num_readers // 4, 3 * depth // 4)
  if grown == state.grown:  # Nothing left to give back: all is as at first.
    return _changed(state, patience=_WINDOW)
  return _changed(state, grown=grown, shrunk=True)
