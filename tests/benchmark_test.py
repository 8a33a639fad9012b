"""The benchmark as a user meets it: a real process, its words and codes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The program with one more suite, which measures nothing.
WITH_FAKE = """
from tools import benchmark, cli
benchmark.SUITES["fake"] = lambda quick: (f"quick {quick}", {"speed": 1.5})
cli.run(benchmark.main)
"""


def benchmark(*flags):
  """Runs the program and returns the ended process."""
  return _run("-m", "tools.benchmark", *flags)


def with_fake(*flags):
  """Runs the program with the suite `fake`."""
  return _run("-c", WITH_FAKE, "--suite=fake", *flags)


def _run(*args):
  return subprocess.run(
    [sys.executable, *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


class BenchmarkTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = folder.name

  def assert_refused(self, process, words):
    """One sentence, exit code 2, no traceback."""
    self.assertEqual(process.returncode, 2, process.stderr)
    self.assertRegex(process.stderr, words)
    self.assertNotIn("Traceback", process.stderr + process.stdout)
    self.assertLen(process.stderr.strip().splitlines(), 1)

  def test_figures_are_printed_and_written(self):
    path = os.path.join(self.folder, "figures.json")
    process = with_fake("--quick", f"--json={path}")
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertEqual(process.stdout, "quick True\n")
    with open(path) as f:
      self.assertEqual(json.load(f), {"speed": 1.5})

  def test_no_file_is_needed(self):
    process = with_fake()
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertEqual(process.stdout, "quick False\n")
    self.assertEmpty(os.listdir(self.folder))

  def test_an_unknown_suite_is_refused(self):
    self.assert_refused(
      benchmark("--suite=no_such"), "`--suite` must be one of step.*'no_such'"
    )

  def test_a_suite_is_required(self):
    self.assert_refused(benchmark(), "--suite")

  def test_a_file_that_cannot_be_written_is_refused_before_measuring(self):
    cases = (
      (
        os.path.join(self.folder, "no_such", "x.json"),
        "make '.*no_such' first",
      ),
      (self.folder, "`--json` must be a file that can be written, got '.*'"),
    )
    for path, words in cases:
      process = with_fake(f"--json={path}")
      self.assert_refused(process, words)
      self.assertEmpty(process.stdout)


if __name__ == "__main__":
  absltest.main()
