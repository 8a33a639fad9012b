"""The tool's files hold every image once, as it was, also after a stop."""

import collections
import hashlib
import io
import os
import pathlib
import subprocess
import sys
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf import stopping
from paragan_tf.data import shards
from paragan_tf.data.input_fn import InputFn
from tools import cli, encoded_images, make_tfrecords, packing

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ("JPEG", "PNG", "WEBP", "BMP")


def encode_image(i):
  """Returns an image of its own for each number, of all kinds in turn."""
  pixels = np.random.RandomState(i).randint(256, size=[8, 8, 3])
  file = io.BytesIO()
  Image.fromarray(pixels.astype(np.uint8)).save(file, KINDS[i % len(KINDS)])
  return file.getvalue()


def run(*flags):
  """Runs the program and returns the ended process."""
  return subprocess.run(
    [sys.executable, "-m", "tools.make_tfrecords", *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def read(index):
  """Returns `(file, name, label, bytes)` of every record, at its place."""
  rows = []
  for shard, offset, size in zip(index.shard, index.offset, index.size):
    path = index.paths[shard]
    record = pathlib.Path(path).read_bytes()[offset : offset + size]
    feature = tf.train.Example.FromString(record).features.feature
    label = list(feature["label"].int64_list.value)
    (name,) = feature["name"].bytes_list.value
    (data,) = feature["image"].bytes_list.value
    rows.append((os.path.basename(path), name.decode(), label, data))
  return rows


class MakeTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.images = os.path.join(self.get_temp_dir(), "photos")
    self.output = os.path.join(self.get_temp_dir(), "output")
    self.source = f"folder:{self.images}"
    self.data = {}
    # 20 images of three classes: 10, 6 and 4.
    for i in range(20):
      label = "ant" if i < 10 else "bee & fly" if i < 16 else "cat"
      self.data[f"{label}/{i}.img.jpg"] = encode_image(i)
    self.write(self.data)

  def write(self, data):
    for name, content in data.items():
      path = pathlib.Path(self.images, name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content)

  def make(self, **arguments):
    arguments = {"source": self.source, "num_shards": 3, **arguments}
    make_tfrecords.make(self.output, make_tfrecords.Arguments(**arguments))

  def make_some(self, num_files, **arguments):
    """Stops after some files, within the next one."""
    left = iter(range(num_files))
    write_records = packing._write_records

    def write(tf, path, images):
      if next(left, None) is None:
        pathlib.Path(path).write_bytes(b"half")
        raise stopping.Stopped
      return write_records(tf, path, images)

    with (
      mock.patch.object(packing, "_write_records", write),
      self.assertRaises(stopping.Stopped),
    ):
      self.make(**arguments)

  def files(self, ending=".tfrecord"):
    found = pathlib.Path(self.output).rglob(f"*{ending}")
    return {path.name: path.stat().st_mtime_ns for path in found}

  def index(self):
    """Returns what the manifest says, which a scan must find, too."""
    index = shards.find(os.path.join(self.output, "manifest.json"))
    paths = sorted(tf.io.gfile.glob(os.path.join(self.output, "*.tfrecord")))
    self.assertEqual(index.paths, tuple(paths))
    self.assertAllEqual(
      shards.scan(paths), (index.shard, index.offset, index.size)
    )
    return index

  def assert_all_images_once(self):
    index = self.index()
    rows = read(index)
    self.assertEqual({name: data for _, name, _, data in rows}, self.data)
    self.assertLen(rows, len(self.data))
    for (_, name, label, _), known in zip(rows, index.labels):
      self.assertEqual(index.label_names[known], name.split("/")[0])
      self.assertEqual(label, [known])
    return rows

  def test_every_image_is_there_once_as_it_was(self):
    self.make()
    rows = self.assert_all_images_once()
    counts = collections.Counter(row[0] for row in rows)
    names = [f"train-0000{k}-of-00003.tfrecord" for k in range(3)]
    self.assertEqual(counts, dict(zip(names, [7, 7, 6])))
    # Nothing is left of the work.
    self.assertCountEqual(
      os.listdir(self.output),
      [*names, "manifest.json", "index.npz", "arguments.json"],
    )

  def test_sums_of_the_manifest(self):
    self.make()
    manifest = shards.read_manifest(os.path.join(self.output, "manifest.json"))
    self.assertEqual(manifest.name, "photos")
    self.assertEqual(manifest.index.label_names, ("ant", "bee & fly", "cat"))
    self.assertAllEqual(np.bincount(manifest.index.labels), [10, 6, 4])
    for shard in manifest.shards:
      data = pathlib.Path(self.output, shard.file).read_bytes()
      self.assertLen(data, shard.bytes)
      self.assertEqual(hashlib.sha256(data).hexdigest(), shard.sha256)

  def test_the_seed_settles_the_files(self):
    self.make()
    first = read(self.index())
    self.output += "_again"
    self.make()
    self.assertEqual(read(self.index()), first)
    self.output += "_other"
    self.make(seed=1)
    other = self.assert_all_images_once()
    self.assertNotEqual([row[1] for row in other], [row[1] for row in first])
    # Classes are mixed within a file.
    self.assertGreater(len({row[1][0] for row in first[:7]}), 1)

  def test_each_label_has_its_files(self):
    self.make(by_label=True, num_shards=2)
    rows = self.assert_all_images_once()
    counts = collections.Counter((row[0], row[1].split("/")[0]) for row in rows)
    self.assertEqual(
      counts,
      {
        ("ant-00000-of-00002.tfrecord", "ant"): 5,
        ("ant-00001-of-00002.tfrecord", "ant"): 5,
        ("bee_fly-00000-of-00002.tfrecord", "bee & fly"): 3,
        ("bee_fly-00001-of-00002.tfrecord", "bee & fly"): 3,
        ("cat-00000-of-00002.tfrecord", "cat"): 2,
        ("cat-00001-of-00002.tfrecord", "cat"): 2,
      },
    )

  def test_a_label_reads_its_own_files_only(self):
    self.make(by_label=True, num_shards=1)
    for path in pathlib.Path(self.output).glob("[!c]*.tfrecord"):
      path.write_bytes(bytes(path.stat().st_size))  # Damages all but cats.
    source = f"tfrecord:{self.output}/manifest.json"
    input_fn = InputFn(source, 8, label="cat")
    paths = [os.path.basename(x) for x in input_fn.source.train.paths]
    self.assertEqual(paths, ["cat-00000-of-00001.tfrecord"])
    # More than there are.
    (images,) = next(iter(input_fn({"batch_size": 8})))
    self.assertLess(input_fn.num_images, 8)
    self.assertEqual(images.shape, (8, 8, 8, 3))

  def test_a_label_without_an_index_is_refused(self):
    self.make(by_label=True, num_shards=1)
    os.remove(f"{self.output}/manifest.json")
    with self.assertRaisesRegex(ValueError, "make_tfrecords --by_label"):
      with gin.unlock_config():
        gin.bind_parameter("sources.tfrecord.num_classes", 3)
      InputFn(f"tfrecord:{self.output}/*.tfrecord", 8, label=2)

  def test_labels_of_like_names_keep_apart(self):
    self.write({"bee | fly/x.jpg": encode_image(20)})
    self.data["bee | fly/x.jpg"] = encode_image(20)
    self.make(by_label=True, num_shards=1)
    rows = self.assert_all_images_once()
    self.assertEqual(
      {row[0].split("-")[0] for row in rows},
      {"ant", "bee_fly_1", "bee_fly_2", "cat"},
    )

  def test_files_are_of_100_mb_by_default(self):
    images = encoded_images.FolderImages(
      "x", "", ("a",) * 10, np.full([10], 37_000_000), None, ()
    )
    plan = make_tfrecords.make_plan(images, make_tfrecords.Arguments("x"))
    self.assertEqual([len(rows) for rows in plan.values()], [3, 3, 2, 2])
    small = images.part(np.arange(1))
    plan = make_tfrecords.make_plan(small, make_tfrecords.Arguments("x"))
    self.assertEqual([rows.tolist() for rows in plan.values()], [[0]])

  def test_there_may_be_more_files_than_images(self):
    self.make(num_shards=30)
    self.assert_all_images_once()
    self.assertLen(self.index().paths, 30)

  def test_images_without_labels_have_none(self):
    self.source += "/ant"
    self.make()
    index = self.index()
    self.assertIsNone(index.labels)
    self.assertEqual(index.label_names, ())
    rows = read(index)
    self.assertEqual([row[2] for row in rows], [[]] * 10)
    data = {f"ant/{row[1]}": row[3] for row in rows}
    expected = {k: v for k, v in self.data.items() if k.startswith("ant")}
    self.assertEqual(data, expected)
    self.output += "_by_label"
    with self.assertRaisesRegex(ValueError, "`--by_label` needs labels"):
      self.make(by_label=True)

  def test_a_stopped_run_resumes_with_the_missing_files(self):
    self.make_some(3, num_shards=5)
    before = self.files()
    self.assertLen(before, 3)
    self.assertNotIn("manifest.json", os.listdir(self.output))
    lost = sorted(before)[0]
    os.remove(os.path.join(self.output, lost))
    os.remove(os.path.join(self.output, "parts", f"{lost}.json"))
    # As of a process that was killed while it wrote.
    pathlib.Path(self.output, f"{lost}.part").write_bytes(b"half")
    self.make(num_shards=5)
    self.assert_all_images_once()
    after = self.files()
    self.assertLen(after, 5)
    self.assertNotEqual(after.pop(lost), before.pop(lost))
    self.assertEqual({file: after[file] for file in before}, before)
    self.assertEmpty(self.files(".part"))

  @parameterized.named_parameters(
    ("lost_file", "{}", None),
    ("cut_file", "{}", b"short"),
    ("lost_part", "parts/{}.json", None),
  )
  def test_a_file_that_is_not_as_it_was_is_written_again(self, name, data):
    self.make_some(2)
    file = sorted(self.files())[1]
    path = pathlib.Path(self.output, name.format(file))
    path.unlink()
    if data is not None:
      path.write_bytes(data)
    self.make()
    self.assert_all_images_once()

  @parameterized.named_parameters(
    ("num_shards", {"num_shards": 4}, "`num_shards` must be 3 .*got 4"),
    ("seed", {"seed": 2}, "`seed` must be 0 .*got 2"),
    ("by_label", {"by_label": True}, "`by_label` must be False .*got True"),
    ("source", {"source": "folder:x"}, "`source` must be .*got folder:x"),
  )
  def test_other_arguments_are_refused(self, changes, words):
    self.make_some(1)
    for _ in range(2):
      before = self.files("")
      with self.assertRaisesRegex(ValueError, words) as caught:
        self.make(**changes)
      self.assertEqual(str(caught.exception).count("must be"), 1)
      self.assertEqual(self.files(""), before)
      self.make()  # Complete, it refuses them, too.

  def test_other_images_are_refused(self):
    self.make_some(1)
    self.write({"ant/new.jpg": encode_image(30)})
    with self.assertRaisesRegex(ValueError, "`num_images` must be 20 .*got 21"):
      self.make()

  def test_what_is_complete_stays(self):
    self.make()
    before = self.files("")
    with mock.patch.object(sys, "stdout", io.StringIO()) as out:
      self.make()
    self.assertIn("is complete: 20 images in 3 files", out.getvalue())
    self.assertEqual(self.files(""), before)
    os.remove(os.path.join(self.output, "train-00001-of-00003.tfrecord"))
    with self.assertRaisesRegex(ValueError, "train-00001.*does not exist"):
      self.make()

  def test_a_folder_of_something_else_is_refused(self):
    self.output = self.images
    with self.assertRaisesRegex(
      ValueError, "`--output` must be a new or empty"
    ):
      self.make()
    self.assertCountEqual(os.listdir(self.output), ["ant", "bee & fly", "cat"])

  def test_a_folder_that_cannot_be_made_is_refused(self):
    file = os.path.join(self.get_temp_dir(), "file")
    pathlib.Path(file).touch()
    for output in (file, f"{file}/below"):
      self.output = output
      with self.assertRaisesRegex(
        ValueError, "`--output` must be a .*folder.*name another"
      ):
        self.make()

  def test_an_image_that_goes_away_is_named(self):
    path = os.path.join(self.images, "cat", "17.img.jpg")
    open_source = encoded_images.open_source

    def open_and_lose(*args):
      images = open_source(*args)
      os.remove(path)
      return images

    with (
      mock.patch.object(encoded_images, "open_source", open_and_lose),
      self.assertRaisesRegex(ValueError, "17.img.jpg.*start again"),
    ):
      self.make()

  def test_broken_images_are_refused_or_left_out(self):
    self.write({"cat/bad.jpg": b""})
    with self.assertRaisesRegex(ValueError, "bad.jpg.*empty"):
      self.make()
    self.assertFalse(os.path.exists(self.output))
    with mock.patch.object(sys, "stdout", io.StringIO()) as out:
      self.make(broken="skip")
    self.assertIn("Left out: cat/bad.jpg (empty)", out.getvalue())
    self.assertIn("20 images in 3 files, 1 broken ones", out.getvalue())
    self.assert_all_images_once()

  def test_an_image_that_is_damaged_within_is_left_out_when_asked(self):
    # Whole at both ends, so it is met when it is written.
    data = encode_image(0)
    bad = data[:200] + bytes(len(data) - 202) + data[-2:]
    self.write({"ant/x.jpg": bad, "cat/y.jpg": bad})
    with mock.patch.object(sys, "stdout", io.StringIO()) as out:
      with self.assertRaisesRegex(ValueError, "^2 images are broken.*=skip"):
        self.make()
      self.assertNotIn("manifest.json", os.listdir(self.output))
      before = self.files()
      self.make(broken="skip")
    self.assertEqual(out.getvalue().count("Left out: ant/x.jpg (cannot be"), 2)
    self.assertIn("20 images in 3 files, 2 broken ones", out.getvalue())
    self.assertEqual(self.files(), before)
    self.assert_all_images_once()

  def test_a_signal_ends_the_program_and_it_can_be_started_again(self):
    program = (
      "import os, signal, time\n"
      "from tools import cli, make_tfrecords as tool\n"
      "def make(*args):\n"
      "  os.kill(os.getpid(), signal.SIGINT)\n"
      "  time.sleep(60)\n"
      "tool.make = make\n"
      "cli.run(tool.main, own_signals=True)\n"
    )
    ended = subprocess.run(
      [sys.executable, "-c", program, "--source=x", "--output=y"],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=False,
      timeout=30,
    )
    self.assertEqual(ended.returncode, 75, ended.stderr)
    words = "Stopped by SIGINT; the same command resumes.\n"
    self.assertEqual((ended.stdout, ended.stderr), ("", words))

  def test_a_program_of_two_processes_and_its_words(self):
    process = run(
      f"--source={self.source}", f"--output={self.output}", "--num_shards=4"
    )
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertIn("20 images in 4 files", process.stdout)
    lines = process.stderr.splitlines()
    self.assertEqual(lines[-1], "20/20 images")
    for line in lines:
      self.assertRegex(line, r"^\d+/20 images$")
    self.assert_all_images_once()

  def test_a_refusal_is_one_sentence_and_exit_code_2(self):
    self.make()
    with (
      mock.patch.object(sys, "stderr", io.StringIO()) as err,
      self.assertRaises(SystemExit) as caught,
    ):
      cli.exit_on_error(lambda: self.make(num_shards=5))
    self.assertEqual(caught.exception.code, 2)
    self.assertRegex(err.getvalue(), "^Error: .*`num_shards` must be 3.*got 5")


if __name__ == "__main__":
  tf.test.main()
