"""Stops a program on SIGINT, SIGTERM, SIGHUP, or on notice, and loses nothing.

    stop = Stop(grace_seconds)         # in the main thread, before slow imports
    ...                                # until `begin` a signal ends at once
    stop.begin()
    while not stop.is_requested():
      with stop.interruptible():       # here a signal raises `Stopped`
        train_a_little()
    save()
    sys.exit(EXIT_AGAIN)

A thread receives the signals, so that one is answered while the main thread is
inside a long call of TensorFlow. When processes connect, TensorFlow takes
SIGTERM for itself; the thread takes it back. The first signal asks; after it
the system's own handlers are back, so the second ends the program at once,
wherever it is.
"""

import _thread
import contextlib
import ctypes
import math
import os
import select
import signal
import sys
import threading
import time
from typing import (
  Callable,
  ContextManager,
  Dict,
  Iterator,
  List,
  Mapping,
  NamedTuple,
  Optional,
)

EXIT_AGAIN = 75  # Stopped and saved: the same command resumes (EX_TEMPFAIL).
EXIT_INTERRUPTED = 130  # Stopped while it started.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_SECONDS = 0.5
_IDLE_SECONDS = 3.0  # For which a call may go on that has nothing to save.
_LATE_SECONDS = 2.5  # For which one may go on whose start can be saved.


# Saves what was before the work under way; returns the checkpoint, if any.
SaveFn = Callable[[], Optional[str]]


class Stopped(BaseException):
  """A signal came where work may be cut off; no error."""


class End(NamedTuple):
  """How a program ends after a request, if nothing is left to save.

  Attributes:
    code: Its exit code.
    words: What is said then.
    asked: What is said at the request, if anything.
  """

  code: int = EXIT_AGAIN
  words: str = "nothing was left to save. The same command resumes."
  asked: str = "Stopping, and saving what was trained"


class Request:
  """A request to stop that comes by a notice only; signals are left alone.

  Attributes:
    has_unsaved: Whether something was trained that no checkpoint has.
    is_by_signal: Whether a signal may be the reason, and ends the program.
  """

  is_by_signal = False

  def __init__(self):
    self.has_unsaved = False
    self._requested = threading.Event()

  def is_requested(self) -> bool:
    """Returns whether to stop as soon as possible."""
    return self._requested.is_set()

  def request(self, reason: str) -> None:
    """Asks to stop, from any thread; signals may still follow."""
    _say(f"Stopping, and saving what was trained ({reason}).")
    self._requested.set()

  def interruptible(self) -> ContextManager[None]:
    """Makes a context in which a request may raise `Stopped`."""
    return contextlib.nullcontext()

  def finishing(self) -> ContextManager[None]:
    """Makes a context that is finished before a request has an effect."""
    return contextlib.nullcontext()

  def late(self, save: SaveFn) -> ContextManager[None]:
    """Makes a context that a request ends by `save` if it takes too long."""
    del save
    return contextlib.nullcontext()


