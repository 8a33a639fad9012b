"""The TPU compiler's own virtual environment, installed on first use.

It needs another version of NumPy than TensorFlow does, so it has a folder of
its own, with the versions of `requirements.txt` beside this file.
"""

import os
import pathlib
import subprocess
import sys

from paragan_tf import shipped

_HERE = pathlib.Path(__file__).resolve().parent
_PINS = _HERE / "requirements.txt"
_OLDEST = (3, 11)


def get_folder() -> pathlib.Path:
  """Returns its folder, which `PARAGAN_TPU_ENV` overrides."""
  folder = shipped.ROOT / ".venv-tpu"
  if not shipped.IS_CHECKOUT:  # Not into the installed package.
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(cache, "paragan_tf", "tpu")
  return pathlib.Path(os.environ.get("PARAGAN_TPU_ENV", folder))


def is_installed() -> bool:
  """Returns whether it is installed, with the versions that are pinned now."""
  stamp = get_folder() / "installed"
  return stamp.exists() and stamp.read_text() == _PINS.read_text()


def get_python() -> str:
  """Returns the path of its Python."""
  return str(get_folder() / "bin" / "python")


def install() -> None:
  """Installs it: about 700 MB from the package index."""
  if sys.version_info[:2] < _OLDEST:
    raise ValueError(
      "The TPU compiler needs Python 3.11 or newer, got "
      f"{sys.version_info.major}.{sys.version_info.minor}: make the project's "
      "environment with `make PYTHON=python3.11`."
    )
  try:
    _run([sys.executable, "-m", "venv", "--clear", str(get_folder())])
    _run([get_python(), "-m", "pip", "install", "--quiet", "-r", str(_PINS)])
  except (OSError, subprocess.CalledProcessError) as e:
    raise ValueError(
      f"The TPU compiler's environment in '{get_folder()}' could not be made "
      f"({e}): it needs the packages of '{_PINS}' from a package index. Where "
      "there is none, install them elsewhere and set `PARAGAN_TPU_ENV`."
    ) from e
  (get_folder() / "installed").write_text(_PINS.read_text())


def _run(command) -> None:
  subprocess.run(command, check=True, stdout=sys.stderr)
