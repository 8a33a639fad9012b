"""Charts of one or several runs over steps, images or seconds.

    charts.make_section(histories, [charts.draw([Series(...), Series(...)])])

The section has a control that chooses the axis of all its charts.
"""

import html
from typing import List, NamedTuple, Optional, Sequence

import numpy as np

from paragan_tf.outputs import curves, html_parts
from paragan_tf.outputs.run_history import AXES, RunHistory, Scalar

_AXIS_NAMES = {"steps": "Steps", "images": "Images", "seconds": "Time"}


class Series(NamedTuple):
  """A scalar of one run in a chart; see `curves.Curve`."""

  name: str
  history: RunHistory
  scalar: Scalar
  real: Optional[float] = None
  number: Optional[int] = None

  @property
  def varies(self) -> bool:
    """Whether there is anything to see."""
    return curves.varies(self.scalar.values)


def draw(
  members: Sequence[Series], is_wide: bool = False, title: str = ""
) -> str:
  """Returns a chart, with a plot for each axis; see `curves.draw`."""
  axes = {axis: _list_curves(members, axis) for axis in AXES}
  return curves.draw(axes, is_wide, title)


def _list_curves(members: Sequence[Series], axis: str) -> List[curves.Curve]:
  """Returns the curves over an axis, of runs that have recorded it."""
  found = []
  for x in members:
    places = x.history.to_axis(axis, x.scalar.steps)
    if places is not None:
      values = x.scalar.values
      found.append(curves.Curve(x.name, places, values, x.real, x.number))
  return found


def make_section(
  title: str, histories: Sequence[RunHistory], parts: Sequence[str]
) -> str:
  """Returns a section of charts, with the control of their axis."""
  axes = [
    axis
    for axis in AXES
    if any(x.to_axis(axis, np.zeros([1])) is not None for x in histories)
  ]
  control = "".join(
    f'<input type="radio" name="axis" id="axis-{axis}"'
    f"{' checked' if axis == AXES[0] else ''}>"
    f'<label for="axis-{axis}">{_AXIS_NAMES[axis]}</label>'
    for axis in axes
  )
  body = "\n".join(parts)
  return (
    f'<section class="axes"><h2>{html.escape(title)}</h2>\n{control}\n'
    f'<div class="by">{body}</div></section>'
  )


def make_grid(charts: Sequence[str]) -> str:
  """Returns charts side by side, as many as fit."""
  return '<div class="charts">' + "\n".join(charts) + "</div>"


def name_constants(members: Sequence[Series]) -> str:
  """Returns a line with the scalars that are not drawn, and their values."""
  rows = []
  for x in members:
    finite = x.scalar.values[np.isfinite(x.scalar.values)]
    value = curves.short(float(finite[-1])) if len(finite) else "not finite"
    rows.append(f"{x.name} {value}")
  if not rows:
    return ""
  return html_parts.make_paragraph(
    f"Constant, so not drawn: {', '.join(rows)}.", "soft constants"
  )
