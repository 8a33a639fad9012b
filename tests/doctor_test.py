"""The doctor finds what would stop a run, and says it in a line each."""

import contextlib
import glob
import io
import os
import pathlib
import subprocess
import sys
from unittest import mock

import gin
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.outputs import checkpoints, commit
from tools import doctor, gin_flags

ROOT = pathlib.Path(__file__).resolve().parent.parent


def marks(findings, about):
  """Returns the marks of what was found about something."""
  return [x.mark for x in findings if x.about == about]


class DoctorTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def experiment(self, *bindings):
    """Returns the smoke run, as it would be trained."""
    config.load(["gin/runs/smoke.gin"], bindings)
    return experiment.Experiment(tf.distribute.OneDeviceStrategy("/cpu:0"))

  def test_packages_are_those_of_the_lock(self):
    found = doctor.versions()
    self.assertEqual(marks(found, "python"), ["ok"])
    is_old = sys.version_info[:2] < (3, 12)  # With Estimators and TF-GAN.
    self.assertEqual(marks(found, "package"), ["ok"] * (7 if is_old else 4))

  def test_pins_are_those_of_this_python(self):
    pins = doctor._pins()
    self.assertEqual(pins["gin-config"], "0.5.0")
    is_old = sys.version_info[:2] < (3, 12)
    self.assertEqual(pins["tensorflow"], "2.15.1" if is_old else "2.21.0")
    self.assertEqual("tensorflow-gan" in pins, is_old)

  @parameterized.named_parameters(
    ("kept", b"tpu", "ok"), ("overwritten", b"other", "error")
  )
  def test_files_of_the_build_for_tpus_are(self, contents, mark):
    folder = pathlib.Path(self.get_temp_dir(), mark)
    record = folder / "tensorflow_tpu-2.20.0.dist-info"
    for path in (folder / "tensorflow", record):
      path.mkdir(parents=True)
    library = "tensorflow/libtensorflow_cc.so.2"
    (folder / library).write_bytes(contents)
    (record / "METADATA").write_text("Name: tensorflow-tpu\nVersion: 2.20.0\n")
    (record / "RECORD").write_text(f"{library},sha256=x,3\n")
    with mock.patch.object(sys, "path", [str(folder), *sys.path]):
      (found,) = doctor._tpu_files()
    self.assertEqual(found.mark, mark)
    self.assertIn("tensorflow-tpu", found.text)

  def test_another_version_is_noted_and_a_missing_one_is_an_error(self):
    self.assertEqual(doctor._version("numpy", "0.1").mark, "note")
    self.assertEqual(doctor._version("no-such-package", "0.1").mark, "error")

  def test_a_folder_that_is_not_there_yet_is_measured(self):
    found = doctor.space(os.path.join(self.get_temp_dir(), "a/b/c"))
    self.assertIn("ok", marks(found, "disk"))

  def test_a_file_is_no_folder(self):
    file = os.path.join(self.get_temp_dir(), "file")
    pathlib.Path(file).touch()
    for path in (file, f"{file}/below"):
      (found,) = doctor.space(path)
      self.assertEqual(found.mark, "error")
      self.assertIn(f"'{file}' is a file", found.text)

  @parameterized.named_parameters(
    ("resolution", "InputFn.resolution = 'x'", "whole number, got 'x'"),
    ("source", "InputFn.source = 7", "source` must be a text.*got 7"),
    ("kind", "Experiment.batch_size = 'x'", "batch_size` must be a whole"),
  )
  def test_a_value_of_the_wrong_kind_is_one_sentence(self, binding, words):
    with self.assertRaises(config.WRONG) as caught:
      self.experiment(binding)
    text = config.sentence(caught.exception)
    self.assertRegex(text, words)
    self.assertNotIn("In call to", text)

  def test_a_folder_elsewhere_is_not_measured(self):
    self.assertEqual(marks(doctor.space("gs://x/y"), "disk"), ["note"])

  def test_a_run_that_can_start_has_no_errors(self):
    made = self.experiment()
    found = doctor.model(made, self.get_temp_dir()) + doctor.data(made)
    self.assertNotIn("error", [x.mark for x in found])
    weights = sum(
      v.shape.num_elements()
      for side in made.step.players.values()
      for v in side.net.trainable_variables
    )
    (size,) = [x for x in found if x.about == "model"]
    self.assertStartsWith(size.text, f"{weights:,} weights")

  def test_there_must_be_room_for_as_many_checkpoints_as_a_run_has(self):
    folder, most = self.get_temp_dir(), []
    kept = checkpoints.Checkpoints(folder)
    remove = commit.remove

    def count_and_remove(folder, step):
      most.append(len(glob.glob(f"{folder}/*.index")))
      remove(folder, step)

    entry = checkpoints.Entry("w", (tf.Variable(0.0),), agrees=True)
    with mock.patch.object(commit, "remove", count_and_remove):
      for step in range(6):
        kept.save(step, [entry])
    self.assertLen(kept.paths(), 3)
    self.assertEqual(max(most), 4)

    def found(free):
      usage = mock.Mock(free=free)
      with mock.patch.object(doctor.shutil, "disk_usage", return_value=usage):
        return doctor._checkpoints(1e9, folder)

    self.assertEmpty(found(4.01e9))
    (wrong,) = found(3.9e9)
    self.assertEqual(wrong.mark, "error")
    self.assertIn("keeps 3 checkpoints", wrong.text)
    self.assertIn("need 4.0 GB, 3.9 are free", wrong.text)

  def test_data_that_cannot_be_trained_on_is_an_error(self):
    made = self.experiment("sources.fashion.num_heldout = 9995")
    (found,) = doctor.data(made)
    self.assertEqual(found.mark, "error")
    self.assertIn("got 5", found.text)

  def test_the_program_ends_with_its_verdict(self):
    good = subprocess.run(
      [sys.executable, "-m", "tools.doctor", "--gin_file=gin/runs/smoke.gin"],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(good.returncode, 0, good.stderr)
    self.assertIn("The run can start.", good.stdout)

  @parameterized.named_parameters(
    (
      "what_is_not_there",
      "InputFn.source = 'folder:no/such/folder'",
      ".*no/such/folder",
    ),
    ("a_wrong_kind", "Experiment.batch_size = 'x'", ".*batch_size` must be"),
  )
  def test_what_must_be_fixed_is_one_line_and_the_exit_code(
    self, binding, words
  ):
    flags = mock.patch.multiple(
      doctor,
      _GIN_FILE=mock.Mock(value=["gin/runs/smoke.gin"]),
      _GIN_BINDINGS=mock.Mock(value=[binding]),
      _MODEL_DIR=mock.Mock(value=self.get_temp_dir()),
    )
    allowed = mock.patch.object(gin_flags, "_ALLOW", mock.Mock(value=[]))
    self.enter_context(allowed)
    output = io.StringIO()
    ends = self.assertRaises(SystemExit)
    with flags, contextlib.redirect_stdout(output), ends as ended:
      doctor.main()
    self.assertEqual(ended.exception.code, 2)
    *_, wrong, verdict = output.getvalue().splitlines()
    self.assertRegex(wrong, f"^error +config +{words}")
    self.assertEqual(verdict, "1 problem(s) must be fixed first.")
    self.assertNotIn("In call to", output.getvalue())


if __name__ == "__main__":
  tf.test.main()
