"""A run whose images stay on disk: exact on every engine, even if one goes."""

import io
import itertools
import os
import shutil
import sys
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.data import loop_control, tfrecords
from paragan_tf.data.congestion import State
from paragan_tf.engine import strategies
from paragan_tf.outputs import records
from paragan_tf.run import InputError, Run
from paragan_tf.start import prepare
from tests import run_test, stream_test, testing

NUM = 40
STREAMED = [
  *run_test.LINEAR,
  "InputFn.source = @sources.folder",
  "folder.channels = 1",
  "folder.num_heldout = 4",
  "Streaming.cache_bytes = 0",
  "Streaming.window = 8",
  "Streaming.min_depth = 2",
  "Streaming.max_depth = 4",
]


class StreamedRunTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = os.path.join(self.get_temp_dir(), self._testMethodName)
    self.images = f"{self.root}/images"
    random = np.random.RandomState(0)
    for i in range(NUM):
      os.makedirs(f"{self.images}/{i % 4}", exist_ok=True)
      pixels = random.randint(256, size=[32, 32, 1]).astype(np.uint8)
      with open(f"{self.images}/{i % 4}/{i}.png", "wb") as f:
        f.write(tf.io.encode_png(pixels).numpy())

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def make(self, folder, num_steps, *more, strategy=None, engine="strategy"):
    """Returns a run that is ready to train."""
    bindings = [
      *run_test.TINY,
      *STREAMED,
      f"folder.path = '{self.images}'",
      f"Run.num_steps = {num_steps}",
      *more,
    ]
    config.load(["gin/runs/fashion.gin"], bindings)
    built = experiment.Experiment(strategy or run_test.ONE("/cpu:0"))
    folder = f"{self.root}/{folder}"
    other = None
    if engine == "tpu_estimator":
      other = built.estimator(folder, saves=False)
    made = Run(built, folder, other)
    made.restore()
    return made

  def train(self, *args, **kwargs):
    """Trains, and returns the values of all variables and the folder."""
    made = self.make(*args, **kwargs)
    made.open()
    made()
    return run_test.values(made), made.folder.path

  def test_it_resumes_bit_for_bit_with_another_depth(self):
    whole, folder = self.train("whole", 12)
    self.train("parts", 4)
    parts, _ = self.train(
      "parts", 12, "Streaming.max_depth = 40", "Streaming.min_depth = 16"
    )
    self.assertAllEqual(sorted(parts), sorted(whole))
    self.train("ops", 4)
    ops, _ = self.train("ops", 12, "Streaming.reader = 'graph'")
    for name, value in whole.items():
      self.assertAllEqual(parts[name], value, name)
      self.assertAllEqual(ops[name], value, name)
    last = [x for x in records.read(folder) if "input/depth" in x][-1]
    self.assertBetween(last["input/readers"], 4, 64)
    self.assertBetween(last["input/depth"], 2, 4)
    self.assertEqual(last["input/retries"], 0)

  def test_depth_from_step_timing_changes_nothing(self):
    """Each plan differs from the one before, on every engine."""
    depths = itertools.cycle([12, 2, 7, 1])
    real = loop_control.advance

    def advance(state, timing, bounds):
      self.assertEqual(timing.num_steps, 4)
      self.assertGreater(timing.seconds, 0.0)
      floor = bounds.reading.least._replace(depth=next(depths))
      state = real(state, timing._replace(latencies=()), bounds)
      return state._replace(reading=State(floor))

    live = [
      "InputFn.prefetch = 'step_timing'",
      "StepTiming.min_depth = 1",
      "StepTiming.min_encoded_bytes = 0",
    ]
    fixed = {e: self.train(e, 16, engine=e)[0] for e in testing.ENGINES}
    whole = fixed["strategy"]
    four, _ = self.train("four", 16, strategy=testing.strategy())
    with mock.patch.object(loop_control, "advance", advance):
      found = {
        e: self.train(f"live_{e}", 16, *live, engine=e) for e in testing.ENGINES
      }
      self.train("parts", 8, *live)
      parts, _ = self.train("parts", 16, *live)
      live_four, _ = self.train(
        "live_four", 16, *live, strategy=testing.strategy()
      )
    for name, value in whole.items():
      self.assertAllEqual(parts[name], value, name)
      for engine, (values, _) in found.items():
        self.assertAllEqual(values[name], fixed[engine][name], name)
    for name, value in four.items():
      self.assertAllEqual(live_four[name], value, name)
    for _, path in found.values():
      logs = [x for x in records.read(path) if "input/depth" in x]
      # The first loop is traced, and changes nothing.
      self.assertEqual(logs[0]["input/depth"], 1)
      self.assertGreaterEqual(len({x["input/depth"] for x in logs}), 3)
      self.assertGreater(logs[-1]["input/readers"], 0)
      self.assertGreater(max(x["input/megabytes"] for x in logs), 0)
      self.assertBetween(logs[-1]["input_late"], 0.0, 1.0)

  def test_engines_and_replicas_agree(self):
    one, _ = self.train("one", 4)
    others = [self.train("four", 4, strategy=testing.strategy())]
    for engine in testing.ENGINES:
      for reader in ("threads", "graph"):
        reading = f"Streaming.reader = '{reader}'"
        folder = f"{engine}_{reader}"
        others.append(self.train(folder, 4, reading, engine=engine))
    for other, folder in others:
      for name, value in one.items():
        self.assertAllClose(
          other[name], value, atol=1e-6, msg=f"{folder}: {name}"
        )

  @parameterized.product(engine=testing.ENGINES)
  def test_a_lost_or_damaged_file_ends_the_run_and_nothing_is_lost(
    self, engine
  ):
    whole, _ = self.train("whole", 24, engine=engine)
    spoiled = [
      ("threads", os.remove, "cannot be read"),
      ("threads", stream_test.damage, "cannot be decoded"),
      ("graph", stream_test.damage, "cannot be decoded"),
    ]
    for reader, spoil, words in spoiled[: 3 if engine == "strategy" else 1]:
      with self.subTest(f"{reader}, {words}"):
        self.check_spoiled(reader, spoil, words, whole, engine)

  def check_spoiled(self, reader, spoil, words, whole, engine):
    """Ends the run with the file's name; with the file back, it resumes."""
    folder = f"{engine}_{reader}_{words.replace(' ', '_')}"
    reading = f"Streaming.reader = '{reader}'"
    made = self.make(folder, 24, reading, engine=engine)
    made.open()
    made.train(4)
    shutil.copytree(f"{self.images}/2", f"{self.root}/2")
    for name in os.listdir(f"{self.images}/2"):
      spoil(f"{self.images}/2/{name}")
    with self.assertRaisesRegex(
      InputError, rf"'.*/2/\d+.png' {words}.*Trained up to step \d+\.$"
    ):
      made.train(24)
    reached = made.done
    self.assertBetween(reached, 4, 23)
    self.assertTrue(
      os.path.exists(f"{made.folder.path}/model.ckpt-{reached}.index")
    )
    shutil.rmtree(f"{self.images}/2")
    shutil.move(f"{self.root}/2", f"{self.images}/2")
    again, _ = self.train(folder, 24, engine=engine)
    for name, value in whole.items():
      self.assertAllEqual(again[name], value, name)

  def test_hosts_of_a_tpu_are_fed_without_python(self):
    made = self.make("fed", 4).experiment
    with mock.patch.object(
      type(made.input_fn), "__call__", autospec=True, side_effect=ValueError
    ) as call:
      for tpu in (type(made.strategy), tf.distribute.TPUStrategy):
        with mock.patch.object(tf.distribute, "TPUStrategy", tpu):
          for ask in (made.check_input, lambda: made.dataset(0)):
            self.assertRaises(ValueError, ask)
    asked = [args.args[1]["python"] for args in call.call_args_list]
    self.assertEqual(asked, [False, False, True, True])

  def test_the_index_of_records_is_kept_beside_the_run(self):
    pattern = stream_test.write_shards(f"{self.root}/records")
    bindings = [
      *run_test.TINY,
      *run_test.LINEAR,
      f"InputFn.source = 'tfrecord:{pattern}'",
      "InputFn.resolution = 8",
      "InputFn.conditional = False",
      "Run.num_steps = 4",
    ]
    folder = f"{self.root}/run"
    choice = mock.Mock(strategy=run_test.ONE("/cpu:0"), tpu=None)
    for num_scans in (1, 0):
      with (
        mock.patch.object(strategies, "choose", return_value=choice),
        mock.patch.object(tfrecords, "scan", wraps=tfrecords.scan) as scan,
      ):
        made = prepare(["gin/runs/fashion.gin"], bindings, folder)
      self.assertEqual(scan.call_count, num_scans)
      self.assertEqual(os.path.exists(folder), not num_scans)
      made.open()
      made.folder.close()

  def test_what_is_left_out_is_told_before_the_first_step(self):
    for i in range(5):
      stream_test.damage(f"{self.images}/1/{4 * i + 1}.png")
    made = self.make("skipped", 4, "folder.broken = 'skip'")
    with mock.patch.object(sys, "stdout", io.StringIO()) as out:
      made.open()
    self.assertRegex(
      out.getvalue(),
      "Note: 5 of 40 images are broken and left out: '.*/1/1.png' "
      r"\(cannot be decoded: .* and 2 more; ",
    )
    with open(f"{made.folder.path}/broken.txt") as f:
      self.assertLen(f.readlines(), 5)
    self.assertEqual(made.experiment.input_fn.num_images, 31)

  def test_it_is_measured_with_no_more_than_is_held_out(self):
    extractor = "Experiment.extractor = @features.FashionClassifier"
    for asked, expected in ((500, 4), (3, 3)):
      number = f"Run.num_metric_samples = {asked}"
      made = self.make(f"measured_{asked}", 4, extractor, number)
      made.open()
      with mock.patch.object(
        made.experiment.evaluation, "measure", return_value=[]
      ) as measure:
        made.finish()
      self.assertEqual(measure.call_args.args[:2], (expected, None))

  def test_a_run_that_cannot_be_measured_is_kept(self):
    extractor = "Experiment.extractor = @features.FashionClassifier"
    made = self.make("unmeasured", 4, extractor)
    made.open()
    wrong = mock.Mock(side_effect=ValueError("Images are odd."))
    with (
      mock.patch.object(made.experiment.evaluation, "measure", wrong),
      self.assertRaisesRegex(InputError, "odd. Trained up to step 4; .*ckpt-4"),
    ):
      made()

  @parameterized.parameters(
    (3, "lost. Step 3 is not saved; the last checkpoint is none"),
    (4, r"Trained up to step 4\.$"),
    (5, r"Step 5 is not saved; the last checkpoint is .*-4\.$"),
  )
  def test_of_several_processes_only_what_is_saved_is_named(self, until, words):
    made = self.make("several", 40)
    made.open()
    built = made.experiment

    def advance(num_steps, is_logged):
      del is_logged
      if built.step.count < until:
        built.step.count.assign_add(num_steps)
        return
      built.processes.count = 2  # The other one never comes to save.
      raise tf.errors.DataLossError(None, None, "No batch came.")

    logs = {"d/loss": 0.0, "g/loss": 0.0, "images_per_second": 1.0}
    inner = mock.Mock(advance=advance, read_logs=lambda: dict(logs))
    with (
      mock.patch.object(built, "inner_loop", return_value=inner),
      mock.patch.object(
        built.input_fn, "find_failure", return_value="'x' is lost."
      ) as find_failure,
    ):
      made.train(until)
      with self.assertRaisesRegex(InputError, words):
        made.train(40)
    find_failure.assert_called_once_with(until)


if __name__ == "__main__":
  tf.test.main()
