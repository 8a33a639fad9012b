"""A loop over sockets and times that is late by little.

    loop = Loop()
    loop.when_readable(socket, f)      # each time, until `loop.forget(socket)`
    loop.at(time.perf_counter() + 1e-4, g)
    loop.run()                         # in a thread; `loop.stop()` ends it

`asyncio` needs some 0.1 ms for each step of a message, and `epoll` counts in
milliseconds; a link that is 0.1 ms long needs more care than that.
"""

import ctypes
import heapq
import itertools
import os
import select
import selectors
import socket
import sys
import time
from typing import Callable, List, Tuple

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_AWAKE = 2e-4
_PR_SET_TIMERSLACK = 29

Callback = Callable[[], None]


class Loop:
  """Calls what is due."""

  def __init__(self) -> None:
    self._selector = selectors.DefaultSelector()
    self._timers: List[Tuple[float, int, Callback]] = []
    self._count = itertools.count()
    self._is_stopped = False
    self._event_at = self._crowded_until = 0.0

  def at(self, due: float, callback: Callback) -> None:
    """Calls once, at a time of `perf_counter`."""
    heapq.heappush(self._timers, (due, next(self._count), callback))

  def when_readable(self, s: socket.socket, callback: Callback) -> None:
    """Calls whenever something can be read."""
    self._watch(s, selectors.EVENT_READ, callback)

  def when_writable(self, s: socket.socket, callback: Callback) -> None:
    """Calls whenever something can be written."""
    self._watch(s, selectors.EVENT_WRITE, callback)

  def forget(self, s: socket.socket, event: int = -1) -> None:
    """Calls no more for this socket, or for this event of it."""
    callbacks = self._callbacks(s)
    left = {e: f for e, f in callbacks.items() if not e & event}
    self._register(s, callbacks, left)

  def run(self) -> None:
    """Runs until it is stopped."""
    _wake_in_time()
    while not self._is_stopped:
      ready = self._ready()
      for key, events in ready:
        for event, callback in list(key.data.items()):
          if event & events:
            callback()
      now = time.perf_counter()
      if ready:
        self._event_at = now
      while self._timers and self._timers[0][0] <= now:
        heapq.heappop(self._timers)[-1]()

  def close(self) -> None:
    """Watches nothing any more, after `run`."""
    self._selector.close()

  def stop(self) -> None:
    """Ends `run` soon; any thread may say so."""
    self._is_stopped = True

  def _ready(self):
    """Waits for a socket, or until something is due.

    When that may be soon it does not sleep, unless others want the processor:
    who is always awake is then let wait longest.
    """
    now = time.perf_counter()
    seconds = _SECONDS_BETWEEN_LOOKS
    if self._timers:
      seconds = min(seconds, self._timers[0][0] - now)
    is_soon = min(seconds, now - self._event_at) < _SECONDS_AWAKE
    if is_soon and now > self._crowded_until:
      os.sched_yield()
      if time.perf_counter() - now > _SECONDS_AWAKE:
        self._crowded_until = now + _SECONDS_BETWEEN_LOOKS
    elif seconds > 0.0:
      # In microseconds; the selector itself would wait whole milliseconds.
      select.select([self._selector.fileno()], [], [], seconds)
    return self._selector.select(0)

  def _watch(self, s: socket.socket, event: int, callback: Callback) -> None:
    callbacks = self._callbacks(s)
    self._register(s, callbacks, {**callbacks, event: callback})

  def _callbacks(self, s: socket.socket):
    is_open = s.fileno() >= 0
    key = self._selector.get_map().get(s) if is_open else None
    return key.data if key else {}

  def _register(self, s: socket.socket, old, new) -> None:
    if new and old:
      self._selector.modify(s, sum(new), new)
    elif new:
      self._selector.register(s, sum(new), new)
    elif old:
      self._selector.unregister(s)


def _wake_in_time() -> None:
  """Asks Linux not to let this thread sleep 50 microseconds longer."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
