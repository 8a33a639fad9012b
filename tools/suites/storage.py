"""A storage that is slow on purpose: files over HTTP, late by a given law.

    calm        every answer after the same time
    heavy_tail  most answers soon, a few very late (a Pareto law)
    bursts      calm, but for some seconds in each period ten times as late

Its own process, real sockets; what is late is a function of (seed, number of
the question) and of the time since `begin`.
"""

import http.server
import os
import random
import threading
import time
from typing import Callable, Dict

Latency = Callable[[int, float], float]

_PARETO = 1.1  # Its tail; the mean is finite, the variance is not.
_MOST_LATE = 100.0  # Times the usual latency.
BURST_FACTOR = 10.0


def calm(latency: float, seed: int) -> Latency:
  """Returns a law by which all are as late."""
  del seed
  return lambda number, now: latency


def heavy_tail(latency: float, seed: int) -> Latency:
  """Returns a law with rare, very late answers; its median is `latency`."""
  least = latency / 2 ** (1 / _PARETO)

  def late(number, now):
    x = random.Random(seed * 1_000_003 + number).paretovariate(_PARETO)
    return min(least * x, _MOST_LATE * latency)

  return late


def bursts(
  latency: float, seed: int, period: float = 8.0, burst: float = 3.0
) -> Latency:
  """Returns a law with some seconds of congestion in each period."""
  start = random.Random(seed).uniform(1.0, period - burst)

  def late(number, now):
    inside = 0.0 <= now % period - start < burst
    return latency * (BURST_FACTOR if inside else 1.0)

  return late


LAWS: Dict[str, Callable[[float, int], Latency]] = {
  "calm": calm,
  "heavy_tail": heavy_tail,
  "bursts": bursts,
}


class _Server(http.server.ThreadingHTTPServer):
  """Takes all readers who connect at once.

  With the usual line of 5, the others would try again after 1, 3, 7, ... s.
  """

  daemon_threads = True
  request_queue_size = 1024


class Storage:
  """Serves a folder on loopback, in threads."""

  def __init__(self, folder: str):
    self._law: Latency = lambda number, now: 0.0
    self._started, self._asked = time.monotonic(), 0
    self._lock = threading.Lock()
    handler = type("Handler", (_Handler,), {"storage": self, "root": folder})
    self._server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=self._server.serve_forever, daemon=True).start()

  def address(self) -> str:
    """Returns where it can be asked."""
    return f"http://127.0.0.1:{self._server.server_port}"

  def begin(self, law: str, latency: float, seed: int) -> None:
    """Starts the clock of a law anew."""
    with self._lock:
      self._law = LAWS[law](latency, seed)
      self._started, self._asked = time.monotonic(), 0

  def wait(self) -> None:
    """Lets the time pass by which the next answer is late."""
    with self._lock:
      number = self._asked
      self._asked += 1
      late = self._law(number, time.monotonic() - self._started)
    time.sleep(late)


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers with a file, or a part of one."""

  protocol_version = "HTTP/1.1"  # Connections stay open.
  storage: Storage
  root: str

  def do_GET(self) -> None:
    """Answers late."""
    path = os.path.join(self.root, os.path.basename(self.path))
    if not os.path.isfile(path):
      self._answer(404, b"")
      return
    start, end = 0, os.path.getsize(path)
    status = 200
    if "Range" in self.headers:
      first, last = self.headers["Range"].split("=")[1].split("-")
      start, status = int(first), 206
      end = int(last) + 1 if last else end
    self.storage.wait()
    with open(path, "rb") as f:
      f.seek(start)
      self._answer(status, f.read(end - start))

  def _answer(self, status: int, content: bytes) -> None:
    self.send_response(status)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  def log_message(self, *args) -> None:
    """Says nothing."""
