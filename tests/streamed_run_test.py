"""A run whose images stay on disk: exact on every engine, even if one goes."""

import gc
import io
import os
import shutil
import sys
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.outputs import records
from paragan_tf.run import InputError, Run
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
    other = built.estimator(folder) if engine == "tpu_estimator" else None
    return Run(built, folder, other)

  def train(self, *args, **kwargs):
    """Trains, and returns the values of all variables and the folder."""
    made = self.make(*args, **kwargs)
    made.open()
    made()
    made._inner = None
    gc.collect()
    return run_test.values(made), made.model_dir

  def test_it_goes_on_bit_for_bit_with_another_depth(self):
    whole, folder = self.train("whole", 12)
    self.train("parts", 4)
    parts, _ = self.train(
      "parts", 12, "Streaming.max_depth = 40", "Streaming.min_depth = 16"
    )
    self.assertAllEqual(sorted(parts), sorted(whole))
    for name, value in whole.items():
      self.assertAllEqual(parts[name], value, name)
    last = [x for x in records.read(folder) if "input/depth" in x][-1]
    self.assertBetween(last["input/readers"], 4, 64)
    self.assertBetween(last["input/depth"], 2, 4)
    self.assertEqual(last["input/retries"], 0)

  def test_engines_and_replicas_agree(self):
    one, _ = self.train("one", 4)
    estimator, _ = self.train("estimator", 4, engine="tpu_estimator")
    four, _ = self.train("four", 4, strategy=testing.strategy())
    for name, value in one.items():
      self.assertAllClose(estimator[name], value, atol=1e-6, msg=name)
      self.assertAllClose(four[name], value, atol=1e-6, msg=name)

  @parameterized.named_parameters(
    ("lost", os.remove, "cannot be read"),
    ("damaged", stream_test.damage, "cannot be decoded"),
  )
  def test_a_file_that_is(self, spoil, words):
    """Ends the run with its name, and nothing is lost."""
    whole, _ = self.train("whole", 40)
    made = self.make("spoiled", 40)
    made.open()
    made.train(4)
    shutil.copytree(f"{self.images}/2", f"{self.root}/2")
    for name in os.listdir(f"{self.images}/2"):
      spoil(f"{self.images}/2/{name}")
    with self.assertRaisesRegex(
      InputError, rf"'.*/2/\d+.png' {words}.*Trained up to step \d+\.$"
    ):
      made.train(40)
    reached = made.done
    self.assertBetween(reached, 4, 39)
    self.assertTrue(made._saved.endswith(f"-{reached}"))
    made._inner = None
    gc.collect()
    shutil.rmtree(f"{self.images}/2")
    shutil.move(f"{self.root}/2", f"{self.images}/2")
    again, _ = self.train("spoiled", 40)
    for name, value in whole.items():
      self.assertAllEqual(again[name], value, name)

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
    with open(f"{made.model_dir}/broken.txt") as f:
      self.assertLen(f.readlines(), 5)
    self.assertEqual(made.experiment.input_fn.num_images, 31)

  def test_it_is_measured_with_no_more_than_is_held_out(self):
    made = self.make("few", 4, "Run.num_metric_samples = 500")
    self.assertEqual(made._usual_samples(), 4)
    made = self.make("fewer", 4, "Run.num_metric_samples = 3")
    self.assertEqual(made._usual_samples(), 3)
    made._saved = "x-4"
    evaluation = made.experiment.evaluation
    wrong = mock.Mock(side_effect=ValueError("Images are odd."))
    with (
      mock.patch.object(evaluation, "_extractor", 1),
      mock.patch.object(evaluation, "measure", wrong),
      self.assertRaisesRegex(InputError, "odd. All is trained; .*is x-4"),
    ):
      made._measured(3)

  def test_of_several_processes_only_what_is_saved_is_named(self):
    made = self.make("several", 40)
    made.open()
    for until, words in (
      (3, "lost. Step 3 is not saved; the last checkpoint is none"),
      (4, r"Trained up to step 4\.$"),
      (5, r"Step 5 is not saved; the last checkpoint is .*-4\.$"),
    ):
      made.train(until)
      with mock.patch.object(made._processes, "count", 2):
        error = made._input_failed("'x' is lost.")
      self.assertRegex(str(error), words)


if __name__ == "__main__":
  tf.test.main()
