"""Trains in one call of an estimator; a hook returns to the run at every stop.

Pseudo-code:

    estimator.train(hook)                       # one graph, one session
      while steps remain:
        session.run(train_op)                   # on a TPU up to the next stop
        at a stop:
          logs = log_sums / steps since the last stop
          the run's variables = the session's   # where actions need them
          for action in actions: action(step, logs)
"""

import functools
import time
from concurrent import futures
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf.engine.estimator import (
  LOG_STEP,
  LOG_SUMS,
  make_input_fn,
  measure_wait,
  nan_loss_error,
)
from paragan_tf.engine.loop import Action, Logs, next_stop
from paragan_tf.engine.pace import SECONDS, Pace
from paragan_tf.engine.step import Step
from paragan_tf.types import Entry

# Returns the values of variables in a session, by name.
Read = Callable[[Sequence[str]], Dict[str, np.ndarray]]
# A local variable of TPUEstimator: the steps that the next call runs on a TPU.
_ITERATIONS = "tpu_estimator/iterations_per_loop"
_MAX_BYTES = 1 << 30  # Of one message; gRPC allows twice as much.


class EstimatorLoop:
  """Trains with an estimator as `loop.train` does with an inner loop.

  Args:
    estimator: A TPUEstimator that does not save.
    input_fn: An `InputFn`.
    images_per_step: Over all replicas.
    step: Of the run; for the names of its logs.
    entries: The run's variables, which get the estimator's values.
    fetch_every: Intervals: at their multiples actions need these values. They
      have them at the end, too.
    make_control: Maps the first step and the images of a step to what lets the
      input's depth follow step timings, `None` if nothing does.
  """

  def __init__(
    self,
    estimator: Any,
    input_fn: Callable,
    images_per_step: int,
    step: Step,
    entries: Sequence[Entry],
    fetch_every: Sequence[int],
    make_control: Callable[[int, int], Optional[Any]] = lambda *_: None,
  ):
    if estimator.config.save_checkpoints_steps is not None:
      raise ValueError(
        "`estimator` must leave saving to the run: make it with `saves=False`."
      )
    self._estimator = estimator
    self._input_fn = input_fn
    self._images_per_step = images_per_step
    self._log_names = step.log_names
    self._last_step_log_names = set(step.last_step_log_names)
    self._entries = entries
    self._fetch_every = fetch_every
    self._make_control = make_control

  def train(
    self,
    start_step: int,
    num_steps: int,
    stops: Iterable[int],
    actions: Sequence[Action],
    pace: Optional[Pace] = None,
  ) -> int:
    """Trains from `start_step` to `num_steps`; returns the last step.

    The arguments are those of `loop.train`. The newest checkpoint in the
    estimator's folder must be of `start_step`; for 0 there is none.
    """
    pace = pace or Pace()
    if start_step >= num_steps or pace.should_stop():
      return start_step
    control = self._make_control(start_step, self._images_per_step)
    at_stop = functools.partial(self._at_stop, num_steps, actions, pace)
    between = functools.partial(self._between, pace)
    # In hooks the estimator's graph is the default one. Actions need eager
    # execution, as in every new thread.
    with futures.ThreadPoolExecutor(1, "actions") as thread:
      hook = _StopHook(
        start_step,
        functools.partial(next_stop, num_steps, list(stops)),
        lambda *args: thread.submit(at_stop, *args).result(),
        self._make_logs,
        self._estimator.config.tpu_config.iterations_per_loop,
        control and control.update,
        pace,
        lambda *args: thread.submit(between, *args).result(),
      )
      input_fn = measure_wait(
        make_input_fn(self._input_fn, start_step, control)
      )
      try:
        self._estimator.train(input_fn, max_steps=num_steps, hooks=[hook])
      except nan_loss_error() as e:
        raise FloatingPointError(
          f"`d/loss` is NaN after step {hook.step}: training diverged; lower a "
          "learning rate. The last checkpoint is kept."
        ) from e
    return hook.step

  def _at_stop(
    self,
    num_steps: int,
    actions: Sequence[Action],
    pace: Pace,
    step: int,
    logs: Logs,
    read: Read,
  ) -> bool:
    """Calls the actions; returns whether to go on."""
    is_due = any(step % n == 0 for n in [num_steps, *self._fetch_every])
    if is_due:
      self._fetch(read)
    for action in actions:
      action(step, logs)
    if step == num_steps:
      return False
    is_stopped = pace.should_stop()
    if is_stopped and not is_due:
      self._fetch(read)
    return not is_stopped

  def _between(self, pace: Pace, step: int, read: Read) -> bool:
    """Is called between stops; returns whether to go on."""
    pace.tick(step)
    if not pace.should_stop():
      return True
    self._fetch(read)
    return False

  def _fetch(self, read: Read) -> None:
    """Assigns the estimator's values to the run's variables; eager."""
    values = read([entry.name for entry in self._entries])
    for entry in self._entries:
      for copy in entry.copies:
        copy.assign(values[entry.name])

  def _make_logs(
    self, sums: np.ndarray, num_steps: int, seconds: float
  ) -> Logs:
    logs = dict(zip(self._log_names, map(float, sums)))
    for name in set(logs) - self._last_step_log_names:
      logs[name] /= num_steps
    logs["images_per_second"] = num_steps * self._images_per_step / seconds
    # Batches of a TPU may have been requested before the interval began.
    logs["input_wait"] = min(float(sums[-2]) / seconds, 1.0)
    logs["input_late"] = min(float(sums[-1]) / num_steps, 1.0)
    return logs


