"""Measures the links of a `NetworkEmulator` with plain sockets.

with socket.create_server(emulator.get_address(1, 1)) as server:
  pair = connect_pair(emulator.get_address(0, 1), server)
  seconds = measure_latency(pair)
with run_receiver(emulator.get_address(1, 1)):
  rate = measure_rate([emulator.get_address(0, 1)], num_bytes)
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
_CHUNK = 1 << 20
_NUM_PINGS = 5


@contextlib.contextmanager
def run_receiver(address: Address) -> Iterator[None]:
  """Runs a receiver for `send_bytes` in a process of its own, as workers are.

  It reads as many bytes as it is told, then acknowledges them.
  """
  command = [sys.executable, __file__, *map(str, address)]
  with subprocess.Popen(command) as process:
    try:
      connect(address).close()
      yield
    finally:
      process.terminate()


def connect(address: Address, seconds: float = 5.0) -> socket.socket:
  """Returns a connection, as soon as a server listens there."""
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


def connect_pair(
  address: Address, server: socket.socket, seconds: float = 5.0
) -> Tuple[socket.socket, socket.socket]:
  """Returns both ends of a connection from `address` to `server`."""
  server.settimeout(seconds)
  near = connect(address, seconds)
  near.sendall(_HELLO)
  while True:
    far, _ = server.accept()
    if far.recv(1) == _HELLO:
      far.settimeout(seconds)
      far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      return near, far
    far.close()  # The emulator's probe.


def measure_latency(
  pair: Tuple[socket.socket, socket.socket], num_times: int = 21
) -> float:
  """Returns the median of the seconds that a byte takes, in either direction.

  Both ends are polled without a sleep, so that no wake-up time is included.
  """
  times = []
  for connection in pair:
    connection.setblocking(False)
  for i in range(2 * num_times):
    source, target = pair if i % 2 == 0 else pair[::-1]
    started = time.perf_counter()
    source.send(_HELLO)
    while not _has_arrived(target):
      pass
    times.append(time.perf_counter() - started)
  return statistics.median(times)


def _has_arrived(connection: socket.socket) -> bool:
  try:
    if connection.recv(1):
      return True
  except BlockingIOError:
    return False
  raise ConnectionError("The other end has closed the connection.")


def measure_rate(addresses: Sequence[Address], num_bytes: int) -> float:
  """Returns the bytes a second of all connections at once.

  The first half of the bytes is not timed, and a round trip is subtracted: that
  of the last byte and its acknowledgment.
  """
  connections = [connect(a) for a in addresses]
  with contextlib.ExitStack() as stack:
    for connection in connections:
      stack.enter_context(connection)
    round_trip = min(_time_send(connections[0], 0) for _ in range(_NUM_PINGS))
    for _ in range(2):
      started = time.perf_counter()
      threads = [
        threading.Thread(target=send_bytes, args=(connection, num_bytes // 2))
        for connection in connections
      ]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
      seconds = time.perf_counter() - started
  return len(connections) * (num_bytes // 2) / (seconds - round_trip)


def _time_send(connection: socket.socket, num_bytes: int) -> float:
  started = time.perf_counter()
  send_bytes(connection, num_bytes)
  return time.perf_counter() - started


def send_bytes(connection: socket.socket, num_bytes: int) -> None:
  """Sends bytes to a receiver, and waits until it acknowledges them."""
  connection.sendall(_SIZE.pack(num_bytes))
  chunk = memoryview(bytes(min(num_bytes, _CHUNK)))
  left = num_bytes
  while left:
    left -= connection.send(chunk[: min(left, _CHUNK)])
  if not connection.recv(1):
    raise ConnectionError("The other end has closed the connection.")


def _serve(address: Address) -> None:
  """Receives on all connections, without end."""
  with socket.create_server(address, backlog=64) as server:
    while True:
      connection, _ = server.accept()
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      threading.Thread(target=_receive, args=(connection,), daemon=True).start()


def _receive(connection: socket.socket) -> None:
  buffer = bytearray(_CHUNK)
  with connection, contextlib.suppress(OSError):
    while head := connection.recv(_SIZE.size, socket.MSG_WAITALL):
      (left,) = _SIZE.unpack(head)
      while left:
        left -= connection.recv_into(buffer, min(left, _CHUNK))
      connection.sendall(b".")


if __name__ == "__main__":
  _serve((sys.argv[1], int(sys.argv[2])))
