"""TensorFlow starts without a word, and no error is lost."""

import importlib.machinery
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What it logs in one release or another, and what others write meanwhile.
LOGGED = (
  "2026-01-31 10:20:30.123456: I tensorflow/core/port.cc:113] oneDNN is on.",
  "2026-01-31 10:20:30.1: E external/local_xla/x.cc:9] No cuDNN factory",
  "To enable the following instructions: AVX2 FMA, rebuild TensorFlow.",
  "WARNING: All log messages before absl::InitializeLog() is called are ...",
  "I0000 00:00:1795008068.303954    6920 port.cc:153] oneDNN is on.",
)
KEPT = ("A warning of Python's.", "Info of another thread")
# A stand-in for TensorFlow.
WRITE = "import os\nfor line in {!r}: os.write(2, (line + '\\n').encode())\n"


def run(code, folder=None, **variables):
  """Runs a program, by default with the real TensorFlow."""
  environment = {
    name: value
    for name, value in os.environ.items()
    if name != "TF_CPP_MIN_LOG_LEVEL"
  }
  path = os.pathsep.join(filter(None, [folder, str(ROOT)]))
  return subprocess.run(
    [sys.executable, "-c", code],
    env={**environment, "PYTHONPATH": path, **variables},
    capture_output=True,
    text=True,
    check=False,
  )


class QuietTest(parameterized.TestCase):
  def run_stand_in(self, tail, code="", **variables):
    """Runs a program that imports a TensorFlow of a few lines."""
    with tempfile.TemporaryDirectory() as folder:
      text = WRITE.format([*LOGGED, *KEPT]) + tail
      pathlib.Path(folder, "tensorflow.py").write_text(text)
      # The second call changes nothing.
      start = "import paragan_tf; paragan_tf.quiet.install(); import tensorflow"
      code = f"{start}\n{code}"
      return run(code, folder, **variables)

  def test_a_program_with_the_real_one_starts_without_a_word(self):
    # A fused convolution wakes up the remapper, the device list the drivers.
    code = """
import paragan_tf
import tensorflow as tf
tf.config.list_logical_devices()
fn = tf.function(lambda x: tf.nn.relu(tf.nn.conv2d(x, x, 1, "SAME") + 1.0))
print(fn(tf.ones([1, 1, 1, 1])).shape)
"""
    process = run(code)
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertEqual(process.stderr, "")
    self.assertEqual(process.stdout, "(1, 1, 1, 1)\n")

  def test_only_the_log_is_dropped(self):
    process = self.run_stand_in("")
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertEqual(process.stderr.splitlines(), [*KEPT])

  @parameterized.named_parameters(
    ("error", "raise ImportError('no such library')"),
    ("abort", "import os; os.abort()"),
  )
  def test_nothing_is_lost_if_the_import_ends_with(self, tail):
    process = self.run_stand_in(tail)
    self.assertNotEqual(process.returncode, 0)
    for line in (*LOGGED, *KEPT):
      self.assertIn(line, process.stderr)

  def test_whoever_sets_the_level_gets_what_is_logged(self):
    process = self.run_stand_in("", TF_CPP_MIN_LOG_LEVEL="0")
    self.assertEqual(process.stderr.splitlines(), [*LOGGED, *KEPT])

  def test_a_process_that_a_quiet_one_starts_is_quiet_too(self):
    process = self.run_stand_in("", TF_CPP_MIN_LOG_LEVEL="3")
    self.assertEqual(process.stderr.splitlines(), [*KEPT])

  def test_later_messages_are_shown(self):
    process = self.run_stand_in("", "import os; os.write(2, b'I0000 later\\n')")
    self.assertEqual(process.stderr.splitlines(), [*KEPT, "I0000 later"])

  def test_the_module_is_as_if_imported_without_us(self):
    code = """
import sys
print(type(tensorflow.__loader__).__name__, tensorflow.__spec__.loader is
      tensorflow.__loader__, [x for x in sys.meta_path if "Quiet" in repr(x)])
"""
    process = self.run_stand_in("", code)
    loader = importlib.machinery.SourceFileLoader.__name__
    self.assertEqual(process.stdout, f"{loader} True []\n")


if __name__ == "__main__":
  absltest.main()
