"""How many steps one call of the host takes: about two seconds of them.

    pace = Pace(should_stop, cycle)
    while not pace.should_stop():
      num = pace.steps(step, until)
      with pace.call(step, num):
        pace.measured(num, inner.advance(num))

Signals, the bar and the end of other processes are looked at between calls.
Calls begin and end where a cycle does, so that a call of other length needs no
other program; only cycles that take longer than that are cut.
"""

import contextlib
import math
from typing import Callable, ContextManager, Optional, Sequence

from paragan_tf.engine.budget import Seconds, steps_within

SECONDS = 2.0
_MAX_CYCLE_SECONDS = 3.0
_LONG_SECONDS = 2.5

# Returns the means over all processes of some numbers.
MeanFn = Callable[[Sequence[float]], Sequence[float]]
# Makes a context in which steps are taken, after a step; says whether they take
# long, which is not known at first.
AroundFn = Callable[[int, bool], ContextManager]


class Pace:
  """Measures steps, and says how many to take.

  Args:
    should_stop: Whether this process wants to stop.
    cycle: Steps after which all repeats.
    mean: Lets all processes decide the same.
    around: Makes a context in which steps are taken.
    tick: Called with the steps done, between calls.
    seconds: Of one call.
    budget: Of seconds; training ends when it is spent.
  """

  def __init__(
    self,
    should_stop: Callable[[], bool] = lambda: False,
    cycle: int = 1,
    mean: MeanFn = lambda values: values,
    around: AroundFn = lambda step, is_long: contextlib.nullcontext(),
    tick: Callable[[int], None] = lambda step: None,
    seconds: float = SECONDS,
    budget: Optional[Seconds] = None,
  ):
    self._should_stop = should_stop
    self._cycle = cycle
    self._mean = mean
    self._around = around
    self.tick = tick
    self._seconds = seconds
    self._step_seconds = 0.0  # Unknown.
    self._budget = budget or Seconds(None)
    self._left = 0.0

  def should_stop(self) -> bool:
    """Returns whether any process wants to stop; all must call it."""
    wants = float(self._should_stop() or self._budget.is_spent)
    own = [wants, self._step_seconds]
    if self._budget.left is not None:
      own.append(self._budget.left)
    wants, self._step_seconds, *left = self._mean(own)
    self._left = sum(left)
    return wants > 0.0

  def call(self, step: int, num_steps: int) -> ContextManager:
    """Makes the context of a call that takes some steps."""
    seconds = num_steps * self._step_seconds
    return self._around(step, not 0.0 < seconds <= _LONG_SECONDS)

  def measured(self, num_steps: int, seconds: Optional[float]) -> None:
    """Notes how long steps took; `None` if they were traced meanwhile."""
    if seconds is not None:
      self._step_seconds = seconds / num_steps
      self._budget.used += seconds

  def steps(self, step: int, until: int) -> int:
    """Returns how many steps to take next, at least one."""
    to_cycle = -step % self._cycle
    num = self._cycle
    if self._step_seconds:
      num = math.floor(self._seconds / self._step_seconds)
      whole = max(num - to_cycle, 0) // self._cycle * self._cycle
      cycle_seconds = self._cycle * self._step_seconds
      if cycle_seconds <= _MAX_CYCLE_SECONDS:
        num = to_cycle + max(whole, 0 if to_cycle else self._cycle)
    elif to_cycle:
      num = to_cycle
    num = min(max(num, 1), until - step)
    if self._budget.limit is None:
      return num
    return min(num, steps_within(self._left, self._step_seconds))
