"""The programs `sample` and `export` as a user meets them."""

import os
import shutil
import subprocess
import sys
import tempfile

import gin
import numpy as np
from absl.testing import parameterized
from PIL import Image

from tests import run_test, train_test
from tests.train_test import ROOT


class SampleToolTest(train_test.ServerTestCase, parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.temporary = tempfile.mkdtemp()
    cls.addClassCleanup(shutil.rmtree, cls.temporary)
    cls.model_dir = f"{cls.temporary}/run"
    strategy = run_test.ONE("/cpu:0")
    run_test.run(strategy, cls.model_dir, 4, *run_test.LINEAR)
    gin.clear_config()

  def path(self, name):
    return f"{self.temporary}/{self._testMethodName}/{name}"

  def sample(self, output, *flags):
    """Draws, and returns the ended process."""
    given = [f"--output={self.path(output)}", *flags]
    if not any(flag.startswith("--model_dir") for flag in flags):
      given.append(f"--model_dir={self.model_dir}")
    return self.server.run("tools.sample", *given)

  def read(self, name):
    with open(self.path(name), "rb") as f:
      return f.read()

  def assert_refused(self, process, words):
    """One sentence, exit code 2, no traceback."""
    self.assertEqual(process.returncode, 2, process.stderr)
    self.assertRegex(process.stderr, words)
    self.assertNotIn("Traceback", process.stderr + process.stdout)
    self.assertLen(process.stderr.strip().splitlines(), 1)

  def test_two_processes_draw_the_same_bytes(self):
    flags = ["--num=20", "--seed=7", "--classes=2,Sneaker"]
    for name in ("a.npz", "a.png"):
      process = self.sample(name, *flags)
      self.assertEqual(process.returncode, 0, process.stderr)
      self.assertIn(f"20 images of step 4: {self.path(name)}", process.stdout)
    other = subprocess.run(
      [
        *(sys.executable, "-m", "tools.sample", *flags),
        f"--model_dir={self.model_dir}",
        f"--output={self.path('b.npz')}",
      ],
      cwd=ROOT,
      check=True,
      capture_output=True,
      text=True,
    )
    self.assertEqual(other.stderr, "")
    self.assertEqual(self.read("a.npz"), self.read("b.npz"))
    found = np.load(self.path("a.npz"))
    self.assertAllEqual(found["labels"][:4], [2, 7, 2, 7])
    self.assertEqual(found["images"].dtype, np.uint8)
    self.assertNotAllEqual(found["images"][0], found["images"][2])
    # Image i is the same, however many there are.
    self.sample("c.npz", "--num=3", *flags[1:])
    few = np.load(self.path("c.npz"))
    self.assertAllEqual(few["images"], found["images"][:3])

  @parameterized.parameters(
    ("folder", ("--num=3",), 3),
    ("sweep.png", ("--truncation_sweep=0.5,1,2", "--num=2"), 6),
    ("strip.png", ("--interpolate=z", "--num=2", "--frames=4"), 8),
    ("moves.gif", ("--interpolate=class", "--num=2", "--frames=3"), 6),
    ("turns.webp", ("--interpolate=z", "--num=1"), 24),
    ("near.png", ("--nearest=fashion", "--num=2"), 12),
  )
  def test_every_form_is_written(self, output, flags, num):
    process = self.sample(output, *flags)
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertIn(f"{num} images of step 4", process.stdout)
    self.assertTrue(os.path.exists(self.path(output)))
    if "near" in output:
      self.assertIn("root mean squared difference of pixels", process.stdout)
      self.sample("two.npz", "--num=2")
      images = np.load(self.path("two.npz"))["images"]
      with Image.open(self.path(output)) as picture:
        first = np.asarray(picture)[:96:3, :96:3]
      self.assertAllEqual(first, images[0, ..., 0])
    if output.endswith(".gif"):
      with Image.open(self.path(output)) as picture:
        self.assertEqual(picture.n_frames, 4)  # Three forth, one back.

  @parameterized.named_parameters(
    ("class", "x.png", ("--classes=3,12",), "from 0 to 9.*Sneaker.*got '12'"),
    ("truncation", "x.png", ("--truncation=0",), "above 0, got 0.0: "),
    ("num", "x.png", ("--num=0",), "`num` must be at least 1, got 0"),
    ("ending", "x.jpg", (), "`output` must end in .png.*x.jpg': change"),
    ("gif", "x.gif", (), "interpolation only.*x.gif': add"),
    ("run", "x.png", ("--model_dir=/no/run",), "got '/no/run': there is no"),
    ("step", "x.png", ("--step=3",), "`step` must be .* 4; got 3"),
    (
      "sweep",
      "x.png",
      ("--truncation_sweep=0.5,a",),
      "must be numbers, as 0.5,1,2, got '0.5,a'",
    ),
    (
      "both",
      "x.png",
      ("--truncation_sweep=1", "--interpolate=z"),
      "`--truncation_sweep` and `--interpolate` exclude",
    ),
    ("source", "x.png", ("--nearest=nowhere",), "`source` must be one of"),
    ("nearest", "x.npz", ("--nearest=fashion",), "must end in .png, got"),
  )
  def test_wrong_flags_are_one_sentence(self, output, flags, words):
    self.assert_refused(self.sample(output, *flags), words)
    self.assertFalse(os.path.exists(self.path(output)))

  def test_an_export_is_sampled_like_its_run(self):
    process = self.server.run(
      "tools.export",
      f"--model_dir={self.model_dir}",
      f"--output={self.path('export')}",
    )
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertIn(f"Export: {self.path('export')}/", process.stdout)
    self.sample("run.npz", "--num=16")
    self.sample("export.npz", "--num=16", f"--model_dir={self.path('export')}")
    self.assertEqual(self.read("run.npz"), self.read("export.npz"))

  def test_what_cannot_be_exported_is_one_sentence(self):
    for flags, words in (
      ([f"--model_dir={self.model_dir}", "--truncation=-1"], "above 0"),
      (["--model_dir=/no/run"], "there is no such folder"),
      (
        [f"--model_dir={self.model_dir}", "--format=onnx"],
        "must end in .onnx .*export': change",
      ),
      (
        [f"--model_dir={self.model_dir}", "--format=onnx", "--truncation=1"],
        "`--truncation` must be left out",
      ),
    ):
      process = self.server.run(
        "tools.export", f"--output={self.path('export')}", *flags
      )
      self.assert_refused(process, words)


if __name__ == "__main__":
  run_test.testing.main()
