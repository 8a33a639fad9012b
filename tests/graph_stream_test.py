"""Sets on disk, read by ops alone: the threads' batches, without Python."""

import contextlib
import dataclasses
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import (
  graph_stream,
  python_ops,
  shards,
  sources,
  tfrecords,
)
from paragan_tf.data.encoded import EncodedImages, ReadAhead, Streaming
from paragan_tf.data.input_fn import InputFn
from tests import stream_test
from tests.stream_test import SIDE, SMALL

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A worker that has TensorFlow and nothing of ours. Port 0 is a free one.
SERVER = """
import sys, tensorflow as tf
sys.modules["paragan_tf"] = None  # Nobody can import it.
cluster = {"worker": ["localhost:0"]}
print(tf.distribute.Server(cluster, "worker", 0).target, flush=True)
sys.stdin.read()
"""
# Makes a dataset on that worker by eager calls, as `TPUStrategy` does.
CLIENT = """
import sys, tensorflow as tf
from paragan_tf.data.input_fn import InputFn
target, source = sys.argv[1:]
tf.config.experimental_connect_to_host(target, job_name="worker")
with tf.device("/job:worker/task:0/device:CPU:0"):
  input_fn = InputFn(source, resolution=6, conditional=False)
  images, = next(iter(input_fn({"batch_size": 4, "python": False})))
assert "/job:worker" in images.device, images.device
print(images.numpy()[:, 0, 0, 0].tolist())
"""


