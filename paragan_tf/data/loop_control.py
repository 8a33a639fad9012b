"""How far a pipeline of `tf.data` runs ahead: a pure function of step timings.

    state = advance(state, timing, bounds)    # after each inner loop
    state.plan(bounds)

The host sees sums over the steps of an inner loop. They become one observation
for each step, which drive `congestion.py` twice: once for reading (depth and
reads in flight), once for decoding. Waits count against whichever is to blame:
against reading if reads took longer than the depth covers, else against
decoding. If growth has brought no fewer waits, it is taken back, and the next
attempt is later each time.
"""

import math
from typing import List, NamedTuple, Optional, Tuple

from paragan_tf.data import congestion
from paragan_tf.data.congestion import Observation, Plan, State

_TRIAL_STEPS = 48  # After so many steps growth is judged:
_HELPED = 0.8  # it has helped if waiting fell below this part of what it was.
_MUTE_STEPS = 256  # Steps without growth after one that has not helped;
_MAX_MUTE_STEPS = 16 * _MUTE_STEPS  # twice as many each time, up to these.
_SLICE_SECONDS = 0.05
_PATIENCE = 128  # Steps without waits before a depth that was needed shrinks.
_COVERED = 0.7  # A read this much faster than its time ahead is not late.


class LoopTiming(NamedTuple):
  """Timings of the steps of an inner loop.

  Attributes:
    num_steps: Their number.
    seconds: Their time, waits included.
    waited: Seconds that they waited for their batches.
    num_late: Number of steps that waited.
    latencies: Seconds of each read that ended during the loop, ascending; empty
      if the pipeline does not read.
  """

  num_steps: int
  seconds: float
  waited: float
  num_late: int
  latencies: Tuple[float, ...] = ()

  @property
  def share(self) -> float:
    """The part of the time that was spent waiting."""
    return self.waited / max(self.seconds, 1e-9)

  @property
  def step(self) -> float:
    """Seconds of a step without its wait."""
    return max(self.seconds - self.waited, 0.0) / self.num_steps

  @property
  def interval(self) -> float:
    """Usual seconds between two batches: most are in time, or most are late."""
    if 2 * self.num_late > self.num_steps:
      return self.seconds / self.num_steps
    return self.step

  def observations(self) -> List[Observation]:
    """Returns as many observations as steps, with these sums."""
    n, num = self.num_steps, len(self.latencies)
    # A long wait counts as several.
    late = min(max(self.num_late, math.ceil(self.waited / _SLICE_SECONDS)), n)
    found = []
    for i in range(n):
      # Late steps are spread evenly, and the last one is late.
      is_late = (i + 1) * late // n > i * late // n
      wait = self.waited / late if is_late else 0.0
      latency = 0.0
      if num:
        # A step waits for the slowest of its reads.
        part = ((i + 0.5) / n) ** min(1.0, n / num)
        latency = self.latencies[min(int(part * num), num - 1)]
      found.append(
        Observation(wait, wait + self.step, latency, latency, blocked=True)
      )
    return found


class LoopBounds(NamedTuple):
  """Bounds of readers and depth, and of decoders (as readers of depth 1)."""

  reading: congestion.Bounds
  decoding: congestion.Bounds


class LoopPlan(NamedTuple):
  """How far to run ahead: batches, reads in flight, decoders."""

  depth: int
  num_readers: int
  num_decoders: int


class Trial(NamedTuple):
  """What there was before growth that is not judged yet.

  Attributes:
    reading: The floor of reading.
    decoding: The floor of decoding.
    share: The part of the time that was spent waiting.
    num_steps: Steps since the last growth.
    waited: Seconds of waiting since then.
    seconds: Seconds since then.
  """

  reading: Plan
  decoding: Plan
  share: float
  num_steps: int = 0
  waited: float = 0.0
  seconds: float = 0.0


class LoopState(NamedTuple):
  """The state of the controller.

  Attributes:
    reading: The controller of readers and depth.
    decoding: That of decoders.
    trial: Growth that is not judged yet.
    muted: Steps left without growth.
    next_mute: Steps without growth after the next that does not help.
  """

  reading: State
  decoding: State
  trial: Optional[Trial] = None
  muted: int = 0
  next_mute: int = _MUTE_STEPS

  def plan(self, bounds: LoopBounds) -> LoopPlan:
    """Returns the plan."""
    num_readers, depth = self.reading.plan(bounds.reading)
    return LoopPlan(
      depth, num_readers, self.decoding.plan(bounds.decoding).num_readers
    )


