"""Reads bytes of local files, of gs:// and the like, and of http(s)://.

Transient errors are retried with exponential backoff. Permanent errors raise a
`ValueError` with the file's name.
"""

import functools
import re
import threading
import time
from typing import Callable, Optional

import requests
import tensorflow as tf

_TIMEOUT_SECONDS = 30.0
_PERMANENT = (
  FileNotFoundError,
  PermissionError,
  IsADirectoryError,
  NotADirectoryError,
  tf.errors.NotFoundError,
  tf.errors.PermissionDeniedError,
  tf.errors.UnauthenticatedError,
)
_TRANSIENT = (
  OSError,
  tf.errors.AbortedError,
  tf.errors.DeadlineExceededError,
  tf.errors.InternalError,
  tf.errors.ResourceExhaustedError,
  tf.errors.UnavailableError,
  tf.errors.UnknownError,
)
_NODE_NAMES = re.compile(
  r"\{\{\w+ [^}]*\}\}|\[Op:\w+\]|name: *$"
  r"|Error in user-defined function passed to .*? with iterator: \S+: *",
  re.M,
)
_local = threading.local()
# What ops raise where data is wrong. The message quotes a record that cannot be
# parsed, and fails where its bytes are not text.
OP_ERRORS = (tf.errors.OpError, UnicodeDecodeError)

# Reads bytes of a file: path, first byte, how many (to the end if `None`).
ReadFn = Callable[[str, int, Optional[int]], bytes]


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
  if not hasattr(_local, "session"):  # One open connection per thread.
    _local.session = requests.Session()
  end = "" if size is None else start + size - 1
  headers = {"Range": f"bytes={start}-{end}"} if start or size else {}
  response = _local.session.get(url, headers=headers, timeout=_TIMEOUT_SECONDS)
  if response.status_code in (401, 403, 404, 410):
    raise FileNotFoundError(f"HTTP status {response.status_code}")
  if response.status_code >= 400 or (headers and response.status_code != 206):
    raise OSError(f"HTTP status {response.status_code}")
  return response.content


class RetryingReader:
  """Reads as `read` does, and retries transient errors.

  Args:
    read_fn: Reads once.
    num_tries: Maximum number of attempts.
    first_pause: Seconds before the first retry; each pause doubles.
    sleep: Waits that many seconds.
  """

  def __init__(
    self,
    read_fn: ReadFn = read,
    num_tries: int = 5,
    first_pause: float = 0.2,
    sleep: Callable[[float], None] = time.sleep,
  ):
    if num_tries < 1:
      raise ValueError(f"`num_tries` must be at least 1, got {num_tries}.")
    self._read = read_fn
    self._num_tries = num_tries
    self._first_pause = first_pause
    self._sleep = sleep
    self._lock = threading.Lock()
    self.num_retries = 0

  def __call__(
    self, path: str, start: int = 0, size: Optional[int] = None
  ) -> bytes:
    """Returns the bytes; raises a `ValueError` if all attempts fail."""
    attempt = functools.partial(self._read, path, start, size)
    for i in range(self._num_tries):
      try:
        return attempt()
      except _PERMANENT as e:
        raise _read_error(path, e, 1) from e
      except _TRANSIENT as e:
        if i == self._num_tries - 1:
          raise _read_error(path, e, self._num_tries) from e
      with self._lock:
        self.num_retries += 1
      self._sleep(self._first_pause * 2**i)
    raise AssertionError("unreachable")


def clean_message(error: Exception) -> str:
  """Returns an error's message without TensorFlow's node names."""
  if isinstance(error, UnicodeDecodeError):
    return "no tf.train.Example"
  lines = _NODE_NAMES.sub("", str(error)).strip().splitlines()
  return lines[0].strip() if lines else type(error).__name__


def _read_error(path: str, error: Exception, num_tries: int) -> ValueError:
  times = "once" if num_tries == 1 else f"{num_tries} times"
  return ValueError(
    f"'{path}' cannot be read, tried {times} ({clean_message(error)}): see "
    "that it is there and start again; the run resumes from its last "
    "checkpoint."
  )
