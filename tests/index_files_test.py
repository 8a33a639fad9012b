"""What a scan of TFRecord files finds is kept beside the run."""

import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf

from paragan_tf.data import index_files, sources, tfrecords
from paragan_tf.data.input_fn import InputFn
from tests import stream_test


class IndexFilesTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.root = tempfile.mkdtemp(dir=self.get_temp_dir())
    self.addCleanup(shutil.rmtree, self.root)
    self.pattern = stream_test.write_shards(f"{self.root}/set")
    self.run_folder = f"{self.root}/run"

  def start(self, pattern=None):
    """Makes an input as a run does; returns it, and how often it scanned."""
    with (
      mock.patch.object(tfrecords, "scan", wraps=tfrecords.scan) as scan,
      index_files.reading_from(self.run_folder),
    ):
      input_fn = InputFn(
        lambda: sources.tfrecord(pattern or self.pattern, num_classes=3),
        resolution=stream_test.SIDE,
        streaming=stream_test.SMALL,
      )
    return input_fn, scan.call_count

  def columns(self, input_fn):
    """Returns what is known of the training images."""
    train = input_fn.source.train
    return [train.path_index, train.start, train.size]

  def test_the_second_start_reads_no_headers(self):
    first, count = self.start()
    self.assertEqual(count, 1)
    self.assertFalse(os.path.exists(self.run_folder))  # A dry run ends here.
    first.save_index(self.run_folder)
    second, count = self.start()
    self.assertEqual(count, 0)
    for a, b in zip(self.columns(first), self.columns(second)):
      self.assertAllEqual(a, b)
      self.assertEqual(a.dtype, b.dtype)
    second.save_index(self.run_folder)
    self.assertLen(os.listdir(f"{self.run_folder}/index"), 1)

  def test_other_files_are_scanned(self):
    first, _ = self.start()
    first.save_index(self.run_folder)
    path = f"{self.root}/set/x-2.tfrecord"
    with tf.io.TFRecordWriter(path) as writer:
      writer.write(stream_test.example(3, 0))
    changed, count = self.start()
    self.assertEqual(count, 1)
    self.assertLess(len(changed.source.train), len(first.source.train))
    changed.save_index(self.run_folder)
    self.assertEqual(self.start()[1], 0)
    self.assertEqual(self.start(f"{self.root}/set/x-1.tfrecord")[1], 1)

  def test_a_file_of_the_same_size_but_newer_is_scanned(self):
    first, _ = self.start()
    first.save_index(self.run_folder)
    os.utime(f"{self.root}/set/x-1.tfrecord", (1, 1))
    self.assertEqual(self.start()[1], 1)

  def test_a_damaged_index_is_made_again(self):
    first, _ = self.start()
    first.save_index(self.run_folder)
    (name,) = os.listdir(f"{self.run_folder}/index")
    stream_test.damage(f"{self.run_folder}/index/{name}")
    again, count = self.start()
    self.assertEqual(count, 1)
    again.save_index(self.run_folder)
    self.assertEqual(self.start()[1], 0)

  def test_one_start_scans_the_same_files_once(self):
    with (
      mock.patch.object(tfrecords, "scan", wraps=tfrecords.scan) as scan,
      index_files.recording() as scans,
    ):
      paths = tf.io.gfile.glob(self.pattern)
      found = [index_files.scan(paths) for _ in range(2)]
    self.assertEqual(scan.call_count, 1)
    self.assertLen(scans, 1)
    self.assertAllEqual(np.stack(found[0]), np.stack(found[1]))

  def test_a_lost_file_is_named_by_the_scan(self):
    with (
      index_files.recording(),
      self.assertRaisesRegex(ValueError, "'/no/file' cannot be read"),
    ):
      index_files.scan(["/no/file"])


if __name__ == "__main__":
  tf.test.main()