def start(bounds: LoopBounds) -> LoopState:
  """Returns the first state: the least depth, and all decoders."""
  return LoopState(State(bounds.reading.least), State(bounds.decoding.most))


def advance(
  state: LoopState, timing: LoopTiming, bounds: LoopBounds
) -> LoopState:
  """Returns the state after one more inner loop."""
  state = _judge(_count(state, timing), bounds)
  reading_is_late = _is_reading_late(state, timing, bounds)
  waits = timing.observations()
  calm = list(map(_without_wait, waits))
  # What may not help is tried once at a time.
  if state.muted:
    waits = calm
  elif state.trial is not None and not reading_is_late:
    waits = []
  to_blame = reading_is_late or not timing.latencies
  decoding = [
    x._replace(latency=0.0, work=0.0, blocked=False)
    for x in (calm if to_blame else waits)
  ]
  reading = _replay(state.reading, waits if to_blame else calm, bounds.reading)
  if reading_is_late and reading.floor.depth > state.reading.floor.depth:
    reading = _cover(reading, timing, bounds.reading)
  grown = state._replace(
    reading=reading,
    decoding=_replay(state.decoding, decoding, bounds.decoding),
  )
  return _note_growth(state, grown, timing)


def _cover(
  state: State, timing: LoopTiming, bounds: congestion.Bounds
) -> State:
  """Returns a state whose depth covers the slowest read of a loop, twice.

  Where one read is very slow, the next may be slower.
  """
  seconds = 2 * timing.latencies[-1]
  num_steps = math.ceil(seconds / max(timing.step, 1e-6)) + 1
  num_readers, depth = state.floor
  return state._replace(
    floor=bounds.clip(num_readers, max(depth, num_steps)),
    patience=max(state.patience, _PATIENCE),
  )


def _without_wait(observed: Observation) -> Observation:
  step = observed.interval - observed.wait
  return observed._replace(wait=0.0, interval=step)


def _replay(
  state: State, observations: List[Observation], bounds: congestion.Bounds
) -> State:
  floor = state.floor
  for observed in observations:
    if state.floor != floor:  # The rest is from before the change.
      observed = _without_wait(observed)
    state = congestion.advance(state, observed, bounds)
  return state


def _is_reading_late(
  state: LoopState, timing: LoopTiming, bounds: LoopBounds
) -> bool:
  """Whether a read took longer than the time that the depth gives it."""
  if not timing.latencies:
    return False
  depth = state.reading.plan(bounds.reading).depth
  return timing.latencies[-1] > _COVERED * depth * timing.interval


def _count(state: LoopState, timing: LoopTiming) -> LoopState:
  """Counts the steps for the trial, and those without growth."""
  state = state._replace(muted=max(0, state.muted - timing.num_steps))
  if state.trial is None:
    return state
  return state._replace(
    trial=state.trial._replace(
      num_steps=state.trial.num_steps + timing.num_steps,
      waited=state.trial.waited + timing.waited,
      seconds=state.trial.seconds + timing.seconds,
    )
  )


def _judge(state: LoopState, bounds: LoopBounds) -> LoopState:
  """Takes growth back that has had its effect, and has not helped."""
  trial = state.trial
  depth = state.reading.plan(bounds.reading).depth
  if trial is None or trial.num_steps < _TRIAL_STEPS + depth:
    return state
  if trial.waited < _HELPED * trial.share * trial.seconds:
    return state._replace(trial=None, next_mute=_MUTE_STEPS)
  return state._replace(
    reading=state.reading._replace(floor=trial.reading),
    decoding=state.decoding._replace(floor=trial.decoding),
    trial=None,
    muted=state.next_mute,
    next_mute=min(2 * state.next_mute, _MAX_MUTE_STEPS),
  )


def _note_growth(
  before: LoopState, after: LoopState, timing: LoopTiming
) -> LoopState:
  """Starts a trial if a floor has grown, or starts its count again."""
  grown = any(
    math.prod(x.floor) > math.prod(y.floor)
    for x, y in (
      (after.reading, before.reading),
      (after.decoding, before.decoding),
    )
  )
  if not grown:
    return after
  trial = before.trial
  if trial is None:
    trial = Trial(before.reading.floor, before.decoding.floor, timing.share)
  fresh = trial._replace(num_steps=0, waited=0.0, seconds=0.0)
  return after._replace(trial=fresh)
