"""Parts of an HTML page beside those of reports: tables and bars."""

import html
import pathlib
import string
from typing import Iterable, List, Mapping, Sequence, Tuple

from paragan_tf.outputs.html_parts import (
  make_list,
  make_paragraph,
  make_tiles,
)
from tools.tpu import programs, rows

__all__ = ["make_list", "make_paragraph", "make_tiles"]

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")


def render(title: str, parts: Iterable[str]) -> str:
  """Returns the page."""
  template = string.Template(_TEMPLATE.read_text())
  return template.substitute(title=html.escape(title), body="\n".join(parts))


def make_section(title: str, *parts: str) -> str:
  """Returns a heading, and the parts on a card."""
  body = "".join(parts)
  return f'<h2>{html.escape(title)}</h2><div class="card">{body}</div>'


def make_table(lines: Sequence[Sequence[str]], num_words: int = 1) -> str:
  """Returns a table with a head; numbers follow the first `num_words` cells."""
  made = []
  for i, cells in enumerate(lines):
    tag = "th" if i == 0 else "td"
    row = ""
    for j, cell in enumerate(cells):
      style = ' class="words"' if j < num_words else ""
      if j and j == len(cells) - 1 < len(lines[0]) - 1:  # Why it has no more.
        style = f' colspan="{len(lines[0]) - j}"'
      row += f"<{tag}{style}>{html.escape(cell)}</{tag}>"
    made.append(f"<tr>{row}</tr>")
  return f"<table>{''.join(made)}</table>"


def make_cycles_chart(
  bars: Sequence[Tuple[str, Mapping[str, int], str]],
) -> str:
  """Returns a bar for each program, divided by the kind of operation.

  Args:
    bars: Names of programs, cycles by kind, and what is written at the end.
  """
  longest = max((sum(cycles.values()) for _, cycles, _ in bars), default=0)
  used = [g for g in programs.GROUPS if any(c.get(g) for _, c, _ in bars)]
  legend = "".join(
    f'<span><i style="background:var(--c{programs.GROUPS.index(group)})"></i>'
    f"{group}</span>"
    for group in used
  )
  lines = [
    _make_bar(name, _place(cycles, longest), words)
    for name, cycles, words in bars
  ]
  return f'<div class="legend">{legend}</div>{_make_grid(lines)}'


def make_memory_chart(bars: Sequence[Tuple[str, float]], limit: float) -> str:
  """Returns a bar for each program; its full width is all of the memory."""
  lines = []
  for name, size in bars:
    color = "var(--good)" if size <= limit else "var(--bad)"
    share = size / limit
    title = f"{name}: {share:.0%}"
    parts = [(0.0, 100.0, "var(--line)", title)]
    parts.append((0.0, min(100.0, 100.0 * share), color, title))
    lines.append(_make_bar(name, parts, f"{rows.format_gb(size)}, {share:.0%}"))
  return _make_grid(lines)


def _make_grid(lines: Sequence[str]) -> str:
  return f'<div class="bars">{"".join(lines)}</div>'


def _place(
  cycles: Mapping[str, int], longest: int
) -> List[Tuple[float, float, str, str]]:
  """Returns left end, width, color and title of each part of a bar."""
  parts, left, total = [], 0.0, max(1, sum(cycles.values()))
  for i, group in enumerate(programs.GROUPS):
    width = 100.0 * cycles.get(group, 0) / max(1, longest)
    if width:
      title = f"{group}: {cycles[group] / total:.0%}"
      parts.append((left, width, f"var(--c{i})", title))
    left += width
  return parts


def _make_bar(
  name: str, parts: Sequence[Tuple[float, float, str, str]], words: str
) -> str:
  drawn = "".join(
    f'<rect x="{left:.3f}" width="{width:.3f}" height="10" '
    f'style="fill:{color}"><title>{html.escape(title)}</title></rect>'
    for left, width, color, title in parts
  )
  return (
    f"<span>{html.escape(name)}</span>"
    '<svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
    f'aria-label="{html.escape(words)}">{drawn}</svg>'
    f"<output>{html.escape(words)}</output>"
  )
