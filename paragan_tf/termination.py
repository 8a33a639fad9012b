"""Notices that a machine is about to go: a run then saves and stops in time.

    from paragan_tf import termination
    run.Run.termination_watcher = @termination.gce
    # or
    run.Run.termination_watcher = @termination.file
    termination.file.path = '/run/preempted'

A watcher is any function without arguments that returns why to stop, or `None`.
A thread of the run calls it every second.
"""

import os
import threading
import urllib.error
import urllib.request
from typing import Callable, Optional

import gin

Watcher = Callable[[], Optional[str]]
_METADATA = "http://{host}/computeMetadata/v1/instance/{name}"
_TIMEOUT = 2.0
# What Compute Engine says while nothing is going to happen.
_QUIET = ("NONE", "FALSE", "")


@gin.register
def gce() -> Optional[str]:
  """Returns what Compute Engine announces: maintenance, or preemption."""
  host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
  for name in ("preempted", "maintenance-event"):
    request = urllib.request.Request(
      _METADATA.format(host=host, name=name),
      headers={"Metadata-Flavor": "Google"},
    )
    try:
      with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        text = answer.read().decode(errors="replace").strip()
    except (OSError, urllib.error.URLError):
      continue  # The server is away for a moment, or this is no such machine.
    if text not in _QUIET:
      return f"Compute Engine's notice `{name}` {text}"
  return None


@gin.register
def file(path: str = gin.REQUIRED) -> Optional[str]:
  """Returns a reason as soon as there is a file."""
  return f"file '{path}'" if os.path.exists(path) else None


class Watch:
  """Asks a watcher again and again, in a thread.

  Args:
    watcher: What to ask; `None` for nothing.
    on_notice: Called once, with the reason.
    every: Seconds between two questions.
  """

  def __init__(
    self,
    watcher: Optional[Watcher],
    on_notice: Callable[[str], None],
    every: float = 1.0,
  ):
    self._watcher, self._on_notice, self._every = watcher, on_notice, every
    self._end = threading.Event()
    if watcher is not None:
      threading.Thread(target=self._ask, name="notice", daemon=True).start()

  def close(self) -> None:
    """Asks no more."""
    self._end.set()

  def _ask(self) -> None:
    assert self._watcher is not None
    while not self._end.wait(self._every):
      reason = self._watcher()
      if reason:
        return self._on_notice(reason)
