"""A plan as a page: a table of schemes, and their curves over workers."""

import math
from typing import Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from paragan_tf.outputs import curves, html_parts
from paragan_tf.outputs.html_parts import Cell


class Line(NamedTuple):
  """A scheme over the number of workers.

  Attributes:
    name: Of the scheme.
    workers: Rising.
    efficiency: One for each, relative to workers that train alone.
    images_per_second: The same.
  """

  name: str
  workers: Sequence[int]
  efficiency: Sequence[float]
  images_per_second: Sequence[float]


def render(
  title: str,
  tiles: Sequence[Tuple[str, str]],
  table: Sequence[Sequence[str]],
  lines: Sequence[Line],
  sentences: Sequence[str],
  terms: Mapping[str, str],
) -> str:
  """Returns the page.

  Args:
    title: Of the page.
    tiles: Large figures, each with its name.
    table: Rows of cells, the first one is the head.
    lines: Of the schemes.
    sentences: Which scheme wins where, and remarks.
    terms: What the plan is made from.
  """
  head, *rows = [[Cell(text) for text in row] for row in table]
  charts = [
    _draw(lines, "efficiency", "Efficiency"),
    _draw(lines, "images_per_second", "Images a second, decimal logarithm"),
  ]
  return html_parts.render(
    title,
    html_parts.make_header(title),
    html_parts.make_tiles(tiles),
    html_parts.make_section(
      "Schemes", html_parts.make_card(html_parts.make_table(head, rows))
    ),
    html_parts.make_section("Over the number of workers", *charts),
    html_parts.make_section("Which wins", html_parts.make_list(sentences)),
    html_parts.make_section("Made from", html_parts.make_terms(terms)),
  )


def _draw(lines: Sequence[Line], name: str, title: str) -> str:
  """Returns a chart of one figure of all schemes."""
  is_rate = name == "images_per_second"
  found = [
    curves.Curve(
      line.name,
      np.array([math.log2(x) for x in line.workers]),
      np.log10(getattr(line, name)) if is_rate else np.array(line.efficiency),
      number=i,
    )
    for i, line in enumerate(lines)
    if len(line.workers)
  ]
  return curves.draw({"workers": found}, is_wide=True, title=title)
