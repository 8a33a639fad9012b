"""The training loop: one call from the host runs many steps on the device.

Pseudo-code:

    while steps remain:                          # outer loop, Python
      logs = inner(num_cycles)                   # inner loop, TensorFlow
        for each cycle:                          #   tf.while_loop
          for phase in range(cycle):             #   Python, unrolled once
            strategy.run(step, next(iterator), phase)
      for action in actions: action(step, logs)  # plain callables
"""

import functools
import time
from typing import Callable, Dict, Iterable, Iterator, Sequence

import tensorflow as tf

from paragan_tf.engine.processes import Processes
from paragan_tf.engine.step import Step

_TPUStrategy = tf.distribute.TPUStrategy
Logs = Dict[str, float]
# Called after an inner loop with the steps done so far and its logs.
Action = Callable[[int, Logs], None]


class InnerLoop:
  """Runs whole cycles of steps in one `tf.function`, the program.

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
  ):
    self._strategy = strategy
    self._processes = Processes(strategy)
    self._step = step
    self._iterator = iterator
    self._images_per_step = images_per_step
    self.average_logs = True
    self._traces: Dict[int, Callable] = {}  # By the first of equal phases.
    # Without AutoGraph, which would convert every net: tracing is faster.
    self._run = tf.function(self._cycles, autograph=False)

  def wrap_program(self, wrapper: Callable[[Callable], Callable]) -> None:
    """Runs `wrapper(program)` in place of the program from the first call on.

    For benchmarks that measure inside of it, e.g. with `tf.timestamp`.
    Arguments and results must stay the same.
    """
    self._run = tf.function(wrapper(self._cycles), autograph=False)

  def __call__(self, num_steps: int) -> Logs:
    """Trains for `num_steps`, whole cycles, and returns the mean of the logs.

    The logs also have `images_per_second` and `input_wait`, the fraction of the
    time that steps waited for their batches.
    """
    started = time.perf_counter()
    num_cycles = tf.constant(num_steps // self._step.cycle)
    sums, wait = self._run(self._iterator, num_cycles)
    means = sums.numpy() / num_steps
    seconds = time.perf_counter() - started
    logs = dict(zip(self._step.log_names, (float(mean) for mean in means)))
    logs["images_per_second"] = num_steps * self._images_per_step / seconds
    logs["input_wait"] = float(wait) / seconds
    return logs

  def _cycles(self, iterator, num_cycles: tf.Tensor):
    def cycle(done, sums, wait, ended):
      for phase in range(self._step.cycle):
        element, arrived = self._next(iterator)
        sums += self._phase_fn(phase)(element, arrived)
        wait += tf.maximum(arrived - ended, 0.0)
        with tf.control_dependencies([sums]):
          ended = tf.timestamp()
      return done + 1, sums, wait, ended

    sums = tf.zeros([len(self._step.log_names)])
    _, sums, wait, _ = tf.while_loop(
      lambda done, *_: done < num_cycles,
      cycle,
      [0, sums, tf.zeros([], tf.float64), tf.timestamp()],
    )
    if self.average_logs:
      sums = self._processes.mean(sums)
    return sums, wait

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
    return self._traces[first]

  def _run_step(self, element, arrived: tf.Tensor, phase: int) -> tf.Tensor:
    """Returns the local replicas' mean of the logs, in order of their names."""
    # With few threads, the clock would otherwise be read after the step's work.
    gates = [] if isinstance(self._strategy, _TPUStrategy) else [arrived]

    def replica(element):
      # The whole step waits, so that none is half done when the input ends.
      with tf.control_dependencies(gates):
        element = tf.nest.map_structure(tf.identity, element)
        labels = element[1] if len(element) > 1 else None
        logs = self._step(element[0], labels, phase)
      return tf.stack(
        [tf.cast(logs[n], tf.float32) for n in self._step.log_names]
      )

    logs = self._local(self._strategy.run(replica, args=(element,)))
    return tf.reduce_mean(tf.stack(logs), 0)

  def _local(self, value):
    return self._strategy.experimental_local_results(value)


def train(
  inner: Callable[[int], Logs],
  start_step: int,
  num_steps: int,
  stops: Iterable[int],
  actions: Sequence[Action],
  should_stop: Callable[[], bool] = lambda: False,
) -> int:
  """Runs inner loops from `start_step` to `num_steps`; returns the last step.

  Args:
    inner: Trains for a number of steps.
    start_step: Steps done before.
    num_steps: Total number of steps.
    stops: Intervals; the inner loop returns to Python at every multiple.
    actions: Called after each inner loop, in order.
    should_stop: Called before each inner loop; `True` ends the loop early.
  """
  step = start_step
  while step < num_steps and not should_stop():
    until = min([num_steps, *(step + s - step % s for s in stops)])
    logs = inner(until - step)
    step = until
    for action in actions:
      action(step, logs)
  return step


def every(interval: int, action: Action) -> Action:
  """Returns an action that runs at multiples of `interval` only."""

  def at_multiples(step: int, logs: Logs):
    if step % interval == 0:
      action(step, logs)

  return at_multiples
