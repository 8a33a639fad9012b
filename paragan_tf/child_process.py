"""What processes that we start have in common: they end with us."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from typing import Callable, Optional

_PR_SET_PDEATHSIG = 1


def make_preexec_fn() -> Optional[Callable[[], None]]:
  """Returns a function for a child to call, so that it ends with us (Linux)."""
  if sys.platform != "linux":
    return None
  prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

  def request():
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent has ended before.
      os._exit(1)

  return request


def send(process: subprocess.Popen, number: int) -> None:
  """Sends a signal to a process and its children, if it has its own group."""
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, number)


def limit_threads(count: int) -> dict[str, str]:
  """Returns the variables that give a process so many threads."""
  pools = ("OMP_NUM", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
  return {f"{pool}_THREADS": str(count) for pool in pools}
