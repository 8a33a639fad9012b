"""A storage that is slow on purpose: files over HTTP, with a latency profile.

    calm        the same latency for every request
    heavy_tail  low latencies for most requests, a few very high ones (Pareto)
    bursts      calm, but ten times the latency for some seconds of each period

It has a process of its own and real sockets. The latency of a request is a
function of the seed, its number, and the time since `set_profile`.
"""

import http.server
import os
import random
import threading
import time
from typing import Callable, Dict

# From the number of a request and the seconds since the start to a latency.
Profile = Callable[[int, float], float]

_PARETO = 1.1  # The exponent; the mean is finite, the variance is not.
_MAX_FACTOR = 100.0  # Of the highest latency to the usual one.
BURST_FACTOR = 10.0


def make_calm(latency: float, seed: int) -> Profile:
  """Returns a profile of one latency."""
  del seed
  return lambda number, now: latency


def make_heavy_tail(latency: float, seed: int) -> Profile:
  """Returns a profile of median `latency` with rare, very high ones."""
  least = latency / 2 ** (1 / _PARETO)

  def draw_latency(number, now):
    x = random.Random(seed * 1_000_003 + number).paretovariate(_PARETO)
    return min(least * x, _MAX_FACTOR * latency)

  return draw_latency


def make_bursts(
  latency: float, seed: int, period: float = 8.0, burst: float = 3.0
) -> Profile:
  """Returns a profile with some seconds of congestion in each period."""
  start = random.Random(seed).uniform(1.0, period - burst)

  def find_latency(number, now):
    inside = 0.0 <= now % period - start < burst
    return latency * (BURST_FACTOR if inside else 1.0)

  return find_latency


PROFILES: Dict[str, Callable[[float, int], Profile]] = {
  "calm": make_calm,
  "heavy_tail": make_heavy_tail,
  "bursts": make_bursts,
}


class _Server(http.server.ThreadingHTTPServer):
  """Accepts all readers that connect at the same time.

  With the default backlog of 5, others would retry after 1, 3, 7, ... s.
  """

  daemon_threads = True
  request_queue_size = 1024


class Storage:
  """Serves a folder on the loopback device, in threads."""

  def __init__(self, folder: str):
    self._profile: Profile = lambda number, now: 0.0
    self._started, self._num_requests = time.monotonic(), 0
    self._lock = threading.Lock()
    handler = type("Handler", (_Handler,), {"storage": self, "root": folder})
    self._server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=self._server.serve_forever, daemon=True).start()

  def get_address(self) -> str:
    """Returns the URL of the folder."""
    return f"http://127.0.0.1:{self._server.server_port}"

  def set_profile(self, name: str, latency: float, seed: int) -> None:
    """Starts a profile, its clock and its count of requests at 0."""
    with self._lock:
      self._profile = PROFILES[name](latency, seed)
      self._started, self._num_requests = time.monotonic(), 0

  def delay_request(self) -> None:
    """Sleeps for the latency of the next request."""
    with self._lock:
      number = self._num_requests
      self._num_requests += 1
      latency = self._profile(number, time.monotonic() - self._started)
    time.sleep(latency)


class _Handler(http.server.BaseHTTPRequestHandler):
  """Sends a file, or a part of one."""

  protocol_version = "HTTP/1.1"  # Connections stay open.
  storage: Storage
  root: str

  def do_GET(self) -> None:
    """Sends a file after its latency."""
    path = os.path.join(self.root, os.path.basename(self.path))
    if not os.path.isfile(path):
      self._respond(404, b"")
      return
    start, end = 0, os.path.getsize(path)
    status = 200
    if "Range" in self.headers:
      first, last = self.headers["Range"].split("=")[1].split("-")
      start, status = int(first), 206
      end = int(last) + 1 if last else end
    self.storage.delay_request()
    with open(path, "rb") as f:
      f.seek(start)
      self._respond(status, f.read(end - start))

  def _respond(self, status: int, content: bytes) -> None:
    self.send_response(status)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  def log_message(self, *args) -> None:
    """Logs nothing."""