class Stop(Request):
  """A request to stop, as a signal or a notice makes it.

  Args:
    grace_seconds: After a request the program ends within this time, whatever
      it does then; unlimited by default.
    end: How it ends if nothing is left to save.

  Attributes:
    reason: The signal or the notice, once there is one.
  """

  is_by_signal = True

  def __init__(
    self,
    grace_seconds: Optional[float] = None,
    end: End = End(),  # noqa: B008
  ):
    if grace_seconds is not None and not grace_seconds > 0:
      raise ValueError(
        f"`--grace_seconds` must be above 0, got {grace_seconds:g}."
      )
    super().__init__()
    self._grace_seconds = grace_seconds
    self.end = end
    self.reason = ""
    self._has_begun = False
    self._interruptible = self._finishing = 0
    self._save: Optional[SaveFn] = None
    self._at_exit: List[Callable[[], None]] = []
    self._num_notices = 0
    self._is_signaled = False
    self._reader, self._writer = os.pipe()
    os.set_blocking(self._writer, False)
    self._before = [signal.getsignal(number) for number in SIGNALS]
    for number in SIGNALS:
      ignored = signal.getsignal(number) == signal.SIG_IGN
      if not (number == signal.SIGHUP and ignored):  # As under nohup.
        signal.signal(number, self._handle)
    self._handlers = _get_handlers()
    self._wakeup = signal.set_wakeup_fd(self._writer)
    threading.Thread(target=self._listen, name="signals", daemon=True).start()

  def begin(self) -> None:
    """Says that from now on there may be something to save."""
    self._has_begun = True

  def at_exit(self, do: Callable[[], None]) -> None:
    """Calls `do` before the program is ended without a save."""
    self._at_exit.append(do)

  def is_requested(self) -> bool:
    """Returns whether to stop as soon as possible."""
    return self._is_signaled or super().is_requested()

  def request(self, reason: str) -> None:
    """Asks to stop, from any thread; signals may still follow."""
    self._ask(reason)
    self._num_notices += 1
    _thread.interrupt_main()  # Lets the handler run in the main thread.

  @contextlib.contextmanager
  def interruptible(self) -> Iterator[None]:
    """In the block a request raises `Stopped`; leave no work half done there.

    For the main thread.
    """
    if self.is_requested():
      raise Stopped
    self._interruptible += 1
    try:
      yield
    finally:
      self._interruptible -= 1

  @contextlib.contextmanager
  def finishing(self) -> Iterator[None]:
    """The block is finished before a request has an effect.

    For what is short, and is not to be left half done. For the main thread.
    """
    self._finishing += 1
    before, self.has_unsaved = self.has_unsaved, True
    try:
      yield
    finally:
      self._finishing -= 1
      self.has_unsaved = before
    if self._interruptible and self.is_requested():
      raise Stopped

  @contextlib.contextmanager
  def late(self, save: SaveFn) -> Iterator[None]:
    """In the block, work that goes on for too long is ended by `save`.

    That runs in a thread, and the program ends when it returns a checkpoint.
    """
    self._save = save
    try:
      yield
    finally:
      self._save = None

  def close(self) -> None:
    """Puts back the handlers that were there before."""
    signal.set_wakeup_fd(self._wakeup)
    for number, handler in zip(SIGNALS, self._before):
      signal.signal(number, handler)
    os.close(self._writer)

  def _handle(self, number: int, frame: object) -> None:
    """Runs in the main thread, as soon as that is in Python."""
    del frame
    self._is_signaled = True  # The thread may be slower.
    self.reason = self.reason or signal.Signals(number).name
    if self._interruptible and self._has_begun and not self._finishing:
      raise Stopped

  def _listen(self) -> None:
    """Waits for the first signal's number, which Python's C handler sends."""
    with contextlib.suppress(OSError, ValueError):
      for (number,) in iter(self._read, b""):
        if number == signal.SIGINT and self._num_notices:
          self._num_notices -= 1
          continue
        if number not in SIGNALS:
          continue
        _restore_system_handlers()
        if number == signal.SIGHUP:
          _leave_terminal()
        self._ask(signal.Signals(number).name)
        return

  def _read(self) -> bytes:
    """Returns the next signal's number, and keeps the handlers in place."""
    while not select.select([self._reader], [], [], _POLL_SECONDS)[0]:
      _set_handlers(self._handlers)
    return os.read(self._reader, 1)

  def _ask(self, reason: str) -> None:
    if self._requested.is_set():
      return
    self.reason = self.reason or reason
    self._requested.set()
    if not self._has_begun:
      _say(f"Stopped by {reason} at the start; nothing was trained.")
      self._end(EXIT_INTERRUPTED)
    if self.end.asked:
      _say(f"{self.end.asked} ({reason}); again to stop at once.")
    threading.Thread(target=self._watch, name="stop", daemon=True).start()

  def _watch(self) -> None:
    """Ends the program if it takes too long, or has nothing to save."""
    asked_at = idle_since = time.monotonic()
    grace = self._grace_seconds or math.inf
    late = min(_LATE_SECONDS, 0.5 * grace)
    while True:
      time.sleep(0.1)
      now = time.monotonic()
      if self.has_unsaved:
        idle_since = now
      if now - idle_since > _IDLE_SECONDS:  # It traces a step, or measures.
        self.say_end()
        self._end(self.end.code)
      save = self._save
      path = save() if save is not None and now - asked_at > late else None
      if path is not None:
        _say(
          f"Stopped within a long step; what was before it is saved: {path}. "
          "The same command resumes there."
        )
        self._end(EXIT_AGAIN)
      if now - asked_at > grace:
        _say(
          f"Stopped after {grace:g} s of grace. What was not saved is lost; "
          "the same command resumes at the last checkpoint."
        )
        self._end(EXIT_AGAIN)

  def say_end(self) -> None:
    """Says why the program ends now, and what becomes of its work."""
    _say(f"Stopped by {self.reason}; {self.end.words}")

  def _end(self, code: int) -> None:
    for do in self._at_exit:
      with contextlib.suppress(Exception):
        do()
    os._exit(code)


def _get_handlers() -> Dict[int, int]:
  """Returns the addresses of the handlers that the process has in C."""
  libc = ctypes.CDLL(None)
  libc.signal.restype = ctypes.c_void_p
  found = {}
  for number in SIGNALS:
    found[int(number)] = libc.signal(int(number), None) or 0
  _set_handlers(found)
  return found


def _set_handlers(handlers: Mapping[int, int]) -> None:
  # Python's own function is for the main thread, which may be busy for long.
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
  for number, handler in handlers.items():
    libc.signal(number, handler)
    libc.siginterrupt(number, 1)  # As Python has it.


def _restore_system_handlers() -> None:
  """Lets the next signal end the process, from any thread."""
  # Python's own function is for the main thread, which may be busy for long.
  libc = ctypes.CDLL(None)
  for number in SIGNALS:
    if signal.getsignal(number) != signal.SIG_IGN:
      libc.signal(int(number), None)


def _leave_terminal() -> None:
  """Discards what is printed to a terminal that is gone."""
  null = os.open(os.devnull, os.O_WRONLY)
  for descriptor in (1, 2):
    if os.isatty(descriptor):
      os.dup2(null, descriptor)
  os.close(null)


def _say(text: str) -> None:
  with contextlib.suppress(OSError, ValueError):
    print(text, file=sys.stderr, flush=True)
