"""A worker process of a pool, as the pool sees it."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple

from paragan_tf import child_process

# Variables by which TensorFlow would look for other processes.
_CLUSTER = ("TF_CONFIG", "TF_WORKERS")
Event = Dict[str, Any]
# A worker and what it says; `None` once it has ended.
Events = queue.Queue[Tuple["WorkerProcess", Optional[Event]]]


class WorkerProcess:
  """Runs `label_worker.py`; what it says goes into a queue.

  Attributes:
    index: Of the worker among those that run at the same time.
    label: What it trains, `None` between two labels.
    is_stopping: Whether it was told to stop.
    pid: Its process id.
  """

  def __init__(
    self,
    index: int,
    model_dir: str,
    num_devices: int,
    environment: Mapping[str, str],
    events: "Events",
  ):
    self.index = index
    self.label: Optional[int] = None
    self.is_stopping = False
    kept = {k: v for k, v in os.environ.items() if k not in _CLUSTER}
    command = [sys.executable, "-m", "paragan_tf.label_worker"]
    self._process = subprocess.Popen(
      [*command, model_dir, str(num_devices)],
      env={**kept, "PYTHONPATH": _python_path(), **environment},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,  # Ctrl-C comes through us.
      preexec_fn=child_process.make_preexec_fn(),
    )
    self.pid = self._process.pid
    self._events = events
    threading.Thread(target=self._read, daemon=True).start()

  def train(self, label: int) -> None:
    """Tells it to train a label."""
    self.label = label
    self._send({"train": label})

  def stop(self) -> None:
    """Tells it to save and end; without a label it just ends."""
    self.is_stopping = True
    self._send({"stop": True})

  def kill(self) -> None:
    """Ends it at once."""
    child_process.send(self._process, signal.SIGKILL)

  def wait(self) -> str:
    """Waits for its end; returns how it ended."""
    code = self._process.wait()
    for pipe in (self._process.stdin, self._process.stdout):
      if pipe is not None:
        # What it was told last, it may not have read.
        with contextlib.suppress(OSError):
          pipe.close()
    if code < 0:
      return f"its process was killed by signal {-code}"
    return f"its process ended with exit code {code}"

  def _send(self, command: Mapping[str, Any]) -> None:
    assert self._process.stdin is not None
    # If it has ended, the other thread is about to say so.
    with contextlib.suppress(OSError):
      print(json.dumps(command), file=self._process.stdin, flush=True)

  def _read(self) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      if line.startswith("{"):
        self._events.put((self, json.loads(line)))
    self._events.put((self, None))


def _python_path() -> str:
  """Returns where this process finds its modules."""
  found: List[str] = [x for x in sys.path if x]
  return os.pathsep.join([os.getcwd(), *found])
