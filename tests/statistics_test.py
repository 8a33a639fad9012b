"""Statistics of images are computed once, and read from files of others."""

import glob
import os

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import distances, statistics
from paragan_tf.outputs.statistics import ImageSet
from tests.features_test import classifier, draw_embedded
from tests.metrics_test import MeanExtractor, half_images


class StatisticsTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.labels = np.arange(40) % 2
    self.images = half_images(self.labels, 0)
    self.extractor = MeanExtractor()
    self.folder = os.path.join(self.get_temp_dir(), self.id())

  def gather(self, images, size, **kwargs):
    return statistics.gather(
      self.extractor,
      lambda i, j: images[i:j],
      len(images),
      batch_size=size,
      **kwargs,
    )

  def cached(self, labels=None, images=None, split="train"):
    images = self.images if images is None else images
    return statistics.cached(
      self.folder, self.extractor, ImageSet(images, labels, split)
    )

  def assert_same(self, a, b):
    for x, y in zip(tf.nest.flatten(a[:-1]), tf.nest.flatten(b[:-1])):
      if x is None or y is None:
        self.assertIs(x, y)
      else:
        self.assertAllClose(x, y, rtol=1e-9, atol=1e-9)
    self.assertEqual(a.origin, b.origin)

  def test_batches_and_order_do_not_matter(self):
    whole = self.gather(self.images, 40)
    self.assert_same(whole, self.gather(self.images, 7))
    turned = self.gather(self.images[::-1], 7).moments
    self.assertAllClose(turned.mean, whole.moments.mean, atol=1e-9)
    self.assertAllClose(turned.covariance, whole.moments.covariance, atol=1e-9)

  def test_a_bounded_number_of_features_is_kept(self):
    found = self.gather(self.images, 7, max_features=10, labels=self.labels)
    whole = self.gather(self.images, 7, labels=self.labels)
    self.assertEqual(found.features.shape, (10, 2))
    self.assertEqual(found.logits.shape, (10, 2))
    # At random, as the images may be in the order of their classes.
    self.assertNotAllEqual(found.features, whole.features[:10])
    self.assertLen(found.labels, 10)
    self.assertAllEqual(found.moments.mean, whole.moments.mean)
    for row, label in zip(found.features, found.labels):
      same = np.all(whole.features == row, axis=1)
      self.assertIn(label, whole.labels[same])

  def test_a_second_call_reads_the_file(self):
    first = self.cached(self.labels)
    calls = len(self.extractor.batches)
    self.assert_same(first, self.cached(self.labels))
    self.assertLen(self.extractor.batches, calls)
    self.assertLen(glob.glob(f"{self.folder}/*"), 1)  # And no part of one.

  def test_anything_else_has_a_file_of_its_own(self):
    self.cached()
    self.cached(self.labels)
    self.cached(images=self.images[:30])
    self.cached(images=self.images + 0.01)
    height, width = self.images.shape[1:3]
    self.cached(images=self.images.reshape([-1, height * 2, width // 2, 1]))
    self.cached(split="test")
    for name, value in (("sha256", "ef" * 32), ("resizer", "other")):
      setattr(self.extractor, name, value)
      self.cached()
    self.assertLen(glob.glob(f"{self.folder}/*.npz"), 8)

  def test_statistics_of_other_projects_are_read(self):
    path = os.path.join(self.get_temp_dir(), "theirs.npz")
    np.savez(path, mu=np.arange(3.0), sigma=np.eye(3))
    found = statistics.load(path)
    self.assertAllEqual(found.moments.mean, [0, 1, 2])
    self.assertAllEqual(found.moments.covariance, np.eye(3))
    self.assertIsNone(found.features)
    self.assertEqual(found.origin.split, "theirs.npz")

  def test_files_without_statistics_are_refused(self):
    path = os.path.join(self.get_temp_dir(), "wrong.npz")
    np.savez(path, mu=np.zeros(3))
    with self.assertRaisesRegex(ValueError, "`mu` and `sigma`, got .*'mu'"):
      statistics.load(path)
    np.savez(path, mu=np.zeros(3), sigma=np.eye(4))
    with self.assertRaisesRegex(ValueError, r"got \(3,\) and \(4, 4\)"):
      statistics.load(path)
    with open(path, "w") as f:
      f.write("words")
    with self.assertRaisesRegex(ValueError, "cannot be read"):
      statistics.load(path)
    with self.assertRaisesRegex(ValueError, "no statistics at"):
      statistics.load(f"{path}.not")

  def test_too_few_images_are_refused(self):
    with self.assertRaisesRegex(ValueError, "At least 2 images .* got 1"):
      self.gather(self.images[:1], 1)

  def test_images_with_other_channels_are_refused(self):
    self.extractor.channels = (3,)
    with self.assertRaisesRegex(ValueError, "`mean` takes .* 3 .* got 1"):
      self.gather(self.images, 7)

  def test_samples_are_rounded_as_in_a_file(self):
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    floats = pixels / 127.5 - 1.0
    nearby = floats + np.random.RandomState(0).uniform(-0.003, 0.003)
    expected = statistics.to_floats(pixels)
    self.assertAllClose(expected, floats)
    self.assertAllEqual(statistics.to_floats(nearby), expected)


class DamageTest(tf.test.TestCase):
  def test_more_blur_and_noise_are_farther_away(self):
    images, _ = draw_embedded(1500)
    real, clean = images[:1000], images[1000:]
    noise = np.random.RandomState(0).normal(size=clean.shape)

    def blur(x, times):
      for _ in range(times):
        x = sum(np.roll(x, s, axis) for s in (-1, 0, 1) for axis in (1, 2)) / 6
      return x

    def measure(x):
      return statistics.gather(classifier(), lambda i, j: x[i:j], len(x))

    reference = measure(real)
    for damage in (
      lambda strength: blur(clean, strength),
      lambda strength: clean + 0.15 * strength * noise,
    ):
      found = [measure(damage(strength)) for strength in (0, 1, 3)]
      for distance in (
        [
          distances.frechet_from_moments(x.moments, reference.moments)
          for x in found
        ],
        [
          distances.kernel_distance(x.features, reference.features, 300, 10)[0]
          for x in found
        ],
        [
          distances.monge_distance(x.features, reference.features, 100)
          for x in found
        ],
      ):
        self.assertEqual(distance, sorted(distance))
        self.assertGreater(distance[2], 1.5 * distance[0])


if __name__ == "__main__":
  tf.test.main()
