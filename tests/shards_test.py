"""A set is found by its files or its manifest, with the same index."""

import functools
import http.server
import json
import os
import pathlib
import threading
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import shards

# Images of each file; one has none.
COUNTS = (3, 0, 2)
LABELS = np.array([2, 0, 0, 1, 2], np.int32)
NAMES = ("ant", "bee", "cät")


class SetTest(tf.test.TestCase, parameterized.TestCase):
  """Gives each test a set of three files."""

  def setUp(self):
    super().setUp()
    self.folder = self.get_temp_dir()
    self.pattern = os.path.join(self.folder, "train-*.tfrecord")
    random = np.random.RandomState(0)
    self.paths = [self.path(f"train-{i}.tfrecord") for i in range(len(COUNTS))]
    for path, count in zip(self.paths, COUNTS):
      with tf.io.TFRecordWriter(path) as writer:
        for _ in range(count):
          writer.write(random.bytes(random.randint(100)))

  def path(self, name):
    return os.path.join(self.folder, name)

  def write_manifest(self, labels=LABELS, names=NAMES):
    """Writes a manifest as the tool does; returns its path."""
    files = tuple(os.path.basename(path) for path in self.paths)
    index = shards.Index(
      files, *shards.scan(self.paths), labels, names, shards.Features("x", "y")
    )
    entries = (
      shards.Shard(file, count, os.path.getsize(path), "0" * 64)
      for file, count, path in zip(files, COUNTS, self.paths)
    )
    manifest = shards.Manifest("insects", tuple(entries), index)
    shards.write_manifest(self.folder, manifest)
    return self.path("manifest.json")

  def edit(self, **changes):
    """Changes entries of the manifest; `None` takes one away."""
    path = pathlib.Path(self.path("manifest.json"))
    content = {**json.loads(path.read_text()), **changes}
    content = {k: v for k, v in content.items() if v is not None}
    path.write_text(json.dumps(content))

  def find_without_scan(self, pattern):
    with mock.patch.object(shards, "scan", side_effect=AssertionError):
      return shards.find(pattern)

  def assert_same(self, a, b):
    """Two indices lead to the same bytes."""
    self.assertEqual(a.paths, b.paths)
    for name in ("shard", "offset", "size"):
      one, other = getattr(a, name), getattr(b, name)
      self.assertAllEqual(one, other)
      self.assertEqual(one.dtype, other.dtype)


