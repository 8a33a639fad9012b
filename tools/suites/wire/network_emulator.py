"""An emulated network between processes of one machine.

    emulator = NetworkEmulator(num_workers)       # a port for each ordered pair
    environments = emulator.make_environments()   # one for each worker
    emulator.set_link(Link(latency=0.01, rate=12.5e6))

In `TF_CONFIG` of worker `j`, its own address is real, and that of worker `i` is
a port of the emulator, which forwards to it. What a worker sends

    leaves by the sender's uplink        at `rate`, shared by all that it sends
    arrives by the receiver's downlink   at `rate`, shared by all that it gets,
                                         while it leaves if the link is free
    is delivered `latency` later         while more is sent

in chunks of about a millisecond, which connections send in turn; what fits a
packet need not wait for other connections (fair queueing). So the emulator is a
switch between full-duplex links. It delays a message by its own overhead too:
`network_emulator_check` measures that, and `set_link` subtracts it.
"""

import collections
import errno
import json
import math
import selectors
import socket
import threading
import time
from typing import Callable, Deque, Dict, List, NamedTuple, Optional, Set, Tuple

from tools.suites.wire.socket_loop import SocketLoop

_HOST = "127.0.0.1"
_SECONDS_OF_CHUNK = 1e-3
_MIN_CHUNK, _MAX_CHUNK = 1 << 12, 1 << 20
# What a connection has queued at most, so that a late wake-up costs no rate.
# More than fits a processor's cache would cost rate, too.
_SECONDS_AHEAD, _BYTES_AHEAD = 20e-3, 1 << 22
_PACKET = 1500
_MAX_CHUNKS = 1 << 10
_PROBE_SECONDS = 0.05


class Link(NamedTuple):
  """The properties of a worker's link.

  Attributes:
    latency: Seconds from one worker to another.
    rate: Bytes a second, up and down.
  """

  latency: float = 0.0
  rate: float = math.inf


