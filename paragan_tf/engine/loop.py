"""The training loop: one call from the host runs many steps on the device.

Pseudo-code:

    while steps remain:                          # outer loop, Python
      while not at a stop:
        inner.advance(pace.steps())              # inner loop, TensorFlow
          for each cycle:                        #   tf.while_loop
            for phase in range(cycle):           #   Python, unrolled once
              strategy.run(step, next(iterator), phase)
      logs = inner.read_logs()
      for action in actions: action(step, logs)  # plain callables

Steps before the first whole cycle and after the last one run in programs of
their own. Replicas add up their logs on their devices; the host fetches the
sums at stops.
"""

import functools
import itertools
import time
from typing import (
  Any,
  Callable,
  Dict,
  Iterable,
  Iterator,
  List,
  Optional,
  Protocol,
  Sequence,
  Tuple,
)

import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine import strategies
from paragan_tf.engine.pace import Pace
from paragan_tf.engine.processes import Processes
from paragan_tf.engine.step import Step

_TPUStrategy = tf.distribute.TPUStrategy
LATE_SECONDS = 0.002  # A step that waits less is in time.
Logs = Dict[str, float]
# Called after an inner loop with the steps done so far and its logs.
Action = Callable[[int, Logs], None]
# Called after an inner loop with the steps done so far and its logs, to let the
# input follow its timings.
FollowFn = Callable[[int, Logs], None]
# Phases that one program runs, in this order.
Phases = Tuple[int, ...]


class Inner(Protocol):
  """What trains for some steps, and reads the logs of all since the last time.

  `InnerLoop` is one.
  """

  def advance(self, num_steps: int, is_logged: bool) -> Optional[float]:
    """Trains; returns the seconds it took, if they say how long steps take."""

  def read_logs(self) -> Logs:
    """Returns the logs since they were read last."""


