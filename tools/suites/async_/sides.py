"""The sides of the suite `async`: two devices of one thread each.

`TwoDevices` are logical CPU devices of one process: TensorFlow has two threads
for operations, and an operation uses one. While one device is idle, its thread
runs operations of the other. `PinnedDevice` is a process on a core of its own,
which cannot share its core in that way; there every wait shows.
"""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from tools.suites.flops import count_function
from tools.suites.ours import load_config
from tools.suites.pinned import PinnedProcess

# Sync as papers write it: G generates fakes of its own.
FRESH_FAKES = ("Sequential.reuse_fakes = False",)
_MAX_COLLECTIVES = 32  # Of one device in one cycle.


class RoleMultiplyAdds(NamedTuple):
  """Multiply-adds of one image: G's update, D's, and G's forward pass."""

  g: float
  d: float
  draw: float


class Cycle(NamedTuple):
  """The times of one cycle on one device, in seconds since 1970.

  Attributes:
    began: When it began.
    ended: When it ended.
    input_wait: Seconds for which it waited for batches.
    num_steps: Steps of the cycle.
    collectives: When the device was ready for each collective, and when that
      had ended, `[n, 2]`.
  """

  began: float
  ended: float
  input_wait: float
  num_steps: int
  collectives: np.ndarray


class TwoDevices:
  """A run on two logical CPU devices of one process.

  Args:
    gin_file: The config.
    files: Gin files over it.
    bindings: Gin bindings over those.
  """

  def __init__(
    self,
    gin_file: str,
    files: Sequence[str] = (),
    bindings: Sequence[str] = (),
  ):
    module = load_config(bindings, files, gin_file)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    device_options = module.strategies.DeviceOptions(num_cpu_replicas=2)
    self._experiment = module.Experiment(
      module.strategies.choose(device_options)[0]
    )
    self._inner_loop = self._experiment.inner_loop(0)
    self._logs: Dict[str, float] = {}

  def warm_up(self) -> int:
    """Traces and trains for two cycles; returns the steps of a cycle."""
    cycle = self._experiment.step.cycle
    for _ in range(2):
      self.run(cycle)
    return cycle

  def run(self, num_steps: int) -> float:
    """Trains; returns the seconds it took."""
    started = time.perf_counter()
    self._logs = self._inner_loop(num_steps)
    return time.perf_counter() - started

  def get_bytes_per_step(self) -> float:
    """Returns the bytes that a device sends to the other, a step on average."""
    return self._logs["exchange/bytes"]

  def count_multiply_adds(self) -> RoleMultiplyAdds:
    """Counts each player's update, for one image."""
    return count_role_multiply_adds(self._experiment)


class Learner(TwoDevices):
  """The same, which measures the quality of its samples too."""

  def __init__(self, *args: Any, num_samples: int = 2000):
    super().__init__(*args)
    self._num_samples = num_samples

  def measure_distance(self) -> float:
    """Returns the Fréchet distance of G's average to the training set."""
    values = self._experiment.evaluation.measure(
      self._num_samples, only=["fid"]
    )
    return values[0].value


class PinnedDevice(PinnedProcess):
  """One of two devices, a process on one core, with a clock at collectives.

  Args:
    core: The core.
    files: Gin files over the config of the benchmark.
    bindings: Gin bindings over those.
  """

  _clock: Optional["CollectiveClock"] = None

  def __init__(
    self, core: int, files: Sequence[str] = (), bindings: Sequence[str] = ()
  ):
    super().__init__(core, 2, files, bindings)

  def run(self, num_steps: int) -> float:
    """Trains; returns the seconds it took. The first call traces the step."""
    if self._clock is None:
      from paragan_tf import collectives

      self._clock = CollectiveClock()
      with collectives.observe(self._clock):
        return super().run(num_steps)
    return super().run(num_steps)

  def run_cycle(self) -> Cycle:
    """Trains for a cycle; returns its times."""
    assert self._clock is not None
    num_steps = self._experiment.step.cycle
    began = time.time()
    logs = self._inner_loop(num_steps)
    ended = time.time()
    input_wait = logs["input_wait"] * (ended - began)
    return Cycle(began, ended, input_wait, num_steps, self._clock.read())


def count_role_multiply_adds(experiment: Any) -> RoleMultiplyAdds:
  """Counts the multiply-adds in the graph of each player's update."""
  import tensorflow as tf

  from paragan_tf.game import turns
  from paragan_tf.types import Batch, Mode

  g, d = (experiment.step.players[who].net for who in "gd")
  loss_fn, spec, size = experiment.step.game.loss_fn, experiment.spec, 8
  shape = [size, spec.resolution, spec.resolution, spec.channels]
  images = tf.TensorSpec(shape)
  labels = tf.TensorSpec([size], tf.int32)
  z = tf.TensorSpec([size, g.z_dim])

  def draw(images, labels, z):
    return turns.draw(g, Batch(images, labels, z), Mode.FROZEN).images

  def update_g(images, labels, z):
    batch = Batch(images, labels, z)
    fakes = turns.draw(g, batch, Mode.FROZEN)
    return turns.g_move(fakes, d, batch, loss_fn).grads

  def update_d(images, labels, z):
    batch = Batch(images, labels, z)
    fakes = turns.Fakes(images, labels, lambda grad: [])
    return turns.d_move(fakes, d, batch, loss_fn).grads

  def count(fn):
    traced = tf.function(fn, autograph=False)
    whole = count_function(traced.get_concrete_function(images, labels, z))
    return whole.executed / size

  return RoleMultiplyAdds(count(update_g), count(update_d), count(draw))


class CollectiveClock:
  """Reads the clock before and after each collective of this process.

  Applies to collectives that are traced inside of `collectives.observe(clock)`;
  `read` returns the times of the last run of each.
  """

  def __init__(self) -> None:
    import tensorflow as tf

    self._num_collectives = 0
    self._times = [
      tf.Variable(tf.zeros([2], tf.float64), trainable=False)
      for _ in range(_MAX_COLLECTIVES)
    ]

  def __call__(self, collective: Callable, values: Sequence) -> List:
    """Runs `collective(values)` between two clocks, see `Observer`."""
    import tensorflow as tf

    times = self._times[self._num_collectives]
    self._num_collectives += 1
    with tf.control_dependencies(list(values)):
      began = tf.timestamp()
    with tf.control_dependencies([began]):
      values = [tf.identity(value) for value in values]
    results = collective(values)
    with tf.control_dependencies(list(results)):
      done = times.assign(tf.stack([began, tf.timestamp()]))
    with tf.control_dependencies([done]):
      return [tf.identity(result) for result in results]

  def read(self) -> np.ndarray:
    """Returns when each collective of the last cycle began and ended."""
    return np.array([x.numpy() for x in self._times[: self._num_collectives]])
