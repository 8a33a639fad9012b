"""A folder's images are listed with their classes; broken ones are named."""

import functools
import io
import os
import pathlib
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf.data import folder, preflight, sources
from paragan_tf.data.input_fn import InputFn

KINDS = ("JPEG", "PNG", "WEBP", "BMP")


def encode(kind, size=40, **options):
  """Returns noise as the bytes of an image file."""
  pixels = np.random.RandomState(0).randint(256, size=[size, size, 3])
  file = io.BytesIO()
  Image.fromarray(pixels.astype(np.uint8)).save(file, kind, **options)
  return file.getvalue()


def with_preview():
  """Returns a JPEG that has a whole one in a segment before its own scan."""
  data, preview = encode("JPEG"), encode("JPEG", size=8)
  segment = b"\xff\xe1" + (len(preview) + 2).to_bytes(2, "big") + preview
  return data[:2] + segment + data[2:]


class FolderTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = os.path.join(self.get_temp_dir(), "images")
    os.makedirs(self.root)

  def write(self, files):
    """Writes files by name; `None` stands for a whole JPEG."""
    for name, data in files.items():
      path = pathlib.Path(self.root, name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(encode("JPEG") if data is None else data)

  def write_all(self, *names):
    self.write(dict.fromkeys(names))

  def names(self, listing):
    return [os.path.relpath(file, self.root) for file in listing.files]

  def assert_broken(self, data, words):
    """One file of these bytes is left out for a reason, and refused."""
    self.write({"good.jpg": None, "bad.jpg": data})
    listing = folder.list_images(self.root, broken="skip")
    self.assertEqual(self.names(listing), ["good.jpg"])
    ((file, reason),) = listing.broken
    self.assertEqual(file, os.path.join(self.root, "bad.jpg"))
    self.assertRegex(reason, words)
    with self.assertRaisesRegex(
      ValueError, rf"1 of 2 images .*'bad.jpg' \({words}.*\); .*broken='skip'"
    ):
      folder.list_images(self.root)

  def assert_whole(self, data):
    self.write({"a.jpg": data})
    self.assertLen(folder.list_images(self.root).files, 1)

  def test_images_without_folders_have_no_labels(self):
    self.write_all("b.jpg", "a.JPEG", "c.PnG", "d.webp", "e.bmp")
    self.write({"notes.txt": b"x", ".hidden.jpg": b"", "f.jpg.json": b"x"})
    listing = folder.list_images(self.root)
    self.assertEqual(
      self.names(listing), ["a.JPEG", "b.jpg", "c.PnG", "d.webp", "e.bmp"]
    )
    self.assertTrue(all(map(os.path.isabs, listing.files)))
    self.assertIsNone(listing.labels)
    self.assertEqual(listing.label_names, ())
    self.assertEqual(listing.broken, ())

  def test_folders_are_classes_of_all_files_within(self):
    # As text, "dog-2/" comes before "dog/".
    self.write_all("dog/b.jpg", "dog-2/a.jpg", "cat/z.jpg", "cat/deep/er/a.png")
    self.write({"empty/notes.txt": b"x", ".git/a.jpg": b"", "x.txt": b"x"})
    self.write({"cat/.cache/a.jpg": b"", "cat/.a.jpg": b""})
    listing = folder.list_images(self.root)
    self.assertEqual(
      self.names(listing),
      ["cat/deep/er/a.png", "cat/z.jpg", "dog-2/a.jpg", "dog/b.jpg"],
    )
    self.assertEqual(listing.label_names, ("cat", "dog", "dog-2"))
    self.assertAllEqual(listing.labels, [0, 0, 2, 1])
    self.assertEqual(listing.labels.dtype, np.int32)

  def test_a_class_may_be_a_link(self):
    self.write_all("cat/a.jpg")
    other = os.path.join(self.get_temp_dir(), "elsewhere")
    os.makedirs(other)
    pathlib.Path(other, "b.jpg").write_bytes(encode("JPEG"))
    link = os.path.join(self.root, "dog")
    os.symlink(other, link)
    self.addCleanup(os.remove, link)
    listing = folder.list_images(self.root)
    self.assertEqual(self.names(listing), ["cat/a.jpg", "dog/b.jpg"])

  def test_paths_are_full_wherever_the_program_runs(self):
    self.write_all("a.jpg")
    before = os.getcwd()
    self.addCleanup(os.chdir, before)
    os.chdir(os.path.dirname(self.root))
    listing = folder.list_images("images/")
    self.assertEqual(listing, folder.list_images(self.root))

  def test_images_beside_classes_are_refused(self):
    self.write_all("cat/a.jpg", "stray.jpg")
    with self.assertRaisesRegex(ValueError, "not both: move 'stray.jpg'"):
      folder.list_images(self.root)

  @parameterized.named_parameters(
    ("nothing", {}, "found nothing"),
    (
      "other_files",
      {"a.gif": b"x", "b.gif": b"x", "c/README": b"x"},
      r"found 3 other files \(2 of .gif, 1 of no ending\)",
    ),
  )
  def test_a_folder_without_images_is_refused_with_a_summary(
    self, files, words
  ):
    self.write(files)
    with self.assertRaisesRegex(ValueError, words) as caught:
      folder.list_images(self.root)
    self.assertIn(self.root, str(caught.exception))

  def test_arguments_are_checked(self):
    with self.assertRaisesRegex(ValueError, "`broken` must be.*'ignore'"):
      folder.list_images(self.root, broken="ignore")
    with self.assertRaisesRegex(ValueError, "`path`.*no_such': not there"):
      folder.list_images(self.root + "/no_such")

  @parameterized.named_parameters(*((kind, kind) for kind in KINDS))
  def test_the_content_decides_not_the_extension(self, kind):
    self.assert_whole(encode(kind))

  @parameterized.named_parameters(*((kind, kind) for kind in KINDS))
  def test_bytes_may_follow_an_image(self, kind):
    self.assert_whole(encode(kind) + b"\x00" * 100_000)

  @parameterized.product(kind=KINDS, keep=[0.3, 0.6, 0.99])
  def test_an_image_that_is_cut_short_is_broken(self, kind, keep):
    data = encode(kind)
    self.assert_broken(data[: int(keep * len(data))], "cut short: ")

  @parameterized.named_parameters(*((kind, kind) for kind in KINDS))
  def test_an_image_that_lost_its_last_byte_is_broken(self, kind):
    self.assert_broken(encode(kind)[:-1], "cut short: ")

  def test_an_image_whose_second_half_is_zeros_is_broken(self):
    data = encode("JPEG")
    half = len(data) // 2
    self.assert_broken(data[:half] + bytes(half), "cut short: JPEG")

  def test_damage_in_the_middle_shows_when_it_is_decoded(self):
    data = encode("JPEG")
    self.write_all("good.jpg")
    self.write({"bad.jpg": data[:200] + bytes(len(data) - 202) + data[-2:]})
    self.assertLen(folder.list_images(self.root).files, 2)
    listing = folder.list_images(self.root, broken="skip", decode=True)
    self.assertEqual(self.names(listing), ["good.jpg"])
    self.assertRegex(listing.broken[0][1], r"cannot be decoded: jpeg::Uncompr")
    (remark,) = self.remarks(broken="skip", num_heldout=2)
    self.assertRegex(remark, "^1 of 5 images are broken and left out: '.*bad.j")
    self.assertEqual(self.remarks(broken="refuse", num_heldout=2), [])

  def remarks(self, **options):
    """Returns the warnings about the folder, with three images more."""
    self.write_all("1.jpg", "2.jpg", "3.jpg")
    source = functools.partial(sources.folder, self.root, **options)
    return preflight.remarks(InputFn(source, conditional=False))

  def test_the_end_of_a_preview_is_not_that_of_the_image(self):
    data = with_preview()
    self.assert_whole(data)
    self.assert_whole(data + b"behind")
    os.remove(os.path.join(self.root, "a.jpg"))
    self.assert_broken(data[:-10], "cut short: JPEG")

  def test_a_marker_may_come_after_more_than_one_ff(self):
    data = encode("JPEG")
    self.assert_whole(data[:2] + b"\xff\xff" + data[2:] + b"behind")

  def test_a_progressive_image_passes(self):
    self.assert_whole(encode("JPEG", progressive=True) + b"behind")

  @parameterized.named_parameters(
    ("empty", b"", "empty"),
    ("html", b"<html></html>", "no JPEG, .*begins with 3c 68 74 6d"),
    ("gif", encode("GIF"), "no JPEG, .*begins with 47 49 46 38"),
    ("sound", b"RIFF\x04\x00\x00\x00WAVE", "no JPEG, .*begins with 52 49"),
    ("one_byte", b"\xff", "no JPEG, .*begins with ff"),
    ("two_bytes", b"BM", "no JPEG, .*begins with 42 4d"),
    ("only_the_start", b"\xff\xd8\xff", "cut short: JPEG"),
  )
  def test_a_file_that_is_no_image_is_broken(self, data, words):
    self.assert_broken(data, words)

  def test_a_file_that_cannot_be_opened_is_broken(self):
    self.write_all("good.jpg")
    os.symlink("no_such", os.path.join(self.root, "bad.jpg"))
    listing = folder.list_images(self.root, broken="skip")
    self.assertRegex(listing.broken[0][1], "cannot be read: No such file")

  def test_three_are_named_and_the_rest_counted(self):
    self.write({f"{i}.jpg": b"" for i in range(5)})
    self.write_all("good.jpg")
    with self.assertRaisesRegex(
      ValueError, r"5 of 6 .*'0.jpg' .*'2.jpg' \(empty\) and 2 more; "
    ) as caught:
      folder.list_images(self.root)
    self.assertNotIn("3.jpg", str(caught.exception))

  def test_labels_are_those_of_the_remaining_files(self):
    self.write_all("b/1.jpg", "c/1.jpg", "c/3.jpg")
    self.write({"a/1.jpg": b"", "c/2.jpg": b""})
    listing = folder.list_images(self.root, broken="skip")
    self.assertEqual(self.names(listing), ["b/1.jpg", "c/1.jpg", "c/3.jpg"])
    self.assertEqual(listing.label_names, ("b", "c"))
    self.assertAllEqual(listing.labels, [0, 1, 1])
    self.assertLen(listing.broken, 2)

  def test_a_folder_of_only_broken_files_is_refused(self):
    self.write({"a.jpg": b""})
    with self.assertRaisesRegex(ValueError, "1 of 1 .*copy them again"):
      folder.list_images(self.root, broken="skip")

  def test_a_whole_image_is_read_at_its_ends_only(self):
    for kind in KINDS:
      self.write({f"a.{kind.lower()}": encode(kind, size=200)})
    with mock.patch.object(folder, "_read_all", side_effect=AssertionError):
      self.assertLen(folder.list_images(self.root).files, 4)


if __name__ == "__main__":
  tf.test.main()
