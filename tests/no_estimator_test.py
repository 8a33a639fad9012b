"""Where TensorFlow has no `tf.estimator`, TPUEstimator is refused at once."""

import os
import pathlib
import subprocess
import sys

import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Makes this TensorFlow one without, before anything of ours is imported.
_WITHOUT = """
import runpy, sys
import tensorflow as tf
for module in (tf, tf.compat.v1):
  if hasattr(module, "estimator"):
    delattr(module, "estimator")
"""
_TRAIN = "runpy.run_module('tools.train', run_name='__main__')"
_CALLS = """
from paragan_tf.engine import estimator
for make in (
  lambda: estimator.make_estimator(print, "folder", 8),
  lambda: estimator.make_model_fn(print),
):
  try:
    make()
  except ValueError as e:
    print(str(e).splitlines()[0])  # Gin adds a line.
"""


def run(program, *flags):
  """Runs a program in a TensorFlow without `tf.estimator`."""
  return subprocess.run(
    [sys.executable, "-c", _WITHOUT + program, *flags],
    cwd=ROOT,
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    capture_output=True,
    text=True,
    check=False,
  )


class NoEstimatorTest(tf.test.TestCase):
  def assert_names_the_ways_out(self, sentence):
    self.assertIn("needs `tf.estimator`", sentence)
    self.assertIn(f"got TensorFlow {tf.__version__}:", sentence)
    self.assertIn("TensorFlow 2.15.1", sentence)
    self.assertIn("`make PYTHON=python3.11`", sentence)
    self.assertIn("`--engine=strategy`", sentence)

  def test_the_engine_is_refused_before_the_config_is_read(self):
    folder = os.path.join(self.get_temp_dir(), "run")
    process = run(
      _TRAIN,
      "--engine=tpu_estimator",
      "--gin_file=missing.gin",
      f"--model_dir={folder}",
    )
    self.assertEqual(process.returncode, 2, process.stderr)
    self.assertNotIn("Traceback", process.stderr)
    self.assert_names_the_ways_out(process.stderr.splitlines()[-1])
    self.assertEmpty(process.stdout)
    self.assertFalse(os.path.exists(folder))

  def test_calls_are_refused_in_the_same_words(self):
    process = run(_CALLS)
    self.assertEqual(process.returncode, 0, process.stderr)
    sentences = process.stdout.splitlines()
    self.assertLen(sentences, 2)
    for sentence in sentences:
      self.assert_names_the_ways_out(sentence)


if __name__ == "__main__":
  tf.test.main()
