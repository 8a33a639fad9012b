"""Files that are not what they say are refused early, or named."""

import io
import os
import pathlib
import struct
import tempfile
import zipfile

import numpy as np
import PIL.Image
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import array_files
from paragan_tf.data import (
  arrays,
  crc32c,
  folder,
  image_errors,
  image_headers,
  preflight,
  shards,
  sources,
  transforms,
)
from paragan_tf.data.adapted_input import AdaptedInput
from paragan_tf.data.encoded import BlockReader, Streaming
from paragan_tf.data.input_fn import InputFn
from paragan_tf.outputs import image_files
from tools import packing
from tools.encoded_images import open_source

RANDOM = np.random.RandomState(0)
PHOTO = RANDOM.randint(256, size=[6, 9, 3]).repeat(8, 0).repeat(8, 1)
PHOTO = PIL.Image.fromarray(PHOTO.astype(np.uint8))
NOISE = PIL.Image.fromarray(RANDOM.randint(256, size=[96, 96, 3], dtype="u1"))


def encode(image, kind="JPEG", **options):
  """Returns the bytes of a file."""
  file = io.BytesIO()
  image.save(file, kind, **options)
  return file.getvalue()


def turned(orientation, endian="<"):
  """Returns a JPEG whose EXIF header has an orientation."""
  exif = PIL.Image.Exif()
  exif.endian = endian
  exif[0x10F], exif[0x112] = "maker", orientation
  return encode(PHOTO, exif=exif, quality=95)


