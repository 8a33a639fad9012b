"""Wrong input is refused before the first step."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf.data import preflight, sources
from paragan_tf.data.adapted_input import AdaptedInput
from paragan_tf.data.input_fn import InputFn
from paragan_tf.types import ImageSpec

SPEC = ImageSpec(4, 3, 5)


def images(low=-1.0, high=1.0, shape=(6, 4, 4, 3), dtype=np.float32):
  """Returns images with the given range."""
  return np.linspace(low, high, np.prod(shape)).reshape(shape).astype(dtype)


def arrays(num, labels=None, names=("a", "b", "c")):
  """Returns a source in memory."""
  pixels = np.arange(num * 16, dtype=np.uint8).reshape([num, 4, 4, 1])
  labels = np.arange(num, dtype=np.int32) % 3 if labels is None else labels
  part = sources.Images(pixels, np.asarray(labels, np.int32))
  return lambda: sources.Source("few", part, part, names)


class CheckTest(tf.test.TestCase, parameterized.TestCase):
  def test_correct_input_passes(self):
    preflight.check_batch("x", [images(), np.arange(6) % 5], SPEC)
    preflight.check(InputFn(arrays(12), resolution=4), 12)

  @parameterized.named_parameters(
    ("type", images(dtype=np.float64), r"must be float32.*got float64"),
    ("size", images(shape=(6, 4, 5, 3)), r"\[b, 4, 4, 3\].*\[6, 4, 5, 3\]"),
    ("range", images(0, 255), r"must be in \[-1, 1\], got \[0, 255\]"),
    ("below", images(-1.1), r"got \[-1.1, 1\]"),
    ("nan", images(np.nan), "some pixels are NaN"),
    ("same", images(0.5, 0.5), "all pixels of the first 6 are 0.5"),
  )
  def test_wrong_images_are_refused(self, wrong, words):
    with self.assertRaisesRegex(ValueError, f"Images of 'x'.*{words}"):
      preflight.check_batch("x", [wrong, np.arange(6) % 5], SPEC)

  @parameterized.parameters(([0, 5], "0 to 5"), ([-1, 2], "-1 to 2"))
  def test_wrong_labels_are_refused(self, labels, words):
    with self.assertRaisesRegex(ValueError, f"from 0 to 4, got {words}"):
      preflight.check_labels("x", np.array(labels), 5)

  def test_labels_of_the_whole_set_are_checked(self):
    labels = [0] * 99 + [3]
    with self.assertRaisesRegex(ValueError, "from 0 to 2, got 0 to 3"):
      preflight.check(InputFn(arrays(100, labels), resolution=4), 4)

  def test_fewer_images_than_a_step_takes_are_refused(self):
    with self.assertRaisesRegex(ValueError, "one step takes, 13, got 12"):
      preflight.check(InputFn(arrays(12), resolution=4), 13)

  def test_an_empty_stream_is_refused(self):
    def input_fn():
      return tf.data.Dataset.from_tensor_slices(images()).take(0)

    with self.assertRaisesRegex(ValueError, "'input_fn' must give images"):
      preflight.check(AdaptedInput(input_fn), 2)

  def test_too_few_images_to_hold_some_out_are_refused(self):
    def input_fn():
      return tf.data.Dataset.from_tensor_slices(images()).take(1).repeat()

    with self.assertRaisesRegex(ValueError, "at least 2 of each, got 0 to"):
      preflight.check(AdaptedInput(input_fn), 2)

  def test_a_stream_that_fails_is_refused(self):
    def input_fn():
      data = tf.data.Dataset.from_tensor_slices(images())
      return data.map(lambda x: tf.debugging.check_numerics(x / 0.0, "Broken"))

    with self.assertRaisesRegex(
      ValueError, "'input_fn' gives no batch: .*Brok"
    ):
      preflight.check(AdaptedInput(input_fn), 2)

  def test_a_wrong_range_of_a_users_images_is_refused(self):
    def input_fn(split):
      del split
      return tf.data.Dataset.from_tensor_slices(images(0, 200))

    with self.assertRaisesRegex(ValueError, r"'input_fn' must be in \[-1, 1\]"):
      preflight.check(AdaptedInput(input_fn), 2)


class RemarksTest(tf.test.TestCase):
  def remarks(self, labels):
    """Returns the warnings about labels."""
    source = arrays(len(labels), labels)
    return preflight.remarks(InputFn(source, resolution=4))

  def test_even_classes_give_no_warning(self):
    self.assertEqual(self.remarks([0, 1, 2] * 4), [])

  def test_a_class_without_images_gives_a_warning(self):
    found = self.remarks([0, 2] * 6)
    self.assertEqual(found, ["1 classes have no images, as 'b'."])

  def test_uneven_classes_give_a_warning(self):
    found = self.remarks([0] * 22 + [1] * 2 + [2] * 5)
    self.assertLen(found, 1)
    self.assertIn("'b' has 2 images, 'a' 22", found[0])
    self.assertEqual(self.remarks([0] * 20 + [1] * 2 + [2] * 5), [])


class FitTest(tf.test.TestCase):
  def describe(self, *sizes):
    """Returns what is said of image files of sizes, at 16 px."""
    folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    os.makedirs(folder, exist_ok=True)
    for i, size in enumerate([*sizes] * 10):
      Image.new("RGB", size, (i, 0, 0)).save(f"{folder}/{i}.png")
    made = InputFn(f"folder:{folder}", resolution=16, conditional="auto")
    self.assertFalse(made.conditional)
    return preflight.describe_fit(made)

  def test_images_that_fit_are_not_mentioned(self):
    self.assertEqual(self.describe((16, 16)), [])
    self.assertEqual(
      preflight.describe_fit(InputFn(arrays(8), 4, conditional=False)), []
    )

  def test_how_other_sizes_are_made_to_fit_is_said(self):
    (words,) = self.describe((30, 20), (16, 16), (64, 100))
    self.assertStartsWith(
      words, "Images of 16x16 to 64x100 become 16x16: center crop, bicubic. "
    )
    self.assertIn("`Transform.crop`", words)

  def test_enlarged_images_are_mentioned(self):
    (words,) = self.describe((30, 12))
    self.assertIn("30x12 become 16x16: ", words)
    self.assertIn("small ones are enlarged", words)

  def test_arrays_say_it_too(self):
    (words,) = preflight.describe_fit(
      InputFn(arrays(8), resolution=8, conditional=False)
    )
    self.assertIn("Images of 4x4 become 8x8", words)


if __name__ == "__main__":
  tf.test.main()
