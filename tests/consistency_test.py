"""Consistency by hand; penalties_test has the tests of all penalties."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import consistency
from tests import testing


def logits(d, images):
  """Returns D's logits, by hand."""
  x = np.reshape(images, [len(images), -1]).astype(np.float64)
  return x @ d.w.numpy() + d.q.numpy() * (x**2).sum(1) / 2


def change(d, images, others):
  return ((logits(d, images) - logits(d, others)) ** 2).mean()


def flip_and_shift_by_hand(image, flipped, dy, dx):
  """Returns an image with a gray border, flipped and shifted."""
  ground = np.zeros([16, 16, 1], np.float32)
  ground[4 + dy : 12 + dy, 4 + dx : 12 + dx] = image[:, :: -1 if flipped else 1]
  return ground[4:12, 4:12]


def ways(image, other):
  """Returns the flips and shifts that map one image to another."""
  return [
    (flipped, dy, dx)
    for flipped in (False, True)
    for dy in range(-4, 5)
    for dx in range(-4, 5)
    if np.array_equal(flip_and_shift_by_hand(image, flipped, dy, dx), other)
  ]


class ConsistencyTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.d, self.g = testing.Judge(), testing.Maker()
    self.view = testing.view(self.d, self.g)
    self.d.seen.clear()
    self.d.labels.clear()

  def assert_moved(self, images, others):
    found = [ways(*pair) for pair in zip(np.array(images), np.array(others))]
    self.assertTrue(all(len(way) == 1 for way in found), found)
    self.assertGreater(len({way[0] for way in found}), 3)
    return found

  def test_cr_compares_real_images_flipped_and_shifted(self):
    value = consistency.Consistency(weight=2.0)(self.view)
    (moved,) = self.d.seen
    images = self.view.batch.images
    self.assert_moved(images, moved)
    self.assertAllClose(value, 2.0 * change(self.d, images, moved), rtol=1e-4)
    self.assertAllEqual(self.d.labels, [self.view.batch.labels])

  def test_bcr_also_compares_fakes_with_their_own_draws(self):
    made = consistency.BalancedConsistency(real_weight=2.0, fake_weight=3.0)
    value = made(self.view)
    moved_real, moved_fake = self.d.seen
    images, fakes = self.view.batch.images, self.view.fakes
    ways_real = self.assert_moved(images, moved_real)
    ways_fake = self.assert_moved(fakes, moved_fake)
    self.assertNotEqual(ways_real, ways_fake)
    labels = [self.view.batch.labels, self.view.fake_labels]
    self.assertAllEqual(self.d.labels, labels)
    expected = 2.0 * change(self.d, images, moved_real)
    expected += 3.0 * change(self.d, fakes, moved_fake)
    self.assertAllClose(value, expected, rtol=1e-4)

  def test_penalty_of_an_invariant_d_is_zero(self):
    self.d.w.assign(tf.zeros_like(self.d.w))
    self.d.q.assign(0.0)
    view = testing.view(self.d, self.g)
    for make in (consistency.Consistency, consistency.BalancedConsistency):
      self.assertAllEqual(make()(view), 0.0)

  @parameterized.named_parameters(("d", "d"), ("g", "g"))
  def test_zcr_compares_fakes_of_perturbed_codes(self, who):
    made = consistency.LatentConsistency(2.0, 3.0, deviation=0.1)
    value = made(self.view._replace(who=who))
    z, near = self.g.seen
    self.assertAllClose((near - z).numpy().std(), 0.1, rtol=0.4)
    for labels in (self.g.labels[-1], *self.d.labels):
      self.assertAllEqual(labels, self.view.fake_labels)
    fakes, others = self.view.fakes, self.g(near, None)
    if who == "d":
      expected = 2.0 * change(self.d, fakes, others)
    else:
      expected = -3.0 * ((fakes - others).numpy() ** 2).mean()
    self.assertAllClose(value, expected, rtol=1e-4)
    self.assertGreater(abs(expected), 1e-3)

  def test_zcr_is_positive_for_d_and_negative_for_g(self):
    made = consistency.LatentConsistency()
    self.assertAllGreater(made(self.view), 0.0)
    self.assertAllLess(made(self.view._replace(who="g")), 0.0)

  def test_zcr_without_g_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`LatentConsistency` needs both"):
      consistency.LatentConsistency()(self.view._replace(g=None))

  @parameterized.named_parameters(
    ("cr", consistency.Consistency, "weight"),
    ("bcr_real", consistency.BalancedConsistency, "real_weight"),
    ("bcr_fake", consistency.BalancedConsistency, "fake_weight"),
    ("zcr_d", consistency.LatentConsistency, "d_weight"),
    ("zcr_g", consistency.LatentConsistency, "g_weight"),
    ("zcr_noise", consistency.LatentConsistency, "deviation"),
  )
  def test_bad_values_are_refused(self, make, name):
    with self.assertRaisesRegex(ValueError, f"`{name}` must be above 0.*-1.0"):
      make(**{name: -1.0})


if __name__ == "__main__":
  testing.main()
