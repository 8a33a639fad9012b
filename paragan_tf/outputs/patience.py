"""What a run does while its folder cannot be written: it trains on.

    patience = Patience("Checkpoints in 'runs/fashion'", 600, last)
    patience.failed(error)     # warns at first; raises when it takes too long
    patience.succeeded()

    outbox = Outbox(patience, guard)
    outbox.write(do)           # now, or later if that fails
    outbox.wait()

A file system that is full or gone may come back; training need not wait for it.
"""

import sys
import threading
import time
from typing import Callable, List, Optional

import tensorflow as tf

# What a file system raises that is full, gone, slow, or not ours to write.
IO_ERRORS = (
  OSError,
  tf.errors.AbortedError,
  tf.errors.DataLossError,
  tf.errors.DeadlineExceededError,
  tf.errors.FailedPreconditionError,
  tf.errors.InternalError,
  tf.errors.NotFoundError,
  tf.errors.OutOfRangeError,
  tf.errors.PermissionDeniedError,
  tf.errors.ResourceExhaustedError,
  tf.errors.UnavailableError,
  tf.errors.UnknownError,
)
_MAX_WAIT = 30.0


class FolderError(Exception):
  """The folder of a run could not be written for too long."""


class Patience:
  """Counts the time for which writing has failed; any thread may call it.

  Args:
    what: Cannot be written, for messages.
    seconds: For how long training goes on.
    last: Returns the last whole checkpoint.

  Attributes:
    seconds: The same; may be set later.
  """

  def __init__(
    self, what: str, seconds: float, last: Callable[[], Optional[str]]
  ):
    if seconds < 0:
      raise ValueError(
        f"`Run.folder_timeout` must be at least 0, got {seconds}."
      )
    self.seconds = seconds
    self._what, self._last = what, last
    self._lock = threading.Lock()
    self._since: Optional[float] = None
    self._error: Optional[BaseException] = None
    self._tries = 0

  @property
  def is_failing(self) -> bool:
    """Whether writing failed the last time."""
    return self._since is not None

  def failed(self, error: BaseException) -> float:
    """Notes a failure; returns the seconds to wait before the next try."""
    with self._lock:
      self._error, self._tries = error, self._tries + 1
      if self._since is None:
        self._since = time.monotonic()
        self._warn(error)
    self.check()
    return min(_MAX_WAIT, 0.25 * 2 ** min(self._tries, 10))

  def succeeded(self) -> None:
    """Notes that writing works."""
    with self._lock:
      if self._since is not None:
        seconds = time.monotonic() - self._since
        _print(f"{self._what} can be written again, after {seconds:.0f} s.")
      self._since, self._tries = None, 0

  def check(self) -> None:
    """Raises a `FolderError` if writing has failed for too long."""
    since = self._since
    if since is not None and time.monotonic() - since >= self.seconds:
      raise FolderError(
        f"{self._what} cannot be written for {self.seconds:g} s "
        f"({_reason(self._error)}): make room or bring the folder back, then "
        f"run the same command again. The last checkpoint is {self._last()}."
      ) from self._error

  def _warn(self, error: BaseException) -> None:
    _print(
      f"Warning: {self._what} cannot be written ({_reason(error)}). "
      f"Training goes on for {self.seconds:g} s, and writing is tried again."
    )


class Outbox:
  """Writes in order; what fails is kept and written later.

  Args:
    patience: With writes that fail.
    guard: Called before a write; raises if it must not begin.
  """

  def __init__(self, patience: Patience, guard: Callable[[], None]):
    self.patience = patience
    self._guard = guard
    self._waiting: List[Callable[[], object]] = []
    self._try_at = 0.0

  def write(self, do: Callable[[], object]) -> None:
    """Writes now, or later if that fails or earlier ones still wait."""
    self._waiting.append(do)
    if time.monotonic() >= self._try_at:
      self._flush()
    self.patience.check()

  def wait(self) -> None:
    """Waits until all is written, or raises a `FolderError`."""
    self._flush()
    while self._waiting:
      time.sleep(max(0.0, self._try_at - time.monotonic()))
      self._flush()

  def _flush(self) -> None:
    try:
      self._guard()
      while self._waiting:
        self._waiting[0]()
        self._waiting.pop(0)
      self.patience.succeeded()
    except IO_ERRORS as e:
      self._try_at = time.monotonic() + self.patience.failed(e)


def _reason(error: Optional[BaseException]) -> str:
  return (str(error).split("\n")[0] or type(error).__name__)[:200]


def _print(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
