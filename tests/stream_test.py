"""Sets on disk: every image once an epoch, and errors name the file."""

import dataclasses
import functools
import math
import os
import tempfile
import time
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import preflight, reading, sources, stream
from paragan_tf.data.encoded import Streaming
from paragan_tf.data.input_fn import InputFn

NUM, SIDE = 30, 6
SMALL = Streaming(window=8, num_lanes=2, block_bytes=300, cache_bytes=0)


def png(i):
  """Returns an image whose color is its number."""
  return tf.io.encode_png(np.full([SIDE, SIDE, 3], 8 * i, np.uint8)).numpy()


def ids(images):
  """Returns the numbers of images in [-1, 1]."""
  return np.round((np.asarray(images)[:, 0, 0, 0] + 1) * 127.5 / 8).astype(int)


def write_folder(folder):
  """Writes the images, labels 0 to 2."""
  for i in range(NUM):
    os.makedirs(f"{folder}/class{i % 3}", exist_ok=True)
    with open(f"{folder}/class{i % 3}/{i:02d}.png", "wb") as f:
      f.write(png(i))
  return folder


def damage(path, start=0, size=None):
  """Puts zeros near the end of a file, or of one of its records."""
  with open(path, "r+b") as f:
    size = size or os.path.getsize(path)
    f.seek(start + size - 30)
    f.write(bytes(12))


def write_shards(folder, num_shards=4, labels=()):
  """Writes them as TFRecords, of which one is empty; returns the pattern.

  `labels` has other labels than usual, or other bytes, of some records.
  """
  os.makedirs(folder, exist_ok=True)
  for shard in range(num_shards):
    with tf.io.TFRecordWriter(f"{folder}/x-{shard}.tfrecord") as writer:
      for i in range(NUM) if shard else ():
        if i % (num_shards - 1) == shard - 1:
          label = dict(labels).get(i, i % 3)
          is_label = isinstance(label, int)
          writer.write(example(i, label) if is_label else label)
  return f"{folder}/x-*.tfrecord"


def example(i, label):
  """Returns a record."""
  feature = {
    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png(i)])),
    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
  }
  return tf.train.Example(
    features=tf.train.Features(feature=feature)
  ).SerializeToString()


