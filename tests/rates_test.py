"""Learning rates by hand, at a few updates."""

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import rates


def at(rate, *counts):
  return [float(rate(tf.constant(t, tf.int64))) for t in counts]


class RatesTest(tf.test.TestCase, parameterized.TestCase):
  def test_constant_does_not_change(self):
    self.assertAllClose(at(rates.constant(0.5), 0, 7, 10**6), [0.5] * 3)

  def test_linear_decays_and_then_is_constant(self):
    rate = rates.linear(1.0, num_steps=10, final_rate=0.2)
    self.assertAllClose(at(rate, 0, 5, 10, 99), [1.0, 0.6, 0.2, 0.2])

  def test_cosine_decays_on_half_a_cosine(self):
    rate = rates.cosine(2.0, num_steps=8)
    self.assertAllClose(
      at(rate, 0, 2, 4, 8, 9), [2.0, 1.0 + 2**-0.5, 1.0, 0.0, 0.0]
    )

  def test_warm_up_rises_from_the_first_update_on(self):
    self.assertAllClose(
      at(rates.constant(1.0, warm_up_steps=4), 0, 1, 3, 4, 9),
      [0.25, 0.5, 1.0, 1.0, 1.0],
    )
    rate = rates.linear(1.0, num_steps=14, warm_up_steps=4)
    self.assertAllClose(at(rate, 1, 3, 4, 9, 14), [0.5, 1.0, 1.0, 0.5, 0.0])

  @parameterized.parameters(
    (dict(rate=0.0, num_steps=5), "`rate` must be above 0"),
    (dict(rate=1.0, num_steps=5, final_rate=-1.0), "`final_rate`.*-1.0"),
    (dict(rate=1.0, num_steps=3, warm_up_steps=3), "above `warm_up_steps`"),
    (dict(rate=1.0, num_steps=0), "got 0 and 0"),
  )
  def test_bad_values_are_refused(self, options, words):
    with self.assertRaisesRegex(ValueError, words):
      rates.linear(**options)


if __name__ == "__main__":
  tf.test.main()
