"""`tools.evaluate`, measurements during a run, and its best checkpoint."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf import stopping, trained
from paragan_tf.following import Follower, format_values, measure_images
from paragan_tf.measuring import Request, RunMeter
from paragan_tf.outputs import extractors, image_files, records, statistics
from paragan_tf.outputs.best import Best
from tests import run_test, testing
from tests.run_test import LINEAR, ONE

FASHION = "frechet_fashion"
MEASURED = [
  *LINEAR,
  "experiment.Experiment.extractor = 'fashion'",
  "experiment.Experiment.metrics = ['fid', 'precision', 'label_agreement']",
  "run.Run.num_metric_samples = 64",
  "run.Run.num_metric_reference = 128",
]


def write_images(folder, images):
  """Writes images as PNGs."""
  os.makedirs(folder, exist_ok=True)
  for i, pixels in enumerate(images):
    Image.fromarray(pixels).save(f"{folder}/{i:04d}.png")
  return folder


def draw(seed, num=24, size=12):
  """Draws noise."""
  random = np.random.RandomState(seed)
  return random.randint(0, 255, [num, size, size, 3]).astype(np.uint8)


class RunTest(tf.test.TestCase, parameterized.TestCase):
  """Of one run that measures every four of eight steps."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    gin.clear_config()
    cls.trained = tempfile.mkdtemp()
    run_test.run(
      ONE("/cpu:0"), cls.trained, 8, *MEASURED, "run.Run.measure_every = 4"
    )

  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    shutil.copytree(self.trained, self.folder)

  @classmethod
  def tearDownClass(cls):
    super().tearDownClass()
    shutil.rmtree(cls.trained)

  def names(self, lines):
    return {x["step"]: [m["name"] for m in x["metrics"]] for x in lines}

  def test_a_run_measures_at_its_intervals_and_at_the_end(self):
    lines = [x for x in records.read(self.folder) if x.get("metrics")]
    self.assertEqual([x["step"] for x in lines], [4, 8])
    self.assertLen({json.dumps(x["metrics"][0]["protocol"]) for x in lines}, 1)

  def test_keeps_the_best_checkpoint(self):
    lines = [x for x in records.read(self.folder) if x.get("metrics")]
    by_step = {x["step"]: x["metrics"][0]["value"] for x in lines}
    best = Best(self.folder).read()
    self.assertEqual(best.step, min(by_step, key=by_step.get))
    self.assertEqual(best.value, min(by_step.values()))
    self.assertEqual(trained.load(self.folder, "best").info.step, best.step)

  def test_a_truncation_is_that_of_the_run_until_another_is_given(self):
    found = []
    for truncation in (None, float("inf"), 0.5):
      request = Request(metrics=["fid"], truncation=truncation)
      (value,) = RunMeter(self.folder, request).measure()
      found.append((value.protocol.truncation, value.value))
    self.assertEqual([x[0] for x in found], [None, None, 0.5])
    self.assertEqual(found[0], found[1])
    self.assertNotEqual(found[0][1], found[2][1])

  def test_another_seed_is_another_protocol(self):
    found = []
    for given in ({}, {"seed": 2}, {"seed": 7}):
      request = Request(metrics=["fid"], **given)
      found += RunMeter(self.folder, request).measure()
    self.assertEqual([x.protocol.seed for x in found], [2, 2, 7])
    self.assertEqual(found[0].value, found[1].value)
    self.assertNotEqual(found[0].value, found[2].value)

  def test_another_process_gets_the_same_values(self):
    before = [x for x in records.read(self.folder) if x.get("metrics")][-1]
    result = Follower(self.folder, Request()).measure()
    self.assertEqual(result.step, 8)
    found = {x.name: x.value for x in result.values}
    for metric in before["metrics"]:
      self.assertAllClose(found[metric["name"]], metric["value"], rtol=1e-5)
    line = records.read_evaluations(self.folder)[-1]
    self.assertEqual(
      line["metrics"][0]["protocol"], before["metrics"][0]["protocol"]
    )
    # Of the run, not of the process that measured.
    self.assertEqual(line["seconds"], records.seconds_at(self.folder, 8))

  def test_follows_until_the_run_is_complete(self):
    found = []
    Follower(self.folder, Request(metrics=["fid"])).follow(
      found.append, lambda: False, poll_seconds=0.1
    )
    self.assertEqual([x.step for x in found], [8, 4])
    again = []
    Follower(self.folder, Request(metrics=["fid"])).follow(
      again.append, lambda: False, poll_seconds=0.1
    )
    self.assertEmpty(again)

  def test_a_stop_comes_between_measuring_and_never_within_recording(self):
    calls = []

    class Stop(stopping.Request):
      @contextlib.contextmanager
      def finishing(self):
        calls.append(len(records.read_evaluations(folder)))
        yield
        calls.append(len(records.read_evaluations(folder)))
        raise stopping.Stopped

    folder = self.folder
    before = len(records.read_evaluations(folder))
    follower = Follower(folder, Request(metrics=["fid"]), stop=Stop())
    with self.assertRaises(stopping.Stopped):
      follower.follow(self.fail, lambda: False, poll_seconds=0.1)
    self.assertEqual(calls, [before, before + 1])
    self.assertNotIn("candidate", os.listdir(f"{folder}/best"))

  def test_waits_for_a_run_that_has_not_begun(self):
    later = f"{self.folder}_later"
    follower = Follower(later, Request(metrics=["fid"]))
    found, looks = [], []

    def should_stop():
      looks.append(len(looks))
      if len(looks) == 2:
        shutil.copytree(self.trained, later)
      return False

    follower.follow(found.append, should_stop, poll_seconds=0.1)
    self.assertEqual([x.step for x in found], [8, 4])
    self.assertNotIn("candidate", os.listdir(f"{later}/best"))

  def test_a_checkpoint_that_the_run_removes_is_skipped(self):
    real = RunMeter.measure

    def measure(meter, step, progress):
      if step == 8:
        for name in os.listdir(self.folder):
          if name.startswith("model.ckpt-8."):
            os.remove(os.path.join(self.folder, name))
      return real(meter, step, progress)

    found = []
    with tf.compat.v1.test.mock.patch.object(RunMeter, "measure", measure):
      Follower(self.folder, Request(metrics=["fid"])).follow(
        found.append, lambda: len(found) == 1, poll_seconds=0.1
      )
    self.assertEqual([x.step for x in found], [4])

  def test_a_checkpoint_that_stays_and_fails_is_a_mistake(self):
    def measure(meter, step, progress):
      raise ValueError("as the extractor is wrong")

    follower = Follower(self.folder, Request(metrics=["fid"]))
    with (
      tf.compat.v1.test.mock.patch.object(RunMeter, "measure", measure),
      self.assertRaisesRegex(ValueError, "extractor is wrong"),
    ):
      follower.follow(self.fail, lambda: False, poll_seconds=0.1)

  def test_at_most_all_held_out_images_are_compared(self):
    request = Request(metrics=["precision"], num=1_000_000)
    (value,) = RunMeter(self.folder, request).measure()
    num = value.protocol.num_samples
    self.assertBetween(num, 500, 5000)
    self.assertIsNotNone(value.real_score)

  def test_resuming_drops_what_was_measured_later(self):
    Follower(self.folder, Request(metrics=["fid"])).measure(8)
    records.Records(self.folder).rewind(4)
    self.assertEmpty(records.read_evaluations(self.folder))

  def test_compares_with_other_images(self):
    reference = write_images(f"{self.folder}/photos", draw(0, size=40)[..., 0])
    request = Request(
      metrics=["fid"], extractor="fashion", num=20, reference=reference
    )
    (value,) = RunMeter(self.folder, request).measure()
    self.assertEqual(value.name, FASHION)
    self.assertEqual(value.protocol.num_reference, 24)
    self.assertEqual(value.protocol.num_samples, 20)
    self.assertIsNone(value.real_score)

  def test_an_export_needs_a_reference(self):
    path = trained.load(self.folder).export(f"{self.folder}/export")
    with self.assertRaisesRegex(ValueError, "`--reference` must be set"):
      RunMeter(path, Request()).measure()
    reference = write_images(f"{self.folder}/photos", draw(0, size=32)[..., 0])
    request = Request(["fid"], "fashion", 20, reference)
    (mine,) = RunMeter(path, request).measure()
    (value,) = RunMeter(self.folder, request).measure()
    self.assertAllClose(mine.value, value.value, rtol=1e-5)

  def test_the_tool_prints_and_records(self):
    command = [sys.executable, "-m", "tools.evaluate"]
    out = f"{self.folder}/values.json"
    done = subprocess.run(
      [
        *command,
        f"--model_dir={self.folder}",
        "--metrics=fid",
        f"--json={out}",
      ],
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn(FASHION, done.stdout)
    self.assertIn("Step 8", done.stdout)
    with open(out) as f:
      self.assertEqual(json.load(f)["metrics"][0]["name"], FASHION)
    self.assertEqual(
      self.names(records.read_evaluations(self.folder)), {8: [FASHION]}
    )

  @parameterized.parameters(
    (Request(num=1), "`num` must be at least 2, got 1"),
    (Request(metrics=["fidd"]), "fidd"),
    (Request(extractor="resnet"), "must begin with"),
    (Request(reference="nowhere"), "There are no images at 'nowhere'"),
    (Request(reference="nowhere.npz"), "There is no file 'nowhere.npz'"),
  )
  def test_refuses_what_cannot_be_measured(self, request, words):
    with self.assertRaisesRegex(ValueError, words):
      RunMeter(self.folder, request).measure()

  def test_refuses_an_unknown_metric_to_choose_the_best_by(self):
    follower = Follower(self.folder, Request(metrics=["fid"]), best_by="fid")
    with self.assertRaisesRegex(ValueError, f"one of {FASHION}, got 'fid'"):
      follower.measure()


class ImagesTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    os.makedirs(self.folder)

  def measure(self, images, reference, **more):
    request = Request(
      metrics=["fid"], extractor="fashion", reference=reference, **more
    )
    return measure_images(images, request).values[0]

  def test_folders_and_arrays_with_the_same_images_are_equal(self):
    a = write_images(f"{self.folder}/a", draw(0)[..., 0])
    b = write_images(f"{self.folder}/b", draw(1)[..., 0])
    path = f"{self.folder}/a.npz"
    np.savez(path, images=draw(0)[..., :1])
    found = [self.measure(x, b).value for x in (a, path)]
    self.assertAllClose(found[0], found[1], rtol=1e-9)
    self.assertGreater(found[0], 1e-3)
    self.assertAllClose(self.measure(a, a).value, 0.0, atol=1e-6)

  def test_statistics_in_a_file_replace_the_images(self):
    a, b = (
      write_images(f"{self.folder}/{i}", draw(i)[..., 0]) for i in range(2)
    )
    extractor = extractors.make("fashion")
    images = image_files.open_images(b)
    found = statistics.cached(self.folder, extractor, images)
    path = os.path.join(self.folder, found.origin.file_name)
    self.assertAllClose(
      self.measure(a, path).value, self.measure(a, b).value, rtol=1e-9
    )
    other = f"{self.folder}/other.npz"
    np.savez(other, mu=found.moments.mean, sigma=found.moments.covariance)
    self.assertAllClose(
      self.measure(a, other).value, self.measure(a, b).value, rtol=1e-6
    )

  def test_images_of_other_sizes_are_cropped_if_requested(self):
    a = write_images(f"{self.folder}/a", draw(0)[..., 0])
    Image.fromarray(draw(0, 1, 20)[0, :16, :, 0]).save(f"{a}/9999.png")
    with self.assertRaisesRegex(
      ValueError, "9999.png' has 20x16.*--resolution"
    ):
      self.measure(a, a)
    self.assertAllClose(self.measure(a, a, resolution=12).value, 0.0, atol=1e-6)

  def test_refuses_what_is_no_image(self):
    with self.assertRaisesRegex(ValueError, "at least 2 images.*got 0"):
      image_files.open_images(self.folder)
    a = write_images(f"{self.folder}/a", draw(0, 3)[..., 0])
    with open(f"{a}/0001.png", "wb") as f:
      f.write(b"no image")
    with self.assertRaisesRegex(ValueError, "0001.png' cannot be read as an"):
      self.measure(a, a)
    np.savez(f"{self.folder}/x.npz", x=np.zeros([4, 4]))
    with self.assertRaisesRegex(ValueError, "must have an array of images"):
      image_files.open_images(f"{self.folder}/x.npz")
    with self.assertRaisesRegex(ValueError, "`--reference` must be set"):
      self.measure(a, None)

  @parameterized.parameters(
    ([], "Either `--model_dir` or the images"),
    (["a", "b", "--model_dir=x"], "Either `--model_dir` or the images"),
    (["a", "b", "c"], "At most two sets"),
    (["a", "b", "--reference=c"], "must be left out, got 'c'"),
    (["--model_dir=x", "--follow", "--step=3"], "`--follow` measures every"),
    (["--model_dir=x", "--json=/no/such/x.json"], "`--json` must be"),
  )
  def test_wrong_words_exit_with_a_sentence(self, words, message):
    done = subprocess.run(
      [sys.executable, "-m", "tools.evaluate", *words],
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 2)
    self.assertIn(message, done.stderr)
    self.assertLen(done.stderr.strip().splitlines(), 1)

  def test_shows_the_protocol_below_the_values(self):
    a = write_images(f"{self.folder}/a", draw(0)[..., 0])
    request = Request(metrics=["fid"], extractor="fashion", reference=a)
    text = format_values(measure_images(a, request).values)
    self.assertIn("24 samples against 24 of a; fashion", text)


if __name__ == "__main__":
  testing.main()
