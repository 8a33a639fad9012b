"""Forwards the output of several programs, line by line.

relay = Relay()
relay.add("[worker 0] ", process.stdout, sys.stdout)
relay.close(seconds)    # when the programs have ended
"""

import os
import re
import threading
import time
from typing import IO, Callable, Iterator, List, TextIO

_SECONDS_BETWEEN_BARS = 10.0
# A `\r` at the end of a chunk may still become `\r\n`.
_END = re.compile(rb"(\r*\n|\r+(?=[^\r\n]))")


class Lines:
  r"""Splits bytes into lines.

  A progress bar ends each of its states with `\r`. One state in ten seconds
  becomes a line, and the last one, which ends with `\n` or with the program.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._rest = b""
    self._next_bar_at = clock()

  def feed(self, chunk: bytes) -> Iterator[bytes]:
    """Yields the lines that `chunk` completes."""
    *parts, self._rest = _END.split(self._rest + chunk)
    for line, end in zip(parts[::2], parts[1::2]):
      if end.endswith(b"\n") or (line and self._is_bar_due()):
        yield line

  def flush(self) -> Iterator[bytes]:
    """Yields what follows the end of the last line."""
    if self._rest.strip():
      yield self._rest.rstrip(b"\r")

  def _is_bar_due(self) -> bool:
    now = self._clock()
    if now < self._next_bar_at:
      return False
    self._next_bar_at = now + _SECONDS_BETWEEN_BARS
    return True


class Relay:
  """Writes lines with prefixes; lines of several sources do not mix.

  Attributes:
    is_cut: Whether the reader of our output has gone away.
  """

  def __init__(self) -> None:
    self.is_cut = False
    self._lock = threading.Lock()
    self._threads: List[threading.Thread] = []

  def add(self, prefix: str, source: IO[bytes], stream: TextIO) -> None:
    """Forwards `source` to `stream`, until its end."""
    thread = threading.Thread(
      target=self._forward, args=(prefix, source, stream), daemon=True
    )
    self._threads.append(thread)
    thread.start()

  def close(self, seconds: float) -> None:
    """Waits for the ends of all sources, for some seconds at most."""
    deadline = time.monotonic() + seconds
    for thread in self._threads:
      thread.join(max(0.0, deadline - time.monotonic()))

  def write(self, stream: TextIO, line: str) -> None:
    """Writes a line of our own."""
    self._write(stream, line.encode())

  def _forward(self, prefix: str, source: IO[bytes], stream: TextIO) -> None:
    lines, start = Lines(), prefix.encode()
    while chunk := os.read(source.fileno(), 1 << 16):
      for line in lines.feed(chunk):
        self._write(stream, start + line)
    for line in lines.flush():
      self._write(stream, start + line)

  def _write(self, stream: TextIO, line: bytes) -> None:
    with self._lock:  # One for all streams: a terminal shows both.
      try:
        stream.buffer.write(line + b"\n")
        stream.flush()
      except OSError:
        # Keep reading: a program whose output is not read would block, and
        # could not even save.
        self.is_cut = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
