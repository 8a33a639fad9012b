"""Sources return their images, and refuse files that do not fit."""

import importlib.resources
import os
import re

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import sources

FASHION = (
  "T-shirt/top",
  "Trouser",
  "Pullover",
  "Dress",
  "Coat",
  "Sandal",
  "Shirt",
  "Sneaker",
  "Bag",
  "Ankle boot",
)


def overwrite(content, at):
  return content[:at] + bytes(16) + content[at + 16 :]


class FashionTest(tf.test.TestCase, parameterized.TestCase):
  def test_counts_types_and_names(self):
    source = sources.fashion()
    self.assertEqual(source.name, "fashion")
    self.assertEqual(source.label_names, FASHION)
    for part, num in ((source.train, 8000), (source.heldout, 2000)):
      self.assertEqual(part.pixels.shape, (num, 32, 32, 1))
      self.assertEqual(part.pixels.dtype, np.uint8)
      self.assertEqual(part.labels.shape, (num,))
      self.assertEqual(part.labels.dtype, np.int32)
      # Drawn at random from equal classes.
      counts = np.bincount(part.labels, minlength=10)
      self.assertAllInRange(counts, 0.85 * num / 10, 1.15 * num / 10)

  def test_every_image_is_in_one_split_with_black_around_it(self):
    source = sources.fashion()
    files = importlib.resources.files("paragan_tf.data") / "files"
    with (files / "fashion_mnist.npz").open("rb") as f, np.load(f) as arrays:
      images, labels = arrays["images"], arrays["labels"]
    pixels = np.concatenate([source.train.pixels, source.heldout.pixels])
    self.assertAllEqual(pixels[:, 2:30, 2:30, 0], images)
    total = images.sum(dtype=np.int64)
    self.assertEqual(pixels.sum(dtype=np.int64), total)
    self.assertGreater(total, 0)
    self.assertAllEqual(
      np.concatenate([source.train.labels, source.heldout.labels]), labels
    )

  def test_heldout_is_as_large_as_asked(self):
    source = sources.fashion(num_heldout=100)
    self.assertLen(source.train.pixels, 9900)
    self.assertLen(source.heldout.pixels, 100)
    self.assertLen(source.heldout.labels, 100)

  @parameterized.named_parameters(
    ("none", 0), ("one", 1), ("negative", -3), ("all", 10000)
  )
  def test_heldout_must_leave_images_on_both_sides(self, num_heldout):
    with self.assertRaisesRegex(ValueError, f"`num_heldout`.*{num_heldout}"):
      sources.fashion(num_heldout)


class TextTest(tf.test.TestCase, parameterized.TestCase):
  def test_a_text_names_a_source(self):
    path = os.path.join(self.get_temp_dir(), "x.npy")
    np.save(path, np.arange(20 * 16, dtype=np.uint8).reshape([20, 4, 4]))
    with gin.unlock_config():
      gin.parse_config("npy.num_heldout = 5")
    try:
      source = sources.from_text(f"npy:{path}")
    finally:
      gin.clear_config()
    self.assertEqual(source.train.pixels.shape, (15, 4, 4, 1))
    self.assertEqual(source.label_names, ())
    self.assertEqual(sources.from_text("fashion").name, "fashion")

  def test_labels_of_an_array_are_an_array(self):
    folder = self.get_temp_dir()
    np.save(f"{folder}/x.npy", np.zeros([20, 4, 4, 3], np.uint8))
    np.save(f"{folder}/y.npy", np.arange(20) % 3)
    source = sources.npy(f"{folder}/x.npy", f"{folder}/y.npy", 2)
    self.assertAllEqual(source.train.labels, np.arange(18) % 3)
    self.assertLen(source.label_names, 3)

  @parameterized.parameters("cat", "folder", "folder:", "fashion:x", "zip:y")
  def test_a_text_that_names_no_source_is_refused(self, text):
    words = f"`source` must be one of fashion, npz:.*got '{text}'"
    with self.assertRaisesRegex(ValueError, words):
      sources.from_text(text)

  def test_an_array_that_cannot_be_read_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, "npy file that can be read.*no.npy"
    ):
      sources.npy("no.npy")