class FindTest(SetTest):
  def test_files_without_manifest_are_scanned(self):
    index = shards.find(self.pattern)
    self.assertEqual(index.paths, tuple(self.paths))
    self.assertAllEqual(index.shard, [0, 0, 0, 2, 2])
    self.assertIsNone(index.labels)
    self.assertEqual(index.label_names, ())
    self.assertEqual(index.features, ("image", "label"))

  def test_the_manifest_has_the_index_of_a_scan(self):
    scanned = shards.find(self.pattern)
    path = self.write_manifest()
    for pattern in (self.pattern, path):
      index = self.find_without_scan(pattern)
      self.assert_same(index, scanned)
      self.assertAllEqual(index.labels, LABELS)
      self.assertEqual(index.labels.dtype, np.int32)
      self.assertEqual(index.label_names, NAMES)
      self.assertEqual(index.features, ("x", "y"))

  def test_some_files_of_a_manifest_are_a_set(self):
    pattern = self.path("train-[12].tfrecord")
    scanned = shards.find(pattern)
    self.write_manifest()
    index = self.find_without_scan(pattern)
    self.assert_same(index, scanned)
    self.assertAllEqual(index.labels, LABELS[3:])

  def test_a_manifest_in_another_order_leads_to_the_same_bytes(self):
    scanned = shards.find(self.pattern)
    self.paths = [self.paths[i] for i in (2, 0, 1)]
    with mock.patch(f"{__name__}.COUNTS", (2, 3, 0)):
      self.write_manifest(labels=LABELS[[3, 4, 0, 1, 2]])
    index = self.find_without_scan(self.pattern)
    self.assert_same(index, scanned)
    self.assertAllEqual(index.labels, LABELS)

  def test_a_file_that_the_manifest_does_not_know_is_scanned(self):
    self.write_manifest()
    with tf.io.TFRecordWriter(self.path("train-3.tfrecord")) as writer:
      writer.write(b"new")
    index = shards.find(self.pattern)
    self.assertLen(index.shard, 6)
    self.assertIsNone(index.labels)

  def test_a_file_that_has_changed_is_scanned(self):
    path = self.write_manifest()
    with tf.io.TFRecordWriter(self.paths[1]) as writer:
      writer.write(b"new")
    self.assertLen(shards.find(self.pattern).shard, 6)
    with self.assertRaisesRegex(ValueError, "train-1.*0 bytes.*has 19: copy"):
      shards.find(path)

  def test_a_file_that_is_gone_is_named(self):
    path = self.write_manifest()
    os.remove(self.paths[2])
    with self.assertRaisesRegex(ValueError, "train-2.*does not exist: copy"):
      shards.find(path)

  @parameterized.named_parameters(
    ("nothing_matches", "no_such-*", "match a file, .*no_such.*matches none"),
    ("no_manifest", "no/manifest.json", "no/manifest.json' cannot be read"),
    ("all_empty", "train-1*", "must give images, the 1 files"),
  )
  def test_a_pattern_without_images_is_refused(self, name, words):
    with self.assertRaisesRegex(ValueError, words):
      shards.find(self.path(name))

  def test_a_manifest_without_images_is_refused(self):
    self.paths = [self.paths[1]]
    with mock.patch(f"{__name__}.COUNTS", (0,)):
      path = self.write_manifest(labels=None, names=())
    with self.assertRaisesRegex(ValueError, "must give images, the 1 files"):
      shards.find(path)


