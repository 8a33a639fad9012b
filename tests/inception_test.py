"""The network of FID gives known answers, once its weights are there."""

import os

import numpy as np
import pytest
import tensorflow as tf

from paragan_tf.outputs import distances, inception, metrics, statistics
from tools import make_inception

HAS_WEIGHTS = os.path.exists(inception.DEFAULT_PATH)


def draw_noise(seed):
  """Two sets of 100 images, as torch draws them after `manual_seed(seed)`.

  torch takes the remainder of each number of the same Mersenne Twister.
  """
  rng = np.random.RandomState(seed)
  shape = (100, 3, 299, 299)
  for low, high in ((0, 200), (100, 255)):
    numbers = rng.randint(0, 2**32, shape, np.uint32)
    yield (numbers % (high - low) + low).astype(np.uint8).transpose(0, 2, 3, 1)


class WithoutWeightsTest(tf.test.TestCase):
  def test_missing_weights_say_what_to_run(self):
    with self.assertRaisesRegex(ValueError, "'/no.npz' .* `make inception`"):
      inception.Inception("/no.npz")

  def test_another_file_is_refused(self):
    path = os.path.join(self.get_temp_dir(), "other.npz")
    np.savez(path, x=np.zeros(3))
    with self.assertRaisesRegex(ValueError, "`make inception` wrote"):
      inception.Inception(path)

  def test_another_layer_is_refused(self):
    with self.assertRaisesRegex(ValueError, "768, 2048.*got 100"):
      inception.Inception(num_features=100)

  def test_an_altered_package_is_refused(self):
    with self.assertRaisesRegex(ValueError, "sha256 7ff4a85c.*got e3b0c442"):
      make_inception.convert(b"")


@pytest.mark.soak
@pytest.mark.skipif(not HAS_WEIGHTS, reason="`make inception` fetches them")
class KnownAnswersTest(tf.test.TestCase):
  def test_the_weights_are_those_of_fid(self):
    net = inception.Inception()
    self.assertEqual(net.sha256, inception.SHA256)
    self.assertEqual(metrics.name_for("fid", net), "fid")
    lower = inception.Inception(num_features=64)
    self.assertEqual(metrics.name_for("fid", lower), "frechet_inception64")

  def test_noise_has_the_distance_that_torchmetrics_documents(self):
    """It documents 12.64 and no seed; 123 gives 12.69, and 42 gives 12.67."""
    net = inception.Inception(num_features=64)
    a, b = (
      statistics.gather(net, lambda i, j, x=x: x[i:j], 100).moments
      for x in draw_noise(123)
    )
    distance = distances.frechet_from_moments(a, b)
    self.assertNear(distance, 12.6929, 1e-3)
    self.assertNear(distance, 12.6388, 0.1)

  def test_resizers_change_the_features(self):
    images = np.random.RandomState(0).uniform(-1, 1, (2, 32, 32, 3))
    found = [
      inception.Inception(resizer=name)(images.astype(np.float32)).features
      for name in ("tf-legacy", "pytorch", "clean")
    ]
    self.assertNotAllClose(found[0], found[1], atol=1e-2)
    self.assertNotAllClose(found[1], found[2], atol=1e-2)


if __name__ == "__main__":
  tf.test.main()
