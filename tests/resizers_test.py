"""Resizers have the results of the programs they are named after."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf.outputs import resizers


def ramp(values):
  """An image whose columns have these values, `[1, n, n, 1]`."""
  row = np.asarray(values, np.float32)
  image = np.broadcast_to(row[None, None, :, None], (1, *[len(row)] * 2, 1))
  return tf.constant(image)


def draw(h, w):
  return np.random.RandomState(0).uniform(0, 255, (h, w)).astype(np.float32)


class ResizersTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    # Column i of 4 is at i * 2 / 4 of 2 columns.
    ("legacy", "tf-legacy", [0, 100], 4, [0, 50, 100, 100]),
    ("legacy_down", "tf-legacy", [0, 10, 20, 30], 2, [0, 20]),
    # Column i of 4 is at (i + 1/2) / 2 - 1/2.
    ("pytorch", "pytorch", [0, 100], 4, [0, 25, 75, 100]),
    # No antialiasing: (i + 1/2) * 2 - 1/2, between two columns of four.
    ("pytorch_down", "pytorch", [0, 10, 20, 30], 2, [5, 25]),
  )
  def test_ramps(self, name, values, size, expected):
    found = resizers.find(name)(ramp(values), size)
    for row in found[0, :, :, 0]:
      self.assertAllClose(row, expected, atol=1e-4)

  @parameterized.parameters((32, 299), (299, 64), (20, 13), (7, 7))
  def test_clean_is_pil_in_float(self, side, size):
    image = draw(side, side)
    expected = Image.fromarray(image).resize((size, size), Image.BICUBIC)
    found = resizers.clean(tf.constant(image[None, :, :, None]), size)
    self.assertAllClose(
      found[0, :, :, 0], np.clip(np.asarray(expected), 0, 255), atol=2e-2
    )

  @parameterized.parameters(*resizers.RESIZERS)
  def test_the_same_size_changes_nothing(self, name):
    image = draw(9, 9)[None, :, :, None]
    found = resizers.find(name)(tf.constant(image), 9)
    self.assertAllClose(found, image, atol=1e-3)

  def test_an_unknown_name_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'clean', got 'nearest'"):
      resizers.find("nearest")


if __name__ == "__main__":
  tf.test.main()
