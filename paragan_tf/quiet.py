"""Keeps TensorFlow's start-up messages off the terminal.

`TF_CPP_MIN_LOG_LEVEL` turns off what TensorFlow's C++ logs, errors included:
what stops a program is raised in Python as well. Newer releases log a few lines
before they read that variable, so stderr is filtered while TensorFlow is
imported. A program that sets the variable below 3, or imports TensorFlow before
this package, gets every message that it asked for.
"""

import contextlib
import importlib.abc
import importlib.util
import os
import subprocess
import sys
from typing import Iterator

_LEVEL, _NOTHING = "TF_CPP_MIN_LOG_LEVEL", "3"
# Lines of the C++ log: "2026-01-31 10:20:30.4: I file] ...", in newer releases
# "I0000 00:00:17... file] ...", and those that follow them.
_LOGGED = (
  r"[IWE]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IWE] "
  r"|WARNING: All log messages before absl::InitializeLog\(\)"
  r"|To enable the following instructions:"
)
_NO_ERROR = b"\0"
_FILTER = """
import re, sys
text = sys.stdin.buffer.read()
lines = text.rstrip(b"\\0").splitlines(keepends=True)
is_dropped = re.compile(sys.argv[1].encode()).match
for line in lines:
  if not text.endswith(b"\\0") or not is_dropped(line):
    sys.stderr.buffer.write(line)
"""


def install() -> None:
  """Makes the first import of TensorFlow quiet, unless it was asked to log."""
  if "tensorflow" in sys.modules or any(
    isinstance(finder, _QuietImport) for finder in sys.meta_path
  ):
    return
  # Processes that this one starts inherit the variable.
  if os.environ.setdefault(_LEVEL, _NOTHING) == _NOTHING:
    sys.meta_path.insert(0, _QuietImport())


class _QuietImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports TensorFlow once, with stderr filtered."""

  def find_spec(self, fullname, path=None, target=None):
    """Finds TensorFlow by the other finders."""
    if fullname != "tensorflow":
      return None
    sys.meta_path.remove(self)
    spec = importlib.util.find_spec(fullname)
    if spec is not None and spec.loader is not None:
      self._loader, spec.loader = spec.loader, self
    return spec

  def create_module(self, spec):
    """Leaves it to TensorFlow's own loader, as all the rest."""
    return self._loader.create_module(spec)

  def exec_module(self, module):
    """Runs TensorFlow's `__init__`."""
    module.__spec__.loader = module.__loader__ = self._loader
    with _filter_stderr():
      self._loader.exec_module(module)


@contextlib.contextmanager
def _filter_stderr() -> Iterator[None]:
  """Holds back what is written to stderr, and drops the C++ log at the end.

  Another process holds it, and shows all of it if an error ends this one: a
  library that cannot run here aborts while it is loaded.
  """
  sys.stderr.flush()
  terminal = os.dup(2)
  command = [sys.executable, "-IS", "-c", _FILTER, _LOGGED]
  with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
    assert process.stdin is not None  # It is a pipe.
    os.dup2(process.stdin.fileno(), 2)
    try:
      yield
      sys.stderr.flush()
      os.write(2, _NO_ERROR)
    finally:
      os.dup2(terminal, 2)
      os.close(terminal)
