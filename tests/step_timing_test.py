"""Depth from step timings: the same batches at any depth, of every source."""

import functools
import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import python_ops, sources, step_timing
from paragan_tf.data.adapted_input import AdaptedInput
from paragan_tf.data.depth_control import Control
from paragan_tf.data.input_fn import InputFn
from paragan_tf.data.loop_control import LoopTiming
from paragan_tf.data.step_timing import Pipeline, Reads, StepTiming
from tests import adapted_input_test, stream_test, tfds_sets_test

TIMING = StepTiming(max_depth=12, min_decoders=1, max_decoders=3)
DEPTHS = (2, 12, 1, 7, 3, 9)
SOURCES = ("embedded", "npz", "folder", "tfrecord", "tfds", "input_fn")


class SourcesTest(tf.test.TestCase, parameterized.TestCase):
  """Each source, with the depth changed all the time."""

  def make(self, kind, prefetch, folder, **options):
    """Returns an input function of a source."""
    if kind == "input_fn":
      made = AdaptedInput(adapted_input_test.singles, 3, prefetch)
      made._timing = made._timing and TIMING
      return made
    make, resolution = self.make_source(kind, folder), stream_test.SIDE
    return InputFn(
      make,
      8 if kind in ("embedded", "tfds") else resolution,
      streaming=stream_test.SMALL,
      prefetch=prefetch,
      timing=TIMING,
      **options,
    )

  def make_source(self, kind, folder):
    """Writes a set; returns what reads it."""
    if kind == "embedded":
      return sources.fashion
    if kind == "npz":
      ids = np.arange(24)
      pixels = np.broadcast_to(8 * ids[:, None, None, None], [24, 6, 6, 1])
      np.savez(
        f"{folder}/x.npz", images=pixels.astype(np.uint8), labels=ids % 3
      )
      return f"npz:{folder}/x.npz"
    if kind == "folder":
      path = stream_test.write_folder(f"{folder}/set")
      return functools.partial(sources.folder, path, num_heldout=6)
    if kind == "tfrecord":
      path = stream_test.write_shards(f"{folder}/records")
      return functools.partial(
        sources.tfrecord, path, num_classes=3, num_heldout=6
      )
    store = tfds_sets_test.TfdsTest()
    store.get_temp_dir = lambda: folder
    if not os.path.exists(f"{folder}/tiny"):
      store.store()
    return store.source

  def assert_same(self, kind, options=(), **params):
    """Compares with a fixed depth; the start, and from a later step on."""
    folder = tempfile.mkdtemp(dir=self.get_temp_dir())
    params = {"batch_size": 4, **params}
    fixed = self.make(kind, 2, folder, **dict(options))
    live = self.make(kind, "step_timing", folder, **dict(options))
    local = len(params.get("shards", [0]))
    expected = list(fixed(params).take(12 * local).as_numpy_iterator())
    for start in (0, 5):
      control = live.make_control(start, 4)
      data = live({**params, "start_step": start, "control": control})
      (pipeline,) = control._pipelines
      num = 0
      for i, found in enumerate(data.take((12 - start) * local)):
        self.assertAllEqual(found[0], expected[start * local + i][0])
        self.assertAllEqual(found[1], expected[start * local + i][1])
        pipeline.variables[0].assign(DEPTHS[i % len(DEPTHS)])
        pipeline.variables[1].assign(1 + i % 3)
        num += 1
      self.assertEqual(num, (12 - start) * local)
      self.assertEqual(data.element_spec, fixed(params).element_spec)
      if kind != "input_fn":
        self.assertEqual(data.cardinality(), tf.data.INFINITE_CARDINALITY)
        self.assertEmpty(python_ops.find(data))
    return control

  @parameterized.parameters(*SOURCES)
  def test_batches_are_the_same_at_any_depth(self, kind):
    self.assert_same(kind)

  @parameterized.parameters("embedded", "folder", "tfrecord", "input_fn")
  def test_shards_are_the_same_at_any_depth(self, kind):
    self.assert_same(kind, num_shards=4, shards=[2, 2, 0, 1])

  def test_classes_of_each_replica_are_the_same_at_any_depth(self):
    options = {"by_label": True}
    self.assert_same("folder", options, num_shards=3, shards=[0, 2])

  @parameterized.parameters(*SOURCES)
  def test_without_a_control_the_depth_is_the_least(self, kind):
    folder = tempfile.mkdtemp(dir=self.get_temp_dir())
    live = self.make(kind, "step_timing", folder)
    fixed = self.make(kind, 2, folder)
    with tf.Graph().as_default():  # There is no variable to initialize.
      live({"batch_size": 4})
      self.assertEmpty(tf.compat.v1.local_variables())
    pairs = zip(live({"batch_size": 4}), fixed({"batch_size": 4}).take(3))
    for (found, _), (expected, _) in pairs:
      self.assertAllEqual(found, expected)

  @parameterized.parameters("folder", "tfrecord")
  def test_reads_are_counted(self, kind):
    control = self.assert_same(kind)
    counts = control._pipelines[0].variables[2].numpy()
    self.assertGreaterEqual(counts[-1], 28)  # Seven batches of four.
    self.assertBetween(counts[-2] / counts[-1], 60, 200)  # Bytes of an image.
    self.assertGreaterEqual(counts[:-2].sum(), 7)

  def test_a_broken_image_is_named(self):
    folder = tempfile.mkdtemp(dir=self.get_temp_dir())
    live = self.make("folder", "step_timing", folder)
    for name in os.listdir(f"{folder}/set/class1"):
      stream_test.damage(f"{folder}/set/class1/{name}")
    control = live.make_control(0, 4)
    with self.assertRaises(tf.errors.OpError):
      list(live({"batch_size": 4, "control": control}).take(12))
    self.assertRegex(live.find_failure(0), r"class1/\d+.png' cannot be decoded")

  def test_sets_that_ops_cannot_read_are_refused(self):
    folder = tempfile.mkdtemp(dir=self.get_temp_dir())
    stream_test.write_folder(f"{folder}/set")
    path = f"{folder}/set/class0/00"
    os.rename(f"{path}.png", f"{path}.webp")
    make = functools.partial(
      sources.folder, f"{folder}/set", num_heldout=6, broken="skip"
    )
    with self.assertRaisesRegex(ValueError, "JPEG, PNG.*'step_timing'.*webp"):
      InputFn(make, stream_test.SIDE, prefetch="step_timing")


