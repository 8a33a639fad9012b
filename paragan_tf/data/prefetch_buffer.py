"""A buffer between readers and a run that grows and shrinks while it goes on.

    for need, payloads in PrefetchBuffer(fetch, needs, bounds): ...
    for several in PrefetchBuffer(fetch, needs, bounds).chunks(most): ...

`needs` says, element by element, what must be there. Threads fetch it in the
order of its first use, ahead of it; what has been used for the last time is let
go. The order of elements never changes, whoever is quick.

What takes much longer than the rest is asked for again, and the first answer
counts (Dean and Barroso, The Tail at Scale, 2013): so a few late answers do not
need a deep buffer. Only those are late that others have overtaken: where all
are slow, more questions would only make it worse.
"""

import collections
import contextlib
import dataclasses
import statistics
import threading
import time
from typing import (
  Any,
  Callable,
  Deque,
  Dict,
  Generator,
  Hashable,
  Iterable,
  Iterator,
  List,
  NamedTuple,
  Sequence,
  Tuple,
)

from paragan_tf.data import congestion
from paragan_tf.data.congestion import Bounds, Observation, Plan, State

_SLICE_SECONDS = 0.05  # A longer wait counts as several, so growth is quick.
_NUM_TIMED = 64  # Reads by which to tell what is late:
_LATE = 3.0  # after so many times their median,
_OVERTAKEN = 2  # with so many of them asked for later, and there.
_MOST_ASKED = 4  # How often the same is asked for.


class Need(NamedTuple):
  """What one element needs.

  Attributes:
    tag: Comes back with the payloads.
    keys: What to fetch, if it is not there yet.
    num_uses: Of each key, how many elements need it in all.
  """

  tag: Any
  keys: Sequence[Hashable]
  num_uses: Sequence[int]


class Meter(NamedTuple):
  """What a buffer has seen so far.

  Attributes:
    num_given: Elements given.
    waited: Seconds for which they were waited for.
    plan: Readers and depth now.
    num_bytes: Bytes held now, with those lent.
    num_lent: Bytes of what was given last.
    most_bytes: The most that were held.
    num_hedged: Reads that were asked for a second time.
  """

  num_given: int
  waited: float
  plan: Plan
  num_bytes: int
  num_lent: int
  most_bytes: int
  num_hedged: int


# What is given: a need, and what was fetched for it.
Element = Tuple[Need, List[Any]]


@dataclasses.dataclass
class _Flight:
  """A read under way.

  Attributes:
    first: When it was asked for at first.
    last: When it was asked for the last time.
    num_asked: How often.
    num_open: Questions without an answer.
  """

  first: float
  last: float
  num_asked: int = 1
  num_open: int = 1


