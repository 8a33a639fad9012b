"""A scan finds all records, and names the byte of a damaged one."""

import gzip
import os
import pathlib
import struct
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import crc32c, tfrecords

SIZES = (0, 1, 255, 256, 70000, 3)


def payloads(sizes, seed=0):
  """Returns random bytes of these lengths."""
  random = np.random.RandomState(seed)
  return [random.bytes(size) for size in sizes]


def write(path, records):
  """Writes a TFRecord file with TensorFlow and returns its path."""
  with tf.io.TFRecordWriter(path) as writer:
    for record in records:
      writer.write(record)
  return path


class TfrecordsTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.get_temp_dir()

  def file(self, records, name="a.tfrecord"):
    return write(os.path.join(self.folder, name), records)

  def write_changed(self, change):
    """Writes a file whose bytes went through `change`; returns its path."""
    path = self.file(payloads(SIZES))
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(change(data))
    return path

  def test_a_scan_finds_every_record(self):
    records = [payloads(SIZES, 0), [], payloads((5, 6), 1)]
    paths = [self.file(x, f"{i}.tfrecord") for i, x in enumerate(records)]
    shard, offset, size = tfrecords.scan(paths)
    self.assertEqual(
      (shard.dtype, offset.dtype, size.dtype), (np.int32, np.int64, np.int64)
    )
    self.assertAllEqual(shard, [0] * len(SIZES) + [2, 2])
    data = [pathlib.Path(path).read_bytes() for path in paths]
    found = [data[i][a : a + n] for i, a, n in zip(shard, offset, size)]
    self.assertEqual(found, [*records[0], *records[2]])

  def test_no_file_has_no_record(self):
    self.assertEqual([len(x) for x in tfrecords.scan([])], [0, 0, 0])

  @parameterized.named_parameters(
    # 12 is one header; most blocks end within a payload or a header.
    *((f"blocks_of_{size}", size) for size in (12, 13, 16, 29, 300, 70000))
  )
  def test_the_index_does_not_depend_on_blocks_or_file_system(
    self, block_bytes
  ):
    path = self.file(payloads(SIZES))
    expected = tfrecords.scan([path])
    with mock.patch.object(tfrecords, "_BLOCK_BYTES", block_bytes):
      mapped = tfrecords.scan([path])
      with mock.patch.object(tfrecords.os.path, "isfile", lambda path: False):
        fetched = tfrecords.scan([path])
    self.assertAllEqual(mapped, expected)
    self.assertAllEqual(fetched, expected)

  def test_checksums_are_tensorflows(self):
    lengths = [0, 1, 255, 256, 65535, 2**24 + 3]
    path = self.file([bytes(length) for length in lengths])
    data, at = pathlib.Path(path).read_bytes(), 0
    for length in lengths:
      found, checksum = struct.unpack_from("<QI", data, at)
      self.assertEqual(found, length)
      ours = crc32c.masked_numbers(np.array([length], "<u8"))
      self.assertEqual(ours.tolist(), [checksum])
      at += length + 16

  def test_tables_equal_the_bitwise_crc(self):
    crc = 0xFFFFFFFF
    for _ in range(64):
      crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    self.assertEqual(crc32c.masked_numbers(np.zeros([1], "<u8")), masked)

  @parameterized.named_parameters(
    *((f"byte_{i}_of_a_length", 16 + 17 + i) for i in range(8)),
    *((f"byte_{i}_of_a_checksum", 16 + 17 + 8 + i) for i in range(4)),
  )
  def test_a_damaged_header_is_found(self, at):
    # The third record begins after one of 0 bytes and one of 1 byte.
    path = self.write_changed(
      lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    )
    with self.assertRaisesRegex(ValueError, "at byte 33: it is damaged; copy"):
      tfrecords.scan([path])

  def test_payloads_are_not_checked(self):
    path = self.write_changed(lambda data: data[:50] + b"x" * 20 + data[70:])
    self.assertAllEqual(tfrecords.scan([path])[2], SIZES)

  @parameterized.named_parameters(
    ("no_last_checksum", 1, r"ends at byte 70,610, .* begins at byte 70,592"),
    ("half_a_payload", 6, r"ends at byte 70,605, .* begins at byte 70,592"),
    ("half_a_header", 10, r"ends at byte 70,601, .* begins at byte 70,592"),
    ("only_half_a_header", 70605, r"ends at byte 6, .* begins at byte 0"),
  )
  def test_a_file_cut_short_is_refused(self, cut, words):
    path = self.write_changed(lambda data: data[:-cut])
    with self.assertRaisesRegex(ValueError, words) as caught:
      tfrecords.scan([path])
    self.assertIn(f"'{path}'", str(caught.exception))
    self.assertIn("copy or make it again", str(caught.exception))

  @parameterized.named_parameters(
    ("gzip", gzip.compress, "compressed with gzip; unpack"),
    ("text", lambda data: b"<html>404 Not Found</html>", "another kind"),
    ("zeros", lambda data: bytes(1000), "another kind"),
  )
  def test_another_kind_of_file_is_refused(self, change, words):
    path = self.write_changed(change)
    with self.assertRaisesRegex(ValueError, f"at byte 0: .*{words}") as caught:
      tfrecords.scan([path])
    self.assertIn(f"'{path}'", str(caught.exception))

  def test_zeros_behind_the_last_record_are_refused(self):
    path = self.write_changed(lambda data: data + bytes(100))
    with self.assertRaisesRegex(ValueError, "at byte 70,611: it is damaged"):
      tfrecords.scan([path])

  def test_a_missing_file_is_named(self):
    with self.assertRaisesRegex(ValueError, "'no_such' cannot be read"):
      tfrecords.scan(["no_such"])


if __name__ == "__main__":
  tf.test.main()
