"""The TPU compiler's own environment, made on first use.

Its numpy does not fit TensorFlow's, so it has a folder of its own, with the
versions of `requirements.txt` beside this file.
"""

import os
import pathlib
import subprocess
import sys

_HERE = pathlib.Path(__file__).resolve().parent
_PINS = _HERE / "requirements.txt"
_FOLDER = _HERE.parent.parent / ".venv-tpu"
_OLDEST = (3, 11)


def folder() -> pathlib.Path:
  """Returns where it is; `PARAGAN_TPU_ENV` puts it elsewhere."""
  return pathlib.Path(os.environ.get("PARAGAN_TPU_ENV", _FOLDER))


def is_there() -> bool:
  """Returns whether it is there, with these very versions."""
  stamp = folder() / "installed"
  return stamp.exists() and stamp.read_text() == _PINS.read_text()


def python() -> str:
  """Returns its Python."""
  return str(folder() / "bin" / "python")


def make() -> None:
  """Makes it: about 700 MB from the package index."""
  if sys.version_info[:2] < _OLDEST:
    raise ValueError(
      "The TPU compiler needs Python 3.11, got "
      f"{sys.version_info.major}.{sys.version_info.minor}: make the project's "
      "environment with `make PYTHON=python3.11`."
    )
  try:
    _run([sys.executable, "-m", "venv", "--clear", str(folder())])
    _run([python(), "-m", "pip", "install", "--quiet", "-r", str(_PINS)])
  except (OSError, subprocess.CalledProcessError) as e:
    raise ValueError(
      f"The TPU compiler's environment in '{folder()}' could not be made "
      f"({e}): it needs the packages of '{_PINS}' from a package index. Where "
      "there is none, install them elsewhere and set `PARAGAN_TPU_ENV`."
    ) from e
  (folder() / "installed").write_text(_PINS.read_text())


def _run(command) -> None:
  subprocess.run(command, check=True, stdout=sys.stderr)
