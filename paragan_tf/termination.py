"""Notices that a machine is about to go: a run then saves and stops in time.

    from paragan_tf import termination
    run.Run.termination_watcher = @termination.gce
    # or
    run.Run.termination_watcher = @termination.file
    termination.file.path = '/run/preempted'

A watcher is any function without arguments that returns why to stop, or `None`.
A thread of the run calls it every second; if it fails, that is said once, and
it is called again.
"""

import os
import sys
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


def check(watcher: Optional[Watcher]) -> None:
  """Raises a `ValueError` for what cannot be asked."""
  if watcher is None:
    return
  try:
    answer = watcher()
  except Exception as e:
    words = (str(e) or type(e).__name__).splitlines()[0]
    raise ValueError(
      "`Run.termination_watcher` must be a function without arguments that "
      f"returns why to stop, or None, as @termination.gce; asked once, it "
      f"failed: {words}"
    ) from e
  if answer is not None and not isinstance(answer, str):
    raise ValueError(
      "`Run.termination_watcher` must be a function that returns why to stop "
      f"as a text, or None, got {type(answer).__name__} from it."
    )


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
    has_failed = False
    while not self._end.wait(self._every):
      try:
        reason = self._watcher()
      except Exception as e:
        if not has_failed:
          has_failed = True
          print(
            f"Warning: `Run.termination_watcher` failed and is asked again: "
            f"{' '.join(str(e).split())[:300]}",
            file=sys.stderr,
            flush=True,
          )
        continue
      if reason:
        return self._on_notice(reason)
