"""Which Python `make` takes, with stand-ins for all of them."""

import pathlib
import shutil
import subprocess
import tempfile

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Answers what the script asks a Python, and ends it where it would install.
STAND_IN = """#!/bin/sh
case "$*" in
  *sys.exit*) exit {is_wrong} ;;
  *_base_executable*) echo "$0" ;;
  *print*) echo {version} ;;
  --version) echo Python {version} ;;
  "-m venv"*) echo made with {version} && exit 7 ;;
esac
"""


class SetUpTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    (self.folder / "bin").mkdir()
    for name in ("cat", "cmp", "sh"):
      (self.folder / "bin" / name).symlink_to(shutil.which(name))
    (self.folder / "lock").write_text("a==1\n")
    (self.folder / "setup.py").write_text("")

  def add(self, version, path=None):
    """Adds a Python to the path, or elsewhere."""
    file = self.folder / (path or f"bin/python{version}")
    file.parent.mkdir(parents=True, exist_ok=True)
    is_wrong = int(not 9 <= int(version.split(".")[1]) <= 13)
    file.write_text(STAND_IN.format(version=version, is_wrong=is_wrong))
    file.chmod(0o755)

  def run_script(self, python=""):
    """Returns the exit code, the output and the errors of the script."""
    script = ROOT / "tools" / "set_up.sh"
    process = subprocess.run(
      ["sh", str(script), python, ".venv", "lock"],
      cwd=self.folder,
      env={"PATH": str(self.folder / "bin")},
      capture_output=True,
      text=True,
      check=False,
    )
    return process.returncode, process.stdout, process.stderr

  @parameterized.named_parameters(
    ("3_11", ["3.9", "3.10", "3.11", "3.12", "3.13"], "3.11"),
    ("3_12", ["3.9", "3.10", "3.12", "3.13", "3.14"], "3.12"),
    ("3_13", ["3.8", "3.9", "3.10", "3.13"], "3.13"),
    ("3_10", ["3.9", "3.10"], "3.10"),
    ("3_9", ["3.8", "3.9"], "3.9"),
  )
  def test_the_first_is(self, there, taken):
    for version in there:
      self.add(version)
    code, out, err = self.run_script()
    self.assertEqual((code, out), (7, f"made with {taken}\n"))
    self.assertRegex(err, rf"Installing .* for Python {taken} into .venv")

  def test_a_python_that_is_named_comes_first(self):
    for version in ("3.11", "3.13"):
      self.add(version)
    self.assertEqual(self.run_script("python3.13")[1], "made with 3.13\n")

  def test_an_environment_stays_as_long_as_nothing_changes(self):
    self.add("3.11")
    self.add("3.13", ".venv/bin/python")
    (self.folder / ".venv" / "installed").write_text("a==1\n")
    self.assertEqual(self.run_script(), (0, "", ""))
    # Another Python, or another lock.
    self.assertEqual(self.run_script("python3.11")[1], "made with 3.11\n")
    (self.folder / "lock").write_text("a==2\n")
    self.assertEqual(self.run_script()[1], "made with 3.13\n")

  @parameterized.named_parameters(
    ("none", [], "", "found none"),
    ("old", ["3.8"], "python3.8", "found Python 3.8"),
    ("new", ["3.14"], "python3.14", "found Python 3.14"),
    ("missing", ["3.11"], "python3.12", "found none"),
  )
  def test_a_wrong_python_is_told(self, there, named, words):
    for version in there:
      self.add(version)
    code, out, err = self.run_script(named)
    self.assertEqual((code, out), (2, ""))
    self.assertRegex(
      err, rf"^paragan_tf needs Python 3.9 to 3.13, {words}: .*\n$"
    )


if __name__ == "__main__":
  absltest.main()
