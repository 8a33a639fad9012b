"""What `make dist` makes works without a checkout."""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile

import pytest
from absl.testing import absltest

import paragan_tf

ROOT = pathlib.Path(__file__).resolve().parent.parent


def names(path):
  """Returns the files of a folder, without the caches of Python."""
  found = (x.relative_to(ROOT) for x in path.rglob("*") if x.is_file())
  return {str(x) for x in found if "__pycache__" not in x.parts}


@pytest.mark.soak
class WheelTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    # Copied, since building leaves files behind. Without isolation: no network.
    files = subprocess.run(
      ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for file in filter(None, map(os.fsdecode, files)):
      (cls.folder / "source" / file).parent.mkdir(parents=True, exist_ok=True)
      (cls.folder / "source" / file).write_bytes((ROOT / file).read_bytes())
    subprocess.run(
      [sys.executable, "-m", "build", "--no-isolation", "--outdir", cls.folder],
      cwd=cls.folder / "source",
      check=True,
      capture_output=True,
    )
    (cls.wheel,) = cls.folder.glob("*.whl")
    (cls.sdist,) = cls.folder.glob("*.tar.gz")

  def test_the_wheel_has_the_package_its_configs_and_its_programs(self):
    # It was made of the sdist, so that this has them, too.
    with zipfile.ZipFile(self.wheel) as wheel:
      found = {x for x in wheel.namelist() if ".dist-info/" not in x}
    beside = names(ROOT / "gin") | names(ROOT / "tools") | {"requirements.lock"}
    share = {f"paragan_tf/share/{name}" for name in beside}
    self.assertEqual(found, names(ROOT / "paragan_tf") | share)

  def test_the_sdist_has_tests_and_documentation(self):
    with tarfile.open(self.sdist) as sdist:
      found = {x.partition("/")[2] for x in sdist.getnames()}
    for name in ("tests/step_test.py", "docs/api.md", "Makefile", "LICENSE"):
      self.assertIn(name, found)

  def test_an_installed_wheel_trains_from_any_folder(self):
    home, here = self.folder / "venv", self.folder / "here"
    here.mkdir()
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    packages = subprocess.run(
      [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
      capture_output=True,
      text=True,
      check=True,
    ).stdout.strip()
    # The packages of this environment; its editable installs are not seen.
    beside = sysconfig.get_path("purelib")
    pathlib.Path(packages, "beside.pth").write_text(beside)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*arguments):
      return subprocess.run(
        [str(x) for x in arguments],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
      )

    flags = ("--no-index", "--no-deps", "--quiet")
    installed = run(python, "-m", "pip", "install", *flags, self.wheel)
    self.assertEqual(installed.returncode, 0, installed.stderr)
    code = (
      "import paragan_tf as p; print(p.__version__, p.__file__); p.Estimator"
    )
    imported = run(python, "-c", code)
    expected = f"{paragan_tf.__version__} {packages}/paragan_tf/__init__.py\n"
    self.assertEqual((imported.stderr, imported.stdout), ("", expected))

    paragan, smoke = home / "bin" / "paragan", "--gin_file=gin/runs/smoke.gin"
    checked = run(paragan, "doctor", smoke)
    self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
    trained = run(paragan, "train", smoke, "--model_dir=runs/smoke")
    self.assertEqual(trained.returncode, 0, trained.stderr)
    self.assertTrue((here / "runs/smoke/report.html").exists())
    workers = run(
      paragan, "launch", "--", smoke, "--model_dir=two", "--dry_run"
    )
    self.assertEqual(workers.returncode, 0, workers.stderr)
    self.assertIn("2 processes", workers.stdout)
    script = run(paragan, "launch", "--print=slurm", "--", smoke)
    self.assertIn(json.dumps(str(python))[1:-1], script.stdout)


if __name__ == "__main__":
  absltest.main()
