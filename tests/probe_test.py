"""A probe separates classes whose features differ."""

import numpy as np
import tensorflow as tf

from paragan_tf.outputs.probe import Probe


def clusters(num, seed, distance=3.0):
  """Returns features around one center per class, and the class ids."""
  rng = np.random.RandomState(seed)
  labels = rng.randint(0, 4, num)
  centers = np.random.RandomState(9).normal(size=[4, 6])
  return distance * centers[labels] + rng.normal(size=[num, 6]), labels


class ProbeTest(tf.test.TestCase):
  def test_new_images_of_the_classes_are_recognized(self):
    probe = Probe(*clusters(400, 0))
    features, labels = clusters(400, 1)
    self.assertEqual(probe(features).shape, (400, 4))
    self.assertGreater(np.mean(probe(features).argmax(1) == labels), 0.9)

  def test_classes_with_equal_features_are_not_recognized(self):
    probe = Probe(*clusters(400, 0, distance=0.0))
    features, labels = clusters(400, 1, distance=0.0)
    self.assertAllClose(
      np.mean(probe(features).argmax(1) == labels), 0.25, atol=0.08
    )

  def test_the_scale_of_a_feature_does_not_matter(self):
    features, labels = clusters(100, 0)
    scale = 10.0 ** np.arange(6) + 5.0
    self.assertAllClose(
      Probe(features, labels)(features),
      Probe(scale * features - 7.0, labels)(scale * features - 7.0),
      atol=1e-4,
    )

  def test_mean_scores_equal_mean_labels_on_the_training_images(self):
    features, labels = clusters(100, 0)
    means = Probe(features, labels)(features).mean(0)
    self.assertAllClose(means, np.bincount(labels) / 100.0)


if __name__ == "__main__":
  tf.test.main()