@contextlib.contextmanager
def bare_server():
  """Yields the address of a server in a process without our code."""
  with tempfile.TemporaryDirectory() as folder:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    server = subprocess.Popen(
      [sys.executable, "-c", SERVER],
      cwd=folder,
      env=environment,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    try:
      yield server.stdout.readline().strip()
    finally:
      server.kill()
      server.communicate()


def kinds_of_python_ops(data):
  """Returns what a dataset's serialized graph and its functions call."""
  policy = tf.data.experimental.ExternalStatePolicy.IGNORE
  graph = data._as_serialized_graph(external_state_policy=policy)
  return python_ops.find_in_graph(
    tf.compat.v1.GraphDef.FromString(graph.numpy())
  )


class GraphStreamTest(tf.test.TestCase, parameterized.TestCase):
  @classmethod
  def server(cls):
    """Returns the address of a server that all tests share."""
    if not hasattr(cls, "_target"):
      stack = contextlib.ExitStack()
      cls._target = stack.enter_context(bare_server())
      cls.addClassCleanup(stack.close)
    return cls._target

  def setUp(self):
    super().setUp()
    self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
    self.addCleanup(shutil.rmtree, self.folder)

  def make(
    self,
    kind="tfrecord",
    reader="graph",
    streaming=SMALL,
    num_heldout=6,
    **options,
  ):
    """Returns an `InputFn` of the set on disk."""
    if kind == "tfrecord":
      path = stream_test.write_shards(f"{self.folder}/records")
      make = functools.partial(sources.tfrecord, num_classes=3)
    else:
      path = stream_test.write_folder(f"{self.folder}/set")
      make = sources.folder
    return InputFn(
      lambda: make(path, num_heldout=num_heldout),
      resolution=SIDE,
      streaming=dataclasses.replace(streaming, reader=reader),
      **options,
    )

  def elements(self, input_fn, num, **params):
    """Returns the images' numbers and the labels of some elements."""
    data = input_fn({"batch_size": 4, **params}).take(num)
    pairs = [(stream_test.ids(x), y.numpy()) for x, y in data]
    images, labels = zip(*pairs)
    return np.stack(images), np.stack(labels)

  def assert_same(self, kind, num, options=(), **params):
    """Compares both readers."""
    threads = self.make(kind, "threads", **dict(options))
    graph = self.make(kind, "graph", **dict(options))
    expected = self.elements(threads, num, **params)
    found = self.elements(graph, num, **params)
    self.assertAllEqual(found[0], expected[0])
    self.assertAllEqual(found[1], expected[1])
    # An epoch has at most 24 images: `num` must reach into the third one.
    steps = num / len(params.get("shards", [0])) + params.get("start_step", 0)
    size = params.get("batch_size", 4) * params.get("num_shards", 1)
    self.assertGreater(steps * size, 48)

  @parameterized.parameters("folder", "tfrecord")
  def test_batches_are_those_of_the_threads(self, kind):
    self.assert_same(kind, 14)

  @parameterized.named_parameters(
    ("first_of_two", dict(num_shards=2, shards=[0])),
    ("second_of_two", dict(num_shards=2, shards=[1])),
    ("all_of_four", dict(num_shards=4, shards=range(4))),
    ("repeated_and_not_in_order", dict(num_shards=4, shards=[2, 2, 0])),
    ("from_the_middle_of_a_window", dict(start_step=7)),
    ("batches_across_epochs", dict(batch_size=5, start_step=3)),
    ("of_one_image", dict(batch_size=1, num_shards=4, shards=[3])),
  )
  def test_shards_are_those_of_the_threads(self, params):
    self.assert_same("tfrecord", 52, **params)

  @parameterized.parameters(1, 3, 16)
  def test_lanes_are_those_of_the_threads(self, num_lanes):
    # Shards of 4 cut lanes of 3, and windows do not end with batches.
    lanes = dataclasses.replace(SMALL, num_lanes=num_lanes, window=15)
    options = {"streaming": lanes}
    self.assert_same("tfrecord", 14, options, num_shards=2, shards=[1])

  def test_held_out_records_in_a_range_may_be_more_than_a_window(self):
    narrow = dataclasses.replace(
      SMALL, num_lanes=1, window=3, block_bytes=10**6
    )
    self.assert_same("tfrecord", 14, {"streaming": narrow, "num_heldout": 20})

  def test_classes_of_each_replica_are_those_of_the_threads(self):
    options = {"by_label": True}
    self.assert_same("folder", 40, options, num_shards=3, shards=[0, 2])

  def test_a_batch_larger_than_the_set(self):
    self.assert_same("folder", 3, batch_size=50)

  @parameterized.parameters("folder", "tfrecord")
  def test_every_image_once_an_epoch_with_its_label(self, kind):
    images, labels = self.elements(self.make(kind), 18)
    self.assertAllEqual(labels, images % 3)
    first = set(images.reshape([3, 24])[0])
    self.assertLen(first, 24)
    for epoch in images.reshape([3, 24])[1:]:
      self.assertCountEqual(epoch, first)
    self.assertNotAllEqual(images[:6], images[6:12])

  def test_it_starts_at_any_step_with_any_depth(self):
    input_fn = self.make()
    whole, _ = self.elements(input_fn, 15)
    input_fn.train_set.read_ahead = ReadAhead(9, 40, 1)
    later, _ = self.elements(input_fn, 6, start_step=9)
    self.assertAllEqual(later, whole[9:])
    meter = input_fn.meter()
    self.assertEqual(meter, {"input/readers": 9, "input/depth": 40})

  @parameterized.parameters("folder", "tfrecord")
  def test_no_op_calls_python(self, kind):
    params = {"batch_size": 4, "num_shards": 2, "shards": [1, 1]}
    threads = self.make(kind, "threads")
    for data in (
      self.make(kind)(params),
      threads({**params, "python": False}),
      InputFn()({**params, "python": False}),
    ):
      self.assertEmpty(kinds_of_python_ops(data))
      self.assertEmpty(python_ops.find(data))
    self.assertNotEmpty(kinds_of_python_ops(threads(params)))
    self.assertNotEmpty(python_ops.find(threads(params)))

  def run_in_session(self, target, **params):
    """Returns the first images that a server reads, as for TPUEstimator."""
    input_fn = self.make(reader="threads")
    with tf.Graph().as_default():
      with tf.device("/job:worker/task:0/device:CPU:0"):
        data = input_fn({"batch_size": 4, **params})
        iterator = tf.compat.v1.data.make_initializable_iterator(data)
        images, _ = iterator.get_next()
      with tf.compat.v1.Session(target) as session:
        session.run(iterator.initializer)
        return [stream_test.ids(session.run(images)) for _ in range(8)]

  def test_a_bare_server_iterates_it(self):
    expected, _ = self.elements(self.make(), 8)
    found = self.run_in_session(self.server(), python=False)
    self.assertAllEqual(found, expected)
    with self.assertRaisesRegex(tf.errors.OpError, "not find callback"):
      self.run_in_session(self.server())

  def test_a_bare_server_iterates_it_eagerly(self):
    path = stream_test.write_shards(f"{self.folder}/records")
    source = f"tfrecord:{path}"
    local = InputFn(source, resolution=SIDE, conditional=False)
    ((expected,),) = local({"batch_size": 4}).take(1)
    found = subprocess.run(
      [sys.executable, "-c", CLIENT, self.server(), source],
      cwd=ROOT,
      capture_output=True,
      text=True,
    )
    self.assertEqual(found.returncode, 0, found.stderr)
    self.assertAllClose(eval(found.stdout), expected[:, 0, 0, 0])

  def test_bytes_outside_of_a_range_are_not_looked_at(self):
    path = f"{self.folder}/one.tfrecord"
    records = [bytes([i]) * (10 + i) for i in range(9)]
    with tf.io.TFRecordWriter(path) as writer:
      for record in records:
        writer.write(record)
    _, start, size = tfrecords.scan([path])
    begin, end = start[3] - 12, start[5] + size[5] + 4
    with open(path, "r+b") as f:
      content = f.read()
      f.seek(0)
      f.write(bytes(begin) + content[begin:end] + bytes(len(content) - end))
    found = tf.data.Dataset.from_tensors(0).flat_map(
      lambda _: graph_stream.read_range(path, begin, end - begin, 3)
    )
    self.assertEqual(list(found.as_numpy_iterator()), records[3:6])

  def failure(self, input_fn, **params):
    """Reads until the stream fails; returns the reason."""
    step = params.get("start_step", 0)
    with self.assertRaises(tf.errors.OpError) as raised:
      for _ in input_fn({"batch_size": 4, **params}).take(100):
        step += 1
    return input_fn.find_failure(step), str(raised.exception)

  @parameterized.parameters(0, 8)
  def test_a_lost_file_is_named(self, start_step):
    input_fn = self.make("folder")
    images = input_fn.source.train
    path = images.paths[images.path_index[17]]
    os.remove(path)
    reason, _ = self.failure(input_fn, start_step=start_step)
    self.assertRegex(reason, f"^'{path}' cannot be read")

  def test_a_record_that_cannot_be_parsed_or_decoded_is_named(self):
    input_fn = self.make()
    self.elements(input_fn, 6)
    self.assertIsNone(input_fn.find_failure())
    images = input_fn.source.train
    row = 17
    path, start = images.paths[images.path_index[row]], images.start[row]
    # Other bytes of the same length, with a good checksum.
    records = [x.numpy() for x in tf.data.TFRecordDataset(path)]
    at = tfrecords.scan([path])[1].tolist().index(start)
    records[at] = records[at].replace(b"PNG", b"GNP")
    with tf.io.TFRecordWriter(path) as writer:
      for record in records:
        writer.write(record)
    reason, _ = self.failure(input_fn)
    self.assertRegex(
      reason, f"^The record at byte {start} of '{path}' cannot be decoded"
    )

  def test_a_file_that_was_written_anew_is_an_error(self):
    input_fn = self.make()
    path = input_fn.source.train.paths[1]
    records = [x.numpy() for x in tf.data.TFRecordDataset(path)]
    with tf.io.TFRecordWriter(path) as writer:
      for record in records[::-1]:
        writer.write(record + b" ")
    reason, _ = self.failure(input_fn)
    self.assertRegex(reason, f"^The record at byte .* of '{path}' is damaged")

  def test_records_of_other_sizes_are_an_error(self):
    input_fn = self.make()
    train = input_fn.source.train
    train.size[5] += 1
    path = train.paths[train.path_index[5]]
    _, message = self.failure(input_fn)
    self.assertRegex(message, f"(?s)were indexed.*{path}")

  def test_a_record_with_a_wrong_checksum_is_named(self):
    input_fn = self.make()
    train = input_fn.source.train
    path, start = train.paths[train.path_index[17]], train.start[17]
    with open(path, "r+b") as f:
      f.seek(start + train.size[17])
      checksum = f.read(1)[0]
      f.seek(-1, os.SEEK_CUR)
      f.write(bytes([checksum ^ 1]))
    reason, _ = self.failure(input_fn)
    self.assertRegex(
      reason, f"^The record at byte {start} of '{path}' is damaged, .*copy"
    )

  def images(self, path, **columns):
    """Returns the columns of a set of two images."""
    known = dict(
      paths=(path,),
      path_index=np.zeros(2, np.int32),
      start=np.array([12, 40]),
      size=np.array([12, 12]),
      ordinal=np.arange(2),
    )
    return EncodedImages(**{**known, **columns})

  @parameterized.parameters(
    ("https://x/a.tfrecord", {}, "local or on gs://.*'https://x/a.tfrecord'"),
    ("a.webp", dict(size=np.array([-1, -1])), "JPEG, PNG.*'a.webp': convert"),
    ("a.tfrecord", dict(ordinal=None), "'a.tfrecord' skips some"),
  )
  def test_what_ops_cannot_read_is_refused(self, path, columns, words):
    images = self.images(path, **columns)
    source = sources.Source("x", images, images, ())
    options = dict(resolution=SIDE, conditional=False)
    with self.assertRaisesRegex(ValueError, words):
      InputFn(lambda: source, streaming=Streaming(reader="graph"), **options)
    threads = InputFn(lambda: source, **options)
    with self.assertRaisesRegex(ValueError, words):
      threads({"batch_size": 1, "python": False})
    threads({"batch_size": 1})
    graph_stream.check_readable(self.images("gs://a.tfrecord"))

  def test_records_are_numbered_unless_the_index_skips_some(self):
    train = self.make().source.train
    self.assertGreaterEqual(np.diff(train.ordinal).min(), 1)
    # Held-out records are counted, too.
    self.assertGreater(np.diff(train.ordinal).max(), 1)
    index = shards.find(f"{self.folder}/records/x-*.tfrecord")
    skipping = index._replace(
      shard=np.delete(index.shard, 4),
      offset=np.delete(index.offset, 4),
      size=np.delete(index.size, 4),
    )
    for found, is_numbered in ((index, True), (skipping, False)):
      with mock.patch.object(shards, "find", return_value=found):
        numbers = sources.tfrecord("x").train.ordinal
      self.assertEqual(numbers is not None, is_numbered)

  def test_unknown_readers_are_refused(self):
    with self.assertRaisesRegex(ValueError, r"\['threads', 'graph'\], got 'x'"):
      Streaming(reader="x")
    with self.assertRaisesRegex(ValueError, "num_decoders.*got 0"):
      Streaming(num_decoders=0)


if __name__ == "__main__":
  tf.test.main()