class NpzTest(tf.test.TestCase, parameterized.TestCase):
  def path(self, **arrays):
    path = os.path.join(self.get_temp_dir(), "set.npz")
    np.savez_compressed(path, **arrays)
    return path

  def write_damaged(self, damage):
    """Writes a file whose bytes went through `damage`; returns its path."""
    random = np.random.RandomState(0)
    path = self.path(
      images=random.randint(4, size=[20, 8, 8]).astype(np.uint8),
      labels=np.arange(20),
    )
    with open(path, "rb") as f:
      content = f.read()
    with open(path, "wb") as f:
      f.write(damage(content))
    return path

  def assert_refused(self, path, rule):
    with self.assertRaisesRegex(ValueError, rule) as caught:
      sources.npz(path, num_heldout=2)
    self.assertIn(path, str(caught.exception))

  @parameterized.named_parameters(
    ("grey_without_axis", [5, 4, 6], [4, 6, 1]),
    ("grey", [5, 4, 6, 1], [4, 6, 1]),
    ("color", [5, 4, 6, 3], [4, 6, 3]),
  )
  def test_the_last_images_are_held_out(self, shape, image_shape):
    pixels = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    path = self.path(images=pixels, labels=np.array([2, 0, 1, 1, 0], np.uint8))
    source = sources.npz(path, num_heldout=2)
    pixels = pixels.reshape([5, *image_shape])
    self.assertAllEqual(source.train.pixels, pixels[:3])
    self.assertAllEqual(source.heldout.pixels, pixels[3:])
    self.assertAllEqual(source.train.labels, [2, 0, 1])
    self.assertAllEqual(source.heldout.labels, [1, 0])
    self.assertEqual(source.train.labels.dtype, np.int32)
    self.assertEqual(source.label_names, ("0", "1", "2"))
    self.assertEqual(source.name, "set.npz")

  def test_labels_may_be_missing(self):
    path = self.path(images=np.zeros([5, 4, 4], np.uint8))
    source = sources.npz(path, num_heldout=2)
    self.assertIsNone(source.train.labels)
    self.assertIsNone(source.heldout.labels)
    self.assertEqual(source.label_names, ())

  @parameterized.named_parameters(
    ("float_images", {"images": np.zeros([5, 4, 4], np.float32)}, "float32"),
    ("wide_images", {"images": np.zeros([5, 4, 4], np.int64)}, "int64"),
    ("no_height", {"images": np.zeros([5, 4], np.uint8)}, r"uint8\[5, 4\]"),
    ("other_name", {"x_train": np.zeros([5, 4, 4], np.uint8)}, "x_train"),
    ("nothing", {}, "`images`"),
    (
      "empty",
      {"images": np.zeros([0, 4, 4], np.uint8), "labels": np.zeros([0], int)},
      "must hold images, got none",
    ),
    (
      "too_few_labels",
      {"images": np.zeros([5, 4, 4], np.uint8), "labels": np.zeros([4], int)},
      r"`labels`.*\[4\] for 5",
    ),
    (
      "labels_of_two_axes",
      {"images": np.zeros([5, 4, 4], np.uint8), "labels": np.zeros([5, 1])},
      r"`labels`.*\[5, 1\] for 5",
    ),
    (
      "negative_labels",
      {"images": np.zeros([3, 4, 4], np.uint8), "labels": np.array([0, -1, 1])},
      "`labels`.*-1",
    ),
    (
      "labels_that_are_not_integers",
      {"images": np.zeros([3, 4, 4], np.uint8), "labels": np.ones([3]) / 2},
      "`labels`.*float64",
    ),
  )
  def test_arrays_that_do_not_fit_are_refused(self, arrays, rule):
    self.assert_refused(self.path(**arrays), rule)

  def test_a_missing_file_is_refused(self):
    path = os.path.join(self.get_temp_dir(), "nowhere.npz")
    self.assert_refused(path, "not there")

  @parameterized.named_parameters(
    ("half_of_it", lambda content: content[: len(content) // 2]),
    ("all_but_the_end", lambda content: content[:-10]),
    ("empty", lambda content: b""),
    ("changed_at_first", lambda content: overwrite(content, at=100)),
    ("changed_further_on", lambda content: overwrite(content, at=300)),
    ("text", lambda content: b"<html>404 Not Found</html>"),
  )
  def test_a_damaged_file_is_refused(self, damage):
    self.assert_refused(self.write_damaged(damage), "cannot be read")

  def test_a_file_of_one_array_is_refused(self):
    path = os.path.join(self.get_temp_dir(), "images.npy")
    np.save(path, np.zeros([5, 4, 4], np.uint8))
    self.assert_refused(path, re.escape("name it 'npy:PATH'"))

  def test_a_file_of_several_arrays_is_no_array(self):
    path = self.path(images=np.zeros([5, 4, 4], np.uint8))
    with self.assertRaisesRegex(ValueError, "set.npz' is an npz .*'npz:PATH'"):
      sources.npy(path)

  @parameterized.parameters((20, 4), (9990, 1998), (10500, 2000))
  def test_a_fifth_is_held_out_and_no_more_than_2000(self, num, expected):
    path = self.path(images=np.zeros([num, 4, 4], np.uint8))
    self.assertLen(sources.npz(path).heldout.pixels, expected)
    self.assertLen(sources.npz(path).train.pixels, num - expected)

  def test_too_few_images_are_refused(self):
    path = self.path(images=np.zeros([5, 4, 4], np.uint8))
    with self.assertRaisesRegex(ValueError, "`num_heldout`.*4.*got 1"):
      sources.npz(path)


if __name__ == "__main__":
  tf.test.main()
