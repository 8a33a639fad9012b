"""Images have channels last, and fill the tiles of a core."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import hardware
from paragan_tf.data import batch_shape, sources

V3, A100, CPU = (
  hardware.PROFILES[name] for name in ("tpu_v3", "gpu_a100", "cpu")
)


class ChannelsLastTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    ([5, 3, 8, 6], True),
    ([5, 1, 8, 8], True),
    ([5, 8, 8, 3], False),
    ([5, 3, 3, 3], False),
    ([5, 8, 8, 1], False),
    ([5, 8, 8], False),
  )
  def test_channels_first_is_recognized(self, shape, expected):
    self.assertEqual(batch_shape.is_channels_first(shape), expected)

  def test_channels_move_to_the_end(self):
    pixels = np.arange(5 * 8 * 6 * 3, dtype=np.uint8).reshape(5, 8, 6, 3)
    first = np.moveaxis(pixels, -1, 1)
    self.assertAllEqual(batch_shape.to_channels_last(first), pixels)
    self.assertTrue(batch_shape.to_channels_last(first).flags["C_CONTIGUOUS"])
    self.assertIs(batch_shape.to_channels_last(pixels), pixels)

  def test_an_array_file_may_have_channels_first(self):
    path = os.path.join(self.get_temp_dir(), "images.npz")
    pixels = np.random.RandomState(0).randint(0, 256, [6, 8, 8, 3], np.uint8)
    np.savez(path, images=np.moveaxis(pixels, -1, 1))
    found = sources.npz(path, num_heldout=2)
    self.assertAllEqual(found.train.pixels, pixels[:4])


class BatchPerCoreTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    (V3, 16, 0, 16),
    (V3, 21, 0, 16),
    (V3, 5, 0, 5),
    (V3, 64, 0.5e9, 24),
    (V3, 64, 4.8e9, 3),
    (CPU, 21, 5e9, 21),
    (A100, 21, 0, 21),
    (A100, 64, 1.5e9, 27),
  )
  def test_it_fits_and_fills_tiles(
    self, profile, wanted, image_bytes, expected
  ):
    size = batch_shape.batch_per_core(profile, wanted, 2e9, image_bytes)
    self.assertEqual(size, expected)
    if profile.memory:
      self.assertLessEqual(2e9 + size * image_bytes, profile.memory)

  def test_an_impossible_batch_is_refused(self):
    with self.assertRaisesRegex(ValueError, "One image needs 22.0 GB"):
      batch_shape.batch_per_core(V3, 8, 2e9, 20e9)
    with self.assertRaisesRegex(ValueError, "`wanted` .* 0"):
      batch_shape.batch_per_core(V3, 0)


if __name__ == "__main__":
  tf.test.main()
