"""Bytes from where they are: this machine, gs:// and its like, http(s)://.

What fails for a moment is tried again, longer and longer apart; what fails for
good is told with its file's name.
"""

import functools
import re
import threading
import time
from typing import Callable, Optional

import requests
import tensorflow as tf

_TIMEOUT_SECONDS = 30.0
_LASTING = (
  FileNotFoundError,
  PermissionError,
  IsADirectoryError,
  NotADirectoryError,
  tf.errors.NotFoundError,
  tf.errors.PermissionDeniedError,
  tf.errors.UnauthenticatedError,
)
_PASSING = (
  OSError,
  tf.errors.AbortedError,
  tf.errors.DeadlineExceededError,
  tf.errors.InternalError,
  tf.errors.ResourceExhaustedError,
  tf.errors.UnavailableError,
  tf.errors.UnknownError,
)
_NOISE = re.compile(r"\{\{\w+ [^}]*\}\}|\[Op:\w+\]|name: *$", re.M)
_local = threading.local()

# Reads a part of a file: path, first byte, how many (to the end if `None`).
Read = Callable[[str, int, Optional[int]], bytes]


def read(path: str, start: int = 0, size: Optional[int] = None) -> bytes:
  """Returns `size` bytes of a file from `start` on, or all up to its end."""
  if path.startswith(("http://", "https://")):
    content = _read_http(path, start, size)
  elif "://" in path:
    with tf.io.gfile.GFile(path, "rb") as f:
      f.seek(start)
      content = f.read(-1 if size is None else size)
  else:
    with open(path, "rb") as f:
      f.seek(start)
      content = f.read(-1 if size is None else size)
  if size is not None and len(content) != size:
    raise OSError(f"{len(content)} of {size} bytes from {start} on")
  return content


def _read_http(url: str, start: int, size: Optional[int]) -> bytes:
  if not hasattr(_local, "session"):  # A connection a thread, kept open.
    _local.session = requests.Session()
  end = "" if size is None else start + size - 1
  headers = {"Range": f"bytes={start}-{end}"} if start or size else {}
  answer = _local.session.get(url, headers=headers, timeout=_TIMEOUT_SECONDS)
  if answer.status_code in (401, 403, 404, 410):
    raise FileNotFoundError(f"HTTP status {answer.status_code}")
  if answer.status_code >= 400 or (headers and answer.status_code != 206):
    raise OSError(f"HTTP status {answer.status_code}")
  return answer.content


class Patient:
  """Reads as `read` does, and tries again what may pass.

  Args:
    read_fn: What reads.
    num_tries: How often, at most.
    first_seconds: The first pause; each one is twice as long as the last.
    sleep: What passes the time.
  """

  def __init__(
    self,
    read_fn: Read = read,
    num_tries: int = 5,
    first_seconds: float = 0.2,
    sleep: Callable[[float], None] = time.sleep,
  ):
    if num_tries < 1:
      raise ValueError(f"`num_tries` must be at least 1, got {num_tries}.")
    self._read = read_fn
    self._num_tries = num_tries
    self._first_seconds = first_seconds
    self._sleep = sleep
    self._lock = threading.Lock()
    self.num_retries = 0

  def __call__(
    self, path: str, start: int = 0, size: Optional[int] = None
  ) -> bytes:
    """Returns the bytes; what fails for good is a `ValueError`."""
    attempt = functools.partial(self._read, path, start, size)
    for i in range(self._num_tries):
      try:
        return attempt()
      except _LASTING as e:
        raise _lost(path, e, 1) from e
      except _PASSING as e:
        if i == self._num_tries - 1:
          raise _lost(path, e, self._num_tries) from e
      with self._lock:
        self.num_retries += 1
      self._sleep(self._first_seconds * 2**i)
    raise AssertionError("unreachable")


def plain(error: Exception) -> str:
  """Returns an error's own words, without the nodes TensorFlow adds to them."""
  words = _NOISE.sub("", str(error)).strip().splitlines()
  return words[0].strip() if words else type(error).__name__


def _lost(path: str, error: Exception, num_tries: int) -> ValueError:
  times = "once" if num_tries == 1 else f"{num_tries} times"
  return ValueError(
    f"'{path}' cannot be read, tried {times} ({plain(error)}): see that it "
    "is there and start again; the run goes on from its last checkpoint."
  )
