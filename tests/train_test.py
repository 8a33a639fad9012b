"""The train program as a user meets it: a real process, its words and codes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import records

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Imports TensorFlow once, and becomes a program for each line that it reads.
_FORK_SERVER = """
import json, os, runpy, sys
from tools import cli
cli.import_quietly("paragan_tf.run")
for line in sys.stdin:
  module, flags, environment, folder = json.loads(line)
  pid = os.fork()
  if not pid:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
      path = os.path.join(folder, name)
      os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(environment)
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class ForkServer:
  """Runs programs, each in a process that need not import TensorFlow again."""

  def __init__(self, folder):
    self._folder = folder
    self._process = subprocess.Popen(
      [sys.executable, "-c", _FORK_SERVER],
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def run(self, module, *flags, **variables):
    """Runs `python -m module` and returns the ended process."""
    order = json.dumps([module, flags, variables, self._folder])
    self._process.stdin.write(order + "\n")
    self._process.stdin.flush()
    code = int(self._process.stdout.readline())
    outputs = [pathlib.Path(self._folder, x) for x in ("stdout", "stderr")]
    return subprocess.CompletedProcess(
      [module, *flags], code, *(path.read_text() for path in outputs)
    )

  def close(self):
    """Ends it."""
    with self._process:
      self._process.stdin.close()


def train(*flags, gin_file="gin/runs/smoke.gin"):
  """Runs the program as a user does, and returns the ended process."""
  return subprocess.run(
    [sys.executable, "-m", "tools.train", f"--gin_file={gin_file}", *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


class ServerTestCase(tf.test.TestCase):
  """A test with a fork server, started once for its class."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.server = ForkServer(folder.name)
    cls.addClassCleanup(cls.server.close)


class TrainTest(ServerTestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def train(self, *flags, gin_file="gin/runs/smoke.gin"):
    """Runs the program, in less time."""
    return self.server.run("tools.train", f"--gin_file={gin_file}", *flags)

  def assert_refused(self, process, words):
    """One sentence, exit code 2, no traceback."""
    self.assertEqual(process.returncode, 2, process.stderr)
    self.assertRegex(process.stderr, words)
    self.assertNotIn("Traceback", process.stderr + process.stdout)
    self.assertLen(process.stderr.strip().splitlines(), 1)

  def test_the_smoke_run_goes_the_whole_path(self):
    process = train(f"--model_dir={self.folder}")
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertIn("one device", process.stdout)
    self.assertIn(f"{self.folder}/samples/00000040.png", process.stdout)
    self.assertIn(f"{self.folder}/report.html", process.stdout)
    self.assertIn("step 40/40", process.stderr)
    measured = [x for x in records.read(self.folder) if "metrics" in x][-1]
    names = {entry["name"]: entry for entry in measured["metrics"]}
    self.assertContainsSubset(
      ["frechet_fashion", "kid_fashion", "label_agreement_fashion"], names
    )
    distance = names["frechet_fashion"]
    self.assertEqual(distance["protocol"]["num_samples"], 500)
    self.assertGreater(distance["value"], distance["real_score"])
    # The same command again has nothing to do, and says so.
    again = self.train(f"--model_dir={self.folder}")
    self.assertEqual(again.returncode, 0, again.stderr)
    self.assertIn("Already trained for 40 steps", again.stdout)
    # A damaged checkpoint is named, and the one before is taken.
    self.damage(40)
    again = self.train(f"--model_dir={self.folder}", "--dry_run")
    self.assertEqual(again.returncode, 0, again.stderr)
    self.assertRegex(again.stderr, "model.ckpt-40' is damaged and left out")
    self.assertIn("20 done, 40 in all", again.stdout)
    # Without any other it stays as it is, and nothing starts over.
    self.damage(20)
    before = sorted(os.listdir(self.folder))
    again = self.train(f"--model_dir={self.folder}")
    self.assertEqual(again.returncode, 2, again.stderr)
    self.assertRegex(again.stderr, "Error: All checkpoints in .* are damaged")
    self.assertNotIn("Traceback", again.stderr)
    self.assertEqual(sorted(os.listdir(self.folder)), before)

  def damage(self, step):
    """Cuts off the values of a checkpoint."""
    data = pathlib.Path(self.folder, f"model.ckpt-{step}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:1000])

  def test_a_dry_run_writes_nothing(self):
    process = self.train(f"--model_dir={self.folder}", "--dry_run")
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertIn("40 in all", process.stdout)
    self.assertFalse(os.path.exists(self.folder))

  def test_a_batch_that_replicas_cannot_share_is_refused(self):
    process = self.train(
      f"--model_dir={self.folder}",
      "--num_cpu_replicas=3",
    )
    self.assert_refused(process, "multiple of the 3 replicas, got 16: take 15")
    self.assertFalse(os.path.exists(self.folder))

  def test_an_unknown_binding_is_refused(self):
    process = self.train(
      f"--model_dir={self.folder}", "--gin_bindings=Run.no_such = 1"
    )
    self.assert_refused(process, "no_such")
    self.assertFalse(os.path.exists(self.folder))

  def test_a_folder_that_cannot_be_written_is_refused(self):
    file = os.path.join(self.get_temp_dir(), "a_file")
    pathlib.Path(file).write_text("kept")
    process = self.train(f"--model_dir={file}/run")
    self.assert_refused(process, "`model_dir` must be a writable folder")
    self.assertEqual(pathlib.Path(file).read_text(), "kept")

  def test_a_damaged_image_file_is_refused(self):
    file = os.path.join(self.get_temp_dir(), "images.npz")
    np.savez(file, images=np.zeros([100, 32, 32], np.uint8))
    data = pathlib.Path(file).read_bytes()
    pathlib.Path(file).write_bytes(data[: len(data) // 2])
    process = self.train(
      f"--model_dir={self.folder}",
      "--gin_bindings=InputFn.source = @sources.npz",
      f"--gin_bindings=sources.npz.path = '{file}'",
    )
    self.assert_refused(process, "images.npz' cannot be read.*damaged")
    self.assertFalse(os.path.exists(self.folder))

  def test_missing_files_and_flags_are_refused_at_once(self):
    missing = self.train(f"--model_dir={self.folder}", gin_file="no_such.gin")
    self.assert_refused(missing, "'no_such.gin' does not exist")
    self.assert_refused(train(), "model_dir")
    self.assert_refused(train("--no_such_flag"), "no_such_flag")
    self.assertFalse(os.path.exists(self.folder))


if __name__ == "__main__":
  tf.test.main()
