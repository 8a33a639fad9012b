"""Who is measured by the suite `engines`: a whole run, and pinned processes."""

import contextlib
import json
import os
import socket
import time
from typing import Any, Dict, List, NamedTuple, Sequence

from tools.suites.ours import Ours, load
from tools.suites.workers import Environment

LOCAL_BATCH_SIZE = 64
_WARM_UP_STEPS = 2


class Split(NamedTuple):
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
  """A whole run, as `tools.train` has it: steps, loop, record and progress.

  Args:
    folder: For what the run leaves.
    bindings: Gin bindings over the config of the benchmark.
  """

  def __init__(self, folder: str, bindings: Sequence[str] = ()):
    module = load(bindings)
    import tensorflow as tf

    experiment = module.Experiment(module.strategies.choose().strategy)
    self._summary = experiment.summary()
    self._images_per_step = experiment.images_per_step
    self._program_seconds = tf.Variable(0.0, dtype=tf.float64)
    make = experiment.inner_loop
    experiment.inner_loop = lambda start: self._timed(make(start))
    self._run = module.Run(experiment, os.path.join(folder, "run"))
    self._run.open()
    self._stderr = open(os.path.join(folder, "stderr"), "w")  # noqa: SIM115
    self._train(_WARM_UP_STEPS)

  def summary(self) -> str:
    """Returns what is trained, in words."""
    return self._summary

  def run(self, log_every: int) -> Split:
    """Trains up to the next log, with one call of the program."""
    done = self._run.done
    program = float(self._program_seconds)
    until = done + log_every - done % log_every
    started = time.perf_counter()
    logs = self._train(until)
    wall = time.perf_counter() - started
    images = (until - done) * self._images_per_step
    return Split(
      wall,
      float(self._program_seconds) - program,
      logs["input_wait"] * images / logs["images_per_second"],
      until - done,
    )

  def _train(self, until: int) -> Dict[str, float]:
    with contextlib.redirect_stderr(self._stderr):  # The progress lines.
      return self._run.train(until)

  def _timed(self, inner: Any) -> Any:
    """Lets the loop's program take the time at its own begin and end."""
    import tensorflow as tf

    cycles = inner._cycles

    def timed(*args):
      began = tf.timestamp()
      with tf.control_dependencies([began]):
        results = cycles(*args)
      with tf.control_dependencies(results):
        self._program_seconds.assign_add(tf.timestamp() - began)
      return results

    inner._run = tf.function(timed, autograph=False)
    return inner


class Pinned(Ours):
  """Our step in a process that one core carries, with all its threads.

  TensorFlow counts the cores that it may use, so it starts one thread for
  operations; what carries the messages shares the core.

  Args:
    core: The core.
    num_processes: How many train together; the batch grows with them.
    files: Gin files over the config of the benchmark.
    bindings: Gin bindings over those.
  """

  def __init__(
    self,
    core: int,
    num_processes: int,
    files: Sequence[str] = (),
    bindings: Sequence[str] = (),
  ):
    os.sched_setaffinity(0, {core})
    batch_size = f"Experiment.batch_size = {num_processes * LOCAL_BATCH_SIZE}"
    super().__init__((batch_size, *bindings), files)
    self._share = self._experiment.images_per_step // num_processes
    self.run(_WARM_UP_STEPS)

  def images_per_step(self) -> int:
    """Returns this process's share of the images of one step."""
    return self._share


def cluster_of(count: int) -> List[Environment]:
  """Returns what makes each of `count` processes a worker of one cluster."""
  with contextlib.ExitStack() as stack:
    servers = [
      stack.enter_context(socket.create_server(("127.0.0.1", 0)))
      for _ in range(count)
    ]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in servers]
  return [
    {
      "TF_CONFIG": json.dumps(
        {
          "cluster": {"worker": addresses},
          "task": {"type": "worker", "index": index},
        }
      )
    }
    for index in range(count)
  ]
