"""Watches the other processes of a run, and names one that is lost.

    with peers.watching():     # a thread asks each of them, again and again
      train()                  # a `PeerError` if one does not answer

A process that was killed refuses connections, one that hangs or is cut off
answers nothing. TensorFlow would wait for either of them; its operations that
wait are ended here.
"""

import contextlib
import os
import sys
import threading
import time
from typing import Iterator, List, Optional, Sequence

import tensorflow as tf

from paragan_tf import tf_private

TIMEOUT = 30.0
_EXIT_AGAIN = 75  # As in `stopping.py`.
# What operations raise that wait for another process when that is lost.
_LOST = (
  tf.errors.AbortedError,
  tf.errors.CancelledError,
  tf.errors.DeadlineExceededError,
  tf.errors.FailedPreconditionError,
  tf.errors.InternalError,
  tf.errors.UnavailableError,
  tf.errors.UnknownError,
)


class PeerError(Exception):
  """Another process of the run is lost."""


class Peers:
  """The other processes of a run.

  Args:
    addresses: Of all processes, by index.
    index: Of this one.
  """

  def __init__(self, addresses: Sequence[str], index: int):
    self._addresses = addresses
    self._others = [i for i in range(len(addresses)) if i != index]
    self._timeout = TIMEOUT
    self._depth = 0
    self._end = threading.Event()
    self._lost: Optional[str] = None

  def set_timeout(self, seconds: float) -> None:
    """Sets after which time one that does not answer is lost."""
    if seconds <= 0:
      raise ValueError(
        f"`Run.worker_timeout` must be above 0, got {seconds:g}."
      )
    self._timeout = seconds

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Raises a `PeerError` if another process is lost within the block."""
    if not self._others:
      yield
      return
    self._start()
    try:
      yield
    except _LOST as e:
      if self._wait_for_name() is None:
        raise  # All others answer: it is another error.
      raise PeerError(self._lost) from e
    finally:
      self._stop()

  def _start(self) -> None:
    self._depth += 1
    if self._depth == 1:
      self._end = threading.Event()
      thread = threading.Thread(
        target=self._watch, args=(self._end,), name="peers", daemon=True
      )
      thread.start()

  def _stop(self) -> None:
    self._depth -= 1
    if not self._depth:
      self._end.set()

  def _watch(self, end: threading.Event) -> None:
    while not end.wait(self._timeout / 6):
      lost = self._find_lost()
      if lost and not end.is_set():
        self._lost = self._name(lost)
        _say(self._lost)
        tf_private.abort_collectives(self._lost)
        if not end.wait(self._timeout):  # Something waits all the same.
          os._exit(_EXIT_AGAIN)
        return

  def _find_lost(self) -> List[int]:
    """Returns the processes that do not answer, asked twice."""
    lost = self._others
    for _ in range(2):
      lost = [i for i in lost if not self._answers(i)]
    return lost

  def _answers(self, index: int) -> bool:
    return tf_private.is_peer_alive(index, self._timeout / 3)

  def _name(self, lost: Sequence[int]) -> str:
    names = [f"worker {i} ({self._addresses[i]})" for i in lost]
    return (
      f"Lost {' and '.join(names)}: it was killed, hangs, or is cut off. All "
      "others end, too; the same command resumes at the last checkpoint."
    )

  def _wait_for_name(self) -> Optional[str]:
    """Returns which process is lost, as soon as that is known."""
    deadline = time.monotonic() + self._timeout
    while self._lost is None and time.monotonic() < deadline:
      time.sleep(0.1)
    return self._lost


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
