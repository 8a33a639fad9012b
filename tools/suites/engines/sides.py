"""The side of the suite `engines` that measures a whole run with its host."""

import contextlib
import os
import time
from typing import Any, Callable, Dict, NamedTuple, Sequence

from tools.suites.ours import load_config

_WARM_UP_STEPS = 2


class TimeSplit(NamedTuple):
  """Where the time of one call of the TensorFlow program went, in seconds.

  Attributes:
    wall: From the call of `Run.train` to its return.
    program: Inside the program, between its first and its last operation.
    wait: The part of `program` in which a step waited for its batch.
    num_steps: Steps of the call.
  """

  wall: float
  program: float
  wait: float
  num_steps: int


class Trainer:
  """A whole run, as `tools.train` runs it: loop, records and progress.

  Args:
    folder: For the output of the run.
    bindings: Gin bindings over the config of the benchmark.
  """

  def __init__(self, folder: str, bindings: Sequence[str] = ()):
    module = load_config(bindings)
    import tensorflow as tf

    base: Any = module.Experiment
    time_program = self._time_program

    class Experiment(base):
      """An experiment whose program measures its own time."""

      def inner_loop(self, start_step: int) -> Any:
        """Returns the inner loop, with clocks in its program."""
        inner = super().inner_loop(start_step)
        inner.wrap_program(time_program)
        return inner

    experiment = Experiment(module.strategies.choose().strategy)
    self._summary = experiment.summary()
    self._images_per_step = experiment.images_per_step
    self._program_seconds = tf.Variable(0.0, dtype=tf.float64)
    self._run = module.Run(experiment, os.path.join(folder, "run"))
    self._run.restore()
    self._run.open()
    self._stderr = open(os.path.join(folder, "stderr"), "w")  # noqa: SIM115
    self._train(_WARM_UP_STEPS)

  def summarize(self) -> str:
    """Returns a summary of what is trained."""
    return self._summary

  def run(self, log_every: int) -> TimeSplit:
    """Trains up to the next log, with one call of the program."""
    done = self._run.done
    program = float(self._program_seconds)
    until = done + log_every - done % log_every
    started = time.perf_counter()
    logs = self._train(until)
    wall = time.perf_counter() - started
    images = (until - done) * self._images_per_step
    return TimeSplit(
      wall,
      float(self._program_seconds) - program,
      logs["input_wait"] * images / logs["images_per_second"],
      until - done,
    )

  def _train(self, until: int) -> Dict[str, float]:
    with contextlib.redirect_stderr(self._stderr):  # The progress lines.
      return self._run.train(until)

  def _time_program(self, program: Callable) -> Callable:
    """Returns `program` with a clock at its first and last operation."""
    import tensorflow as tf

    def run_timed(*args):
      began = tf.timestamp()
      with tf.control_dependencies([began]):
        results = program(*args)
      with tf.control_dependencies(tf.nest.flatten(results)):
        self._program_seconds.assign_add(tf.timestamp() - began)
      return results

    return run_timed
