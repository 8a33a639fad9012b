"""The twin follows G as the recursion says."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import ema
from tests import testing


class Weights(tf.Module):
  """A weight and a statistic, which is not trained."""

  def __init__(self, w, mean):
    super().__init__()
    self.w = tf.Variable(w, dtype=tf.float32)
    self.mean = tf.Variable(mean, dtype=tf.float32, trainable=False)

  def assign(self, w, mean):
    self.w.assign(w)
    self.mean.assign(mean)


class EmaTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("from_the_first_step", 0.9, 0),
    ("from_the_third_step", 0.9, 2),
    ("slowly", 0.99, 1),
    ("without_memory", 0.0, 2),
    ("never", 0.9, 100),
  )
  def test_twin_is_the_recursion(self, decay, start_step):
    random = np.random.RandomState(0)
    g, twin = Weights([0.0, 0.0], [0.0]), Weights([1.0, -2.0], [3.0])
    follow = tf.function(ema.Ema(g, twin, decay, start_step).update)
    w, mean = np.array([1.0, -2.0]), np.array([3.0])
    for step in range(6):
      new_w, new_mean = random.randn(2), random.randn(1)
      g.assign(new_w, new_mean)
      follow(tf.constant(step, tf.int64))
      memory = decay if step >= start_step else 0.0
      w = memory * w + (1 - memory) * new_w
      mean = memory * mean + (1 - memory) * new_mean
      self.assertAllClose(twin.w, w, rtol=1e-5, atol=1e-6)
      self.assertAllClose(twin.mean, mean, rtol=1e-5, atol=1e-6)
      self.assertAllClose(g.w, new_w)

  def test_base_weights_are_averaged_and_statistics_as_before(self):
    g, twin = Weights([1.0, 2.0], [3.0]), Weights([0.0, 0.0], [0.0])
    base = tf.Variable([5.0, 6.0])
    made = ema.Ema(g, twin, decay=0.5, start_step=0)
    made.follow([g.w], [base])
    made.update(tf.constant(0, tf.int64))
    self.assertAllEqual(twin.w, [2.5, 3.0])
    self.assertAllEqual(twin.mean, [1.5])

  def test_until_the_start_twin_is_a_copy_to_the_last_bit(self):
    # A million apart: what is computed as a difference loses the small one.
    g, twin = Weights([0.1, 1e-3], [0.7]), Weights([1e5, -1e6], [3e7])
    average = ema.Ema(g, twin, decay=0.9, start_step=2)
    average.update(tf.constant(1, tf.int64))
    self.assertAllEqual(twin.w, g.w)
    self.assertAllEqual(twin.mean, g.mean)
    g.assign([1.0, 1.0], [1.0])
    average.update(tf.constant(2, tf.int64))
    self.assertNotAllClose(twin.w, g.w)

  def test_a_weight_that_stands_still_is_kept_to_the_last_bit(self):
    w = testing.z(1)[0]
    g, twin = Weights(w, w), Weights(w, w)
    average = ema.Ema(g, twin, decay=0.999, start_step=3)
    for step in range(6):
      average.update(tf.constant(step, tf.int64))
    self.assertAllEqual(twin.w, w)

  @parameterized.named_parameters(
    ("decay_of_one", {"decay": 1.0}, "`decay`.*1.0"),
    ("negative_decay", {"decay": -0.1}, "`decay`.*-0.1"),
    ("negative_start", {"start_step": -1}, "`start_step`.*-1"),
  )
  def test_bad_values_are_refused(self, options, message):
    g = Weights([0.0], [0.0])
    with self.assertRaisesRegex(ValueError, message):
      ema.Ema(g, Weights([0.0], [0.0]), **options)


if __name__ == "__main__":
  tf.test.main()