class StreamTest(tf.test.TestCase, parameterized.TestCase):
  def make(self, kind, labels=(), **options):
    """Returns an `InputFn` of the set on disk."""
    folder = f"{tempfile.mkdtemp(dir=self.get_temp_dir())}/set"
    if kind == "tfrecord":
      make = functools.partial(sources.tfrecord, num_classes=3, num_heldout=6)
      path = write_shards(folder, labels=labels)
    else:
      make = functools.partial(sources.folder, num_heldout=6)
      path = write_folder(folder)
    options = {"streaming": SMALL, "resolution": SIDE, **options}
    return InputFn(lambda: make(path), **options)

  def elements(self, input_fn, num, **params):
    """Returns images' numbers and labels of some elements."""
    params = {"batch_size": 4, **params}
    data = input_fn(params).take(num)
    return [(ids(images), labels.numpy()) for images, labels in data]

  @parameterized.product(kind=["folder", "tfrecord"], num_shards=[1, 2, 3])
  def test_every_image_once_an_epoch_on_any_number_of_shards(
    self, kind, num_shards
  ):
    input_fn = self.make(kind)
    heldout = set(input_fn.heldout().pixels[:, 0, 0, 0] // 8)
    self.assertLen(heldout, 6)
    pipelines = [
      self.elements(
        input_fn, 12 // num_shards, num_shards=num_shards, shards=[shard]
      )
      for shard in range(num_shards)
    ]
    seen = np.stack([[i for i, _ in pipeline] for pipeline in pipelines], 1)
    for epoch in seen.reshape([2, 24]):
      self.assertCountEqual(epoch, set(range(NUM)) - heldout)

  @parameterized.parameters("folder", "tfrecord")
  def test_labels_belong_to_their_images(self, kind):
    for images, labels in self.elements(self.make(kind), 12):
      self.assertAllEqual(labels, images % 3)

  @parameterized.parameters("folder", "tfrecord")
  def test_it_starts_at_any_step_with_any_depth(self, kind):
    input_fn = self.make(kind)
    whole = self.elements(input_fn, 15)
    deep = Streaming(
      window=8, num_lanes=2, block_bytes=300, min_depth=9, min_readers=4
    )
    later = self.elements(self.make(kind, streaming=deep), 6, start_step=9)
    for (a, _), (b, _) in zip(whole[9:], later):
      self.assertAllEqual(a, b)

  @parameterized.parameters("folder", "tfrecord")
  def test_batches_do_not_depend_on_the_chunk_size(self, kind):
    many = self.elements(self.make(kind), 15)
    with mock.patch.object(stream, "_MAX_CHUNK", 1):
      one = self.elements(self.make(kind), 15)
    self.assertAllEqual([i for i, _ in many], [i for i, _ in one])
    self.assertAllEqual([x for _, x in many], [x for _, x in one])

  @mock.patch.object(stream, "_MAX_CHUNK", 1)
  def test_no_more_is_prefetched_than_requested(self):
    input_fn = self.make("folder", prefetch=2)
    data = iter(input_fn({"batch_size": 4}))
    for _ in range(100):
      next(data)
    least, seen = 100 + 3, [0]
    for _ in range(1000):  # Until the count is reached and constant.
      if seen[-1] >= least and len(set(seen[-10:])) == 1:
        break
      time.sleep(0.02)
      seen.append(input_fn.train_set.buffer_meter().num_elements)
    # Two, one that waits for the prefetch, and those being decoded.
    decoded = math.ceil(os.cpu_count() / 4)
    self.assertBetween(seen[-1], least, least + decoded)
    del data

  def test_batches_do_not_depend_on_the_number_of_replicas(self):
    one = np.concatenate([i for i, _ in self.elements(self.make("folder"), 6)])
    four = self.elements(
      self.make("folder"), 24, batch_size=1, num_shards=4, shards=range(4)
    )
    self.assertAllEqual(np.concatenate([i for i, _ in four]), one)

  def test_reference_and_heldout_are_disjoint(self):
    input_fn = self.make("tfrecord")
    heldout, reference = input_fn.heldout(), input_fn.reference()
    self.assertEqual(reference.pixels.shape, (24, SIDE, SIDE, 3))
    everything = [*heldout.pixels[:, 0, 0, 0], *reference.pixels[:, 0, 0, 0]]
    self.assertCountEqual(everything, 8 * np.arange(NUM))
    for images in (heldout, reference):
      self.assertAllEqual(images.labels, images.pixels[:, 0, 0, 0] // 8 % 3)
    self.assertLen(input_fn.reference(7).pixels, 7)

  def test_reference_images_read_each_byte_once(self):
    input_fn = self.make("tfrecord")
    reads = []
    read = reading.read

    def count(path, start, size):
      reads.append((path, start, size))
      return read(path, start, size)

    with mock.patch.object(
      reading.RetryingReader.__init__,
      "__defaults__",
      (count, *reading.RetryingReader.__init__.__defaults__[1:]),
    ):
      reference = input_fn.reference(20)
    self.assertLen(reference.pixels, 20)
    # Late reads may be hedged, but always in the same blocks.
    spans = sorted({(path, start, start + n) for path, start, n in reads})
    for (a, _, end), (b, start, _) in zip(spans, spans[1:]):
      self.assertTrue(a != b or end <= start)

  def test_a_missing_reference_image_is_named(self):
    input_fn = self.make("folder")
    os.remove(input_fn.source.train.paths[0])
    with self.assertRaisesRegex(ValueError, "cannot be read, tried once"):
      input_fn.reference()

  def test_selected_classes_are_renumbered(self):
    input_fn = self.make("folder", only_labels=["class2", 0])
    self.assertEqual(input_fn.spec.num_classes, 2)
    for images, labels in self.elements(input_fn, 6):
      self.assertAllEqual(labels, np.where(images % 3 == 2, 0, 1))
      self.assertNotIn(1, images % 3)

  def test_classes_of_records_without_index_cannot_be_selected(self):
    with self.assertRaisesRegex(ValueError, "make_tfrecords"):
      self.make("tfrecord", only_labels=[0])

  def test_an_unknown_class_is_refused(self):
    with self.assertRaisesRegex(ValueError, r"`only_labels`.*got \['cat'\]"):
      self.make("folder", only_labels=["cat"])

  def test_a_file_that_cannot_be_read_is_named(self):
    input_fn = self.make("folder")
    data = iter(input_fn({"batch_size": 4}))
    self.assertIsNone(input_fn.find_failure())
    gone = input_fn.source.train.paths
    for path in gone:
      os.remove(path)
    with self.assertRaises(tf.errors.OpError):
      for _ in range(100):
        next(data)
    self.assertRegex(
      input_fn.find_failure(), r"'.*\.png' cannot be read, tried once"
    )

  def failure(self, input_fn, **params):
    """Reads until the stream fails; returns the reason."""
    step = 0
    with self.assertRaises(reading.OP_ERRORS):
      for _ in input_fn({"batch_size": 4, **params}).take(100):
        step += 1
    return input_fn.find_failure(step)

  def test_a_file_that_cannot_be_decoded_is_named(self):
    input_fn = self.make("folder")
    self.elements(input_fn, 6)
    self.assertIsNone(input_fn.find_failure())
    path = input_fn.source.train.paths[input_fn.source.train.path_index[17]]
    damage(path)
    self.assertRegex(
      self.failure(input_fn), f"^'{path}' cannot be decoded: .*PNG"
    )
    self.assertNotIn("{{", input_fn.find_failure())

  @parameterized.parameters(
    (True, "is damaged, as its checksum says"), (False, "cannot be decoded")
  )
  def test_a_damaged_record_is_named_by_its_byte(self, verify, words):
    streaming = dataclasses.replace(SMALL, verify=verify)
    input_fn = self.make("tfrecord", streaming=streaming)
    images = input_fn.source.train
    path, start = images.paths[images.path_index[17]], images.start[17]
    damage(path, start, images.size[17])
    self.assertRegex(
      self.failure(input_fn),
      f"^The record at byte {start} of '{path}' {words}",
    )

  @parameterized.parameters("threads", "graph")
  def test_a_record_that_is_no_example_is_named(self, reader):
    # Nor is it text: TensorFlow's own message cannot be made.
    input_fn = self.make(
      "tfrecord",
      labels={28: b"\x89PNG\xff"},
      streaming=dataclasses.replace(SMALL, reader=reader),
    )
    self.assertRegex(
      self.failure(input_fn),
      "^The record at byte .* cannot be parsed .no tf.train.Example.: name",
    )

  @parameterized.parameters(3, -1)
  def test_a_label_in_a_record_that_is_no_class_is_an_error(self, wrong):
    input_fn = self.make("tfrecord", labels={29: wrong, 28: wrong})
    kept = input_fn.source.train
    self.assertRegex(
      self.failure(input_fn),
      "^The record at byte .*tfrecord' must have a label from 0 to 2, got "
      f"{wrong}: ",
    )
    self.assertLen(kept, 24)
    # Unconditional input does not check labels.
    free = self.make("tfrecord", labels={29: wrong}, conditional=False)
    self.assertLen(list(free({"batch_size": 4}).take(12)), 12)

  def test_features_of_records_may_have_other_names(self):
    path = write_shards(f"{self.get_temp_dir()}/names")
    for file in tf.io.gfile.glob(path):
      records = [r.numpy() for r in tf.data.TFRecordDataset(file)]
      with tf.io.TFRecordWriter(file) as writer:
        for record in records:
          # As long as before, so that lengths in the record are right.
          record = record.replace(b"image", b"im/en")
          writer.write(record.replace(b"label", b"class"))
    keys = dict(image_key="im/en", label_key="class")
    input_fn = InputFn(
      lambda: sources.tfrecord(path, num_classes=3, **keys),
      resolution=SIDE,
      streaming=SMALL,
    )
    for images, labels in self.elements(input_fn, 6):
      self.assertAllEqual(labels, images % 3)
    usual = InputFn(lambda: sources.tfrecord(path), SIDE, conditional=False)
    with self.assertRaisesRegex(ValueError, "parsed.*`tfrecord.image_key`"):
      usual.reference()

  def test_the_buffer_is_metered_while_it_runs(self):
    train_set = self.make("folder").train_set
    self.assertIsNone(train_set.buffer_meter())
    self.assertEqual(train_set.meter(), {})

  def test_meter_and_failure_with_classes_per_replica(self):
    input_fn = self.make("folder", by_label=True)
    data = iter(input_fn(dict(batch_size=4, num_shards=3)))
    for _ in range(3):
      next(data)
    self.assertBetween(input_fn.meter()["input/readers"], 12, 3 * 64)
    self.assertBetween(input_fn.meter()["input/depth"], 16, 256)
    del data
    for path in input_fn.source.train.paths:
      damage(path)
    failure = self.failure(input_fn, num_shards=3)
    self.assertRegex(failure, r"\.png' cannot be decoded")

  def test_transient_errors_are_counted(self):
    input_fn = self.make("folder")
    failed = set()

    def read(path, start, size):
      if path not in failed:
        failed.add(path)
        raise OSError("busy")
      return reading.read(path, start, size)

    reader = reading.RetryingReader(read, sleep=lambda seconds: None)
    input_fn._train._blocks.read_fn = reader
    data = iter(input_fn({"batch_size": 4}))
    first, labels = next(data)
    self.assertAllEqual(labels, ids(first) % 3)
    self.assertBetween(input_fn.meter()["input/retries"], 4, NUM)
    del data

  def test_the_meter_shows_the_readers(self):
    input_fn = self.make("folder")
    self.assertEqual(input_fn.meter(), {})
    data = iter(input_fn({"batch_size": 4}))
    next(data)
    meter = input_fn.meter()
    self.assertBetween(meter["input/readers"], 4, 64)
    self.assertBetween(meter["input/depth"], 16, 256)
    self.assertEqual(meter["input/retries"], 0)
    self.assertCountEqual(
      meter,
      [f"input/{x}" for x in ("readers", "depth", "retries")]
      + ["input/megabytes", "input/waited_seconds", "input/hedged"],
    )
    del data

  def test_an_empty_file_gives_a_warning(self):
    (remark,) = preflight.remarks(self.make("tfrecord"))
    self.assertRegex(remark, r"^1 files have no images, as '.*x-0.tfrecord'")
    self.assertEqual(preflight.remarks(self.make("folder")), [])

  def test_the_split_names_the_preprocessing(self):
    self.assertEqual(
      self.make("folder").split, "set/train, center crop, bicubic"
    )


if __name__ == "__main__":
  tf.test.main()
