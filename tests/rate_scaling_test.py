"""Scaled learning rates, by hand."""

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import rates
from paragan_tf.game.lookahead import Lookahead
from paragan_tf.game.optimizers import SGD
from paragan_tf.game.rate_scaling import scale_rate
from tests import testing


class RateScalingTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    (0.1, 4.0, 0, [0.4, 0.4, 0.4]),
    (0.1, 1.0, 2, [0.05, 0.1, 0.1]),
    (0.1, 4.0, 4, [0.1, 0.2, 0.3]),
    (rates.linear(0.2, 4), 2.0, 0, [0.4, 0.3, 0.2]),
    (rates.linear(0.2, 4), 2.0, 2, [0.2, 0.3, 0.2]),
  )
  def test_rates_by_hand(self, rate, factor, warm_up_steps, expected):
    optimizer = scale_rate(SGD(rate, name="sgd"), factor, warm_up_steps)
    w = tf.Variable(0.0)
    optimizer.init([w])
    found = []
    for _ in expected:
      before = w.numpy()
      found.append(optimizer.rate().numpy())
      optimizer.apply([tf.constant(1.0)], [w])
      self.assertAllClose(before - w.numpy(), found[-1])
    self.assertAllClose(found, expected)

  def test_an_optimizer_inside_is_scaled_too(self):
    def inner(name):
      return SGD(0.1, name=name)

    optimizer = scale_rate(Lookahead(inner, 100, name="l"), 3.0)
    w = tf.Variable(0.0)
    optimizer.init([w])
    optimizer.apply([tf.constant(1.0)], [w])
    self.assertAllClose(w.numpy(), -0.3)
    self.assertAllClose(optimizer.rate().numpy(), 0.3)

  def test_nothing_changes_by_default(self):
    optimizer = SGD(0.1, name="sgd")
    self.assertEqual(scale_rate(optimizer).learning_rate, 0.1)

  @parameterized.parameters((0.0, 0, "rate_factor"), (1.0, -1, "warm_up"))
  def test_what_cannot_be_is_refused(self, factor, warm_up_steps, name):
    with self.assertRaisesRegex(ValueError, f"`{name}"):
      scale_rate(SGD(0.1, name="sgd"), factor, warm_up_steps)


if __name__ == "__main__":
  testing.main()