def npy(shape, dtype="u1", data=b""):
  """Returns an npy file whose header declares what it likes."""
  header = f"{{'descr': '|{dtype}', 'fortran_order': False, 'shape': {shape}}}"
  header = header.encode().ljust(117) + b"\n"
  return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(**members):
  """Returns an npz file of members."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as members_of:
    for name, data in members.items():
      members_of.writestr(f"{name}.npy", data)
  return file.getvalue()


class TestCase(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory(dir=self.get_temp_dir())
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def write(self, name, data):
    """Writes a file; returns its path."""
    path = self.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


class ArrayTest(TestCase):
  @parameterized.named_parameters(
    ("terabytes", npy("(1000000, 1000000)"), "declares"),
    ("more_axes_than_numpy_has", npy("(1,) * 99"), ""),
    ("negative", npy("(-1, 4)"), "shape"),
    ("too_long", npy("(4,)", data=b"12345"), "has 5"),
    ("cut", npy("(4,)", data=b"123"), "has 3"),
    ("pickle", npy("(1,)", "O", b"cos\nsystem\n"), "Python objects"),
    ("no_header", b"\x93NUMPY\x01\x00\xff\xff{", ""),
    ("no_end_of_header", npy("((4,)"), ""),
    ("nothing", b"", ""),
  )
  def test_a_header_must_be_true(self, data, words):
    for read, content in (
      (array_files.read_one, data),
      (array_files.read, npz(images=data)),
    ):
      with self.assertRaisesRegex(ValueError, words):
        read(io.BytesIO(content))

  def test_what_unpacks_to_more_than_memory_is_refused(self):
    shape = array_files._memory() + 1
    with self.assertRaisesRegex(ValueError, "GB, more than this machine has"):
      array_files._check(io.BytesIO(npy(f"({shape},)")), shape + 128, "x", 1000)

  def test_arrays_are_read_as_numpy_reads_them(self):
    given = {"a": np.asfortranarray(np.eye(3)), "b": np.array("text")}
    given["c"] = np.zeros([0, 5], np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, **given)
    found = array_files.read(io.BytesIO(file.getvalue()))
    self.assertEqual(found.keys(), given.keys())
    for name, value in given.items():
      self.assertAllEqual(found[name], value)

  @parameterized.named_parameters(
    ("no_pixels", [20, 0, 0, 3], None, "at least 4x4, got 0x0"),
    ("two_channels", [20, 8, 8, 2], None, "1 or 3 channels, got 2"),
    ("seven_channels", [20, 8, 8, 7], None, "1 or 3 channels, got 7"),
    ("transparency", [20, 8, 8, 4], None, "1 or 3 channels, got 4"),
    ("many_classes", [2, 8, 8], [0, 2**31], "below 1,000,000, got 2147483648"),
  )
  def test_images_are_gray_or_color(self, shape, labels, words):
    given = {"images": np.zeros(shape, np.uint8)}
    if labels is not None:
      given["labels"] = np.array(labels)
    path = str(self.folder / "a.npz")
    np.savez(path, **given)
    with self.assertRaisesRegex(ValueError, words):
      arrays.load_npz(path)

  def test_labels_of_an_index_are_bounded(self):
    ones = np.ones([1], np.int64)
    file = io.BytesIO()
    np.savez(
      file, shard=0 * ones, offset=12 * ones, size=ones, labels=ones << 40
    )
    self.write("index.npz", file.getvalue())
    path = self.write(
      "manifest.json",
      b'{"version": 1, "name": "x", "shards": '
      b'[{"file": "a", "count": 1, "bytes": 17, "sha256": ""}], "label_names": '
      b'["a"], "features": {}, "num_images": 1, "label_counts": [1]}',
    )
    with self.assertRaisesRegex(
      ValueError, "`labels` of index.npz is not from"
    ):
      shards.read_manifest(path)


class PipeTest(TestCase):
  @parameterized.named_parameters(
    ("npz", lambda path: arrays.load_npz(path)),
    ("npy", lambda path: arrays.load_npy(path)),
    ("manifest", lambda path: shards.read_manifest(path)),
    ("tfrecord", lambda path: sources.tfrecord(path)),
    ("images", lambda path: image_files.open_images(path)),
    ("folder", lambda path: sources.folder(os.path.dirname(path))),
    ("measured", lambda path: image_files.open_images(os.path.dirname(path))),
  )
  def test_a_pipe_is_refused_not_waited_for(self, read):
    paths = [str(self.folder / name) for name in ("a.png", "b.png")]
    for path in paths:
      os.mkfifo(path)
    with self.assertRaisesRegex(ValueError, "regular file|not there"):
      read(paths[0])


class ImageTest(TestCase):
  @parameterized.parameters(*range(1, 9))
  def test_a_photo_is_held_as_its_header_says(self, orientation):
    for endian in "<>":
      content = turned(orientation, endian)
      with PIL.Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(PIL.ImageOps.exif_transpose(image))
      self.assertEqual(expected.shape[0] > expected.shape[1], orientation > 4)
      eager = transforms.decode_image(tf.constant(content), 3)
      self.assertAllEqual(eager, expected)
      data = tf.data.Dataset.from_tensors(content)
      (by_ops,) = data.map(
        lambda x: transforms.decode_image(x, 3, python=False)
      )
      self.assertAllEqual(by_ops, expected)
      path = self.write("a.jpg", content)
      self.assertAllEqual(image_files.Files([path])[0:1][0], expected)

  def test_packed_photos_are_held_alike(self):
    for i in range(6):
      self.write(f"photos/{i}.jpg", turned(6))
    images = open_source(
      f"folder:{self.folder}/photos", "train", None, "refuse"
    )
    output = str(self.folder / "packed")
    os.makedirs(output)
    packing.write_shard(output, "a.tfrecord", images)
    for source in (
      lambda: sources.folder(f"{self.folder}/photos", num_heldout=2),
      lambda: sources.tfrecord(f"{output}/a.tfrecord", num_heldout=2),
    ):
      for reader in ("threads", "graph"):
        made = InputFn(
          source,
          resolution=48,
          conditional=False,
          streaming=Streaming(window=4, reader=reader),
        )
        (images, *_) = next(iter(made({"batch_size": 2})))
        expected = self.fit(turned(6))
        self.assertAllClose(images[0], expected, atol=1 / 127)

  def fit(self, content):
    """Returns the image that a run gets: turned, cropped, in [-1, 1]."""
    with PIL.Image.open(io.BytesIO(content)) as image:
      pixels = np.asarray(PIL.ImageOps.exif_transpose(image))
    return pixels[12:60] / 127.5 - 1

  @parameterized.product(progressive=[False, True], part=[0.6, 0.95])
  def test_a_jpeg_that_ends_early_is_named(self, progressive, part):
    whole = encode(NOISE, progressive=progressive)
    self.assertIsNone(image_errors.find_decode_error(whole))
    early = whole[: int(len(whole) * part)] + b"\xff\xd9"
    self.assertIn("ends early", image_errors.find_decode_error(early))

  def test_gray_and_tiny_images_do_not_end_early(self):
    for size in ((1, 1), (8, 8), (33, 70)):
      gray = PIL.Image.new("RGB", size, (128, 128, 128))
      for progressive in (False, True):
        content = encode(gray, progressive=progressive)
        self.assertIsNone(image_errors.find_decode_error(content))

  def test_those_are_counted_skipped_or_refused(self):
    for i in range(10):
      self.write(f"photos/{i}.jpg", encode(NOISE))
    early = encode(NOISE)[:3000] + b"\xff\xd9"
    self.write("photos/early.jpg", early)
    root = f"{self.folder}/photos"
    words = "1 of 11 images .*'early.jpg' \\(ends early"
    with self.assertRaisesRegex(ValueError, words):
      sources.folder(root, decode=True)
    found = sources.folder(root, broken="skip")
    ((name, reason),) = found.broken
    self.assertEndsWith(name, "early.jpg")
    self.assertIn("ends early", reason)
    self.assertLen(found.train, 8)
    self.assertLen(sources.folder(root).train, 9)  # Not looked at.

  def test_headers_say_the_size(self):
    for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP"):
      content = encode(PHOTO, kind)
      self.assertEqual(image_headers.read_size(content), (72, 48), kind)
    lossless = encode(PHOTO, "WEBP", lossless=True)
    self.assertEqual(image_headers.read_size(lossless), (72, 48))

  def test_an_image_of_too_many_pixels_is_refused_by_its_header(self):
    content = bytearray(encode(PHOTO, "PNG"))
    struct.pack_into(">II", content, 16, 20_000, 20_000)
    words = "20000x20000 pixels, more than 178,956,970"
    self.assertIn(words, image_errors.find_decode_error(bytes(content)))
    self.write("photos/a.png", bytes(content))
    with self.assertRaisesRegex(ValueError, words):
      folder.list_images(str(self.folder / "photos"))


class ChecksumTest(TestCase):
  def records(self, sizes):
    """Writes a file; returns its index and content."""
    path = str(self.folder / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
      for size in sizes:
        writer.write(RANDOM.bytes(size))
    return shards.find(path), pathlib.Path(path).read_bytes()

  def test_checksums_are_tensorflows(self):
    sizes = [0, 1, 3, 4, 5, 255, 256, 257, 511, 5000, 70000]
    index, data = self.records(sizes)
    ends = index.offset + index.size
    written = [struct.unpack_from("<I", data, end)[0] for end in ends]
    found = crc32c.masked(data, index.offset, index.size)
    self.assertAllEqual(found, np.array(written, np.uint32))

  def test_a_flipped_bit_of_a_payload_is_named(self):
    index, data = self.records([100, 300, 50])
    images = sources._encoded_images(index, 3, False)
    for block_bytes in (1, 1 << 20):

      def fetch(content, verify=True, block_bytes=block_bytes):
        reader = BlockReader(
          images,
          Streaming(block_bytes=block_bytes, verify=verify),
          lambda path, start, size: content[start : start + size],
        )
        return [reader.fetch((0, i)) for i in sorted(set(reader.block_ids))]

      fetch(data)
      flipped = bytearray(data)
      flipped[index.offset[1] + 299] ^= 4
      words = f"byte {index.offset[1]} of '.*a.tfrecord' is damaged"
      with self.assertRaisesRegex(ValueError, words):
        fetch(bytes(flipped))
      fetch(bytes(flipped), verify=False)


class NoteTest(TestCase):
  def test_floats_from_0_to_1_get_a_note(self):
    for low, num_notes in ((0.0, 1), (-1.0, 0)):
      images = RANDOM.uniform(low, 1, [64, 8, 8, 3]).astype(np.float32)
      data = tf.data.Dataset.from_tensor_slices(images)
      found = preflight.check(AdaptedInput(lambda data=data: data), 8)
      self.assertLen(found, num_notes)
    self.assertEmpty(preflight.check(InputFn(sources.fashion), 8))

  def test_labels_that_are_dropped_get_a_note(self):
    data = tf.data.Dataset.from_tensor_slices(
      (np.zeros([64, 8, 8, 3], np.uint8), np.arange(64) % 2)
    )
    for num_classes, num_notes in ((0, 1), (2, 0)):
      made = AdaptedInput(lambda: data, num_classes)
      self.assertLen(preflight.remarks(made), num_notes)
    dropped = preflight.remarks(InputFn(sources.fashion, conditional=False))
    self.assertIn("Labels of 'fashion' are not used", dropped[0])


if __name__ == "__main__":
  tf.test.main()
