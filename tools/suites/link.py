"""A network between processes of one machine, as slow as one likes.

    links = Links(num_workers)               # holds a port for each two
    environments = links.environments()      # what each worker finds
    links.set(Link(latency=0.01, rate=12.5e6))

In `TF_CONFIG` of worker `j` its own address is real, and that of worker `i` is
a port of ours, which leads there. What is sent

    leaves by the sender's uplink     `rate` for all that it sends
    arrives by the other's downlink   `rate` for all that it gets, at the same
                                      time as it leaves if nothing else comes
    comes `latency` after that        much may be on its way

in pieces of about a millisecond, which connections take turns to send; what
fits a packet need not wait for other connections (fair queueing). So it is a
switch between full-duplex links. A message is late by what this program needs
itself, too; `link_check` says how much that is, and told so by `own`, it holds
a message back by so much less.
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

from tools.suites.loop import Loop

_HOST = "127.0.0.1"
_SECONDS_OF_PIECE = 1e-3
_LEAST_PIECE, _LARGEST_PIECE = 1 << 12, 1 << 20
# What a connection has waiting at most, so that a late wake-up costs no rate.
# More than fits a processor's cache would cost rate, too.
_SECONDS_AHEAD, _BYTES_AHEAD = 20e-3, 1 << 22
_PACKET = 1500
_MOST_ON_ITS_WAY = 1 << 10
_SECONDS_BETWEEN_LOOKS = 0.05


class Link(NamedTuple):
  """What a worker's link is like.

  Attributes:
    latency: Seconds from one worker to another.
    rate: Bytes a second, up and down.
  """

  latency: float = 0.0
  rate: float = math.inf


class Links:
  """Leads workers to each other, in a thread."""

  def __init__(self, num_workers: int):
    self._network = _Network(num_workers)
    # Bound, and silent until the real one answers: who comes too early is
    # refused, as there.
    self._doors = {
      (j, i): _bound()
      for j in range(num_workers)
      for i in range(num_workers)
      if i != j
    }
    real = [_bound() for _ in range(num_workers)]
    self._real = [s.getsockname()[1] for s in real]
    for s in real:
      s.close()
    self._connections: Set[_Connection] = set()
    self._loop = Loop()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def environments(self) -> List[Dict[str, str]]:
    """Returns what each worker is to find in its environment."""
    count = len(self._real)
    return [
      {
        "TF_CONFIG": json.dumps(
          {
            "cluster": {
              "worker": [
                "{}:{}".format(*self.address(j, i)) for i in range(count)
              ]
            },
            "task": {"type": "worker", "index": j},
          }
        )
      }
      for j in range(count)
    ]

  def address(self, j: int, i: int) -> Tuple[str, int]:
    """Returns where worker `j` finds worker `i`."""
    if i == j:
      return _HOST, self._real[i]
    return _HOST, self._doors[j, i].getsockname()[1]

  def set(self, link: Link, own: float = 0.0) -> None:
    """Changes all links; what is on its way comes as it would have.

    Args:
      link: What they are to be like.
      own: Seconds that a message takes through here anyway.
    """
    self._network.link, self._network.own = link, own

  def close(self) -> None:
    """Cuts everything."""
    self._loop.stop()
    self._thread.join()

  def _run(self) -> None:
    for (j, i), door in self._doors.items():
      self._open(door, j, i)
    self._loop.run()
    for connection in list(self._connections):
      connection.close()
    self._loop.close()
    for door in self._doors.values():
      door.close()

  def _open(self, door: socket.socket, j: int, i: int) -> None:
    """Leads worker `j` to worker `i`, as soon as that one answers."""

    def probed(probe: Optional[socket.socket]) -> None:
      if probe is None:
        later = time.perf_counter() + _SECONDS_BETWEEN_LOOKS
        self._loop.at(later, lambda: self._open(door, j, i))
        return
      probe.close()
      door.listen(1024)
      self._loop.when_readable(door, lambda: self._accept(door, j, i))

    self._connect(i, probed)

  def _accept(self, door: socket.socket, j: int, i: int) -> None:
    try:
      client, _ = door.accept()
    except OSError:  # Who asked has gone again.
      return
    _prepare(client)

    def connected(server: Optional[socket.socket]) -> None:
      if server is None:
        client.close()
        return
      ends = ((j, client), (i, server))
      connection = _Connection(
        self._loop, self._network, ends, self._connections.discard
      )
      self._connections.add(connection)

    self._connect(i, connected)

  def _connect(
    self, i: int, then: Callable[[Optional[socket.socket]], None]
  ) -> None:
    """Calls `then` with a connection to worker `i`, or without one."""
    server = socket.socket()
    _prepare(server)

    def known(error: int) -> None:
      self._loop.forget(server)
      if error:
        server.close()
      then(None if error else server)

    error = server.connect_ex((_HOST, self._real[i]))
    if error == errno.EINPROGRESS:
      self._loop.when_writable(
        server,
        lambda: known(server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
      )
    else:
      known(error)


class _Network:
  """When what workers send is through."""

  def __init__(self, num_workers: int):
    self.link, self.own = Link(), 0.0
    # When each worker's link is free again.
    self._up = [0.0] * num_workers
    self._down = [0.0] * num_workers

  @property
  def piece(self) -> int:
    """How many bytes to take at once."""
    size = min(self.link.rate * _SECONDS_OF_PIECE, _LARGEST_PIECE)
    return max(_LEAST_PIECE, int(size))

  @property
  def ahead(self) -> float:
    """How long before it could leave something is taken."""
    return min(_SECONDS_AHEAD, _BYTES_AHEAD / self.link.rate)

  @property
  def held(self) -> float:
    """How long to keep what is through."""
    return max(0.0, self.link.latency - self.own)

  def through(self, size: int, j: int, i: int, now: float) -> float:
    """Returns when the last byte from `j` to `i` is through both links."""
    seconds = size / self.link.rate
    left = self._up[j] = max(now, self._up[j]) + seconds
    self._down[i] = max(left - seconds, self._down[i]) + seconds
    return now + seconds if size <= _PACKET else self._down[i]


class _Connection:
  """Carries both ways, until both have ended or one has failed."""

  def __init__(
    self,
    loop: Loop,
    network: _Network,
    ends: Tuple[Tuple[int, socket.socket], Tuple[int, socket.socket]],
    closed: Callable[["_Connection"], None],
  ):
    self._loop, self._closed = loop, closed
    self._sockets = [s for _, s in ends]
    self._num_ended = 0
    for (j, source), (i, target) in (ends, ends[::-1]):
      _Way(self, loop, network, (source, target), (j, i))

  def ended(self) -> None:
    """One way has come to its end."""
    self._num_ended += 1
    if self._num_ended == len(self._sockets):
      self.close()

  def close(self) -> None:
    """Ends at once."""
    for s in self._sockets:
      if s.fileno() >= 0:
        self._loop.forget(s)
        s.close()
    self._closed(self)


class _Piece(NamedTuple):
  """What is given at a time, and the room that it takes."""

  due: float
  data: memoryview
  room: bytearray


class _Way:
  """Takes what comes, and gives it when it is due."""

  def __init__(
    self,
    connection: _Connection,
    loop: Loop,
    network: _Network,
    sockets: Tuple[socket.socket, socket.socket],
    workers: Tuple[int, int],
  ):
    self._connection, self._loop, self._network = connection, loop, network
    self._source, self._target = sockets
    self._workers = workers
    self._on_its_way: Deque[_Piece] = collections.deque()
    self._rooms: List[bytearray] = []
    loop.when_readable(self._source, self._take)

  def _take(self) -> None:
    network, now = self._network, time.perf_counter()
    room = self._rooms.pop() if self._rooms else bytearray(_LARGEST_PIECE)
    try:
      size = self._source.recv_into(room, network.piece)
    except OSError:
      self._connection.close()
      return
    through = network.through(size, *self._workers, now)
    due = through + network.held
    self._on_its_way.append(_Piece(due, memoryview(room)[:size], room))
    if len(self._on_its_way) == 1:
      self._give()
    ahead = through - now - network.ahead
    if not size:
      self._pause()
    elif ahead > 0.0 or len(self._on_its_way) >= _MOST_ON_ITS_WAY:
      self._pause()
      self._loop.at(now + max(ahead, _SECONDS_OF_PIECE), self._go_on)

  def _pause(self) -> None:
    self._loop.forget(self._source, selectors.EVENT_READ)

  def _go_on(self) -> None:
    if self._source.fileno() < 0:
      return
    if len(self._on_its_way) < _MOST_ON_ITS_WAY:
      self._loop.when_readable(self._source, self._take)
    else:
      self._loop.at(time.perf_counter() + _SECONDS_OF_PIECE, self._go_on)

  def _give(self) -> None:
    """Gives what is due, and comes again for the rest."""
    while self._on_its_way and self._target.fileno() >= 0:
      due, data, room = self._on_its_way[0]
      if due > time.perf_counter():
        self._loop.at(due, self._give)
        return
      try:
        sent = self._send(data)
      except OSError:
        self._connection.close()
        return
      if sent < len(data):
        self._on_its_way[0] = _Piece(due, data[sent:], room)
        self._loop.when_writable(self._target, self._give_on)
        return
      self._on_its_way.popleft()
      self._rooms.append(room)

  def _give_on(self) -> None:
    if self._target.fileno() < 0:
      return
    self._loop.forget(self._target, selectors.EVENT_WRITE)
    self._give()

  def _send(self, data: memoryview) -> int:
    """Returns how much of it was taken; nothing means the end."""
    if not data:
      self._target.shutdown(socket.SHUT_WR)
      self._connection.ended()
      return 0
    try:
      return self._target.send(data)
    except BlockingIOError:
      return 0


def _bound() -> socket.socket:
  s = socket.socket()
  s.bind((_HOST, 0))
  s.setblocking(False)
  return s


def _prepare(s: socket.socket) -> None:
  s.setblocking(False)
  s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
