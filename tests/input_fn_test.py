"""Each image once an epoch, on any number of replicas, from any step."""

import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import input_fn, sources

NUM_TRAIN = 10


def source(channels=1, labeled=True):
  """Ten images to train on; every pixel of image `i` is `20 * i`."""
  shape = [NUM_TRAIN + 3, 4, 4, channels]
  pixels = np.zeros(shape, np.uint8)
  pixels += (20 * np.arange(NUM_TRAIN + 3)).astype(np.uint8)[
    :, None, None, None
  ]
  labels = np.arange(NUM_TRAIN + 3, dtype=np.int32) % 3 if labeled else None

  def select(rows):
    return sources.Images(pixels[rows], labels[rows] if labeled else None)

  names = ("a", "b", "c") if labeled else ()
  return sources.Source(
    "tens", select(slice(NUM_TRAIN)), select(slice(NUM_TRAIN, None)), names
  )


def make(seed=0, **options):
  options = {"source": source, "resolution": 4, **options}
  return input_fn.InputFn(seed=seed, **options)


def elements(dataset, num):
  """Returns the first elements as tuples of arrays."""
  return list(itertools.islice(dataset.as_numpy_iterator(), num))


def ids(images):
  """Returns which of the ten images these are."""
  return np.rint((images[:, 0, 0, 0] + 1) * 127.5 / 20).astype(int)


def draw(num, params, **options):
  """Returns the images' ids, one row an element."""
  dataset = make(**options)(params)
  return np.stack([ids(images) for images, _ in elements(dataset, num)])


class ElementTest(tf.test.TestCase, parameterized.TestCase):
  def test_images_are_floats_from_minus_one_to_one(self):
    for images, labels in elements(make()({"batch_size": 5}), 2):
      self.assertEqual(images.shape, (5, 4, 4, 1))
      self.assertEqual(images.dtype, np.float32)
      self.assertEqual(labels.dtype, np.int32)
      expected = 20 * ids(images) / 127.5 - 1
      flat = np.broadcast_to(expected[:, None, None, None], images.shape)
      self.assertAllClose(images, flat, atol=1e-6)

  def test_black_is_minus_one_and_white_is_one(self):
    pixels = np.array([0, 255], np.uint8)[:, None, None, None]
    part = sources.Images(np.tile(pixels, [1, 4, 4, 1]), None)
    extremes = sources.Source("extremes", part, part, ())
    maker = make(source=lambda: extremes, conditional=False)
    ((images,),) = elements(maker({"batch_size": 2}), 1)
    self.assertAllEqual(np.unique(images), [-1.0, 1.0])

  def test_labels_belong_to_their_images(self):
    for images, labels in elements(make()({"batch_size": 4}), 5):
      self.assertAllEqual(labels, ids(images) % 3)

  @parameterized.named_parameters(("labels", True), ("no_labels", False))
  def test_labels_are_used_if_there_are_two_classes_or_more(self, labeled):
    maker = make(source=lambda: source(labeled=labeled), conditional="auto")
    self.assertEqual(maker.conditional, labeled)
    self.assertEqual(bool(maker.spec.num_classes), labeled)

  @parameterized.named_parameters(("labels", True), ("no_labels", False))
  def test_unconditional_gives_images_only(self, labeled):
    maker = make(source=lambda: source(labeled=labeled), conditional=False)
    self.assertEqual(maker.spec, (4, 1, 0))
    for element in elements(maker({"batch_size": 4}), 2):
      self.assertLen(element, 1)
      self.assertEqual(element[0].shape, (4, 4, 4, 1))

  @parameterized.named_parameters(("grey", 1), ("color", 3))
  def test_resized_images_keep_range_and_count(self, channels):
    maker = make(source=lambda: source(channels), resolution=64)
    self.assertEqual(maker.spec, (64, channels, 3))
    seen = []
    for images, labels in elements(maker({"batch_size": 5}), 2):
      self.assertEqual(images.shape, (5, 64, 64, channels))
      self.assertAllInRange(images, -1.0, 1.0)
      # What is flat stays flat.
      self.assertAllClose(images, images * 0 + images[:, :1, :1, :1])
      self.assertAllEqual(labels, ids(images) % 3)
      seen.extend(ids(images))
    self.assertCountEqual(seen, range(NUM_TRAIN))

  def test_autotune_is_off(self):
    options = make()({"batch_size": 5}).options()
    self.assertIs(options.autotune.enabled, False)

  def test_shapes_are_known_before_the_first_element(self):
    images, labels = make()({"batch_size": 5}).element_spec
    self.assertEqual(images.shape, [5, 4, 4, 1])
    self.assertEqual(labels.shape, [5])


