"""How far to read ahead: a pure controller of readers and depth.

    state = advance(state, observed, bounds)
    num_readers, depth = state.plan(bounds)

The plan covers the recent latency: if a read takes ten steps, it reads ten
batches ahead. If a batch is late nevertheless, the bottleneck doubles: the
readers if all of them were busy, else the depth. A window without waits takes a
quarter of that back. If that was too much, the next window must be longer.
ParaGAN (arXiv 2411.03999) tunes both by the observed latency; the rule is ours.
"""

import dataclasses
import math
from typing import Any, NamedTuple, Sequence, Tuple

_NOISE_SECONDS = 0.002  # Shorter waits are the wake-up time of threads.
_RECENT = 16  # Batches that decide whether the plan grows:
_STARVED_FRACTION = 0.1  # if waiting took more of their time than this,
_MIN_WAITS = 2  # and at least so many of them were late.
_CALM_FRACTION = 0.01  # If waiting took less of the time, the plan shrinks
_WINDOW = 64  # after so many batches.
_MAX_PATIENCE = 16 * _WINDOW
_HISTORY = 256  # Batches whose latency the plan covers,
_QUANTILE = 0.95  # at this quantile,
_MARGIN = 1.25  # times this margin.


class Observation(NamedTuple):
  """Timings of one batch.

  Attributes:
    wait: Seconds that the run waited for it.
    interval: Seconds since the previous batch.
    latency: Seconds of its slowest read; 0 if it needed none.
    work: Seconds of all its reads, added up.
    blocked: Whether readers were idle because of the depth.
  """

  wait: float
  interval: float
  latency: float = 0.0
  work: float = 0.0
  blocked: bool = False


class Plan(NamedTuple):
  """How to read ahead: number of readers, and of batches."""

  num_readers: int
  depth: int


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Smallest and largest plan; the buffer enforces `max_bytes`."""

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

  def clip(self, num_readers: int, depth: int) -> Plan:
    """Returns the nearest allowed plan."""
    return Plan(
      min(max(num_readers, self.least.num_readers), self.most.num_readers),
      min(max(depth, self.least.depth), self.most.depth),
    )


class State(NamedTuple):
  """The state of the controller.

  Attributes:
    floor: The smallest plan; waits raise it, calm windows lower it.
    patience: Batches without waits before the floor is lowered.
    shrunk: Whether the last change lowered the floor.
    num_seen: Batches since the last change.
    waited: Seconds that the run waited for them.
    elapsed: Seconds since the last change.
    recent: Waits and intervals of the last batches since then.
    reads: Latency and work of the last batches, across changes.
    steps: Intervals of the same batches, without the waits.
  """

  floor: Plan
  patience: int = _WINDOW
  shrunk: bool = False
  num_seen: int = 0
  waited: float = 0.0
  elapsed: float = 0.0
  recent: Tuple[Tuple[float, float], ...] = ()
  reads: Tuple[Tuple[float, float], ...] = ()
  steps: Tuple[float, ...] = ()

  @property
  def is_starved(self) -> bool:
    """Whether the run waits too much for the last batches."""
    waits, intervals = zip(*self.recent)
    num_late = sum(wait > 0.0 for wait in waits)
    return num_late >= _MIN_WAITS and (
      sum(waits) > _STARVED_FRACTION * sum(intervals)
    )

  def plan(self, bounds: Bounds) -> Plan:
    """Returns the plan that covers the latency; at least the floor."""
    num_readers, depth = self.floor
    if len(self.steps) >= _RECENT:
      step = max(sorted(self.steps)[len(self.steps) // 2], 1e-6)
      latency, work = (_quantile(x) / step for x in zip(*self.reads))
      num_readers = max(num_readers, math.ceil(_MARGIN * work))
      depth = max(depth, math.ceil(_MARGIN * latency) + 1)
    return bounds.clip(num_readers, depth)


def _quantile(values: Sequence[float]) -> float:
  """Returns the `_QUANTILE` of some values."""
  return sorted(values)[int(_QUANTILE * (len(values) - 1))]


def advance(state: State, observed: Observation, bounds: Bounds) -> State:
  """Returns the state after one more batch."""
  wait = observed.wait if observed.wait > _NOISE_SECONDS else 0.0
  step = max(observed.interval - observed.wait, 0.0)
  state = state._replace(
    num_seen=state.num_seen + 1,
    waited=state.waited + wait,
    elapsed=state.elapsed + observed.interval,
    recent=(*state.recent, (wait, observed.interval))[-_RECENT:],
  )
  if observed.latency:
    read = (observed.latency, observed.work)
    state = state._replace(
      reads=(*state.reads, read)[-_HISTORY:],
      steps=(*state.steps, step)[-_HISTORY:],
    )
  if wait and state.is_starved:
    return _grow(state, observed.blocked, bounds)
  if state.num_seen < state.patience:
    return state
  if state.waited > _CALM_FRACTION * state.elapsed:
    return _restart(state)
  return _shrink(state, bounds)


def _restart(state: State, **changes: Any) -> State:
  """Returns a state that counts from zero, with some changes."""
  fresh = State(state.floor, reads=state.reads, steps=state.steps)
  return fresh._replace(**{"patience": state.patience, **changes})


def _grow(state: State, blocked: bool, bounds: Bounds) -> State:
  num_readers, depth = state.plan(bounds)
  patience = state.patience
  if state.shrunk and state.num_seen <= _WINDOW:
    patience = min(2 * patience, _MAX_PATIENCE)
  if blocked:
    floor = bounds.clip(state.floor.num_readers, 2 * depth)
  else:
    floor = bounds.clip(2 * num_readers, state.floor.depth)
  return _restart(state, floor=floor, patience=patience)


def _shrink(state: State, bounds: Bounds) -> State:
  num_readers, depth = state.floor
  floor = bounds.clip(3 * num_readers // 4, 3 * depth // 4)
  if floor == state.floor:  # The minimum is reached.
    return _restart(state, patience=_WINDOW)
  return _restart(state, floor=floor, shrunk=True)
