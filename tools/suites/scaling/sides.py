"""The processes of the suite `scaling`.

All have one thread, as `tools.launch --threads_per_worker=1` gives them. What
trains is DCGAN on the embedded images, with the exchanges of the suite `wire`.
"""

import functools
import time
from typing import Any, Dict, Sequence, Tuple

from tools.suites.ours import load_config
from tools.suites.wire.sides import BASE, EXCHANGES, TrainingWorker

# Of the work between two exchanges: rows of a matrix, and numbers.
_WORK, _MEMORY = 512, 1 << 21
ONE_THREAD = {"TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
# Of the suite `wire`, for matrices: here, nets with something to compute.
_NETS = (
  "from paragan_tf.nets import dcgan",
  "g/player.net = @dcgan.Generator",
  "d/player.net = @dcgan.Discriminator",
  "dcgan.Generator.width = 32",
  "dcgan.Discriminator.width = 32",
)


def make_bindings(global_batch: int) -> Tuple[str, ...]:
  """Returns the bindings of the nets and of the batch of all workers."""
  return (*_NETS, f"Experiment.batch_size = {global_batch}")


def _list_config(name: str, batch: int) -> Tuple[Sequence[str], Sequence[str]]:
  _, files, more = EXCHANGES[name]
  return (*BASE, *more, *make_bindings(batch)), files


def make_trainer(
  num_workers: int, names: Sequence[str], batch_per_worker: int
) -> TrainingWorker:
  """Returns what trains in one of `num_workers` processes."""
  bindings = make_bindings(num_workers * batch_per_worker)
  return TrainingWorker(num_workers, names, bindings)


class SoloWorker:
  """One process alone, which trains with each of some batches."""

  def __init__(self, names: Sequence[str], batches: Sequence[int]):
    self._trainers = {b: make_trainer(1, names, b) for b in batches}

  def wait_until_ready(self) -> None:
    """Returns when all is traced."""

  def run(self, name: str, batch: int, num_steps: int) -> float:
    """Trains; returns the seconds of a step."""
    return self._trainers[batch].run(name, num_steps) / num_steps

  def run_steps(self, name: str, batch: int, num_steps: int) -> Sequence[float]:
    """Trains, in calls of one cycle; returns the seconds of a step in each."""
    return [self.run(name, batch, 2) for _ in range(num_steps // 2)]


class PlayerWorker:
  """One process, which has both players and trains neither."""

  def __init__(self) -> None:
    self._module = load_config(*_list_config("dq8", 1))

  def count(self) -> Dict[str, Any]:
    """Returns the bytes of both players, and the seconds of their codec.

    The keys are fields of `Profile`.
    """
    import gin

    from paragan_tf import experiment

    spec = gin.get_configurable(experiment.InputFn)().spec
    sides = {}
    for who in "gd":
      with gin.config_scope(who):
        sides[who] = experiment.player(spec, 0, who)
        sides[who].exchange.init(sides[who].weights)
    messages = [side.exchange._message_bytes() for side in sides.values()]
    codecs = [_time_codec(side) for side in sides.values()]
    return {
      "gradient_bytes": {w: _count_bytes(s.weights) for w, s in sides.items()},
      "state_bytes": {w: _count_bytes(s.state) for w, s in sides.items()},
      "message_bytes": sum(messages),
      "codec_seconds": {
        name: sum(codec[name] for codec in codecs) for name in codecs[0]
      },
    }


class ExchangeWorker:
  """One process of a cluster, which exchanges vectors between other work.

  The work takes some milliseconds and megabytes, as a step does: an exchange
  then finds caches, threads and connections as it finds them while training.
  """

  def __init__(self) -> None:
    module = load_config()
    self._strategy = module.strategies.choose().strategy
    self._programs: Dict[Tuple[str, int], Any] = {}

  def wait_until_ready(self) -> None:
    """Returns when the cluster is up."""

  def run(self, collective: str, num_floats: int, repeats: int) -> float:
    """Returns the seconds of the work and an exchange; '' exchanges nothing."""
    import tensorflow as tf

    key = (collective, num_floats)
    if key not in self._programs:
      self._programs[key] = self._make_program(*key)
      self._programs[key](tf.constant(2))
    started = time.perf_counter()
    self._programs[key](tf.constant(repeats))
    return (time.perf_counter() - started) / repeats

  def _make_program(self, collective: str, num_floats: int) -> Any:
    import tensorflow as tf

    def step(x, work, memory):
      work = tf.matmul(work, work) / _WORK
      memory = memory + work[0, 0]
      x = _exchange(collective, x + 1e-9 * (work[0, 0] + memory[0]))
      return x, work + 1e-9 * x[0], memory

    @functools.partial(tf.function, autograph=False)
    def program(repeats):
      values = [
        tf.ones([num_floats]),
        tf.ones([_WORK, _WORK]),
        tf.zeros([_MEMORY]),
      ]
      return tf.while_loop(
        lambda i, *values: i < repeats,
        lambda i, *values: (i + 1, *self._strategy.run(step, values)),
        [tf.constant(0), *values],
      )[1][0]

    return lambda repeats: program(repeats).numpy()


def _exchange(collective: str, x: Any) -> Any:
  """Returns what replicas got, in a vector as long as `x`."""
  import tensorflow as tf

  from paragan_tf import collectives

  if collective == "all_reduce":
    return collectives.mean([x])[0]
  if collective == "gather":
    rows = collectives.all_gather(tf.bitcast(x, tf.int32))
    return tf.bitcast(rows[0], tf.float32)
  return x


def _count_bytes(variables: Sequence[Any]) -> int:
  return sum(v.shape.num_elements() * v.dtype.size for v in variables)


def _time_codec(side: Any) -> Dict[str, float]:
  """Returns the seconds to encode a player's updates, and to decode them."""
  import tensorflow as tf

  from paragan_tf.sync import wire

  exchange = side.exchange
  values = [tf.convert_to_tensor(w) for w in side.weights]
  tensors = exchange.make_tensors(values)
  seeds = [tf.constant([0, i]) for i in range(len(tensors))]
  encode = tf.function(lambda: wire.encode(tensors, seeds), autograph=False)
  payload = encode()

  @functools.partial(tf.function, autograph=False)
  def average(rows):
    decoded = [wire.decode(row, tensors) for row in rows]
    means = [tf.add_n(values) / len(rows) for values in zip(*decoded)]
    return tf.add_n([tf.reduce_max(mean) for mean in means])

  one, five = (
    _time(lambda num=num: average([payload] * num).numpy()) for num in (1, 5)
  )
  return {
    "encode": _time(lambda: encode().numpy()),
    "decode": (five - one) / 4,  # And to add it to the mean.
  }


def _time(task: Any) -> float:
  task()
  seconds = []
  for _ in range(21):
    started = time.perf_counter()
    task()
    seconds.append(time.perf_counter() - started)
  return sorted(seconds)[len(seconds) // 2]
