"""Who is measured by the suite `async`: two devices of one thread each.

`TwoDevices` are logical CPU devices of one process: TensorFlow has two threads
for operations, and an operation uses one. A thread that its own device leaves
idle helps the other. `PinnedDevice` is a process on a core of its own, which
cannot be helped; there every wait is seen.
"""

import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import numpy as np

from tools.suites.engines_sides import Pinned
from tools.suites.ours import load
from tools.suites.work import count_function

# Sync as papers write it: G draws fakes of its own.
FRESH = ("Sequential.reuse_fakes = False",)
_MAX_TALKS = 32  # Of one device in one cycle.


class RoleWork(NamedTuple):
  """Multiply-adds of one image: a move of G, one of D, and G's forward pass."""

  g: float
  d: float
  draw: float


class Cycle(NamedTuple):
  """The times of one cycle on one device, in seconds since 1970.

  Attributes:
    began: When it was asked for.
    ended: When it was done.
    waited: How long it waited for batches.
    num_steps: Steps of the cycle.
    talks: When each talk could begin here, and when it was over, `[n, 2]`.
  """

  began: float
  ended: float
  waited: float
  num_steps: int
  talks: np.ndarray


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
    module = load(bindings, files, gin_file)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    device_options = module.strategies.DeviceOptions(num_cpu_replicas=2)
    self._experiment = module.Experiment(
      module.strategies.choose(device_options)[0]
    )
    self._inner_loop = self._experiment.inner_loop(0)
    self._logs: Dict[str, float] = {}

  def summary(self) -> str:
    """Returns what is trained, in words."""
    return self._experiment.summary()

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

  def bytes_per_step(self) -> float:
    """Returns what a device gives to the other one in a step, on average."""
    return self._logs["exchange/bytes"]

  def work(self) -> RoleWork:
    """Counts the work of each player's move, for one image."""
    return role_work(self._experiment)


class Learner(TwoDevices):
  """The same, and how good its samples are."""

  def __init__(self, *args: Any, num_samples: int = 2000):
    super().__init__(*args)
    self._num_samples = num_samples

  def distance(self) -> float:
    """Returns the Frechet distance of the average of G to the training set."""
    values = self._experiment.evaluation.measure(self._num_samples)
    return next(v.value for v in values if v.name == "frechet")


class PinnedDevice(Pinned):
  """One of two devices, a process that one core carries; it takes the time.

  Args:
    core: The core.
    files: Gin files over the config of the benchmark.
    bindings: Gin bindings over those.
  """

  _clocks: Optional["Clocks"] = None

  def __init__(
    self, core: int, files: Sequence[str] = (), bindings: Sequence[str] = ()
  ):
    super().__init__(core, 2, files, bindings)

  def run(self, num_steps: int) -> float:
    """Trains; returns the seconds it took. The first call traces the step."""
    if self._clocks is None:
      self._clocks = Clocks()
      with self._clocks:
        return super().run(num_steps)
    return super().run(num_steps)

  def cycle(self) -> Cycle:
    """Trains for a cycle; returns its times."""
    assert self._clocks is not None
    num_steps = self._experiment.step.cycle
    began = time.time()
    logs = self._inner_loop(num_steps)
    ended = time.time()
    waited = logs["input_wait"] * (ended - began)
    return Cycle(began, ended, waited, num_steps, self._clocks.read())


def role_work(experiment: Any) -> RoleWork:
  """Counts the multiply-adds of each player's move in the graph of it."""
  import tensorflow as tf

  from paragan_tf.game import turns
  from paragan_tf.types import Batch, Mode

  g, d = (experiment.step.players[who].net for who in "gd")
  loss_fn, spec, size = experiment.step.loss_fn, experiment.spec, 8
  shape = [size, spec.resolution, spec.resolution, spec.channels]
  images = tf.TensorSpec(shape)
  labels = tf.TensorSpec([size], tf.int32)
  z = tf.TensorSpec([size, g.z_dim])

  def draw(images, labels, z):
    return turns.draw(g, Batch(images, labels, z), Mode.FROZEN).images

  def g_move(images, labels, z):
    batch = Batch(images, labels, z)
    fakes = turns.draw(g, batch, Mode.FROZEN)
    return turns.g_move(fakes, d, batch, loss_fn).grads

  def d_move(images, labels, z):
    batch = Batch(images, labels, z)
    fakes = turns.Fakes(images, labels, lambda grad: [])
    return turns.d_move(fakes, d, batch, loss_fn).grads

  def count(fn):
    traced = tf.function(fn, autograph=False)
    whole = count_function(traced.get_concrete_function(images, labels, z))
    return whole.executed / size

  return RoleWork(count(g_move), count(d_move), count(draw))


class Clocks:
  """Takes the time before and after every talk of this process's device.

  Inside of `with`, a step that is traced gets the clocks; each cycle of it
  leaves its times, for `read`.
  """

  _NAMES = ("mean", "receive")

  def __init__(self) -> None:
    import tensorflow as tf

    from paragan_tf import collectives

    self._collectives = collectives
    self._real = {name: getattr(collectives, name) for name in self._NAMES}
    self._num_talks = 0
    self._times = [
      tf.Variable(tf.zeros([2], tf.float64), trainable=False)
      for _ in range(_MAX_TALKS)
    ]

  def __enter__(self) -> None:
    for name, real in self._real.items():
      setattr(self._collectives, name, self._timed(real))

  def __exit__(self, *error: Any) -> None:
    for name, real in self._real.items():
      setattr(self._collectives, name, real)

  def _timed(self, talk: Callable) -> Callable:
    import tensorflow as tf

    def timed(values, *args):
      kept = self._times[self._num_talks]
      self._num_talks += 1
      with tf.control_dependencies(list(values)):
        began = tf.timestamp()
      with tf.control_dependencies([began]):
        values = [tf.identity(value) for value in values]
      results = talk(values, *args)
      with tf.control_dependencies(list(results)):
        done = kept.assign(tf.stack([began, tf.timestamp()]))
      with tf.control_dependencies([done]):
        return [tf.identity(result) for result in results]

    return timed

  def read(self) -> np.ndarray:
    """Returns when each talk of the last cycle began and ended."""
    return np.array([x.numpy() for x in self._times[: self._num_talks]])
