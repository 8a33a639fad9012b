"""A virtual environment of its own for packages that do not fit the project's.

environment = OwnEnvironment("tpu", "The TPU compiler", pins)
environment.is_installed() or environment.install()
subprocess.run([environment.get_python(), ...])
"""

import os
import pathlib
import subprocess
import sys
from typing import Tuple

from paragan_tf import shipped


class OwnEnvironment:
  """An environment that is installed on first use.

  Args:
    name: Of its folder, `.venv-NAME` in a checkout, which the variable
      `PARAGAN_NAME_ENV` overrides.
    content: What it holds, to begin a sentence with.
    pins: A file of requirements, with the versions to install.
    oldest: The oldest Python that they run on.
  """

  def __init__(
    self,
    name: str,
    content: str,
    pins: pathlib.Path,
    oldest: Tuple[int, int] = (3, 9),
  ):
    self._name = name
    self._variable = f"PARAGAN_{name.upper()}_ENV"
    self._content = content
    self._pins = pins
    self._oldest = oldest

  def get_folder(self) -> pathlib.Path:
    """Returns its folder."""
    folder = shipped.ROOT / f".venv-{self._name}"
    if not shipped.IS_CHECKOUT:  # Not into the installed package.
      cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
      folder = pathlib.Path(cache, "paragan_tf", self._name)
    return pathlib.Path(os.environ.get(self._variable, folder))

  def is_installed(self) -> bool:
    """Returns whether it is installed, with the versions pinned now."""
    stamp = self.get_folder() / "installed"
    return stamp.exists() and stamp.read_text() == self._pins.read_text()

  def get_python(self) -> str:
    """Returns the path of its Python."""
    return str(self.get_folder() / "bin" / "python")

  def install(self) -> None:
    """Installs it from the package index."""
    if sys.version_info[:2] < self._oldest:
      oldest = ".".join(map(str, self._oldest))
      raise ValueError(
        f"{self._content} needs Python {oldest} or newer, got "
        f"{sys.version_info.major}.{sys.version_info.minor}: make the "
        f"project's environment with `make PYTHON=python{oldest}`."
      )
    folder = str(self.get_folder())
    pip = [self.get_python(), "-m", "pip", "install", "--quiet"]
    try:
      _run([sys.executable, "-m", "venv", "--clear", folder])
      _run([*pip, "-r", str(self._pins)])
    except (OSError, subprocess.CalledProcessError) as e:
      raise ValueError(
        f"{self._content}'s environment in '{folder}' could not be "
        f"made ({e}): it needs the packages of '{self._pins}' from a package "
        "index. Where there is none, install them elsewhere and set "
        f"`{self._variable}`."
      ) from e
    (self.get_folder() / "installed").write_text(self._pins.read_text())


def _run(command) -> None:
  subprocess.run(command, check=True, stdout=sys.stderr)
