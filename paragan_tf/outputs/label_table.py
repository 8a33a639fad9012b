"""How far labels are: a live table on a terminal, plain lines elsewhere."""

import shutil
import sys
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, TextIO

from paragan_tf.outputs.curves import duration
from paragan_tf.outputs.labels import DONE, FAILED, RUNNING, LabelState

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_FRAMES = 0.2
_HEAD = ("label", "name", "state", "step", "critic loss", "left")


class Live(NamedTuple):
  """What a running label says of itself."""

  d_loss: Optional[float] = None
  num_steps: Optional[int] = None
  seconds_left: Optional[float] = None


class LabelTable:
  """Shows label, name, state, step, loss and what is left of the budget.

      table = LabelTable(states)
      table.update(states, live)      # as often as anything changes
      table.note("Label 3 failed.")   # a line that stays
      table.close(states)

  Only labels that are running or have failed have a row; the others are
  counted.
  """

  def __init__(self, stream: Optional[TextIO] = None):
    self._stream = sys.stderr if stream is None else stream
    self._is_live = self._stream.isatty()
    self._num_lines = 0
    self._last_at = float("-inf")

  def update(
    self,
    states: Sequence[LabelState],
    live: Mapping[int, Live],
    force: bool = False,
  ) -> None:
    """Shows the labels as they are now, if the last time is long enough ago."""
    pause = _SECONDS_BETWEEN_LINES
    if self._is_live:
      pause = _SECONDS_BETWEEN_FRAMES
    now = time.monotonic()
    if not force and now - self._last_at < pause:
      return
    self._last_at = now
    if self._is_live:
      self._draw(_lay_out(states, live))
    else:
      self._print(_summarize(states, live))

  def note(self, text: str) -> None:
    """Prints a line without breaking the table."""
    self._erase()
    self._print(text)
    self._last_at = float("-inf")

  def close(self, states: Sequence[LabelState]) -> None:
    """Shows the last state, which stays."""
    self.update(states, {}, force=True)
    self._num_lines = 0

  def _draw(self, lines: List[str]) -> None:
    size = shutil.get_terminal_size()
    shown = [line[: size.columns - 1] for line in lines[: size.lines - 2]]
    self._erase()
    for line in shown:
      self._print(line)
    self._num_lines = len(shown)

  def _erase(self) -> None:
    if self._num_lines:  # Up, and clear to the end of the screen.
      self._stream.write(f"\x1b[{self._num_lines}F\x1b[J")
    self._num_lines = 0

  def _print(self, text: str) -> None:
    print(text, file=self._stream, flush=True)


def _lay_out(
  states: Sequence[LabelState], live: Mapping[int, Live]
) -> List[str]:
  """Returns the lines of the table."""
  rows = [_HEAD]
  for x in states:
    if x.state not in (RUNNING, FAILED):
      continue
    now = live.get(x.label, Live())
    loss = "-" if now.d_loss is None else f"{now.d_loss:.3f}"
    step = f"{x.steps:,}" if x.state == FAILED else _progress(x, now)
    rows.append((str(x.label), x.name, x.state, step, loss, _left(x, now)))
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = [
    "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    for row in rows
  ]
  return [*(lines if len(rows) > 1 else []), _count(states)]


def _summarize(states: Sequence[LabelState], live: Mapping[int, Live]) -> str:
  """Returns one line for a log."""
  running = [x for x in states if x.state == RUNNING]
  parts = [_count(states)]
  for x in running:
    now = live.get(x.label, Live())
    loss = "" if now.d_loss is None else f" loss {now.d_loss:.3f}"
    parts.append(f"{x.label} {x.name}: {_progress(x, now)}{loss}")
  return "; ".join(parts)


def _progress(x: LabelState, now: Live) -> str:
  total = "" if now.num_steps is None else f"/{now.num_steps:,}"
  return f"{x.steps:,}{total}"


def _left(x: LabelState, now: Live) -> str:
  if x.state != RUNNING:
    return ""
  if now.seconds_left is not None:
    return duration(now.seconds_left)
  if now.num_steps is None:
    return "-"
  return f"{max(0, now.num_steps - x.steps):,} steps"


def _count(states: Sequence[LabelState]) -> str:
  """Returns how many labels are in each state."""
  counts: Dict[str, int] = {}
  for x in states:
    counts[x.state] = counts.get(x.state, 0) + 1
  done = counts.pop(DONE, 0)
  rest = "".join(f", {count:,} {state}" for state, count in counts.items())
  return f"{done:,} of {len(states):,} labels done{rest}"