class ByLabelTest(tf.test.TestCase):
  def labels(self, shards, num, start_step=0, **options):
    """Returns labels and ids of elements, in turn for each shard."""
    params = dict(batch_size=2, num_shards=3, start_step=start_step)
    dataset = make(by_label=True, **options)({**params, "shards": shards})
    found = elements(dataset, num)
    return [y for _, y in found], [ids(x) for x, _ in found]

  def test_a_shard_sees_all_of_its_own_classes(self):
    for shard in range(3):
      labels, seen = self.labels([shard], 6)
      self.assertAllEqual(np.unique(labels), [shard])
      own = [i for i in range(NUM_TRAIN) if i % 3 == shard]
      self.assertCountEqual(np.ravel(seen)[: len(own)], own)

  def test_a_pipeline_yields_shards_in_turn_from_any_step(self):
    labels, seen = self.labels([2, 0], 8)
    self.assertAllEqual(labels, [[2, 2], [0, 0]] * 4)
    _, later = self.labels([2, 0], 4, start_step=2)
    self.assertAllEqual(later, seen[4:])

  def test_shards_without_classes_are_refused(self):
    with self.assertRaisesRegex(ValueError, "`by_label` .* 'tens' has 3 for 4"):
      make(by_label=True)(dict(batch_size=2, num_shards=4))
    with self.assertRaisesRegex(ValueError, "`by_label` needs labels"):
      make(
        by_label=True, conditional=False, source=lambda: source(labeled=False)
      )


class EpochTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("that_divide", 5), ("over_the_end", 3), ("larger_than_the_set", 23)
  )
  def test_every_epoch_has_each_image_once(self, batch_size):
    num = -(-4 * NUM_TRAIN // batch_size)
    seen = draw(num, {"batch_size": batch_size}).reshape([-1])
    epochs = seen[: 4 * NUM_TRAIN].reshape([4, NUM_TRAIN])
    for epoch in epochs:
      self.assertCountEqual(epoch, range(NUM_TRAIN))
    self.assertLen(np.unique(epochs, axis=0), 4)

  def test_every_image_is_equally_likely_at_every_position(self):
    seen = draw(400, {"batch_size": NUM_TRAIN})
    for position in range(NUM_TRAIN):
      counts = np.bincount(seen[:, position], minlength=NUM_TRAIN)
      # 40 expected; five standard deviations are 30.
      self.assertAllInRange(counts, 10, 70)

  @parameterized.named_parameters(("thousands", 2000), ("mnist", 60000))
  def test_epochs_are_unrelated_to_each_other_and_to_the_file(self, num):
    # Two pixels encode the position in the file.
    pixels = np.zeros([num, 4, 4, 1], np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 1, 0] = divmod(np.arange(num), 256)
    part = sources.Images(pixels, None)
    many = sources.Source("many", part, part, ())
    maker = make(source=lambda: many, conditional=False)
    orders = [np.arange(num)]
    for (images,) in elements(maker({"batch_size": num}), 4):
      digits = np.rint((images[:, 0, :2, 0] + 1) * 127.5).astype(int)
      orders.append(digits @ [256, 1])
      self.assertLen(np.unique(orders[-1]), num)
    for one, other in itertools.combinations(orders, 2):
      # Five standard deviations; and one equal position is expected.
      self.assertLess(abs(np.corrcoef(one, other)[0, 1]), 5 / num**0.5)
      self.assertLess(np.sum(one == other), 10)

  def test_a_seed_repeats_and_another_differs(self):
    params = {"batch_size": NUM_TRAIN}
    tf.random.set_seed(1)
    first = draw(4, params, seed=5)
    tf.random.set_seed(2)
    self.assertAllEqual(draw(4, params, seed=5), first)
    for row, other in zip(first, draw(4, params, seed=6)):
      self.assertFalse(np.array_equal(row, other))

  @parameterized.named_parameters(
    ("next", 1, 1), ("in_another_epoch", 9, 1), ("on_replicas", 3, 4)
  )
  def test_a_later_start_step_skips_what_comes_before(self, step, replicas):
    params = {"batch_size": 3, "num_shards": replicas}
    whole = draw((step + 5) * replicas, params)
    rest = draw(5 * replicas, {**params, "start_step": step})
    self.assertAllEqual(rest, whole[step * replicas :])
    self.assertFalse(np.array_equal(rest, whole[: 5 * replicas]))


class ReplicaTest(tf.test.TestCase, parameterized.TestCase):
  STEPS = 5

  def global_batches(self):
    return draw(self.STEPS, {"batch_size": 8})

  def pipeline(self, first, local):
    """Returns ids of one pipeline of four replicas, `[steps, local * 2]`."""
    params = {
      "batch_size": 2,
      "num_shards": 4,
      "shards": range(first, first + local),
    }
    return draw(self.STEPS * local, params).reshape([self.STEPS, -1])

  def test_elements_of_a_step_are_the_global_batch(self):
    parts = draw(self.STEPS * 4, {"batch_size": 2, "num_shards": 4})
    self.assertAllEqual(parts.reshape([self.STEPS, 8]), self.global_batches())

  @parameterized.named_parameters(
    ("two", [(0, 2), (2, 2)]),
    ("four", [(0, 1), (1, 1), (2, 1), (3, 1)]),
    ("uneven", [(0, 1), (1, 3)]),
  )
  def test_pipelines_together_are_the_global_batch(self, pipelines):
    ids_of = [self.pipeline(*pipeline) for pipeline in pipelines]
    self.assertAllEqual(np.concatenate(ids_of, 1), self.global_batches())

  def test_two_pipelines_see_no_image_twice_in_an_epoch(self):
    both = [self.pipeline(0, 2), self.pipeline(2, 2)]
    seen = np.concatenate(both, 1).reshape([-1])
    for epoch in seen.reshape([-1, NUM_TRAIN]):
      self.assertCountEqual(epoch, range(NUM_TRAIN))


class MeasureTest(tf.test.TestCase, parameterized.TestCase):
  def test_reference_is_the_training_set_in_order(self):
    reference = make().reference()
    self.assertEqual(reference.pixels.dtype, np.uint8)
    floats = reference.pixels.astype(np.float32) / 127.5 - 1.0
    self.assertAllEqual(ids(floats), range(NUM_TRAIN))

  def test_some_reference_images_are_random_with_their_labels(self):
    whole, part = make().reference(), make().reference(4)
    rows = [
      list(whole.pixels[:, 0, 0, 0]).index(x) for x in part.pixels[:, 0, 0, 0]
    ]
    self.assertLen(set(rows), 4)
    self.assertNotEqual(rows, sorted(rows))
    self.assertAllEqual(part.labels, whole.labels[rows])

  @parameterized.named_parameters(("as_it_is", 4), ("resized", 16))
  def test_heldout_images_are_never_drawn(self, resolution):
    heldout = make(resolution=resolution).heldout()
    self.assertEqual(heldout.pixels.shape, (3, resolution, resolution, 1))
    self.assertEqual(heldout.pixels.dtype, np.uint8)
    self.assertAllEqual(heldout.pixels[:, 0, 0, 0], [200, 220, 240])
    self.assertAllEqual(heldout.labels, [1, 2, 0])

  @parameterized.named_parameters(("down", 16, 4), ("up", 4, 10))
  def test_resizing_keeps_an_edge_and_does_not_wrap_around(self, size, new):
    # Left half black, right half white; bicubic overshoots at the edge.
    pixels = np.zeros([3, size, size, 1], np.uint8)
    pixels[:, :, size // 2 :] = 255
    part = sources.Images(pixels, None)
    halves = sources.Source("halves", part, part, ())
    maker = make(source=lambda: halves, resolution=new, conditional=False)
    resized = maker.heldout().pixels[..., 0].astype(int)
    self.assertAllEqual(resized, np.tile(resized[:1, :1], [3, new, 1]))
    self.assertAllInRange(resized[..., : new // 2], 0, 127)
    self.assertAllInRange(resized[..., new // 2 :], 128, 255)
    self.assertAllClose(resized.mean(), 127.5, atol=3)


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("small", {"resolution": 3}, "`resolution`.*3"),
    (
      "labels",
      {"source": lambda: source(labeled=False)},
      "`conditional`.*'tens'",
    ),
  )
  def test_bad_values_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      make(**options)

  def test_the_embedded_set_is_the_default(self):
    maker = input_fn.InputFn()
    self.assertEqual(maker.spec, (32, 1, 10))
    ((images, labels),) = elements(maker({"batch_size": 6}), 1)
    self.assertEqual(images.shape, (6, 32, 32, 1))
    self.assertAllInRange(labels, 0, 9)


if __name__ == "__main__":
  tf.test.main()
