"""Measures a worker in this process: steps, players, messages, input, noise.

    worker = Worker(experiment)
    worker.time_step()            # seconds, without the input pipeline
    worker.peak_bytes()           # of this process or its GPU until now
    worker.time_players()         # of each player's own work
    worker.time_codec()           # to quantize gradients, and back
    worker.count_images()         # a second, of the input pipeline alone
    worker.find_noise_scale()     # of both players

The worker is one replica. Its weights are trained on the way.
"""

import collections
import resource
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine import loop, strategies
from paragan_tf.engine.placement import Game
from paragan_tf.engine.scaling import noise_scale
from paragan_tf.experiment import Experiment
from paragan_tf.game import turns
from paragan_tf.sync import quantize, wire
from paragan_tf.sync.exchange import AllReduce, Exchange
from paragan_tf.types import Batch, Mode

# Of one timing: long enough that a clock and a scheduler do not count.
_SECONDS = 2.0
_MIN_CALLS = 3
# Gradients of so many batches are one big batch; and how often.
_NUM_SMALL, _NUM_BIG = 8, 3
_OTHER_STEP = 1000  # Whose batches were not trained on.
# Batches in memory that steps are timed with.
_MAX_BATCHES, _MAX_BYTES = 32, 64 << 20


class Worker:
  """Measures an experiment of one replica."""

  def __init__(self, experiment: Experiment, seconds: float = _SECONDS):
    self._experiment = experiment
    self._step = experiment.step
    self._seconds = seconds
    num = experiment.strategy.num_replicas_in_sync
    if num != 1:
      raise ValueError(
        f"A worker must be one replica to be measured, got {num}."
      )
    batches = iter(experiment.dataset(0))
    self._element = next(batches)
    size = sum(x.shape.num_elements() * x.dtype.size for x in self._flat)
    num = max(1, min(_MAX_BATCHES, _MAX_BYTES // size))
    kept = [self._element, *(next(batches) for _ in range(num - 1))]
    stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *kept)
    fixed = tf.data.Dataset.from_tensor_slices(stacked).repeat()
    self._inner = loop.InnerLoop(
      experiment.strategy, self._step, iter(fixed), experiment.images_per_step
    )

  @property
  def _flat(self) -> List[tf.Tensor]:
    return tf.nest.flatten(self._element)

  @property
  def game(self) -> Game:
    """Both players."""
    return self._step.game

  def time_step(self) -> float:
    """Returns the seconds of a step; its input is in memory."""
    cycle = self._step.cycle
    self._inner(cycle)  # Traced here.
    one = _time(lambda: self._inner(cycle))
    num = cycle * max(1, round(self._seconds / _MIN_CALLS / one))
    return measure(lambda: self._inner(num), self._seconds) / num

  def time_players(self) -> Dict[str, float]:
    """Returns the seconds of each player's move and update alone."""
    return {
      who: measure(self._make_call(who, self._update(who)), self._seconds / 2)
      for who in "gd"
    }

  def find_noise_scale(self) -> Dict[str, float]:
    """Returns the noise scale of each player, in images."""
    return {who: self._find_noise_scale(who) for who in "gd"}

  def _find_noise_scale(self, who: str) -> float:
    call = self._make_call(who, lambda grads: wire.flatten(grads))
    batches = iter(self._experiment.dataset(_OTHER_STEP))
    norms = []
    for i in range(_NUM_BIG):
      grads = [
        call(next(batches), i * _NUM_SMALL + k).numpy()
        for k in range(_NUM_SMALL)
      ]
      norms.append(
        noise_scale.squared_norms(grads, self._experiment.batch_size)
      )
    return noise_scale.noise_scale(norms)

  def _make_call(self, who: str, use: Callable) -> Callable[..., Any]:
    """Returns a function that computes a player's gradients and uses them.

    It takes a batch and the number of the step, by default always the same.
    """
    strategy, game = self._experiment.strategy, self.game
    phase = self._usual_phase()

    def replica(element, count):
      labels = element[1] if len(element) > 1 else None
      size = self._experiment.batch_size
      batch = Batch(
        element[0][:size], None if labels is None else labels[:size], None
      )
      terms = game.terms(who, phase, count)
      if who == "d":  # In its own role, D gets fakes from elsewhere.
        fakes = turns.Fakes(self._noise(size), batch.labels, lambda grad: [])
        terms = terms._replace(g=None)
      else:
        batch = batch._replace(z=game.z(size, count, "profile"))
        fakes = game.draw(batch, Mode.TRAIN)
      move = game.move(who, fakes, batch, terms)
      scale = game.players[who].loss_scale
      grads = move.grads
      if scale is not None:
        grads = [g / tf.cast(scale.value(), g.dtype) for g in grads]
      return use(grads)

    traced = tf.function(
      lambda element, count: strategy.run(replica, (element, count)),
      autograph=False,
    )

    def call(element=self._element, count=0):
      result = traced(element, tf.constant(count, tf.int64))
      return strategy.experimental_local_results(result)[0]

    return call

  def _noise(self, size: int) -> tf.Tensor:
    """Returns images of noise."""
    spec = self._experiment.spec
    shape = [size, spec.resolution, spec.resolution, spec.channels]
    return tf.random.stateless_uniform(shape, [0, 0], -1, 1)

  def _usual_phase(self) -> int:
    """Returns the first of the phases that are alike in most steps."""
    kinds = map(self._step.first_like, range(self._step.cycle))
    return collections.Counter(kinds).most_common(1)[0][0]

  def _update(self, who: str) -> Callable[[Sequence[tf.Tensor]], tf.Tensor]:
    player = self.game.players[who]

    def use(grads):
      updates = player.optimizer.apply(player.clip(list(grads)), player.weights)
      with tf.control_dependencies(updates):
        return tf.constant(0.0)

    return use

  def time_codec(self) -> Dict[str, float]:
    """Returns seconds to encode and decode a message, and its bytes."""
    weights = [w for who in "gd" for w in self.game.players[who].weights]
    values = [tf.convert_to_tensor(tf.zeros(w.shape) + 0.01) for w in weights]
    exchange = quantize.Quantized(name="profile")
    exchange.init(weights)
    tensors = exchange.make_tensors(values)
    encode = tf.function(
      lambda: wire.encode(tensors, [[0, i] for i in range(len(tensors))])
    )
    payload = encode()
    decode = tf.function(lambda: wire.decode(payload, tensors))
    decode()
    return {
      "encode": measure(lambda: encode().numpy(), self._seconds / 4),
      "decode": measure(lambda: decode()[0].numpy(), self._seconds / 4),
      "bytes": 4 * int(payload.shape[0]),
    }

  def count_images(self) -> float:
    """Returns images a second of the input pipeline alone."""
    batches, count = iter(self._experiment.dataset(0)), 0
    next(batches)
    started = time.perf_counter()
    while time.perf_counter() - started < self._seconds / 2:
      tf.nest.flatten(next(batches))[0].numpy()
      count += self._experiment.images_per_step
    return count / (time.perf_counter() - started)

  def shapes(self) -> List[List[int]]:
    """Returns the shapes of all weights."""
    players = self.game.players
    return [w.shape.as_list() for who in "gd" for w in players[who].weights]

  def gradient_bytes(self) -> Dict[str, int]:
    """Returns the bytes of the gradients of each player."""
    players = self.game.players.items()
    return {who: _num_bytes(player.weights) for who, player in players}

  def state_bytes(self) -> Dict[str, int]:
    """Returns the bytes of each net's statistics."""
    return {
      who: _num_bytes([v for v in player.net.variables if not v.trainable])
      for who, player in self.game.players.items()
    }


def peak_bytes() -> int:
  """Returns the peak memory of this process, or of its GPU, until now."""
  if tf.config.list_logical_devices("GPU"):
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak * (1 if sys.platform == "darwin" else 1024)


def time_exchanges(
  strategy: tf.distribute.Strategy,
  shapes: Sequence[Sequence[int]],
  seconds: float = _SECONDS,
  schemes: Sequence[str] = ("sync", "quantized"),
) -> Dict[str, float]:
  """Returns the seconds of an exchange of all replicas, by scheme.

  Args:
    strategy: Of the replicas.
    shapes: Of the weights of both players.
    seconds: About how long to measure each.
    schemes: Of 'sync' and 'quantized'.
  """
  found = {}
  makers = {"sync": AllReduce, "quantized": quantize.Quantized}
  for name in schemes:
    exchange = makers[name](name=f"profile_{name}")
    call = _make_exchange(strategy, exchange, shapes)
    call()
    found[name] = measure(call, seconds / 2)
  return found


def _make_exchange(
  strategy: tf.distribute.Strategy, exchange: Exchange, shapes
) -> Callable[[], Any]:
  """Returns a call that exchanges values of these shapes."""
  with strategies.scope(strategy):
    weights = [
      tf.Variable(tf.zeros(shape) + 0.01, name=f"profile_{exchange.name}_{i}")
      for i, shape in enumerate(shapes)
    ]
    exchange.init(weights)

  def replica():
    values = [tf.convert_to_tensor(w) for w in weights]
    values = exchange.before_update(values, 0)
    values = exchange.average_updates(values, 0)
    with tf.control_dependencies(values):
      return collectives.mean([tf.constant(0.0)])[0]

  traced = tf.function(lambda: strategy.run(replica), autograph=False)
  return lambda: strategy.experimental_local_results(traced())[0].numpy()


def measure(call: Callable[[], Any], seconds: float) -> float:
  """Returns the median seconds of a call, which was called before."""
  call()
  found: List[float] = []
  while len(found) < _MIN_CALLS or sum(found) < seconds:
    found.append(_time(call))
  return statistics.median(found)


def _time(call: Callable[[], Any]) -> float:
  started = time.perf_counter()
  result = call()
  if tf.is_tensor(result):
    np.asarray(result)
  return time.perf_counter() - started


def _num_bytes(variables: Sequence[tf.Variable]) -> int:
  return sum(v.shape.num_elements() * v.dtype.size for v in variables)
