"""One run at a time in a folder: a lock file with host, process and start.

    lock = RunLock(folder)
    lock.check()       # raises if another run holds it; writes nothing
    lock.take()        # the same, then takes it
    lock.is_held()     # False if the file is gone, as the folder may be
    lock.release()

A lock is stale if its process does not run on this host, or began at another
time. That of another host is stale if its holder does not touch it any more,
which takes a while to see. An object store cannot create a file only if there
is none: of two runs that start within the same second both may begin there,
and the one whose lock was replaced ends at its next write.
"""

import contextlib
import json
import os
import socket
import threading
import time
from typing import NamedTuple, Optional

import tensorflow as tf

from paragan_tf.outputs import commit

FILE = "run.lock"
_BEAT_SECONDS = 5.0
_WATCH_SECONDS = 30.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Holder(NamedTuple):
  """The process that holds a lock.

  Attributes:
    host: Its name.
    boot: Which start of that host, where it is known.
    pid: Of the process.
    began: When it began, by that host's clock; tells processes apart that had
      the same number.
  """

  host: str
  boot: str
  pid: int
  began: str


class LockedError(ValueError):
  """Another run trains in the folder."""


class LostError(Exception):
  """Another run has taken the folder over."""


class RunLock:
  """The lock of a run's folder; its holder touches it every few seconds."""

  def __init__(self, folder: str, watch_seconds: float = _WATCH_SECONDS):
    self._folder = folder
    self._path = os.path.join(folder, FILE)
    self._watch_seconds = watch_seconds
    self._end = threading.Event()
    self._beat: Optional[threading.Thread] = None

  def check(self) -> None:
    """Raises a `LockedError` if another run has the folder."""
    holder = self._read()
    if holder is None or holder == find_self() or _is_dead(holder):
      return
    if holder.host != socket.gethostname() and not self._is_touched():
      return
    raise LockedError(
      f"`model_dir` '{self._folder}' has a run already: process {holder.pid} "
      f"on host '{holder.host}' trains there. Wait for it or stop it, or set "
      f"another `model_dir`; if there is no such process, remove "
      f"'{self._path}'."
    )

  def take(self) -> None:
    """Takes the lock; raises a `LockedError` if another run has it."""
    while not self._create():
      holder = self._read()
      self.check()
      self._drop(holder)
    self._end.clear()
    self._beat = threading.Thread(
      target=self._touch_often, name="run lock", daemon=True
    )
    self._beat.start()

  @property
  def is_taken(self) -> bool:
    """Whether this object has taken the lock, and not given it back."""
    return self._beat is not None

  def is_held(self) -> bool:
    """Returns whether the lock is there; raises if it is another run's."""
    holder = self._read()
    if holder is not None and holder != find_self():
      raise LostError(
        f"'{self._folder}' was taken over by process {holder.pid} on host "
        f"'{holder.host}', as this one did not touch '{FILE}' for a while: "
        "one of the two must stop, and this one does."
      )
    return holder is not None

  def release(self) -> None:
    """Gives the lock back, if it is held."""
    if self._beat is None:
      return
    self._end.set()
    self._beat = None
    with contextlib.suppress(OSError, tf.errors.OpError):
      if self._read() == find_self():
        tf.io.gfile.remove(self._path)

  def _create(self) -> bool:
    """Writes the lock if there is none; returns whether it did."""
    text = json.dumps(find_self()._asdict()) + "\n"
    if not commit.is_local(self._path):
      if tf.io.gfile.exists(self._path):
        return False
      with tf.io.gfile.GFile(self._path, "w") as f:
        f.write(text)
      return True
    own = f"{self._path}.part{os.getpid()}"
    with open(own, "w", encoding="utf-8") as f:
      f.write(text)
    try:
      # Atomic on NFS, too, and never half written.
      os.link(own, self._path)
    except FileExistsError:
      return False
    finally:
      os.remove(own)
    return True

  def _drop(self, holder: Optional[Holder]) -> None:
    """Removes a stale lock, or our own, but no other's taken meanwhile."""
    old = f"{self._path}.old{os.getpid()}"
    with contextlib.suppress(tf.errors.NotFoundError):
      tf.io.gfile.rename(self._path, old, True)
      if _read(old) != holder and commit.is_local(old):
        with contextlib.suppress(FileExistsError):
          os.link(old, self._path)
      tf.io.gfile.remove(old)

  def _read(self) -> Optional[Holder]:
    return _read(self._path)

  def _touch_often(self) -> None:
    while not self._end.wait(_BEAT_SECONDS):
      with contextlib.suppress(OSError, tf.errors.OpError):
        if self._read() != find_self():
          continue
        if commit.is_local(self._path):
          os.utime(self._path)
        else:
          with tf.io.gfile.GFile(self._path, "w") as f:
            f.write(json.dumps(find_self()._asdict()) + "\n")

  def _is_touched(self) -> bool:
    """Watches the lock for a while; returns whether its holder touches it."""
    before = self._touched_at()
    deadline = time.monotonic() + self._watch_seconds
    print(
      f"'{self._path}' is of another host: waiting for up to "
      f"{self._watch_seconds:g} s to see whether its run still lives.",
      flush=True,
    )
    while time.monotonic() < deadline:
      time.sleep(min(0.5, self._watch_seconds))
      if self._touched_at() != before:
        return True
    return False

  def _touched_at(self) -> int:
    with contextlib.suppress(tf.errors.NotFoundError):
      with tf.io.gfile.GFile(self._path) as f:
        f.read()  # Makes a network file system look again.
      return tf.io.gfile.stat(self._path).mtime_nsec
    return 0


def find_self() -> Holder:
  """Returns this process."""
  pid = os.getpid()
  return Holder(socket.gethostname(), _boot(), pid, _began(pid) or "")


def _read(path: str) -> Optional[Holder]:
  try:
    with tf.io.gfile.GFile(path) as f:
      return Holder(**json.loads(f.read()))
  except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
    return None
  except (ValueError, TypeError):
    return Holder("?", "", 0, "")  # Not ours, or damaged.


def _is_dead(holder: Holder) -> bool:
  """Returns whether a holder was of this host and does not run any more."""
  if holder.host != socket.gethostname():
    return False
  if holder.boot != _boot():
    return True
  if os.path.isdir("/proc/self"):
    return _began(holder.pid) != holder.began
  try:
    os.kill(holder.pid, 0)
  except ProcessLookupError:
    return True
  except PermissionError:
    pass
  return False


def _boot() -> str:
  if not os.path.exists(_BOOT_ID):
    return ""
  with open(_BOOT_ID, encoding="ascii") as f:
    return f.read().strip()


def _began(pid: int) -> Optional[str]:
  """Returns when a process began; `None` if it has ended."""
  try:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
      fields = f.read().rpartition(")")[2].split()
  except OSError:
    return None if os.path.isdir("/proc/self") else ""
  return None if fields[0] in "ZX" else fields[19]
