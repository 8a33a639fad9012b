"""Constraints on weights: bounds that hold after every update."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine.player import Player
from paragan_tf.game import constraints, optimistic, optimizers
from paragan_tf.sync.exchange import Exchange


class ClipWeightsTest(parameterized.TestCase, tf.test.TestCase):
  def test_values_are_clipped_on_both_sides_and_others_stay(self):
    w = tf.Variable([-3.0, -0.01, 0.005, 0.02])
    constraints.clip_weights(0.01)([w])
    self.assertAllClose(w, [-0.01, -0.01, 0.005, 0.01])

  @parameterized.named_parameters(
    ("sgd", optimizers.SGD), ("optimistic", optimistic.OptimisticSGD)
  )
  def test_updates_end_within_the_bounds(self, make):
    net = tf.Module(name="net")
    net.w = tf.Variable(tf.zeros([4]), name="w")
    optimizer = make(learning_rate=1.0, name="o")
    player = Player(
      net, optimizer, Exchange(), constraint=constraints.clip_weights(0.1)
    )
    optimizer.init(player.weights)
    for _ in range(3):
      optimizer.begin(player.weights)
      updates = optimizer.updates(
        [tf.constant([-1.0, 1.0, 0.02, 0.0])], player.weights
      )
      player.apply_updates(updates)
      player.look_ahead(updates)
      for w in (*player.weights, *player.base):
        self.assertLessEqual(np.abs(w).max(), np.float32(0.1))
    self.assertAllClose(player.base[0], [0.1, -0.1, -0.06, 0.0])

  def test_a_bound_of_zero_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`c`.*0"):
      constraints.clip_weights(0.0)


if __name__ == "__main__":
  tf.test.main()
