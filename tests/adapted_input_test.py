"""A user's own input_fn: any stream of images becomes our batches."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data.adapted_input import AdaptedInput

IDS = np.arange(24)


def pixels(ids, dtype=np.uint8):
  """Returns 4x4 images that show their ids."""
  return np.broadcast_to(ids[:, None, None, None], [len(ids), 4, 4, 1]).astype(
    dtype
  )


def singles():
  return tf.data.Dataset.from_tensor_slices((pixels(IDS), IDS % 3))


def batched():
  return singles().batch(5)


def with_params(params):
  return singles().batch(params["batch_size"])


def floats():
  images = pixels(IDS, np.float32) / 127.5 - 1.0
  return tf.data.Dataset.from_tensor_slices((images, IDS[:, None] % 3))


def channels_first():
  return singles().map(lambda x, y: (tf.transpose(x, [2, 0, 1]), y))


def channels_first_in_batches():
  return channels_first().batch(5)


def ids(images):
  return np.round((np.asarray(images)[:, 0, 0, 0] + 1.0) * 127.5).astype(int)


class AdaptedInputTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    singles,
    batched,
    with_params,
    floats,
    channels_first,
    channels_first_in_batches,
  )
  def test_batches_follow_the_stream_and_begin_anew(self, input_fn):
    adapted = AdaptedInput(input_fn, num_classes=3)
    self.assertEqual(adapted.spec, (4, 1, 3))
    seen = []
    for images, labels in adapted({"batch_size": 8}).take(4):
      self.assertEqual(images.dtype, tf.float32)
      self.assertAllEqual(labels, ids(images) % 3)
      seen.extend(ids(images))
    self.assertAllEqual(seen, [*IDS, *IDS[:8]])

  def test_channels_before_the_pixels_come_after_them(self):
    first = np.random.RandomState(0).randint(256, size=[6, 3, 8, 8])
    first = first.astype(np.uint8)
    adapted = AdaptedInput(lambda: tf.data.Dataset.from_tensors(first))
    self.assertEqual(adapted.spec, (8, 3, 0))
    ((images,),) = adapted({"batch_size": 6}).take(1)
    expected = np.moveaxis(first, 1, -1)
    self.assertAllClose(images, expected / 127.5 - 1.0)
    seen = np.concatenate(
      [adapted.reference().pixels, adapted.heldout().pixels]
    )
    self.assertAllEqual(seen, expected)

  def test_replicas_share_each_batch(self):
    adapted = AdaptedInput(singles, num_classes=3)

    def rows(first, local, start):
      params = dict(
        batch_size=2,
        num_shards=4,
        shards=range(first, first + local),
        start_step=start,
      )
      elements = adapted(params).take(2 * local)
      return [list(ids(images)) for images, _ in elements]

    self.assertEqual(
      rows(0, 4, 0),
      [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]],
    )
    self.assertEqual(rows(2, 2, 0), [[4, 5], [6, 7], [12, 13], [14, 15]])
    self.assertEqual(rows(1, 1, 1), [[10, 11], [18, 19]])

  def test_labels_are_left_out_without_classes(self):
    adapted = AdaptedInput(singles)
    self.assertEqual(adapted.spec.num_classes, 0)
    self.assertLen(adapted({"batch_size": 4}).element_spec, 1)

  def test_images_to_measure_with_are_others(self):
    adapted = AdaptedInput(singles, num_classes=3)
    heldout = adapted.heldout()
    self.assertAllEqual(heldout.pixels, pixels(IDS[12:]))
    self.assertAllEqual(heldout.labels, IDS[12:] % 3)
    reference = adapted.reference()
    self.assertAllEqual(reference.pixels, pixels(IDS[:12]))
    self.assertAllEqual(reference.labels, IDS[:12] % 3)
    self.assertAllEqual(adapted.reference(5).pixels, pixels(IDS[:5]))

  @parameterized.parameters(7, -1)
  def test_a_label_that_is_no_class_is_told(self, wrong):
    def input_fn():
      labels = np.array([0, 1, wrong])
      return tf.data.Dataset.from_tensor_slices((pixels(IDS[:3]), labels))

    adapted = AdaptedInput(input_fn, num_classes=2)
    with self.assertRaisesRegex(
      tf.errors.InvalidArgumentError, "must be from 0 to 1, got"
    ):
      list(adapted({"batch_size": 3}).take(1))

  @parameterized.named_parameters(
    ("no_function", 5, 0, "must be a function.*got int"),
    ("no_dataset", lambda: 5, 0, "must return a `tf.data.Dataset`, got int"),
    (
      "no_square",
      lambda: tf.data.Dataset.from_tensors(np.zeros([4, 5, 1])),
      0,
      "square images",
    ),
    (
      "no_labels",
      lambda: tf.data.Dataset.from_tensors(np.zeros([4, 4, 1])),
      3,
      "`num_classes` is 3",
    ),
  )
  def test_what_does_not_fit_is_said(self, input_fn, num_classes, words):
    with self.assertRaisesRegex(ValueError, words):
      AdaptedInput(input_fn, num_classes)


if __name__ == "__main__":
  tf.test.main()