class _StopHook(tf.compat.v1.train.SessionRunHook):
  """Calls `at_stop` after every call that reaches a stop.

  Args:
    start_step: At which the input starts.
    next_stop: Maps a step to the next one at which to stop.
    at_stop: Called with the step, logs and a function that reads variables;
      returns whether to go on.
    make_logs: Called with sums of logs, steps and seconds since the last stop.
    max_iterations: Steps that a TPU runs in one call, at most.
    follow: Lets the input follow the logs, if anything does. Called with the
      step, logs, and functions that read and write variables.
    pace: Says how many steps a TPU takes in one call.
    between: Called every few seconds between stops, with the step and a
      function that reads variables; returns whether to go on.

  Attributes:
    step: Steps done.
  """

  def __init__(
    self,
    start_step: int,
    next_stop: Callable[[int], int],
    at_stop: Callable[[int, Logs, Read], bool],
    make_logs: Callable[[np.ndarray, int, float], Logs],
    max_iterations: int,
    follow: Optional[Callable] = None,
    pace: Optional[Pace] = None,
    between: Callable[[int, Read], bool] = lambda step, read: True,
  ):
    self.step = start_step
    self._start_step = start_step
    self._next_stop = next_stop
    self._at_stop = at_stop
    self._make_logs = make_logs
    self._max_iterations = max_iterations
    self._follow = follow
    self._pace = pace
    self._between = between
    self._last_step, self._last_time = start_step, 0.0
    self._looked_at = self._called_at = 0.0

  def begin(self):
    """Finds the variables in the graph."""
    found = {v.op.name: v for v in tf.compat.v1.local_variables()}
    self._sums, self._log_step = found[LOG_SUMS], found[LOG_STEP]
    self._iterations: Optional[tf.Variable] = found.get(_ITERATIONS)
    self._count = tf.compat.v1.train.get_global_step()
    self._variables = {v.op.name: v for v in tf.compat.v1.global_variables()}

  def after_create_session(self, session, coord):
    """Starts the clock; refuses a session that is not where the input is."""
    del coord
    step = int(session.run(self._count))
    if step != self._start_step:
      # TensorFlow replaces the session of a TPU that is lost, and the new one
      # starts at the last checkpoint.
      raise RuntimeError(
        f"The estimator continues at step {step}, and its input started at "
        f"step {self._start_step}: run the same command again."
      )
    self._load_log_step(session)
    self._last_time = self._looked_at = time.perf_counter()

  def _load_log_step(self, session) -> None:
    """Lets the next stop's step compute norms, which are of that step only."""
    self._log_step.load(self._next_stop(self.step), session)

  def before_run(self, run_context):
    """Lets a TPU loop up to the next stop.

    TPUEstimator would always take `iterations_per_loop` steps, and pass stops
    that are no multiples. Its own hooks read the variable after this one.
    """
    if self._iterations is not None:
      until = self._next_stop(self.step)
      num_steps = until - self.step
      if self._pace is not None:
        num_steps = self._pace.steps(self.step, until)
      num_steps = min(num_steps, self._max_iterations)
      self._iterations.load(num_steps, run_context.session)
    self._called_at = time.perf_counter()

  def after_run(self, run_context, run_values):
    """Calls `at_stop` with the means of the logs since the last stop."""
    del run_values
    session = run_context.session
    before, self.step = self.step, int(session.run(self._count))
    now = time.perf_counter()
    # The first call compiles.
    seconds = now - self._called_at if before > self._start_step else None
    if self._pace is not None:
      self._pace.measured(self.step - before, seconds)
    if self.step < self._next_stop(before):
      if now - self._looked_at > SECONDS:
        self._looked_at = now
        if not self._between(self.step, lambda x: self._read(session, x)):
          run_context.request_stop()
      return
    self._looked_at = now
    sums = session.run(self._sums)
    seconds = time.perf_counter() - self._last_time
    logs = self._make_logs(sums, self.step - self._last_step, seconds)
    session.run(self._sums.initializer)
    if self._follow is not None:
      self._follow(
        self.step,
        logs,
        session.run,
        lambda variable, value: variable.load(value, session),
      )
    if not self._at_stop(self.step, logs, lambda x: self._read(session, x)):
      run_context.request_stop()
    self._load_log_step(session)
    self._last_step, self._last_time = self.step, time.perf_counter()

  def _read(self, session, names: Sequence[str]) -> Dict[str, np.ndarray]:
    values: Dict[str, np.ndarray] = {}
    for group in _group([self._variables[name] for name in names]):
      values.update(session.run({v.op.name: v for v in group}))
    return values


def _group(variables: Sequence[tf.Variable]) -> List[List[tf.Variable]]:
  """Returns the variables in groups that a message can have."""
  groups: List[List[tf.Variable]] = [[]]
  size = 0
  for variable in variables:
    num_bytes = variable.shape.num_elements() * variable.dtype.size
    if groups[-1] and size + num_bytes > _MAX_BYTES:
      groups.append([])
      size = 0
    groups[-1].append(variable)
    size += num_bytes
  return groups
