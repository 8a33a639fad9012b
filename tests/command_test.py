"""The command `paragan`, in a folder that is no checkout."""

import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

import paragan_tf
from paragan_tf import __main__ as command

ROOT = pathlib.Path(__file__).resolve().parent.parent


class CommandTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def run_command(self, *arguments):
    """Runs it in a folder of its own, and returns the ended process."""
    return subprocess.run(
      [sys.executable, "-m", "paragan_tf", *arguments],
      cwd=self.folder,
      env={**os.environ, "PYTHONPATH": str(ROOT)},
      capture_output=True,
      text=True,
      check=False,
    )

  def test_each_program_is_listed_with_what_it_does(self):
    for arguments in ([], ["--help"]):
      process = self.run_command(*arguments)
      self.assertEqual(process.returncode, 0, process.stderr)
      for name in command.COMMANDS:
        self.assertRegex(process.stdout, rf"\n  {name} +[A-Z].*\.\n")

  def test_every_program_for_users_is_a_command(self):
    # The others make files that are part of the package.
    programs = {
      path.stem
      for path in (ROOT / "tools").glob("*.py")
      if 'if __name__ == "__main__"' in path.read_text()
    }
    self.assertEqual(
      programs - {"make_embedded", "padding_cycles", "train_classifier"},
      {*command.COMMANDS},
    )

  def test_the_version_is_that_of_the_package(self):
    process = self.run_command("--version")
    self.assertEqual(process.stdout, f"paragan_tf {paragan_tf.__version__}\n")

  def test_an_unknown_command_is_refused(self):
    process = self.run_command("trian")
    self.assertEqual(process.returncode, 2)
    self.assertRegex(
      process.stderr, r"^Error: .*train, .*doctor.*got 'trian'.*\n$"
    )

  def test_flags_are_those_of_the_program(self):
    process = self.run_command("train", "--no_such_flag")
    self.assertEqual(process.returncode, 2)
    self.assertIn("no_such_flag", process.stderr)

  def test_shipped_configs_are_found_and_those_here_come_first(self):
    # Another `tools` and a config that includes shipped ones.
    (self.folder / "tools").mkdir()
    (self.folder / "tools" / "__init__.py").write_text("raise ImportError")
    mine = self.folder / "gin" / "runs" / "mine.gin"
    mine.parent.mkdir(parents=True)
    mine.write_text("include 'gin/runs/smoke.gin'\nRun.num_steps = 7\n")
    process = self.run_command(
      "train", "--gin_file=gin/runs/mine.gin", "--model_dir=m", "--dry_run"
    )
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertIn("7 in all", process.stdout)
    self.assertEqual(process.stderr, "")
    self.assertFalse((self.folder / "m").exists())

  def test_workers_are_started_anywhere(self):
    process = self.run_command(
      "launch", "--num_workers=1", "--", "--gin_file=none.gin", "--model_dir=m"
    )
    self.assertEqual(process.returncode, 2)
    self.assertIn("'none.gin' does not exist", process.stderr)


if __name__ == "__main__":
  absltest.main()
