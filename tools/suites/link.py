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

import asyncio
import contextlib
import json
import math
import selectors
import socket
import threading
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

_HOST = "127.0.0.1"
_SECONDS_OF_PIECE = 1e-3
_LEAST_PIECE, _LARGEST_PIECE = 1 << 12, 1 << 18
# What a connection has waiting at most, so that a late wake-up costs no rate.
_SECONDS_AHEAD = 20e-3
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


class _Wire:
  """One direction of one worker's link: when it is free again."""

  def __init__(self) -> None:
    self._free = 0.0

  def take(self, start: float, seconds: float) -> float:
    """Returns when that is through which may start at `start`."""
    self._free = max(start, self._free) + seconds
    return self._free


class Links:
  """Leads workers to each other, in a thread."""

  def __init__(self, num_workers: int):
    self._link, self._own = Link(), 0.0
    self._up = [_Wire() for _ in range(num_workers)]
    self._down = [_Wire() for _ in range(num_workers)]
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
    self._tasks: Set[asyncio.Task] = set()
    # Not epoll, which counts in milliseconds.
    self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
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
    self._link, self._own = link, own

  def close(self) -> None:
    """Cuts everything."""
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()

  def _run(self) -> None:
    for pair, door in self._doors.items():
      self._start(self._open(door, *pair))
    self._loop.run_forever()
    for task in self._tasks:
      task.cancel()
    ended = asyncio.gather(*self._tasks, return_exceptions=True)
    self._loop.run_until_complete(ended)
    self._loop.close()
    for door in self._doors.values():
      door.close()

  def _start(self, work) -> asyncio.Task:
    task = self._loop.create_task(work)
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    return task

  async def _open(self, door: socket.socket, j: int, i: int) -> None:
    """Leads worker `j` to worker `i`, as soon as that one answers."""
    while (probe := await self._connected(i)) is None:
      await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
    probe.close()
    door.listen(1024)
    while True:
      client, _ = await self._loop.sock_accept(door)
      _prepare(client)
      self._start(self._carry(client, j, i))

  async def _connected(self, i: int) -> Optional[socket.socket]:
    server = socket.socket()
    _prepare(server)
    try:
      await self._loop.sock_connect(server, (_HOST, self._real[i]))
    except OSError:
      server.close()
      return None
    return server

  async def _carry(self, client: socket.socket, j: int, i: int) -> None:
    """Carries both ways, until both have ended or one has failed."""
    with client:
      server = await self._connected(i)
      if server is None:
        return
      with server, contextlib.suppress(OSError):
        ways = [
          self._start(self._take(client, server, self._up[j], self._down[i])),
          self._start(self._take(server, client, self._up[i], self._down[j])),
        ]
        try:
          await asyncio.gather(*ways)
        finally:
          await _ended(*ways)  # Before the sockets are closed under them.

  async def _take(
    self, source: socket.socket, target: socket.socket, up: _Wire, down: _Wire
  ) -> None:
    """Takes what comes, and has it given when it is due."""
    on_its_way: asyncio.Queue = asyncio.Queue(_MOST_ON_ITS_WAY)
    giving = self._start(self._give(on_its_way, target))
    try:
      while data := await self._loop.sock_recv(source, self._piece):
        through = self._through(len(data), up, down)
        held = max(0.0, self._link.latency - self._own)
        await on_its_way.put((through + held, data))
        if giving.done():
          break
        # Also if it is 0: others want to go on.
        ahead = through - self._loop.time() - _SECONDS_AHEAD
        await asyncio.sleep(max(0.0, ahead))
      await on_its_way.put(None)
      await giving
    finally:
      await _ended(giving)

  async def _give(
    self, on_its_way: asyncio.Queue, target: socket.socket
  ) -> None:
    while (item := await on_its_way.get()) is not None:
      due, data = item
      wait = due - self._loop.time()
      if wait > 0.0:
        await asyncio.sleep(wait)
      await self._loop.sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)

  def _through(self, size: int, up: _Wire, down: _Wire) -> float:
    """Returns when the last byte is through both links."""
    now, seconds = self._loop.time(), size / self._link.rate
    left = up.take(now, seconds)
    through = down.take(left - seconds, seconds)
    return now + seconds if size <= _PACKET else through

  @property
  def _piece(self) -> int:
    size = min(self._link.rate * _SECONDS_OF_PIECE, _LARGEST_PIECE)
    return max(_LEAST_PIECE, int(size))


async def _ended(*tasks: asyncio.Task) -> None:
  for task in tasks:
    task.cancel()
  await asyncio.gather(*tasks, return_exceptions=True)


def _bound() -> socket.socket:
  s = socket.socket()
  s.bind((_HOST, 0))
  s.setblocking(False)
  return s


def _prepare(s: socket.socket) -> None:
  s.setblocking(False)
  s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