class ControlTest(tf.test.TestCase, parameterized.TestCase):
  def make(self, **options):
    """Returns a control, its pipeline, and an iterator of its batches."""
    control = Control(StepTiming(**options), 100, 8)
    pipeline = control.make_pipeline()
    data = tf.data.Dataset.range(1 << 40).map(lambda k: tf.fill([8, 4], k))
    return control, pipeline, pipeline.prefetch(data, 1)

  def logs(self, wait, late=1.0):
    """Returns logs of steps of a second."""
    return {
      "images_per_second": 8.0,
      "input_wait": wait,
      "input_late": late,
    }

  def test_waits_change_the_depth_of_the_pipeline(self):
    control, pipeline, data = self.make(max_depth=16)
    elements = iter(data)
    next(elements)
    control.update(120, self.logs(0.9))  # The first loop does not count.
    self.assertEqual(int(pipeline.variables[0]), 2)
    control.update(140, self.logs(0.5))
    self.assertEqual(int(pipeline.variables[0]), 4)
    meter = control.meter()
    self.assertEqual(meter["input/depth"], 4)
    self.assertEqual(meter["input/readers"], 0)
    self.assertAllClose(meter["input/waited_seconds"], 18 + 10)
    self.assertAllClose(meter["input/megabytes"], 4 * 8 * 4 * 8 / 1e6)

  def test_bytes_bound_the_depth(self):
    # A batch has 256 bytes.
    options = dict(max_depth=64, max_bytes=256 * 5)
    control, pipeline, _ = self.make(**options)
    control.update(120, self.logs(0.9))
    for i in range(7, 60):
      control.update(20 * i, self.logs(0.9 / pipeline.plan.depth))
      self.assertBetween(pipeline.plan.depth, 2, 5)
    self.assertEqual(pipeline.plan.depth, 5)
    self.assertEqual(StepTiming(**options).fit_depth(10**9), 2)
    self.assertEqual(StepTiming(**options).fit_depth(0), 64)

  def test_encoded_bytes_bound_the_depth(self):
    options = StepTiming(max_depth=64, max_bytes=5000)
    pipeline = Pipeline(options, True, Reads(4))
    chunks = tf.data.Dataset.range(1 << 40).map(lambda k: (k,))
    pipeline.read_ahead(
      chunks, lambda k, readers: (tf.fill([4], "x" * 250),), lambda d: d
    )
    counts = np.zeros(pipeline.variables[2].shape, np.int64)
    counts[20:21], counts[-2:] = 400, (400000, 1600)  # 0.001 * 2^10 s.
    late = LoopTiming(20, 2.0, 1.0, 20)
    pipeline.update(late, counts)
    self.assertEqual(pipeline.plan.depth, 5)
    self.assertEqual(pipeline.num_reads, 5)
    # 400 batches of 1000 bytes were read, and 20 of them taken.
    self.assertEqual(pipeline.num_bytes, 380 * 1000)

  @parameterized.parameters(
    (100.0, 40),  # As many as fit.
    (1000.0, 4),
    (3000.0, 2),  # The minimum of any pipeline.
    (10.0, 64),  # The maximum.
    (0.0, 2),  # Not known yet.
  )
  def test_reads_ahead_what_fits_into_the_minimum_of_bytes(
    self, num_bytes, depth
  ):
    options = StepTiming(max_depth=64, min_encoded_bytes=4000)
    pipeline = Pipeline(options, False, Reads(8, num_bytes))
    self.assertEqual(pipeline.plan.depth, depth)

  def test_learns_the_bytes_of_whole_files_from_the_first_loop(self):
    options = StepTiming(max_depth=64, min_encoded_bytes=4000)
    pipeline = Pipeline(options, True, Reads(8))
    counts = np.zeros(pipeline.variables[2].shape, np.int64)
    counts[-2:] = 20000, 160  # 8 images have 1000 bytes.
    pipeline.count_steps(20, counts)
    self.assertEqual(pipeline.plan.depth, 4)

  def test_latencies_are_counted_in_buckets(self):
    counts = np.zeros([36], np.int64)
    counts[[0, 14]] = 2, 1
    found = step_timing.list_latencies(counts)
    self.assertAllClose(found, [0.001 * 2**0.25] * 2 + [0.128 * 2**0.25])

  def test_wrong_values_are_refused(self):
    for options, words in (
      (dict(min_depth=0), "`max_depth` must be at least 1"),
      (dict(max_depth=1), "`max_depth` must be at least 2, got 1"),
      (dict(max_bytes=0), "`max_bytes` must be above 0"),
      (dict(max_readers=0), "`max_readers` must be at least 1"),
      (dict(min_encoded_bytes=-1), "min_encoded_bytes.*at least 0, got -1"),
      (dict(min_decoders=4, max_decoders=3), "max_decoders.*at least 4, got 3"),
    ):
      with self.assertRaisesRegex(ValueError, words):
        StepTiming(**options)
    for wrong in ("auto", 0, 1.5, None):
      with self.assertRaisesRegex(
        ValueError, "InputFn.prefetch.*'step_timing'"
      ):
        InputFn(prefetch=wrong)
      with self.assertRaisesRegex(ValueError, "AdaptedInput.prefetch"):
        AdaptedInput(adapted_input_test.singles, 3, wrong)


if __name__ == "__main__":
  tf.test.main()
