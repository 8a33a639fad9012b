"""What links really give: `link.Links` measured with plain sockets.

with socket.create_server(links.address(1, 1)) as server:
  seconds = latency(ends(links.address(0, 1), server))
with peer(links.address(1, 1)):             # somebody who answers
  rate = bulk_rate([links.address(0, 1)], num_bytes)
"""

import contextlib
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from typing import Iterator, Sequence, Tuple

Address = Tuple[str, int]
_HELLO = b"!"
_SIZE = struct.Struct("<q")
_PIECE = 1 << 20
_NUM_WORDS = 5


@contextlib.contextmanager
def peer(address: Address) -> Iterator[None]:
  """Lets somebody answer there: a process of his own, as workers are.

  He takes as many bytes as he is told, then says that he has them.
  """
  command = [sys.executable, __file__, *map(str, address)]
  with subprocess.Popen(command) as process:
    try:
      connected(address).close()
      yield
    finally:
      process.terminate()


def connected(address: Address, seconds: float = 5.0) -> socket.socket:
  """Returns a connection, as soon as there is somebody to connect to."""
  deadline = time.monotonic() + seconds
  while True:
    try:
      connection = socket.create_connection(address, timeout=seconds)
    except OSError:
      if time.monotonic() > deadline:
        raise
      time.sleep(0.01)
      continue
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ends(
  here: Address, server: socket.socket, seconds: float = 5.0
) -> Tuple[socket.socket, socket.socket]:
  """Returns both ends of a connection that is asked for `here`."""
  server.settimeout(seconds)
  near = connected(here, seconds)
  near.sendall(_HELLO)
  while True:
    far, _ = server.accept()
    if far.recv(1) == _HELLO:
      far.settimeout(seconds)
      far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      return near, far
    far.close()  # Somebody saw that we answer.


def latency(
  pair: Tuple[socket.socket, socket.socket], num_times: int = 21
) -> float:
  """Returns the median of the seconds that a word takes, there or back.

  Both ends are watched without a sleep: the time to wake up is not the link's.
  """
  times = []
  for connection in pair:
    connection.setblocking(False)
  for i in range(2 * num_times):
    source, target = pair if i % 2 == 0 else pair[::-1]
    started = time.perf_counter()
    source.send(_HELLO)
    while not _has_come(target):
      pass
    times.append(time.perf_counter() - started)
  return statistics.median(times)


def _has_come(connection: socket.socket) -> bool:
  try:
    if connection.recv(1):
      return True
  except BlockingIOError:
    return False
  raise ConnectionError("The other side has gone.")


def bulk_rate(addresses: Sequence[Address], num_bytes: int) -> float:
  """Returns the bytes a second of all connections at once.

  The first half of them is not timed, and a round trip is taken off: the last
  byte has to come, and the answer too.
  """
  connections = [connected(a) for a in addresses]
  with contextlib.ExitStack() as stack:
    for connection in connections:
      stack.enter_context(connection)
    late = min(_seconds(connections[0], 0) for _ in range(_NUM_WORDS))
    for _ in range(2):
      started = time.perf_counter()
      threads = [
        threading.Thread(target=give, args=(connection, num_bytes // 2))
        for connection in connections
      ]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
      seconds = time.perf_counter() - started
  return len(connections) * (num_bytes // 2) / (seconds - late)


def _seconds(connection: socket.socket, num_bytes: int) -> float:
  started = time.perf_counter()
  give(connection, num_bytes)
  return time.perf_counter() - started


def give(connection: socket.socket, num_bytes: int) -> None:
  """Gives that many bytes, and waits until they are known to be there."""
  connection.sendall(_SIZE.pack(num_bytes))
  piece = memoryview(bytes(min(num_bytes, _PIECE)))
  left = num_bytes
  while left:
    left -= connection.send(piece[: min(left, _PIECE)])
  if not connection.recv(1):
    raise ConnectionError("The other side has gone.")


def _answer(address: Address) -> None:
  """Answers everybody, for ever."""
  with socket.create_server(address, backlog=64) as server:
    while True:
      connection, _ = server.accept()
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      threading.Thread(target=_swallow, args=(connection,), daemon=True).start()


def _swallow(connection: socket.socket) -> None:
  room = bytearray(_PIECE)
  with connection, contextlib.suppress(OSError):
    while head := connection.recv(_SIZE.size, socket.MSG_WAITALL):
      (left,) = _SIZE.unpack(head)
      while left:
        left -= connection.recv_into(room, min(left, _PIECE))
      connection.sendall(b".")


if __name__ == "__main__":
  _answer((sys.argv[1], int(sys.argv[2])))