class InnerLoop:
  """Runs steps in programs: a `tf.function` for whole cycles, others for parts.

  Attributes:
    average_logs: Whether logs are means over all processes, which takes one
      message per call, or of this process alone. Set it before the first call.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    step: Step,
    iterator: Iterator,
    images_per_step: int,
    start_step: int = 0,
    follow: FollowFn = lambda step, logs: None,
  ):
    self._strategy = strategy
    self._processes = Processes(strategy)
    self._step = step
    self._iterator = iterator
    self._images_per_step = images_per_step
    self._num_done = start_step
    self._follow = follow
    self.average_logs = True
    self._reset()
    self._traces: Dict[int, Callable] = {}  # By the first of equal phases.
    with strategies.scope(strategy):
      # Each replica's own sums, on its device.
      self._sums = tf.Variable(
        tf.zeros([len(step.log_names)]), trainable=False, name="log_sums"
      )
    # Without AutoGraph, which would convert every net: tracing is faster.
    self._run = tf.function(self.run_phases, autograph=False)
    self._fetch = tf.function(self._fetch_sums, autograph=False)

  def restart(
    self, iterator: Iterator, start_step: int, follow: FollowFn
  ) -> None:
    """Goes on with other data at another step; the programs stay traced."""
    self._iterator, self._follow = iterator, follow
    self._num_done = start_step
    self._reset()
    self._fetch()  # Sets the sums to 0, where the last logs were not read.

  def wrap_program(self, wrapper: Callable[[Callable], Callable]) -> None:
    """Runs `wrapper(program)` in place of the program from the first call on.

    For benchmarks that measure inside of it, e.g. with `tf.timestamp`.
    Arguments and results must stay the same.
    """
    self._run = tf.function(wrapper(self.run_phases), autograph=False)

  def __call__(self, num_steps: int) -> Logs:
    """Trains for `num_steps`, and returns the logs; see `read_logs`."""
    self.advance(num_steps, is_logged=True)
    return self.read_logs()

  def advance(self, num_steps: int, is_logged: bool) -> Optional[float]:
    """Trains for `num_steps`.

    Args:
      num_steps: How many.
      is_logged: Whether the last step computes what is of one step only.

    Returns:
      The seconds that it took, or `None` if a program was traced meanwhile.
    """
    started = time.perf_counter()
    num_traces = self._run.experimental_get_tracing_count()
    programs = self._plan(num_steps)
    for i, (phases, repeats) in enumerate(programs):
      is_last = tf.constant(is_logged and i == len(programs) - 1)
      arguments = tf.constant(repeats), phases, is_last
      self._waits += self._run(self._iterator, *arguments).numpy()
    self._num_done += num_steps
    self._num_summed += num_steps
    seconds = time.perf_counter() - started
    self._seconds += seconds
    is_traced = self._run.experimental_get_tracing_count() > num_traces
    return None if is_traced else seconds

  def read_logs(self) -> Logs:
    """Returns the logs since they were read last.

    These are means over the steps, but for what is computed at the last step
    only (`Step.last_step_log_names`). They also have `images_per_second`;
    `input_wait`, the fraction of the time that steps waited for their batches;
    and `input_late`, the fraction of the steps that waited.
    """
    started = time.perf_counter()
    sums = self._fetch().numpy()
    seconds = self._seconds + time.perf_counter() - started
    num_steps = self._num_summed
    logs = {
      name: float(value) / self._num_terms(name, num_steps)
      for name, value in zip(self._step.log_names, sums)
    }
    logs["images_per_second"] = num_steps * self._images_per_step / seconds
    logs["input_wait"] = self._waits[0] / seconds
    logs["input_late"] = self._waits[1] / num_steps
    self._reset()
    self._follow(self._num_done, logs)
    return logs

  def trace(self) -> None:
    """Traces the first program that a run would call, and does not run it."""
    phases, repeats = self._plan(1)[0]
    arguments = tf.constant(repeats), phases, tf.constant(True)
    self._run.get_concrete_function(self._iterator, *arguments)

  def _reset(self) -> None:
    self._waits, self._seconds, self._num_summed = np.zeros([2]), 0.0, 0

  def _num_terms(self, name: str, num_steps: int) -> int:
    return 1 if name in self._step.last_step_log_names else num_steps

  def _plan(self, num_steps: int) -> List[Tuple[Phases, int]]:
    """Returns the phases of each program, and how often it repeats them."""
    step, cycle = self._step, self._step.cycle
    before = min(-self._num_done % cycle, num_steps)
    whole, after = divmod(num_steps - before, cycle)
    first = self._num_done % cycle

    def parts(phases: Iterable[int]) -> List[Tuple[Phases, int]]:
      alike = itertools.groupby(map(step.first_like, phases))
      return [((phase,), len(list(run))) for phase, run in alike]

    cycles = [(tuple(range(cycle)), whole)] if whole else []
    return [
      *parts(range(first, first + before)),
      *cycles,
      *parts(range(after)),
    ]

  def run_phases(
    self, iterator, repeats: tf.Tensor, phases: Phases, is_last: tf.Tensor
  ) -> tf.Tensor:
    """Repeats phases; returns how long and how often steps waited for batches.

    The result has shape `[2]`: seconds of all steps, and how many were late.
    """

    def repeat(done, waits, ended):
      for index, phase in enumerate(phases):
        is_logged: Any = False
        if index == len(phases) - 1:
          is_logged = tf.logical_and(is_last, done == repeats - 1)
        element, arrived = self._next(iterator)
        tokens = self._phase_fn(phase)(element, arrived, is_logged)
        wait = tf.maximum(arrived - ended, 0.0)
        is_late = tf.cast(wait > LATE_SECONDS, tf.float64)
        waits += tf.stack([wait, is_late])
        with tf.control_dependencies(tokens):
          ended = tf.timestamp()
      return done + 1, waits, ended

    _, waits, _ = tf.while_loop(
      lambda done, *_: done < repeats,
      repeat,
      [0, tf.zeros([2], tf.float64), tf.timestamp()],
    )
    return waits

  def _fetch_sums(self) -> tf.Tensor:
    """Returns the mean of the replicas' sums, and sets them to 0."""

    def replica():
      sums = tf.convert_to_tensor(self._sums)
      with tf.control_dependencies([sums]):
        self._sums.assign(tf.zeros_like(sums))
      # On a TPU the host fetches one value and not one of each core.
      return collectives.mean([sums])[0] if self._on_tpu else sums

    sums = self._local(self._strategy.run(replica))
    mean = sums[0] if self._on_tpu else tf.reduce_mean(tf.stack(sums), 0)
    return self._processes.mean(mean) if self.average_logs else mean

  @property
  def _on_tpu(self) -> bool:
    return isinstance(self._strategy, _TPUStrategy)

  def _next(self, iterator):
    """Returns an element and the time at which it arrived.

    TensorFlow may request it during the previous step, so only the time after
    that step's end counts as waiting.
    """
    element = next(iterator)
    with tf.control_dependencies(tf.nest.flatten(self._local(element))):
      return element, tf.timestamp()

  def _phase_fn(self, phase: int) -> Callable:
    """Returns the step of a phase; equal phases share their trace."""
    step = self._step
    firsts = [step.first_like(other) for other in range(step.cycle)]
    first = firsts[phase]
    run = functools.partial(self._run_step, phase=first)
    if firsts.count(first) == 1:
      return run
    if first not in self._traces:
      self._traces[first] = tf.function(run, autograph=False)
    trace = self._traces[first]
    # Only one of equal phases may be logged, so `is_logged` must be a tensor.
    return lambda element, arrived, is_logged: trace(
      element, arrived, tf.convert_to_tensor(is_logged)
    )

  def _run_step(self, element, arrived: tf.Tensor, is_logged, phase: int):
    """Trains for a step; returns a tensor of each replica, for its end."""
    # With few threads, the clock would otherwise be read after the step's work.
    gates = [] if self._on_tpu else [arrived]

    def replica(element, is_logged=False):
      # The whole step waits, so that none is half done when the input ends.
      with tf.control_dependencies(gates):
        element = tf.nest.map_structure(tf.identity, element)
        labels = element[1] if len(element) > 1 else None
        logs = self._step(element[0], labels, phase, is_logged)
      values = [tf.cast(logs[n], tf.float32) for n in self._step.log_names]
      values = tf.stack(values)
      self._sums.assign_add(values)
      return self._end_of_step(values[0])

    # A TPU's strategy would turn `False` into a tensor.
    args = (element,) if is_logged is False else (element, is_logged)
    return self._local(self._strategy.run(replica, args=args))

  def _end_of_step(self, token: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that waits for all updates. Replica context."""
    if self._on_tpu:  # Its whole program has to end.
      return token
    updated = [tf.convert_to_tensor(v) for v in self._step.variables]
    with tf.control_dependencies(updated):
      return tf.identity(token)

  def _local(self, value):
    return self._strategy.experimental_local_results(value)


def train(
  inner: Inner,
  start_step: int,
  num_steps: int,
  stops: Iterable[int],
  actions: Sequence[Action],
  pace: Optional[Pace] = None,
) -> int:
  """Runs inner loops from `start_step` to `num_steps`; returns the last step.

  Args:
    inner: Trains for a number of steps.
    start_step: Steps done before.
    num_steps: Total number of steps.
    stops: Intervals; the logs are read at every multiple.
    actions: Called at each stop, in order.
    pace: Asked before each call of `inner`; may end the loop early.
  """
  step, pace = start_step, pace or Pace()
  while step < num_steps and not pace.should_stop():
    until = next_stop(num_steps, stops, step)
    num = pace.steps(step, until)
    with pace.call(step, num):
      seconds = inner.advance(num, is_logged=step + num == until)
    pace.measured(num, seconds)
    step += num
    pace.tick(step)
    if step == until:
      logs = inner.read_logs()
      for action in actions:
        action(step, logs)
  return step


def next_stop(num_steps: int, stops: Iterable[int], step: int) -> int:
  """Returns the next multiple of any of the intervals; the end is a stop."""
  return min([num_steps, *(step + s - step % s for s in stops)])


def every(interval: int, action: Action) -> Action:
  """Returns an action that runs at multiples of `interval` only."""

  def at_multiples(step: int, logs: Logs):
    if step % interval == 0:
      action(step, logs)

  return at_multiples