class ManifestTest(SetTest):
  def test_totals_are_written(self):
    text = pathlib.Path(self.write_manifest()).read_text()
    content = json.loads(text)
    self.assertEqual(content["version"], 1)
    self.assertEqual(content["name"], "insects")
    self.assertEqual(content["num_images"], 5)
    self.assertEqual(content["label_names"], list(NAMES))
    self.assertEqual(content["label_counts"], [2, 1, 2])
    self.assertEqual(content["features"], {"image": "x", "label": "y"})
    self.assertEqual([x["count"] for x in content["shards"]], list(COUNTS))
    self.assertNotIn(self.folder, text)
    # Nothing but the files is left.
    self.assertLen(os.listdir(self.folder), 5)

  def test_a_manifest_is_read_as_written(self):
    for labels, names in ((LABELS, NAMES), (LABELS, ()), (None, ())):
      manifest = shards.read_manifest(self.write_manifest(labels, names))
      self.assertEqual(manifest.name, "insects")
      self.assertEqual(manifest.index.label_names, names)
      self.assertEqual([x.count for x in manifest.shards], list(COUNTS))
      if labels is None:
        self.assertIsNone(manifest.index.labels)
      else:
        self.assertAllEqual(manifest.index.labels, labels)

  @parameterized.named_parameters(
    ("another_version", {"version": 2}, "`version` is 2"),
    ("no_version", {"version": None}, "version"),
    ("no_shards", {"shards": None}, "shards"),
    ("foreign_shards", {"shards": [{"url": "a"}]}, "url"),
    ("shards_of_text", {"shards": "abc"}, "damaged"),
    ("other_sum", {"num_images": 6}, "`shards` do not fit"),
    ("other_label_counts", {"label_counts": [1, 2, 2]}, "`label_counts`"),
    ("foreign_features", {"features": {"pixels": "x"}}, "pixels"),
    ("no_label_names", {"label_names": None}, "label_names"),
  )
  def test_a_manifest_that_does_not_fit_is_refused(self, changes, words):
    path = self.write_manifest()
    self.edit(**changes)
    for pattern in (path, self.pattern):
      with self.assertRaisesRegex(ValueError, words) as caught:
        shards.find(pattern)
      self.assertIn(f"'{path}'", str(caught.exception))
      self.assertIn("copy it again", str(caught.exception))

  @parameterized.named_parameters(
    ("count", {"count": 4}, "`shards` do not fit"),
    ("bytes", {"bytes": 50}, "`shards` do not fit"),
    ("outside", {"file": "../train-0.tfrecord"}, "`file`.*not the name"),
    ("nameless", {"file": ""}, "`file`.*not the name"),
  )
  def test_a_shard_that_does_not_fit_is_refused(self, changes, words):
    path = self.write_manifest()
    entries = json.loads(pathlib.Path(path).read_text())["shards"]
    self.edit(shards=[{**entries[0], **changes}, *entries[1:]])
    with self.assertRaisesRegex(ValueError, words):
      shards.read_manifest(path)

  @parameterized.named_parameters(
    ("half_a_manifest", "manifest.json", lambda data: data[:100]),
    ("a_list", "manifest.json", lambda data: b"[1, 2]"),
    ("no_text", "manifest.json", lambda data: b"\xff\xfe\x00"),
    ("half_an_index", "index.npz", lambda data: data[: len(data) // 2]),
    ("no_index", "index.npz", lambda data: b""),
    ("a_damaged_index", "index.npz", lambda data: data[:60] + b"x" + data[61:]),
    ("text_as_index", "index.npz", lambda data: b"<html></html>"),
  )
  def test_damaged_files_are_refused(self, name, damage):
    path = self.write_manifest()
    file = pathlib.Path(self.path(name))
    file.write_bytes(damage(file.read_bytes()))
    with self.assertRaisesRegex(ValueError, "damaged.*copy it again") as caught:
      shards.read_manifest(path)
    self.assertIn(f"'{path}'", str(caught.exception))

  def test_an_index_of_another_set_is_refused(self):
    path = self.write_manifest()
    index = dict(np.load(self.path("index.npz")))
    for name, words in (("size", "shards"), ("labels", "label")):
      np.savez(self.path("index.npz"), **{**index, name: index[name][:-1]})
      with self.assertRaisesRegex(ValueError, f"`{words}"):
        shards.read_manifest(path)

  def test_a_missing_index_is_named(self):
    path = self.write_manifest()
    os.remove(self.path("index.npz"))
    with self.assertRaisesRegex(ValueError, "index.npz' cannot be read"):
      shards.find(path)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
  def log_message(self, *args):
    pass


class AddressTest(SetTest):
  def setUp(self):
    super().setUp()
    handler = functools.partial(QuietHandler, directory=self.folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    self.addCleanup(server.server_close)
    self.addCleanup(server.shutdown)
    self.address = f"http://127.0.0.1:{server.server_port}"

  def test_a_manifest_behind_an_address_leads_to_addresses(self):
    local = shards.find(self.write_manifest())
    index = self.find_without_scan(f"{self.address}/manifest.json?key=1")
    self.assertEqual(
      index.paths, tuple(f"{self.address}/train-{i}.tfrecord" for i in range(3))
    )
    self.assert_same(index._replace(paths=local.paths), local)
    self.assertAllEqual(index.labels, LABELS)

  def test_a_missing_manifest_is_named(self):
    with self.assertRaisesRegex(ValueError, "manifest.json' cannot be.*404"):
      shards.find(f"{self.address}/manifest.json")

  def test_a_pattern_behind_an_address_is_refused(self):
    with self.assertRaisesRegex(ValueError, "must end with manifest.json"):
      shards.find(f"{self.address}/train-*.tfrecord")

  def test_a_server_that_does_not_answer_is_named(self):
    calls = []

    def open_(address, timeout):
      calls.append((address, timeout))
      raise TimeoutError("timed out")

    with (
      mock.patch.object(shards.urllib.request, "urlopen", open_),
      self.assertRaisesRegex(ValueError, "cannot be read.*timed out"),
    ):
      shards.find("http://example.com/manifest.json")
    self.assertEqual(calls, [("http://example.com/manifest.json", 10.0)])


if __name__ == "__main__":
  tf.test.main()
