"""An event loop over sockets and timers with little delay.

    loop = SocketLoop()
    loop.add_reader(socket, f)         # each time, until `loop.remove(socket)`
    loop.call_at(time.perf_counter() + 1e-4, g)
    loop.run()                         # in a thread; `loop.stop()` ends it

`asyncio` needs some 0.1 ms for each step of a message, and `epoll` counts in
milliseconds; to emulate a latency of 0.1 ms takes more precision than that.
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

_POLL_SECONDS = 0.05
_SPIN_SECONDS = 2e-4
_PR_SET_TIMERSLACK = 29

Callback = Callable[[], None]


class SocketLoop:
  """Calls callbacks of sockets that are ready and of timers that are due."""

  def __init__(self) -> None:
    self._selector = selectors.DefaultSelector()
    self._timers: List[Tuple[float, int, Callback]] = []
    self._count = itertools.count()
    self._is_stopped = False
    self._event_at = self._crowded_until = 0.0

  def call_at(self, due: float, callback: Callback) -> None:
    """Calls `callback` once, at a time of `perf_counter`."""
    heapq.heappush(self._timers, (due, next(self._count), callback))

  def add_reader(self, s: socket.socket, callback: Callback) -> None:
    """Calls `callback` whenever the socket can be read."""
    self._add(s, selectors.EVENT_READ, callback)

  def add_writer(self, s: socket.socket, callback: Callback) -> None:
    """Calls `callback` whenever the socket can be written."""
    self._add(s, selectors.EVENT_WRITE, callback)

  def remove(self, s: socket.socket, event: int = -1) -> None:
    """Removes the callbacks of a socket, or the one of an event."""
    callbacks = self._get_callbacks(s)
    left = {e: f for e, f in callbacks.items() if not e & event}
    self._register(s, callbacks, left)

  def run(self) -> None:
    """Runs until `stop` is called."""
    _reduce_timer_slack()
    while not self._is_stopped:
      ready = self._wait()
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
    """Frees the selector, after `run`."""
    self._selector.close()

  def stop(self) -> None:
    """Ends `run` soon; any thread may call it."""
    self._is_stopped = True

  def _wait(self):
    """Waits for a socket, or until a timer is due; returns the ready sockets.

    When that may be soon it spins instead of sleeping, unless other threads
    want the processor: the scheduler would then delay a spinning thread most.
    """
    now = time.perf_counter()
    seconds = _POLL_SECONDS
    if self._timers:
      seconds = min(seconds, self._timers[0][0] - now)
    is_soon = min(seconds, now - self._event_at) < _SPIN_SECONDS
    if is_soon and now > self._crowded_until:
      os.sched_yield()
      if time.perf_counter() - now > _SPIN_SECONDS:
        self._crowded_until = now + _POLL_SECONDS
    elif seconds > 0.0:
      # In microseconds; the selector itself would wait whole milliseconds.
      select.select([self._selector.fileno()], [], [], seconds)
    return self._selector.select(0)

  def _add(self, s: socket.socket, event: int, callback: Callback) -> None:
    callbacks = self._get_callbacks(s)
    self._register(s, callbacks, {**callbacks, event: callback})

  def _get_callbacks(self, s: socket.socket):
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


def _reduce_timer_slack() -> None:
  """Tells Linux not to prolong this thread's sleeps by 50 microseconds."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