class NetworkEmulator:
  """Forwards between workers, in a thread."""

  def __init__(self, num_workers: int):
    self._network = _Network(num_workers)
    # Bound, but not listening until the worker itself does: a connection that
    # comes too early is refused, as it would be there.
    self._listeners = {
      (j, i): _bind()
      for j in range(num_workers)
      for i in range(num_workers)
      if i != j
    }
    workers = [_bind() for _ in range(num_workers)]
    self._ports = [s.getsockname()[1] for s in workers]
    for s in workers:
      s.close()
    self._connections: Set[_Connection] = set()
    self._loop = SocketLoop()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def make_environments(self) -> List[Dict[str, str]]:
    """Returns the environment of each worker."""
    count = len(self._ports)
    return [
      {
        "TF_CONFIG": json.dumps(
          {
            "cluster": {
              "worker": [
                "{}:{}".format(*self.get_address(j, i)) for i in range(count)
              ]
            },
            "task": {"type": "worker", "index": j},
          }
        )
      }
      for j in range(count)
    ]

  def get_address(self, j: int, i: int) -> Tuple[str, int]:
    """Returns where worker `j` reaches worker `i`."""
    if i == j:
      return _HOST, self._ports[i]
    return _HOST, self._listeners[j, i].getsockname()[1]

  def set_link(self, link: Link, overhead: float = 0.0) -> None:
    """Changes all links; what was sent before keeps its time of delivery.

    Args:
      link: The new properties.
      overhead: Seconds by which the emulator itself delays a message.
    """
    self._network.link, self._network.overhead = link, overhead

  def close(self) -> None:
    """Closes all connections and ports."""
    self._loop.stop()
    self._thread.join()

  def _run(self) -> None:
    for (j, i), listener in self._listeners.items():
      self._listen(listener, j, i)
    self._loop.run()
    for connection in list(self._connections):
      connection.close()
    self._loop.close()
    for listener in self._listeners.values():
      listener.close()

  def _listen(self, listener: socket.socket, j: int, i: int) -> None:
    """Forwards from worker `j` to worker `i`, as soon as that one listens."""

    def on_probe(probe: Optional[socket.socket]) -> None:
      if probe is None:
        later = time.perf_counter() + _PROBE_SECONDS
        self._loop.call_at(later, lambda: self._listen(listener, j, i))
        return
      probe.close()
      listener.listen(1024)
      self._loop.add_reader(listener, lambda: self._accept(listener, j, i))

    self._connect(i, on_probe)

  def _accept(self, listener: socket.socket, j: int, i: int) -> None:
    try:
      client, _ = listener.accept()
    except OSError:  # The client has gone again.
      return
    _configure(client)

    def on_connect(server: Optional[socket.socket]) -> None:
      if server is None:
        client.close()
        return
      ends = ((j, client), (i, server))
      connection = _Connection(
        self._loop, self._network, ends, self._connections.discard
      )
      self._connections.add(connection)

    self._connect(i, on_connect)

  def _connect(
    self, i: int, then: Callable[[Optional[socket.socket]], None]
  ) -> None:
    """Calls `then` with a connection to worker `i`, or `None` if it fails."""
    server = socket.socket()
    _configure(server)

    def finish(error: int) -> None:
      self._loop.remove(server)
      if error:
        server.close()
      then(None if error else server)

    error = server.connect_ex((_HOST, self._ports[i]))
    if error == errno.EINPROGRESS:
      self._loop.add_writer(
        server,
        lambda: finish(server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
      )
    else:
      finish(error)


class _Network:
  """Computes when messages have passed the links of both workers."""

  def __init__(self, num_workers: int):
    self.link, self.overhead = Link(), 0.0
    # When each worker's link is free again.
    self._up = [0.0] * num_workers
    self._down = [0.0] * num_workers

  @property
  def chunk_size(self) -> int:
    """How many bytes to read at once."""
    size = min(self.link.rate * _SECONDS_OF_CHUNK, _MAX_CHUNK)
    return max(_MIN_CHUNK, int(size))

  @property
  def seconds_ahead(self) -> float:
    """How long before it can leave a chunk is read."""
    return min(_SECONDS_AHEAD, _BYTES_AHEAD / self.link.rate)

  @property
  def delay(self) -> float:
    """How long to hold a chunk back after it has passed both links."""
    return max(0.0, self.link.latency - self.overhead)

  def pass_links(self, size: int, j: int, i: int, now: float) -> float:
    """Returns when the last byte from `j` to `i` has passed both links."""
    seconds = size / self.link.rate
    left = self._up[j] = max(now, self._up[j]) + seconds
    self._down[i] = max(left - seconds, self._down[i]) + seconds
    return now + seconds if size <= _PACKET else self._down[i]


class _Connection:
  """Forwards in both directions, until both have ended or one has failed."""

  def __init__(
    self,
    loop: SocketLoop,
    network: _Network,
    ends: Tuple[Tuple[int, socket.socket], Tuple[int, socket.socket]],
    on_close: Callable[["_Connection"], None],
  ):
    self._loop, self._on_close = loop, on_close
    self._sockets = [s for _, s in ends]
    self._num_ended = 0
    for (j, source), (i, target) in (ends, ends[::-1]):
      _Direction(self, loop, network, (source, target), (j, i))

  def end_direction(self) -> None:
    """Notes that one direction has ended."""
    self._num_ended += 1
    if self._num_ended == len(self._sockets):
      self.close()

  def close(self) -> None:
    """Closes both sockets at once."""
    for s in self._sockets:
      if s.fileno() >= 0:
        self._loop.remove(s)
        s.close()
    self._on_close(self)


class _Chunk(NamedTuple):
  """Bytes to deliver at a time, and the buffer that holds them."""

  due: float
  data: memoryview
  buffer: bytearray


class _Direction:
  """Reads from one socket, and writes to the other when it is due."""

  def __init__(
    self,
    connection: _Connection,
    loop: SocketLoop,
    network: _Network,
    sockets: Tuple[socket.socket, socket.socket],
    workers: Tuple[int, int],
  ):
    self._connection, self._loop, self._network = connection, loop, network
    self._source, self._target = sockets
    self._workers = workers
    self._queue: Deque[_Chunk] = collections.deque()
    self._buffers: List[bytearray] = []
    loop.add_reader(self._source, self._read)

  def _read(self) -> None:
    network, now = self._network, time.perf_counter()
    buffer = self._buffers.pop() if self._buffers else bytearray(_MAX_CHUNK)
    try:
      size = self._source.recv_into(buffer, network.chunk_size)
    except OSError:
      self._connection.close()
      return
    passed = network.pass_links(size, *self._workers, now)
    due = passed + network.delay
    self._queue.append(_Chunk(due, memoryview(buffer)[:size], buffer))
    if len(self._queue) == 1:
      self._write()
    ahead = passed - now - network.seconds_ahead
    if not size:
      self._pause()
    elif ahead > 0.0 or len(self._queue) >= _MAX_CHUNKS:
      self._pause()
      self._loop.call_at(now + max(ahead, _SECONDS_OF_CHUNK), self._resume)

  def _pause(self) -> None:
    self._loop.remove(self._source, selectors.EVENT_READ)

  def _resume(self) -> None:
    if self._source.fileno() < 0:
      return
    if len(self._queue) < _MAX_CHUNKS:
      self._loop.add_reader(self._source, self._read)
    else:
      later = time.perf_counter() + _SECONDS_OF_CHUNK
      self._loop.call_at(later, self._resume)

  def _write(self) -> None:
    """Writes all chunks that are due, and schedules itself for the rest."""
    while self._queue and self._target.fileno() >= 0:
      due, data, buffer = self._queue[0]
      if due > time.perf_counter():
        self._loop.call_at(due, self._write)
        return
      try:
        sent = self._send(data)
      except OSError:
        self._connection.close()
        return
      if sent < len(data):
        self._queue[0] = _Chunk(due, data[sent:], buffer)
        self._loop.add_writer(self._target, self._continue_write)
        return
      self._queue.popleft()
      self._buffers.append(buffer)

  def _continue_write(self) -> None:
    if self._target.fileno() < 0:
      return
    self._loop.remove(self._target, selectors.EVENT_WRITE)
    self._write()

  def _send(self, data: memoryview) -> int:
    """Returns how many bytes were sent; empty data ends the direction."""
    if not data:
      self._target.shutdown(socket.SHUT_WR)
      self._connection.end_direction()
      return 0
    try:
      return self._target.send(data)
    except BlockingIOError:
      return 0


def _bind() -> socket.socket:
  s = socket.socket()
  s.bind((_HOST, 0))
  s.setblocking(False)
  return s


def _configure(s: socket.socket) -> None:
  s.setblocking(False)
  s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
