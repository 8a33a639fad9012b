"""Every call that changes a run's folder fails once; nothing is lost."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "files" / "faults.c"


class FaultsTest(absltest.TestCase):
  def run_faults(self, stride):
    """Runs `tests.faults` with the library; returns what it counted."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not (compiler and sys.platform == "linux"):
      self.skipTest("There is no C compiler.")
    temporary = tempfile.TemporaryDirectory()
    self.addCleanup(temporary.cleanup)
    folder = temporary.name
    library = os.path.join(folder, "faults.so")
    subprocess.run(
      [compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True
    )
    ended = subprocess.run(
      [sys.executable, "-m", "tests.faults", f"{folder}/run", str(stride)],
      cwd=ROOT,
      env={**os.environ, "LD_PRELOAD": library, "TF_CPP_MIN_LOG_LEVEL": "3"},
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(ended.returncode, 0, ended.stderr[-3000:])
    return json.loads(ended.stdout.splitlines()[-1])

  def test_some_failures_lose_nothing(self):
    found = self.run_faults(stride=7)
    self.assertGreater(found["calls"], 30)
    self.assertGreater(found["one sentence"], 0)
    self.assertEqual(
      found["tried"], found["one sentence"] + found.get("went on", 0)
    )

  @pytest.mark.soak
  def test_no_failure_loses_anything(self):
    found = self.run_faults(stride=1)
    self.assertEqual(found["tried"], 4 * found["calls"])
    print(f"failing calls: {found}")


if __name__ == "__main__":
  absltest.main()
