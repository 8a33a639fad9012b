"""Grids have the right pixels, and files are written atomically."""

import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf.outputs import records, samples


def flat(values, channels=1):
  """Returns images of one by two pixels, each of one value."""
  return np.array(values, np.float32)[:, None, None, None] * np.ones(
    [1, 1, 2, channels], np.float32
  )


class GridTest(tf.test.TestCase, parameterized.TestCase):
  def test_three_images_in_two_columns(self):
    picture = samples.grid(flat([-1, 0, 1]), columns=2)
    self.assertEqual(picture.dtype, np.uint8)
    self.assertAllEqual(
      picture[..., 0],
      [
        [0, 0, 255, 128, 128],
        [255, 255, 255, 255, 255],
        [255, 255, 255, 255, 255],
      ],
    )

  def test_images_go_row_by_row_and_keep_their_orientation(self):
    images = (np.arange(4 * 2 * 3 * 3).reshape([4, 2, 3, 3]) / 127.5) - 1
    picture = samples.grid(images, columns=2)
    self.assertEqual(picture.shape, (5, 7, 3))
    pixels = np.arange(4 * 2 * 3 * 3).reshape([4, 2, 3, 3])
    self.assertAllEqual(picture[:2, :3], pixels[0])
    self.assertAllEqual(picture[:2, 4:], pixels[1])
    self.assertAllEqual(picture[3:, :3], pixels[2])
    self.assertAllEqual(picture[3:, 4:], pixels[3])
    self.assertAllEqual(picture[2], np.full([7, 3], 255))
    self.assertAllEqual(picture[:, 3], np.full([5, 3], 255))

  @parameterized.named_parameters(
    ("float16", np.float16, 1),
    ("float32", np.float32, 0),
    ("float64", np.float64, 0),
  )
  def test_every_pixel_value_is_preserved(self, dtype, tolerance):
    pixels = np.arange(256)
    images = (pixels / 127.5 - 1).astype(dtype).reshape([1, 16, 16, 1])
    picture = samples.grid(images, columns=1).reshape([256]).astype(int)
    self.assertAllInRange(picture - pixels, -tolerance, tolerance)

  @parameterized.named_parameters(
    ("nan", np.nan, 128),
    ("infinity", np.inf, 255),
    ("minus_infinity", -np.inf, 0),
    ("above", 1.01, 255),
    ("far_above", 3e38, 255),
    ("below", -1.01, 0),
  )
  def test_values_outside_do_not_wrap(self, value, expected):
    picture = samples.grid(flat([value]), columns=1)
    self.assertAllEqual(picture, np.full([1, 2, 1], expected))

  def test_pixels_stay_as_they_are(self):
    pixels = np.arange(256, dtype=np.uint8).reshape([1, 16, 16, 1])
    self.assertAllEqual(samples.grid(pixels, 1), pixels[0])

  @parameterized.parameters(
    (0, 64, 8),
    (1, 64, 8),
    (2, 64, 8),
    (3, 64, 9),
    (10, 64, 10),
    (10, 4, 10),
    (100, 64, 8),
    (2, 3, 2),
    (0, 1, 1),
    (0, 5, 3),
  )
  def test_each_class_has_its_columns(self, num_classes, num, columns):
    self.assertEqual(samples.columns_for(num_classes, num), columns)

  def test_fewer_images_than_columns_leave_no_empty_columns(self):
    self.assertEqual(samples.grid(flat([0, 0]), 8).shape, (1, 5, 1))

  @parameterized.named_parameters(
    ("none", np.zeros([0, 2, 2, 3]), 1, r"`images`.*\[0, 2, 2, 3\]"),
    ("two_channels", np.zeros([1, 2, 2, 2]), 1, r"`images`.*\[1, 2, 2, 2\]"),
    ("no_batch", np.zeros([2, 2, 3]), 1, r"`images`.*\[2, 2, 3\]"),
    ("no_columns", np.zeros([1, 2, 2, 3]), 0, "`columns`.*got 0"),
  )
  def test_bad_images_and_columns_are_refused(self, images, columns, message):
    with self.assertRaisesRegex(ValueError, message):
      samples.grid(images, columns)


class PngTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(("gray", 1, "L"), ("color", 3, "RGB"))
  def test_file_holds_the_pixels_enlarged(self, channels, mode):
    picture = np.arange(3 * 2 * channels).reshape([3, 2, channels])
    picture = picture.astype(np.uint8)
    path = os.path.join(self.get_temp_dir(), "new", "grid.png")
    samples.write_png(path, picture, scale=3)
    with Image.open(path) as image:
      self.assertEqual(image.mode, mode)
      self.assertEqual(image.size, (6, 9))
      pixels = np.array(image).reshape([9, 6, channels])
    self.assertAllEqual(pixels, np.kron(picture, np.ones([3, 3, 1])))

  def test_failed_write_leaves_the_old_file_and_nothing_else(self):
    folder = self.get_temp_dir()
    path = os.path.join(folder, "grid.png")
    samples.write_png(path, np.zeros([1, 1, 3], np.uint8))
    with open(path, "rb") as f:
      before = f.read()
    self.enter_context(
      mock.patch.object(tf.io.gfile, "rename", side_effect=OSError("full"))
    )
    with self.assertRaisesRegex(OSError, "full"):
      samples.write_png(path, np.ones([1, 1, 3], np.uint8))
    with open(path, "rb") as f:
      self.assertEqual(f.read(), before)
    self.assertEqual(os.listdir(folder), ["grid.png"])

  def test_reader_never_sees_an_incomplete_file(self):
    path = os.path.join(self.get_temp_dir(), "grid.png")
    rename, seen = tf.io.gfile.rename, []

    def look_then_rename(source, target, overwrite):
      seen.append((os.path.exists(path), os.path.getsize(source)))
      rename(source, target, overwrite)

    with mock.patch.object(tf.io.gfile, "rename", look_then_rename):
      samples.write_png(path, np.zeros([4, 4, 3], np.uint8))
    self.assertEqual(seen, [(False, os.path.getsize(path))])

  def test_grids_are_found_by_step(self):
    folder = self.get_temp_dir()
    self.assertEqual(samples.png_paths(folder), {})
    for step in (1200, 123456789, 50, 20000000):
      path = samples.png_path(folder, step)
      samples.write_png(path, np.zeros([1, 1, 1], np.uint8))
    for name in ("00000007.png.part1", "best.png", "7.txt"):
      records.write_file(f"{folder}/samples/{name}", b"")
    self.assertEqual(
      list(samples.png_paths(folder).items()),
      [
        (50, f"{folder}/samples/00000050.png"),
        (1200, f"{folder}/samples/00001200.png"),
        (20000000, f"{folder}/samples/20000000.png"),
        (123456789, f"{folder}/samples/123456789.png"),
      ],
    )

  @parameterized.named_parameters(
    ("digits", 8, 12),
    ("fashion", 28, 4),
    ("tiny", 64, 2),
    ("large", 96, 1),
    ("larger", 256, 1),
  )
  def test_small_images_are_enlarged(self, resolution, expected):
    self.assertEqual(samples.scale_for(resolution), expected)

  @parameterized.named_parameters(
    ("scale", np.zeros([1, 1, 3], np.uint8), 0, "`scale`.*got 0"),
    ("floats", np.zeros([1, 1, 3]), 1, "`pixels`.*float64"),
    ("alpha", np.zeros([1, 1, 4], np.uint8), 1, r"`pixels`.*\[1, 1, 4\]"),
  )
  def test_bad_pictures_and_scales_are_refused(self, picture, scale, message):
    path = os.path.join(self.get_temp_dir(), "grid.png")
    with self.assertRaisesRegex(ValueError, message):
      samples.write_png(path, picture, scale)
    self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
  tf.test.main()
