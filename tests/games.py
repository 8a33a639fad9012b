"""Small games in float64 that replicas play against each other by an exchange.

A game maps `(worker, w)` to that worker's gradient of both players at `w`, in
NumPy or in TensorFlow.
"""

import functools

import numpy as np
import tensorflow as tf

from paragan_tf.engine import strategies
from paragan_tf.engine.player import Player
from paragan_tf.sync.exchange import predict_updates
from tests import testing


def bilinear(seed, size):
  """Returns min over x, max over y of x A y; singular values in [.3, 1]."""
  random = np.random.RandomState(seed)
  u, _ = np.linalg.qr(random.randn(size, size))
  v, _ = np.linalg.qr(random.randn(size, size))
  a = u * random.uniform(0.3, 1.0, size) @ v
  whole = np.block([[np.zeros_like(a), a], [-a.T, np.zeros_like(a)]])
  return lambda worker, w: _product(whole, w)


def tanh_game(seed, same=False, size=6, strength=1.0):
  """Returns a game that is not affine, so that topology matters."""
  linear = bilinear(seed, size // 2)
  offsets = np.random.RandomState(seed).randn(testing.NUM_REPLICAS, size)
  if same:
    offsets[:] = offsets[0]

  def gradient(worker, w):
    if isinstance(w, np.ndarray):
      pull = np.tanh(strength * (w - offsets[worker]))
    else:
      pull = tf.tanh(strength * (w - tf.gather(tf.constant(offsets), worker)))
    return linear(worker, w) + pull

  return gradient


def _product(matrix, w):
  if isinstance(w, np.ndarray):
    return matrix @ w
  return tf.linalg.matvec(tf.constant(matrix), w)


class Workers:
  """Replicas that play a game, each with weights of its own."""

  def __init__(self, make_optimizer, exchange, start):
    self.exchange = exchange
    with strategies.scope(testing.strategy()):
      self.optimizer = make_optimizer(name="optimizer")
      self._weights = [tf.Variable(np.zeros(start.shape[1:]), name="w")]
      self.optimizer.init(self._weights)
      exchange.init(self._weights)
    net = tf.Module()
    net.weights = self._weights
    self._player = Player(net, self.optimizer, exchange)
    self._played = {}
    testing.run_on_replicas(self._weights[0].assign, list(start))

  def play(self, game, num_steps):
    """Plays some steps; returns each worker's last own update."""
    if game not in self._played:
      self._played[game] = tf.function(
        functools.partial(self._steps, game), autograph=False
      )
    return np.stack(self._played[game](tf.constant(num_steps)))

  def _steps(self, game, num_steps):
    strategy = testing.strategy()

    def step(count, *_):
      updates = strategy.run(functools.partial(self._step, game))
      return count + 1, *strategy.experimental_local_results(updates)

    zeros = tf.zeros(self._weights[0].shape, tf.float64)
    start = [0] + [zeros] * testing.NUM_REPLICAS
    return tf.while_loop(lambda count, *_: count < num_steps, step, start)[1:]

  def _step(self, game):
    worker = tf.distribute.get_replica_context().replica_id_in_sync_group
    w, optimizer, exchange = self._weights, self.optimizer, self.exchange
    grads = exchange.before_update([game(worker, tf.identity(w[0]))], 0)
    optimizer.begin(w)
    updates = optimizer.updates(grads, w)
    optimizer.apply_updates(exchange.average_updates(updates, 0), w)
    exchange.after_update(optimizer.base(w), self._player.state, 0)
    optimizer.look_ahead(predict_updates(exchange, updates), w)
    return updates[0]

  def weights(self):
    """Returns where each worker takes its next gradient."""
    return self._stacked(self._weights[0])

  def base(self):
    """Returns the base weights of each worker."""
    return self._stacked(self.optimizer.base(self._weights)[0])

  def _stacked(self, variable):
    return np.stack(strategies.copies(testing.strategy(), variable))
