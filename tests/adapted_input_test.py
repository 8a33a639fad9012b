"""A user's own input_fn: any stream of images gives batches."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data.adapted_input import AdaptedInput

IDS = np.arange(60)


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


def shuffled():
  return singles().shuffle(60, seed=1)


def shuffled_and_repeated():
  return shuffled().repeat().batch(7)


def with_split(split):
  return singles().skip(50) if split == "heldout" else singles().take(50)


def ids(images):
  return np.round((np.asarray(images)[:, 0, 0, 0] + 1.0) * 127.5).astype(int)


def generated():
  spec = tf.TensorSpec([4, 4, 1], tf.uint8)
  return tf.data.Dataset.from_generator(
    lambda: iter(pixels(IDS)), output_signature=spec
  )


def by_numpy():
  images = singles().map(lambda x, y: x)
  return images.map(lambda x: tf.ensure_shape(identity(x), [4, 4, 1]))


def by_numpy_deep_inside():
  datasets = tf.data.Dataset.zip((by_numpy(), by_numpy())).shuffle(4)
  return datasets.interleave(
    lambda x, y: tf.data.Dataset.from_tensors(y), cycle_length=2
  ).prefetch(1)


def in_a_function_of_a_function():
  return tf.data.Dataset.range(2).flat_map(lambda i: by_numpy())


def identity(x):
  return tf.numpy_function(lambda x: x, [x], tf.uint8)


class AdaptedInputTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    singles,
    batched,
    with_params,
    floats,
    channels_first,
    channels_first_in_batches,
  )
  def test_batches_follow_the_stream_and_repeat(self, input_fn):
    adapted = AdaptedInput(input_fn, num_classes=3)
    self.assertEqual(adapted.spec, (4, 1, 3))
    seen = []
    for images, labels in adapted({"batch_size": 8}).take(9):
      self.assertEqual(images.dtype, tf.float32)
      self.assertAllEqual(labels, ids(images) % 3)
      seen.extend(ids(images))
    heldout = adapted.heldout().pixels[:, 0, 0, 0]
    trained = np.setdiff1d(IDS, heldout)
    self.assertAllEqual(seen, [*trained, *trained][:72])

  @parameterized.parameters(
    generated, by_numpy, by_numpy_deep_inside, in_a_function_of_a_function
  )
  def test_python_is_refused_for_a_tpu(self, input_fn):
    adapted = AdaptedInput(input_fn)
    with self.assertRaisesRegex(
      ValueError, f"`{input_fn.__name__}` must consist .* got PyFunc.*TFRecord"
    ):
      adapted({"batch_size": 4, "python": False})
    self.assertLen(list(adapted({"batch_size": 4}).take(2)), 2)

  @parameterized.parameters(singles, shuffled_and_repeated, with_split)
  def test_ops_of_tensorflow_feed_a_tpu(self, input_fn):
    data = AdaptedInput(input_fn)({"batch_size": 4, "python": False})
    self.assertLen(list(data.take(2)), 2)

  def test_the_same_images_are_held_out_in_graphs_of_estimators(self):
    adapted = AdaptedInput(singles)
    expected = [ids(x) for (x,) in adapted({"batch_size": 50}).take(1)]
    with tf.Graph().as_default():
      data = adapted({"batch_size": 50})
      (images,) = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
      with tf.compat.v1.Session() as session:
        self.assertAllEqual(ids(session.run(images)), expected[0])

  def test_channels_first_become_channels_last(self):
    first = np.random.RandomState(0).randint(256, size=[6, 3, 8, 8])
    first = first.astype(np.uint8)

    def input_fn(split):
      del split
      return tf.data.Dataset.from_tensors(first)

    adapted = AdaptedInput(input_fn)
    self.assertEqual(adapted.spec, (8, 3, 0))
    ((images,),) = adapted({"batch_size": 6}).take(1)
    expected = np.moveaxis(first, 1, -1)
    self.assertAllClose(images, expected / 127.5 - 1.0)
    self.assertAllEqual(adapted.reference().pixels, expected)
    self.assertAllEqual(adapted.heldout().pixels, expected)

  def test_each_replica_takes_its_shard_of_each_batch(self):
    adapted = AdaptedInput(with_split, num_classes=3)

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

  @parameterized.parameters(singles, batched, shuffled, shuffled_and_repeated)
  def test_heldout_images_are_never_trained_on(self, input_fn):
    adapted = AdaptedInput(input_fn, num_classes=3)
    heldout, reference = adapted.heldout(), adapted.reference()
    kept = set(heldout.pixels[:, 0, 0, 0])
    self.assertBetween(len(kept), 2, 12)
    self.assertAllEqual(heldout.labels, heldout.pixels[:, 0, 0, 0] % 3)
    seen = set()
    for images, _ in adapted({"batch_size": 10}).take(18):  # Three epochs.
      seen.update(ids(images))
    self.assertEqual(seen, set(IDS) - kept)
    self.assertEqual(set(reference.pixels[:, 0, 0, 0]), seen)
    self.assertAllEqual(reference.labels, reference.pixels[:, 0, 0, 0] % 3)
    self.assertAllEqual(adapted.reference(5).pixels, reference.pixels[:5])

  def test_the_same_images_are_held_out_in_any_order(self):
    kept = [
      np.unique(AdaptedInput(input_fn, 3).heldout().pixels)
      for input_fn in (singles, batched, shuffled, shuffled_and_repeated)
    ]
    for other in kept[1:]:
      self.assertAllEqual(other, kept[0])

  def test_about_one_image_in_ten_is_held_out(self):
    images = np.random.RandomState(0).randint(256, size=[2000, 4, 4, 1])
    images = images.astype(np.uint8)
    adapted = AdaptedInput(
      lambda: tf.data.Dataset.from_tensor_slices(images).batch(100)
    )
    # Within four standard deviations.
    self.assertBetween(len(adapted.heldout().pixels), 146, 254)

  def test_a_function_of_the_split_is_not_split_again(self):
    adapted = AdaptedInput(with_split, num_classes=3)
    self.assertAllEqual(adapted.heldout().pixels, pixels(IDS[50:]))
    self.assertAllEqual(adapted.reference().pixels, pixels(IDS[:50]))
    ((images, _),) = adapted({"batch_size": 50}).take(1)
    self.assertAllEqual(ids(images), IDS[:50])

  def test_a_resumed_run_skips_what_it_has_read(self):
    adapted = AdaptedInput(shuffled_and_repeated, num_classes=3)
    whole = list(adapted({"batch_size": 8}).take(10))
    later = list(adapted({"batch_size": 8, "start_step": 7}).take(3))
    for (images, labels), (all_images, all_labels) in zip(later, whole[7:]):
      self.assertAllEqual(images, all_images)
      self.assertAllEqual(labels, all_labels)

  @parameterized.named_parameters(
    ("none", 0, False, "got 0 to train on"),
    ("one", 1, False, "got [01] to "),
    ("one_over_and_over", 1, True, "got 0 to "),
    ("three", 3, False, "got [01] to "),
  )
  def test_too_few_images_are_refused(self, num, repeats, words):
    def input_fn():
      data = singles().take(num)
      return data.repeat() if repeats else data

    adapted = AdaptedInput(input_fn, num_classes=3)
    with self.assertRaisesRegex(
      ValueError, f"'input_fn' must give images .*{words}.*`split`"
    ):
      adapted.check_heldout()
    with self.assertRaisesRegex(ValueError, "'input_fn' must give images"):
      adapted.heldout()

  @parameterized.parameters(7, -1)
  def test_a_label_that_is_no_class_is_an_error(self, wrong):
    def input_fn(split):
      del split
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
  def test_unusable_functions_are_refused(self, input_fn, num_classes, words):
    with self.assertRaisesRegex(ValueError, words):
      AdaptedInput(input_fn, num_classes)


if __name__ == "__main__":
  tf.test.main()
