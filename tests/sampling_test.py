"""Samples depend on seed, position and label, not on replicas."""

import numpy as np
import tensorflow as tf

from paragan_tf.engine import strategies
from paragan_tf.engine.sampling import Sampler, draw_codes
from paragan_tf.nets import linear
from tests import testing


def sampler(strategy):
  """Returns a sampler of a linear G with given weights."""
  with strategies.scope(strategy):
    g = linear.Generator(testing.SPEC, seed=1)
  return Sampler(strategy, g, conditional=True, batch_size=6)


class SamplingTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.one = sampler(tf.distribute.get_strategy())
    self.labels = np.array([0, 1, 2, 0, 1, 2, 0])

  def test_one_image_a_label(self):
    images = self.one(self.labels, seed=5)
    self.assertEqual(images.shape, (7, 8, 8, 1))
    self.assertAllInRange(images, -1.0, 1.0)

  def test_the_same_call_gives_the_same_images(self):
    first, second = (self.one(self.labels, seed=5) for _ in range(2))
    self.assertAllEqual(first, second)
    self.assertNotAllClose(first, self.one(self.labels, seed=6))
    self.assertNotAllClose(first, self.one(self.labels, seed=5, start=6))

  def test_labels_matter(self):
    other = self.one((self.labels + 1) % 3, seed=5)
    self.assertNotAllClose(other, self.one(self.labels, seed=5))

  def test_classes_may_be_mixed(self):
    ids = self.one(self.labels, seed=5)
    shares = np.eye(3)[self.labels]
    self.assertAllClose(self.one(shares, seed=5), ids, atol=1e-6)
    mixed = self.one(0.5 * shares + 0.5 * shares[::-1], seed=5)
    self.assertNotAllClose(mixed, ids, atol=1e-3)

  def test_codes_are_those_of_the_samples(self):
    z = self.one.codes(7, seed=5)  # More than one batch.
    self.assertEqual(z.shape, (7, self.one.z_dim))
    self.assertAllClose(
      self.one(self.labels, seed=6, z=z), self.one(self.labels, seed=5)
    )

  def test_a_sample_does_not_depend_on_the_batch_or_on_how_many_there_are(self):
    labels = np.resize(self.labels, 300)  # More than a block of codes.
    whole = self.one(labels, seed=5)
    strategy = tf.distribute.get_strategy()
    for size in (4, 16, 256):
      other = Sampler(strategy, self.one._g, True, size)
      self.assertAllClose(other(labels[:9], seed=5), whole[:9], atol=1e-6)
    self.assertAllEqual(self.one(labels[:5], seed=5), whole[:5])
    late = self.one(labels[250:260], seed=5, start=250)
    self.assertAllClose(late, whole[250:260], atol=1e-6)

  def test_codes_are_those_of_earlier_releases(self):
    # Blocks of 256, so that recorded metrics can be measured again.
    for start in (0, 256):
      expected = tf.random.stateless_normal([256, 4], [5, start], alg="philox")
      self.assertAllEqual(self.one.codes(256, 5, start), expected)

  def test_codes_can_be_traced_with_a_seed_and_a_number_of_tensors(self):
    @tf.function
    def traced(seed, num):
      return draw_codes(seed, 0, num, 4, truncation=2.0)

    for num in (1, 256, 300):
      self.assertAllEqual(
        traced(tf.constant(7, tf.int64), tf.constant(num)),
        draw_codes(7, 0, num, 4, truncation=2.0),
      )

  def test_truncated_codes_are_not_clipped(self):
    z = draw_codes(3, 0, 4000, 4, truncation=1.0).numpy()
    self.assertAllInRange(z, -1.0, 1.0)
    # A normal distribution cut off at 1 has the variance
    # 1 - 2 phi(1) / (2 Phi(1) - 1) = 1 - 2 x .24197 / .68269.
    self.assertAllClose(z.var(), 0.29112, atol=0.01)
    self.assertLess(np.mean(np.abs(z) > 0.99), 0.02)
    wide = draw_codes(3, 0, 4000, 4, truncation=8.0).numpy()
    self.assertAllClose(wide.var(), 1.0, atol=0.03)
    for wrong in (0, -1.0, float("nan")):
      with self.assertRaisesRegex(ValueError, "`truncation` must be .* got"):
        Sampler(
          tf.distribute.get_strategy(), self.one._g, True, truncation=wrong
        )

  def test_replicas_share_the_work_and_change_nothing(self):
    # Four replicas draw 8 at a time, and one draws 6.
    images = sampler(testing.strategy())(self.labels, seed=5)
    self.assertEqual(images.shape, (7, 8, 8, 1))
    self.assertAllClose(images, self.one(self.labels, seed=5), atol=1e-6)


if __name__ == "__main__":
  tf.test.main()
