"""Promises of all exchanges, and the differences between them."""

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.sync import compress, exchange, gossip, quantize, topology
from tests import testing

RATE = 0.5
EXCHANGES = (
  ("none", exchange.Exchange),
  ("all_reduce", exchange.AllReduce),
  ("every_step", lambda: exchange.Periodic(period=1)),
  ("every_other_step", lambda: exchange.Periodic(period=2)),
  ("every_third_step", lambda: exchange.Periodic(period=3)),
  ("gradients_every_step", lambda: exchange.AccumulatedGradients(period=1)),
  (
    "gradients_every_other_step",
    lambda: exchange.AccumulatedGradients(period=2),
  ),
  (
    "gradients_every_third_step",
    lambda: exchange.AccumulatedGradients(period=3),
  ),
  ("ring_gossip", gossip.Gossip),
  (
    "complete_gossip_of_two_rounds",
    lambda: gossip.Gossip(topology.complete, 2),
  ),
  ("quantized_in_float32", lambda: quantize.Quantized(compress.Identity())),
)


def gradients(step):
  """Returns each replica's own gradients: a matrix and a vector."""
  random = np.random.RandomState(step)
  return [
    random.randn(testing.NUM_REPLICAS, 2, 3).astype(np.float32),
    random.randn(testing.NUM_REPLICAS, 3).astype(np.float32),
  ]


class Replicas:
  """Weights and state of four replicas, updated by given gradients."""

  def __init__(self, tested: exchange.Exchange):
    self.exchange = tested
    with strategies.scope(testing.strategy()):
      self.weights = [
        tf.Variable(tf.ones([2, 3]), name="w"),
        tf.Variable(tf.zeros([3]), name="b"),
      ]
      self.state = [tf.Variable(tf.zeros([]), trainable=False, name="s")]
      tested.init(self.weights)
    self._phases = [
      testing.on_replicas(functools.partial(self._update, phase=phase))
      for phase in range(tested.period)
    ]

  def step(self, step: int):
    """Runs one step; sets the state to the replica's id before the exchange."""
    per_replica = [list(grads) for grads in zip(*gradients(step))]
    ids = np.arange(testing.NUM_REPLICAS, dtype=np.float32)
    self._phases[step % len(self._phases)](per_replica, ids)

  def _update(self, grads, replica_id, phase):
    self.state[0].assign(replica_id)
    grads = self.exchange.accumulate(grads, phase)
    if not self.exchange.applies(phase):
      return
    grads = self.exchange.before_update(grads, phase)
    updates = self.exchange.average_updates([RATE * g for g in grads], phase)
    for u, w in zip(updates, self.weights):
      w.assign_sub(u)
    self.exchange.after_update(self.weights, self.state, phase)

  def values(self, variable):
    """Returns a variable's value on each replica, stacked."""
    return np.stack(strategies.copies(testing.strategy(), variable))


class ExchangeTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*EXCHANGES)
  def test_mean_weights_follow_the_mean_gradient(self, make):
    replicas = Replicas(make())
    num = replicas.exchange.moves_per_update
    expected = [np.ones([2, 3]), np.zeros([3])]
    for step in range(6):
      replicas.step(step)
      for i in range(2):
        if step % num == num - 1:
          since = [gradients(step - j)[i] for j in range(num)]
          expected[i] = expected[i] - RATE * np.mean(since, (0, 1))
        values = replicas.values(replicas.weights[i])
        self.assertAllClose(values.mean(0), expected[i], atol=1e-5)
      self.check_agreement(replicas, step)

  def check_agreement(self, replicas, step):
    """Checks that replicas agree if they always do, and after a period."""
    period = replicas.exchange.period
    sums = getattr(replicas.exchange, "sums", [])
    for variable in [*replicas.weights, *replicas.state, *sums]:
      values = replicas.values(variable)
      is_weight = any(variable is w for w in replicas.weights)
      shared = replicas.exchange.shares_gradients and is_weight
      if replicas.exchange.replicas_agree or shared:
        self.assertAllEqual(values, np.broadcast_to(values[0], values.shape))
      elif period > 1:
        differ = bool(np.ptp(values, 0).max() > 1e-3)
        self.assertEqual(differ, step % period != period - 1)

  def test_without_an_exchange_replicas_train_alone(self):
    replicas = Replicas(exchange.Exchange())
    replicas.step(0)
    expected = np.ones([4, 2, 3]) - RATE * gradients(0)[0]
    self.assertAllClose(replicas.values(replicas.weights[0]), expected)
    self.assertAllEqual(replicas.values(replicas.state[0]), [0, 1, 2, 3])

  def test_all_reduce_averages_state_too(self):
    replicas = Replicas(exchange.AllReduce())
    replicas.step(0)
    self.assertAllClose(replicas.values(replicas.state[0]), [1.5] * 4)

  def test_period_two_averages_at_every_second_step_only(self):
    replicas = Replicas(exchange.Periodic(period=2))
    spreads = []
    for step in range(4):
      replicas.step(step)
      spreads.append(np.ptp(replicas.values(replicas.weights[0]), 0).max())
    self.assertAllGreater(spreads[::2], 0.1)
    self.assertAllEqual(spreads[1::2], [0.0, 0.0])

  def test_sums_are_zero_after_a_period(self):
    replicas = Replicas(exchange.AccumulatedGradients(period=2))
    replicas.step(0)
    for total, grads in zip(replicas.exchange.sums, gradients(0)):
      self.assertAllEqual(replicas.values(total), grads)
    replicas.step(1)
    for total in replicas.exchange.sums:
      self.assertAllEqual(replicas.values(total), 0 * replicas.values(total))

  def test_gradients_are_sent_where_there_is_an_update_only(self):
    made = exchange.AccumulatedGradients(period=2)
    with testing.strategy().scope():
      weights = [tf.Variable(tf.zeros([2, 3]))]
      state = [tf.Variable(tf.zeros([3]))]
      sent = [made.traffic(weights, state, phase) for phase in range(4)]
      every = exchange.AllReduce().traffic(weights, state, 0)
    self.assertEqual(every, (36, 36))
    self.assertEqual(sent, [(0, 0), every, (0, 0), every])

  def test_only_exchanges_with_the_same_updates_are_fused(self):
    made = exchange.AccumulatedGradients(period=2)
    self.assertTrue(made.can_fuse_with(exchange.AccumulatedGradients(period=2)))
    for other in (exchange.AccumulatedGradients(3), exchange.AllReduce()):
      self.assertFalse(made.can_fuse_with(other))
      self.assertFalse(other.can_fuse_with(made))

  @parameterized.parameters(exchange.Periodic, exchange.AccumulatedGradients)
  def test_a_period_below_one_is_refused(self, make):
    with self.assertRaisesRegex(ValueError, "`period` must be .* got 0"):
      make(period=0)


if __name__ == "__main__":
  tf.test.main()
