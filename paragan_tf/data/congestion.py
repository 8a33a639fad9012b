"""How far to read ahead: a pure controller of readers and depth.

    state = advance(state, Observation(wait, interval, blocked), bounds)

Waiting for a batch doubles what was short: the readers if all of them were
busy, else the depth. A calm window gives a quarter back; when that was too
much, the next calm must last longer. ParaGAN (arXiv 2411.03999) tunes both by
the latency it sees; the rule is ours.
"""

import dataclasses
from typing import NamedTuple

_NOISE_SECONDS = 0.002  # What threads need to wake up is no waiting.
_NEED = 0.05  # Share of the time spent waiting, since the last change,
_NEED_WAITS = 2  # in so many waits, at which it grows;
_CALM = 0.01  # share at which it shrinks
_WINDOW = 64  # after so many batches.
_MAX_PATIENCE = 16 * _WINDOW


class Observation(NamedTuple):
  """What one batch saw.

  Attributes:
    wait: Seconds for which it was waited for.
    interval: Seconds since the batch before.
    blocked: Whether, meanwhile, readers stood still for the depth was used up.
  """

  wait: float
  interval: float
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
    plan: How to read.
    patience: Batches without need before it shrinks.
    shrunk: Whether the last change was to shrink.
    num_seen: Batches since the last change.
    num_waits: Those that came late.
    waited: Seconds of waiting for them.
    passed: Seconds in all.
  """

  plan: Plan
  patience: int = _WINDOW
  shrunk: bool = False
  num_seen: int = 0
  num_waits: int = 0
  waited: float = 0.0
  passed: float = 0.0


def advance(state: State, observed: Observation, bounds: Bounds) -> State:
  """Returns the state after one more batch."""
  late = observed.wait > _NOISE_SECONDS
  state = state._replace(
    num_seen=state.num_seen + 1,
    num_waits=state.num_waits + late,
    waited=state.waited + (observed.wait if late else 0.0),
    passed=state.passed + observed.interval,
  )
  in_need = state.waited > _NEED * state.passed
  if late and in_need and state.num_waits >= _NEED_WAITS:
    return _grown(state, observed.blocked, bounds)
  if state.num_seen < state.patience:
    return state
  if state.waited > _CALM * state.passed:
    return State(state.plan, state.patience)
  return _shrunk(state, bounds)


def _grown(state: State, blocked: bool, bounds: Bounds) -> State:
  num_readers, depth = state.plan
  patience = state.patience
  if state.shrunk and state.num_seen <= _WINDOW:
    patience = min(2 * patience, _MAX_PATIENCE)
  if blocked:
    return State(bounds.within(num_readers, 2 * depth), patience)
  return State(bounds.within(2 * num_readers, depth), patience)


def _shrunk(state: State, bounds: Bounds) -> State:
  num_readers, depth = state.plan
  plan = bounds.within(3 * num_readers // 4, 3 * depth // 4)
  if plan == state.plan:  # Nothing left to give back: all is as at first.
    return State(plan)
  return State(plan, state.patience, shrunk=True)
