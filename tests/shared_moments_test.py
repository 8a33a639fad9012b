"""Moments of G and D in the same memory, where a replica trains one of them."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import step
from paragan_tf.engine.shared_moments import SharedMoments
from paragan_tf.game import layerwise, lookahead, optimistic, optimizers
from paragan_tf.game.slots import SlotSpec
from paragan_tf.sync import exchange
from tests import testing
from tests.role_split_test import Runner, make_step


def make_lookahead(rate, name):
  return lookahead.Lookahead(
    lambda name: optimizers.Adam(rate, name=name), 2, name=name
  )


# Optimizer, and the moments of each weight.
OPTIMIZERS = (
  ("adam", lambda rate, name: optimizers.Adam(rate, name=name), 2),
  ("optimistic", lambda rate, n: optimistic.OptimisticAdam(rate, name=n), 2),
  ("lookahead", make_lookahead, 2),
  ("lamb", lambda rate, name: layerwise.LAMB(rate, name=name), 2),
)


def periodic():
  return exchange.Periodic(2)


def train(made):
  runner = Runner(made)
  for t in range(6):
    runner(t)
  return runner.weights()


class SharedMomentsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(OPTIMIZERS[0], OPTIMIZERS[2])
  def test_training_is_the_same_bit_for_bit(self, make_optimizer, num_moments):
    self.check_training(make_optimizer, num_moments)

  @parameterized.named_parameters(OPTIMIZERS[1], OPTIMIZERS[3])
  @pytest.mark.soak
  def test_training_is_the_same_with_others(self, make_optimizer, num_moments):
    self.check_training(make_optimizer, num_moments)

  def check_training(self, make_optimizer, num_moments):
    """Trains with shared and with separate moments."""

    def make():
      return make_step(
        testing.strategy(), periodic, make_optimizer=make_optimizer
      )

    shared = make()
    with mock.patch.object(step, "share_moments", return_value=None):
      separate = make()
    sizes = {
      who: sorted(w.shape.num_elements() for w in player.weights)[::-1]
      for who, player in shared.players.items()
    }
    rest = len(sizes["g"]) - len(sizes["d"])
    d_sizes = [*sizes["d"], *[0] * rest]
    expected = sum(map(max, zip(sizes["g"], d_sizes)))
    got = sum(v.shape.num_elements() for v in shared.shared_moments.variables)
    self.assertEqual(got, num_moments * expected)
    for ours, theirs in zip(train(shared), train(separate)):
      self.assertAllEqual(ours, theirs)

  def test_replicas_that_train_both_have_moments_of_both(self):
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    adam = OPTIMIZERS[0][1]
    for strategy, make_exchange in (
      (one, periodic),
      (testing.strategy(), exchange.AllReduce),
    ):
      made = make_step(strategy, make_exchange, make_optimizer=adam)
      self.assertIsNone(made.shared_moments)

  def test_a_view_is_a_part_of_its_buffer(self):
    specs = {
      "g": [SlotSpec("small", tf.TensorShape([2]), tf.float32)],
      "d": [
        SlotSpec("d/w", tf.TensorShape([2, 3]), tf.float32),
        SlotSpec("d/b", tf.TensorShape([]), tf.float32),
      ],
    }
    shared = SharedMoments(specs)
    self.assertEqual([b.shape[0] for b in shared.buffers], [6, 1])
    w, small = (shared.make_moment(specs[who][0]) for who in "dg")
    value = np.arange(6.0).reshape([2, 3])
    w.assign(value)
    self.assertAllEqual(w.read_value(), value)
    self.assertAllEqual(tf.convert_to_tensor(w) + 1.0, value + 1.0)
    self.assertAllEqual(small.read_value(), [0.0, 1.0])
    shared.make_moment(specs["d"][1]).assign(7.0)
    self.assertAllEqual(w.read_value(), value)
    with self.assertRaises((TypeError, ValueError)):
      tf.convert_to_tensor(w, tf.int32)


if __name__ == "__main__":
  testing.main()
