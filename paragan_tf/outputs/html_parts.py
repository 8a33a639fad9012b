"""Parts of an HTML page: the page itself, paragraphs, tiles, tables, lists.

All text is escaped here, except arguments called `parts`, which are HTML.
"""

import html
import importlib.resources
import json
import string
from typing import Any, Mapping, NamedTuple, Sequence, Tuple


def render(title: str, *parts: str) -> str:
  """Returns a page: one file that needs no network."""
  package = importlib.resources.files("paragan_tf.outputs")
  template = (package / "files" / "page.html").read_text()
  return string.Template(template).substitute(
    title=html.escape(title), body="\n".join(filter(None, parts))
  )


def make_header(title: str, *parts: str) -> str:
  """Returns the title of a page, and what stands below it."""
  body = "\n".join(parts)
  return f"<header><h1>{html.escape(title)}</h1>\n{body}</header>"


def make_section(title: str, *parts: str) -> str:
  """Returns a heading, and the parts below it."""
  body = "\n".join(filter(None, parts))
  return f"<section><h2>{html.escape(title)}</h2>\n{body}\n</section>"


def make_card(*parts: str, style: str = "") -> str:
  """Returns the parts on a card; `style` is a further class."""
  return f'<div class="{f"card {style}".strip()}">{"".join(parts)}</div>'


def make_paragraph(text: str, style: str = "soft") -> str:
  """Returns a paragraph in one of the styles of the page."""
  return f'<p class="{style}">{html.escape(text)}</p>'


def make_list(sentences: Sequence[str]) -> str:
  """Returns sentences as a list."""
  items = (f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
  return f"<ul>{''.join(items)}</ul>"


def make_tiles(tiles: Sequence[Tuple[str, str]]) -> str:
  """Returns large figures, each with its name."""
  cards = (
    f'<div class="card"><dt>{html.escape(name)}</dt>'
    f"<dd>{html.escape(value)}</dd></div>"
    for name, value in tiles
  )
  return f'<dl class="tiles">{"".join(cards)}</dl>'


def make_terms(values: Mapping[str, Any]) -> str:
  """Returns names with their values; what is no text is shown as JSON."""
  cells = "".join(
    f"<dt>{html.escape(str(term))}</dt>"
    f"<dd>{html.escape(x if isinstance(x, str) else json.dumps(x))}</dd>"
    for term, x in values.items()
  )
  return f'<dl class="terms">{cells}</dl>'


def make_details(summary: str, *parts: str, style: str = "") -> str:
  """Returns parts that are folded up until the summary is clicked."""
  body = "".join(parts)
  kind = f' class="{style}"' if style else ""
  return (
    f"<details{kind}><summary>{html.escape(summary)}</summary>{body}</details>"
  )


class Cell(NamedTuple):
  """A cell of a table.

  Attributes:
    text: What it says.
    note: A second line, in small letters.
    swatch: HTML before the text, from `make_swatch`.
    parts: HTML in place of the text.
  """

  text: str = ""
  note: str = ""
  swatch: str = ""
  parts: str = ""


EMPTY = Cell()  # Left out where each row is a list.


def make_swatch(color: str, is_hollow: bool = False) -> str:
  """Returns a small square in a color of the page."""
  kind = ' class="hollow"' * is_hollow
  return f'<i{kind} style="--c:{color}"></i>'


def make_table(head: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
  """Returns a table; on a narrow screen each row is a list of its cells."""
  titles = "".join(f"<th>{_make_content(cell)}</th>" for cell in head)
  lines = "\n".join(
    "<tr>" + "".join(map(_make_cell, head, row)) + "</tr>" for row in rows
  )
  return (
    f'<table class="rows"><thead><tr>{titles}</tr></thead>\n'
    f"<tbody>{lines}</tbody></table>"
  )


def _make_cell(name: Cell, cell: Cell) -> str:
  if cell == EMPTY:
    return '<td class="empty">-</td>'
  if cell.parts:
    return f'<td class="long">{cell.parts}</td>'
  head = html.escape(_join(name))
  return f'<td data-head="{head}"><span>{_make_content(cell)}</span></td>'


def _join(cell: Cell) -> str:
  return f"{cell.text}, {cell.note}" if cell.note else cell.text


def _make_content(cell: Cell) -> str:
  note = f"<small>{html.escape(cell.note)}</small>" if cell.note else ""
  return f"{cell.swatch}{html.escape(cell.text)}{note}"
