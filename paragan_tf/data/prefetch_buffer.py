"""A prefetch buffer between reader threads and a run; its size adapts.

    for request, payloads in PrefetchBuffer(fetch, requests, bounds): ...
    for elements in PrefetchBuffer(fetch, requests, bounds).chunks(most): ...

`requests` lists the keys that each element needs. Threads fetch them ahead, in
the order of their first use; a payload is dropped after its last use. The order
of elements does not depend on the threads.

A read that takes much longer than the others is hedged: it is sent again, and
the first answer counts (Dean and Barroso, The Tail at Scale, 2013). So a few
slow reads do not need a deep buffer. A read counts as late only if later reads
have overtaken it: if all are slow, more reads would make it worse.
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
_NUM_TIMED = 64  # Recent reads; a read is late
_LATE = 3.0  # after so many times their median duration,
_OVERTAKEN = 2  # if so many of them were sent later.
_MAX_SENDS = 4  # Per key, the first one included.


class Request(NamedTuple):
  """What one element needs.

  Attributes:
    tag: Returned with the payloads.
    keys: Keys to fetch, unless they are in the buffer.
    num_uses: Of each key, the total number of elements that need it.
  """

  tag: Any
  keys: Sequence[Hashable]
  num_uses: Sequence[int]


class Meter(NamedTuple):
  """Statistics of a buffer.

  Attributes:
    num_elements: Elements yielded so far.
    wait_seconds: Time that the run has waited for them.
    plan: Current readers and depth.
    num_bytes: Bytes held now, the last chunk included.
    chunk_bytes: Bytes of the last chunk.
    peak_bytes: Maximum of `num_bytes`.
    num_hedged: Reads that were sent again.
  """

  num_elements: int
  wait_seconds: float
  plan: Plan
  num_bytes: int
  chunk_bytes: int
  peak_bytes: int
  num_hedged: int


# A request, and the payloads of its keys.
Element = Tuple[Request, List[Any]]


@dataclasses.dataclass
class _PendingRead:
  """A key that is being read.

  Attributes:
    first_sent: Time of the first read.
    last_sent: Time of the last one.
    num_sent: Number of reads sent.
    num_open: Number of reads without an answer.
  """

  first_sent: float
  last_sent: float
  num_sent: int = 1
  num_open: int = 1


class PrefetchBuffer:
  """Fetches ahead, with the readers and the depth that `congestion` plans.

  Args:
    fetch: Maps a key to its payload, which has a length in bytes; called in
      several threads. Its errors are raised when their element is due.
    requests: What each element needs.
    bounds: Of readers, depth and bytes; the next element is always fetched.
    adaptive: Whether the plan may change; if not, it stays at its minimum.
  """

  def __init__(
    self,
    fetch: Callable[[Any], Any],
    requests: Iterable[Request],
    bounds: Bounds,
    adaptive: bool = True,
  ):
    self._fetch = fetch
    self._requests = iter(requests)
    self._bounds = bounds
    self._adaptive = adaptive
    self._state = State(bounds.least)
    self._plan = bounds.least
    lock = threading.RLock()
    self._work = threading.Condition(lock)  # Readers wait for it.
    self._arrival = threading.Condition(lock)  # The run waits for it.
    self._planned: Deque[Request] = collections.deque()
    self._queue: Deque[Tuple[int, Hashable]] = collections.deque()
    self._uses: Dict[Hashable, int] = {}
    self._payloads: Dict[Hashable, Any] = {}
    self._pending: Dict[Hashable, _PendingRead] = {}
    self._read_seconds: Dict[Hashable, float] = {}  # Since the first send.
    # Start and duration of the last reads.
    self._recent_reads: Deque[Tuple[float, float]] = collections.deque(
      maxlen=_NUM_TIMED
    )
    self._num_planned = self._num_elements = self._num_readers = 0
    self._num_bytes = self._chunk_bytes = self._peak_bytes = 0
    self._num_fetched = self._bytes_fetched = 0
    self._num_busy = self._num_hedged = 0
    self._chunk_size = 1  # Elements of the last chunk.
    self._wait_seconds = 0.0
    self._blocked = self._memory_full = self._closed = self._ended = False

  def meter(self) -> Meter:
    """Returns statistics of the buffer."""
    with self._work:
      return Meter(
        self._num_elements,
        self._wait_seconds,
        self._plan,
        self._num_bytes + self._chunk_bytes,
        self._chunk_bytes,
        self._peak_bytes,
        self._num_hedged,
      )

  def close(self) -> None:
    """Ends the readers; a reader that waits for storage ends after its read."""
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
    """Yields several elements at once: the next, and those that are ready.

    Args:
      most: Maximum number of elements; only the next one is waited for.
      size_fn: Bytes of an element once it is yielded. They count as held until
        the next chunk, and only the first element may exceed the bounds.
    """
    last = time.monotonic()
    try:
      while True:
        with self._arrival:
          self._chunk_bytes = 0
          self._plan_ahead()
          if not self._planned:
            return
          wait = self._wait_for(self._planned[0])
          chunk = self._take_chunk(most, size_fn)
          now = time.monotonic()
          # As if the run had taken the elements one by one.
          step = (now - last - wait) / self._chunk_size
          self._observe(*self._make_observations(chunk, wait, step))
          last, self._chunk_size = now, len(chunk)
        yield chunk
    finally:
      self.close()

  def _plan_ahead(self) -> None:
    """Queues the keys that the next elements need."""
    while self._num_planned <= self._horizon() and not self._ended:
      request = next(self._requests, None)
      if request is None:
        self._ended = True
        break
      for key, num_uses in zip(request.keys, request.num_uses):
        if key not in self._uses:
          self._uses[key] = num_uses
          self._queue.append((self._num_planned, key))
      self._planned.append(request)
      self._num_planned += 1
    self._hedge()
    self._start_readers()
    # Not all, because a needless wake-up takes as long as to decode an image.
    self._work.notify(len(self._queue))

  def _hedge(self) -> None:
    """Queues late reads again."""
    if len(self._recent_reads) < _NUM_TIMED // 8:
      return
    median = statistics.median(seconds for _, seconds in self._recent_reads)
    now = time.monotonic()
    starts = sorted(start for start, _ in self._recent_reads)
    overtaken = starts[-_OVERTAKEN]
    for key, read in self._pending.items():
      is_slow = read.last_sent < now - _LATE * median
      is_late = is_slow and read.first_sent < overtaken
      if is_late and read.num_sent < _MAX_SENDS:
        read.last_sent = now
        read.num_sent += 1
        read.num_open += 1
        self._num_hedged += 1
        self._queue.appendleft((self._num_elements, key))

  def _start_readers(self) -> None:
    while self._num_readers < self._plan.num_readers:
      self._num_readers += 1
      threading.Thread(target=self._read, daemon=True).start()

  def _wait_for(self, request: Request) -> float:
    """Waits for all keys; returns the seconds that are not yet observed."""
    started = time.monotonic()
    while not all(key in self._payloads for key in request.keys):
      self._arrival.wait(_SLICE_SECONDS)
      self._check_idle_readers()
      now = time.monotonic()
      if now - started >= _SLICE_SECONDS:
        waited = now - started
        self._observe(Observation(waited, waited, blocked=self._blocked))
        self._plan_ahead()
        started = now
    return time.monotonic() - started

  def _check_idle_readers(self) -> None:
    """Notes why readers are idle: because of the depth, or of the bytes."""
    has_idle = self._num_busy < self._plan.num_readers
    self._blocked = has_idle and not self._queue
    self._memory_full = has_idle and bool(self._queue) and not self._may_read()

  def _make_observations(
    self, chunk: List[Element], wait: float, step: float
  ) -> Iterator[Observation]:
    """Yields the timings of a chunk's elements; only the first one waited."""
    for request, _ in chunk:
      # Each read counts for the first element that needs it.
      reads = [self._read_seconds.pop(key, 0.0) for key in request.keys]
      latency, work = max(reads, default=0.0), sum(reads)
      yield Observation(wait, wait + step, latency, work, self._blocked)
      wait = 0.0

  def _observe(self, *observations: Observation) -> None:
    self._wait_seconds += sum(observed.wait for observed in observations)
    # The first chunk is always waited for.
    if not self._adaptive or self._num_elements <= len(observations):
      return
    for observed in observations:
      if self._memory_full:  # More readers would not help.
        observed = observed._replace(wait=0.0)
      self._state = congestion.advance(self._state, observed, self._bounds)
    before, self._plan = self._plan, self._state.plan(self._bounds)
    if self._plan != before:
      self._work.notify_all()

  def _take_chunk(
    self, most: int, size_fn: Callable[[Element], int]
  ) -> List[Element]:
    """Returns the next element, and those after it that are ready."""
    chunk: List[Element] = []
    while self._planned and len(chunk) < most:
      request = self._planned[0]
      payloads = [self._payloads.get(key) for key in request.keys]
      failures = [x for x in payloads if isinstance(x, Exception)]
      if failures and not chunk:
        raise failures[0]
      if failures or None in payloads:
        break
      size = size_fn((request, payloads))
      if chunk and self._total_bytes() + size > self._bounds.max_bytes:
        break
      self._release(request, payloads)
      self._chunk_bytes += size
      self._peak_bytes = max(self._peak_bytes, self._total_bytes())
      chunk.append((request, payloads))
    return chunk

  def _release(self, request: Request, payloads: List[Any]) -> None:
    """Drops payloads that were used for the last time."""
    for key, payload in zip(request.keys, payloads):
      self._uses[key] -= 1
      if not self._uses[key]:
        del self._uses[key], self._payloads[key]
        self._num_bytes -= len(payload)
        self._work.notify()  # One more may fit now.
    self._planned.popleft()
    self._num_elements += 1

  def _read(self) -> None:
    """Runs one reader, until the plan has fewer."""
    while True:
      with self._work:
        while not self._is_surplus() and not self._may_read():
          self._work.wait()
        if self._is_surplus():
          self._num_readers -= 1
          return
        _, key = self._queue.popleft()
        if key in self._payloads or key not in self._uses:
          continue  # It has come before the hedged read.
        self._num_busy += 1
        start = time.monotonic()
        self._pending.setdefault(key, _PendingRead(start, start))
      try:
        payload = self._fetch(key)
      except Exception as e:  # The element that needs it raises it.
        payload = e
      with self._arrival:
        self._num_busy -= 1
        self._store(key, payload, start)
        self._arrival.notify()

  def _store(self, key: Hashable, payload: Any, start: float) -> None:
    read = self._pending.get(key)
    if read is None:  # A hedged read has answered before.
      return
    failed = isinstance(payload, Exception)
    read.num_open -= 1
    if failed and read.num_open:  # A hedged read may still succeed.
      return
    del self._pending[key]
    self._read_seconds[key] = time.monotonic() - read.first_sent
    self._payloads[key] = payload
    if not failed:
      self._recent_reads.append((start, time.monotonic() - start))
      self._num_bytes += len(payload)
      self._peak_bytes = max(self._peak_bytes, self._total_bytes())
      self._num_fetched += 1
      self._bytes_fetched += len(payload)

  def _is_surplus(self) -> bool:
    return self._closed or self._num_readers > self._plan.num_readers

  def _may_read(self) -> bool:
    if not self._queue:
      return False
    index, _ = self._queue[0]
    if index <= self._num_elements:
      return True
    # The size of blocks is unknown until the first one has come.
    if index > self._horizon() or not self._num_fetched:
      return False
    return self._expected_bytes() <= self._bounds.max_bytes

  def _horizon(self) -> int:
    """Returns the last element to fetch: `depth` after the last chunk."""
    return self._num_elements + self._plan.depth + self._chunk_size - 1

  def _expected_bytes(self) -> float:
    """Returns the expected bytes after one more read."""
    mean = self._bytes_fetched / self._num_fetched
    return self._total_bytes() + (self._num_busy + 1) * mean

  def _total_bytes(self) -> int:
    return self._num_bytes + self._chunk_bytes
