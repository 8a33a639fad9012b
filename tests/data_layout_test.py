"""Channels last, and how many images a core has."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import hardware
from paragan_tf.data import layout, sources

V3, A100, CPU = (
  hardware.PROFILES[name] for name in ("tpu_v3", "gpu_a100", "cpu")
)


class OrderTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    ([5, 3, 8, 6], True),
    ([5, 1, 8, 8], True),
    ([5, 8, 8, 3], False),
    ([5, 3, 3, 3], False),
    ([5, 8, 8, 1], False),
    ([5, 8, 8], False),
  )
  def test_what_is_channels_first(self, shape, expected):
    self.assertEqual(layout.is_channels_first(shape), expected)

  def test_there_and_back(self):
    pixels = np.arange(5 * 8 * 6 * 3, dtype=np.uint8).reshape(5, 8, 6, 3)
    first = np.moveaxis(pixels, -1, 1)
    self.assertAllEqual(layout.channels_last(first), pixels)
    self.assertTrue(layout.channels_last(first).flags["C_CONTIGUOUS"])
    self.assertIs(layout.channels_last(pixels), pixels)

  def test_an_array_file_may_be_either(self):
    path = os.path.join(self.get_temp_dir(), "images.npz")
    pixels = np.random.RandomState(0).randint(0, 256, [6, 8, 8, 3], np.uint8)
    np.savez(path, images=np.moveaxis(pixels, -1, 1))
    found = sources.npz(path, num_heldout=2)
    self.assertAllEqual(found.train.pixels, pixels[:4])


class CoreBatchTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    (V3, 16, 0, 16),
    (V3, 21, 0, 16),
    (V3, 5, 0, 5),
    (V3, 64, 0.5e9, 24),
    (V3, 64, 5e9, 3),
    (CPU, 21, 5e9, 21),
    (A100, 21, 0, 16),
    (A100, 64, 1.5e9, 24),
  )
  def test_it_fits_and_fills_tiles(
    self, profile, wanted, image_bytes, expected
  ):
    size = layout.core_batch(profile, wanted, 2e9, image_bytes)
    self.assertEqual(size, expected)
    if profile.memory:
      self.assertLessEqual(2e9 + size * image_bytes, profile.memory)

  def test_what_cannot_be_is_refused(self):
    with self.assertRaisesRegex(ValueError, "One image needs 22.0 GB"):
      layout.core_batch(V3, 8, 2e9, 20e9)
    with self.assertRaisesRegex(ValueError, "`wanted` .* 0"):
      layout.core_batch(V3, 0)


if __name__ == "__main__":
  tf.test.main()
