"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import math
import sys
import time
from typing import Optional, TextIO

import tqdm

_SECONDS_BETWEEN_LINES = 10.0
_BAR = "{percentage:3.0f}%|{bar}| {desc}"


class Progress:
  """Shows step, speed, losses, input wait and time left.

      progress = Progress(num_steps, start_step)
      progress.update(step, ...)    # after each inner loop
      progress.note("Saved.")       # a line of its own, above the bar
      progress.close()

  The time left is extrapolated from the first update on, because tracing before
  it would make the run look slow.
  """

  def __init__(
    self, num_steps: int, start_step: int, stream: Optional[TextIO] = None
  ):
    self._num_steps = num_steps
    self._stream = sys.stderr if stream is None else stream
    self._origin = (start_step, time.monotonic())
    self._first: Optional[tuple[int, float]] = None
    self._last_line_at = -math.inf
    self._pending = self._said = ""
    self._bar = None
    if self._stream.isatty():
      self._bar = tqdm.tqdm(
        total=num_steps,
        initial=start_step,
        desc=f"{start_step}/{num_steps} tracing the first step",
        file=self._stream,
        bar_format=_BAR,
        dynamic_ncols=True,
      )

  def update(
    self,
    step: int,
    images_per_second: float,
    d_loss: float,
    g_loss: float,
    input_wait: Optional[float],
    reading: Optional[tuple[float, float]] = None,
  ) -> None:
    """Shows the state after `step`.

    Args:
      step: Steps done.
      images_per_second: Of the last inner loop.
      d_loss: Its mean.
      g_loss: Its mean.
      input_wait: Fraction of the time that was spent waiting for input.
      reading: Number of reader threads, and how many batches they may read
        ahead.
    """
    # The least important comes last, because a narrow terminal cuts it off.
    parts = [
      f"{step}/{self._num_steps}",
      f"{self._time_left(step)} left",
      f"{images_per_second:.0f} images/s",
      f"d {d_loss:.3f} g {g_loss:.3f}",
    ]
    if input_wait is not None:
      parts.append(f"input wait {input_wait:.0%}")
    if reading is not None:
      parts.append("{:.0f} readers {:.0f} ahead".format(*reading))
    self._said = " ".join(parts[1:])
    if self._bar is not None:
      self._bar.set_description_str(" ".join(parts), refresh=False)
      self._bar.update(step - self._bar.n)
      return
    self._pending = ", ".join(parts)
    now = time.monotonic()
    is_last = step >= self._num_steps
    if is_last or now - self._last_line_at >= _SECONDS_BETWEEN_LINES:
      self._last_line_at = now
      self._print_pending()

  def tick(self, step: int) -> None:
    """Shows the step between two updates, on a terminal."""
    if self._bar is not None:
      rest = self._said or "tracing is done"
      text = f"{step}/{self._num_steps} {rest}"
      self._bar.set_description_str(text, refresh=False)
      self._bar.update(step - self._bar.n)
      self._bar.refresh()

  def note(self, text: str) -> None:
    """Prints a line without breaking the bar."""
    if self._bar is not None:
      self._bar.write(text, file=self._stream)
    else:
      self._print(text)

  def close(self) -> None:
    """Keeps the last state on screen; further calls do nothing."""
    if self._bar is not None:
      self._bar.close()
    self._print_pending()

  def _print_pending(self) -> None:
    if self._pending:
      self._print(f"step {self._pending}")
      self._pending = ""

  def _print(self, text: str) -> None:
    print(text, file=self._stream, flush=True)

  def _time_left(self, step: int) -> str:
    now = time.monotonic()
    since_step, since = self._first or self._origin
    if self._first is None:
      self._first = (step, now)
    if step <= since_step:
      return "?"
    seconds = (now - since) / (step - since_step) * (self._num_steps - step)
    return tqdm.tqdm.format_interval(max(0, round(seconds)))


class Counter:
  """Shows how much of something is done, and the time left.

      counter = Counter("samples")
      counter(256, 10000)      # as often as it is known

  A bar on a terminal; elsewhere a line every ten seconds, so that work which is
  done sooner prints nothing.
  """

  def __init__(self, what: str, stream: Optional[TextIO] = None):
    self._what = what
    self._stream = sys.stderr if stream is None else stream
    self._bar: Optional[tqdm.tqdm] = None
    self._started = self._last_line_at = time.monotonic()

  def __call__(self, done: int, total: int) -> None:
    """Shows that `done` of `total` are done."""
    if self._stream.isatty():
      if self._bar is None:
        self._bar = tqdm.tqdm(
          total=total, desc=self._what, file=self._stream, leave=False
        )
      self._bar.update(done - self._bar.n)
      if done >= total:
        self._bar.close()
        self._bar = None
      return
    now = time.monotonic()
    if now - self._last_line_at < _SECONDS_BETWEEN_LINES:
      return
    self._last_line_at = now
    seconds = (now - self._started) / max(done, 1) * (total - done)
    left = tqdm.tqdm.format_interval(round(seconds))
    print(
      f"{self._what} {done:,}/{total:,}, {left} left",
      file=self._stream,
      flush=True,
    )