class PrefetchBuffer:
  """Fetches ahead, in as many threads and as far as the controller says.

  Args:
    fetch: From a key to its payload, which has a length in bytes; called in
      several threads. What it raises is raised where its element is due.
    needs: What each element needs.
    bounds: Of readers, depth and bytes; what is due is fetched in any case.
    adaptive: Whether the plan may change; if not, it stays at the least.
  """

  def __init__(
    self,
    fetch: Callable[[Any], Any],
    needs: Iterable[Need],
    bounds: Bounds,
    adaptive: bool = True,
  ):
    self._fetch = fetch
    self._needs = iter(needs)
    self._bounds = bounds
    self._adaptive = adaptive
    self._state = State(bounds.least)
    self._plan = bounds.least
    lock = threading.RLock()
    self._work = threading.Condition(lock)  # Readers wait for it,
    self._arrival = threading.Condition(lock)  # and the run for this.
    self._planned: Deque[Need] = collections.deque()
    self._todo: Deque[Tuple[int, Hashable]] = collections.deque()
    self._uses: Dict[Hashable, int] = {}
    self._held: Dict[Hashable, Any] = {}
    self._flights: Dict[Hashable, _Flight] = {}
    self._took: Dict[Hashable, float] = {}  # Until it is there, from the first.
    # Of the last reads, when they began and how long they took.
    self._timed: Deque[Tuple[float, float]] = collections.deque(
      maxlen=_NUM_TIMED
    )
    self._num_planned = self._num_given = self._num_readers = 0
    self._num_bytes = self._num_lent = self._most_bytes = self._num_fetched = 0
    self._bytes_fetched = self._num_busy = self._num_hedged = 0
    self._num_last = 1  # Of the last chunk.
    self._waited = 0.0
    self._blocked = self._full = self._closed = self._ended = False

  def meter(self) -> Meter:
    """Returns what was seen so far."""
    with self._work:
      return Meter(
        self._num_given,
        self._waited,
        self._plan,
        self._num_bytes + self._num_lent,
        self._num_lent,
        self._most_bytes,
        self._num_hedged,
      )

  def close(self) -> None:
    """Ends the readers; those that wait for storage end after it."""
    with self._work:
      self._closed = True
      self._work.notify_all()

  def __iter__(self) -> Iterator[Element]:
    with contextlib.closing(self.chunks(1)) as chunks:
      for (element,) in chunks:
        yield element

  def chunks(
    self, most: int, size_fn: Callable[[Element], int] = lambda element: 0
  ) -> Generator[List[Element], None, None]:
    """Yields several elements at once: the next, and those that are there.

    Args:
      most: How many at most; nothing is waited for but the next.
      size_fn: Bytes of an element once it is given. They count as held until
        more is asked for, and only the next may exceed the bounds.
    """
    last = time.monotonic()
    try:
      while True:
        with self._arrival:
          self._num_lent = 0
          self._plan_ahead()
          if not self._planned:
            return
          wait = self._wait_for(self._planned[0])
          chunk = self._take_chunk(most, size_fn)
          now = time.monotonic()
          # As if each had been asked for when the one before was used up.
          step = (now - last - wait) / self._num_last
          self._observe(*self._observations(chunk, wait, step))
          last, self._num_last = now, len(chunk)
        yield chunk
    finally:
      self.close()

  def _plan_ahead(self) -> None:
    """Puts on the list what the next elements need."""
    while self._num_planned <= self._horizon() and not self._ended:
      need = next(self._needs, None)
      if need is None:
        self._ended = True
        break
      for key, num_uses in zip(need.keys, need.num_uses):
        if key not in self._uses:
          self._uses[key] = num_uses
          self._todo.append((self._num_planned, key))
      self._planned.append(need)
      self._num_planned += 1
    self._hedge()
    self._start_readers()
    # Not all of them: to wake up in vain costs as much as to decode an image.
    self._work.notify(len(self._todo))

  def _hedge(self) -> None:
    """Puts on the list again what is late."""
    if len(self._timed) < _NUM_TIMED // 8:
      return
    usual = statistics.median(seconds for _, seconds in self._timed)
    now = time.monotonic()
    overtaken = sorted(began for began, _ in self._timed)[-_OVERTAKEN]
    for key, flight in self._flights.items():
      is_late = flight.last < now - _LATE * usual and flight.first < overtaken
      if is_late and flight.num_asked < _MOST_ASKED:
        flight.last = now
        flight.num_asked += 1
        flight.num_open += 1
        self._num_hedged += 1
        self._todo.appendleft((self._num_given, key))

  def _start_readers(self) -> None:
    while self._num_readers < self._plan.num_readers:
      self._num_readers += 1
      threading.Thread(target=self._read, daemon=True).start()

  def _wait_for(self, need: Need) -> float:
    """Waits until all is there; returns for how long since it last looked."""
    started = time.monotonic()
    while not all(key in self._held for key in need.keys):
      self._arrival.wait(_SLICE_SECONDS)
      self._see_who_is_idle()
      now = time.monotonic()
      if now - started >= _SLICE_SECONDS:
        waited = now - started
        self._observe(Observation(waited, waited, blocked=self._blocked))
        self._plan_ahead()
        started = now
    return time.monotonic() - started

  def _see_who_is_idle(self) -> None:
    """Notes why readers stand still: the depth is used up, or the bytes."""
    has_idle = self._num_busy < self._plan.num_readers
    self._blocked = has_idle and not self._todo
    self._full = has_idle and bool(self._todo) and not self._may_read()

  def _observations(
    self, chunk: List[Element], wait: float, step: float
  ) -> Iterator[Observation]:
    """Yields what the elements of a chunk saw; the first was waited for."""
    for need, _ in chunk:
      # Each read counts in the element that needed it first.
      took = [self._took.pop(key, 0.0) for key in need.keys]
      latency, work = max(took, default=0.0), sum(took)
      yield Observation(wait, wait + step, latency, work, self._blocked)
      wait = 0.0

  def _observe(self, *observations: Observation) -> None:
    self._waited += sum(observed.wait for observed in observations)
    # The first have no choice.
    if not self._adaptive or self._num_given <= len(observations):
      return
    for observed in observations:
      if self._full:  # Without room for more bytes there is nothing to gain.
        observed = observed._replace(wait=0.0)
      self._state = congestion.advance(self._state, observed, self._bounds)
    before, self._plan = self._plan, self._state.plan(self._bounds)
    if self._plan != before:
      self._work.notify_all()

  def _take_chunk(
    self, most: int, size_fn: Callable[[Element], int]
  ) -> List[Element]:
    """Returns the next element, and those after it that may come along."""
    chunk: List[Element] = []
    while self._planned and len(chunk) < most:
      need = self._planned[0]
      payloads = [self._held.get(key) for key in need.keys]
      failures = [x for x in payloads if isinstance(x, Exception)]
      if failures and not chunk:
        raise failures[0]
      if failures or None in payloads:
        break
      size = size_fn((need, payloads))
      if chunk and self._all_bytes() + size > self._bounds.max_bytes:
        break
      self._take(need, payloads)
      self._num_lent += size
      self._most_bytes = max(self._most_bytes, self._all_bytes())
      chunk.append((need, payloads))
    return chunk

  def _take(self, need: Need, payloads: List[Any]) -> None:
    """Lets go of what was used for the last time."""
    for key, payload in zip(need.keys, payloads):
      self._uses[key] -= 1
      if not self._uses[key]:
        del self._uses[key], self._held[key]
        self._num_bytes -= len(payload)
        self._work.notify()  # There may be room for one more now.
    self._planned.popleft()
    self._num_given += 1

  def _read(self) -> None:
    """What a reader does; it ends where the plan has no place for it."""
    while True:
      with self._work:
        while not self._is_superfluous() and not self._may_read():
          self._work.wait()
        if self._is_superfluous():
          self._num_readers -= 1
          return
        _, key = self._todo.popleft()
        if key in self._held or key not in self._uses:
          continue  # It came before it could be asked for a second time.
        self._num_busy += 1
        began = time.monotonic()
        self._flights.setdefault(key, _Flight(began, began))
      try:
        payload = self._fetch(key)
      except Exception as e:  # The element that needs it raises it.
        payload = e
      with self._arrival:
        self._num_busy -= 1
        self._keep(key, payload, began)
        self._arrival.notify()

  def _keep(self, key: Hashable, payload: Any, began: float) -> None:
    flight = self._flights.get(key)
    if flight is None:  # Another answer to the same was first.
      return
    failed = isinstance(payload, Exception)
    flight.num_open -= 1
    if failed and flight.num_open:  # Another one may do better.
      return
    del self._flights[key]
    self._took[key] = time.monotonic() - flight.first
    self._held[key] = payload
    if not failed:
      self._timed.append((began, time.monotonic() - began))
      self._num_bytes += len(payload)
      self._most_bytes = max(self._most_bytes, self._all_bytes())
      self._num_fetched += 1
      self._bytes_fetched += len(payload)

  def _is_superfluous(self) -> bool:
    return self._closed or self._num_readers > self._plan.num_readers

  def _may_read(self) -> bool:
    if not self._todo:
      return False
    place, _ = self._todo[0]
    if place <= self._num_given:
      return True
    # Until the first block has come, nobody knows how large they are.
    if place > self._horizon() or not self._num_fetched:
      return False
    return self._expected_bytes() <= self._bounds.max_bytes

  def _horizon(self) -> int:
    """Returns how far to read: by the depth, until the next chunk is due."""
    return self._num_given + self._plan.depth + self._num_last - 1

  def _expected_bytes(self) -> float:
    """Returns what will be held when one more reader is done."""
    mean = self._bytes_fetched / self._num_fetched
    return self._all_bytes() + (self._num_busy + 1) * mean

  def _all_bytes(self) -> int:
    return self._num_bytes + self._num_lent
