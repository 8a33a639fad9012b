"""Draws curves as inline SVG: mean, range, a few ticks, values on hover.

    draw({"steps": [Curve("d/loss", steps, values)]})

A chart has a plot for each axis; the page shows one of them.
"""

import html
import math
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

_MAX_POINTS = 400
_MAX_HOVERS = 100
_NUM_COLORS = 6
# Seconds of a unit, and how long an axis must be to use it.
_TIME_UNITS = ((3600.0, "h", 2 * 3600.0), (60.0, "min", 120.0), (1.0, "s", 0.0))


class Curve(NamedTuple):
  """A scalar over an axis; values that are not finite are NaN.

  Attributes:
    name: In the legend.
    x: Steps, images, seconds, or the binary logarithm of workers, rising.
    values: One for each of them.
    real: What real images get, drawn as a dashed line, if there is any.
    number: Chooses the color, and dashes once all colors are in use; by default
      the name does.
  """

  name: str
  x: np.ndarray
  values: np.ndarray
  real: Optional[float] = None
  number: Optional[int] = None

  @property
  def color(self) -> str:
    """Its color, for a style sheet."""
    if self.number is not None:
      return f"var(--r{self.number % _NUM_COLORS})"
    player = self.name[:1] if self.name[1:2] in ("/", "_") else ""
    return f"var(--{player})" if player in ("d", "g") else "var(--other)"

  @property
  def is_dashed(self) -> bool:
    """Whether its color is taken by another one."""
    return (self.number or 0) >= _NUM_COLORS


def varies(values: np.ndarray) -> bool:
  """Returns whether there is anything to see, beyond errors of rounding."""
  finite = values[np.isfinite(values)]
  if not len(finite):
    return False
  low, high = float(finite.min()), float(finite.max())
  is_constant = high - low <= 1e-6 * max(abs(low), abs(high))
  return len(finite) < len(values) or not is_constant


class _Downsampled(NamedTuple):
  """A curve of few points; NaN where none of a point's values is finite."""

  curve: Curve
  x: np.ndarray
  low: np.ndarray
  mean: np.ndarray
  high: np.ndarray
  has_nan: np.ndarray  # Whether a value of this point is not finite.


def _downsample(curve: Curve, max_points: int) -> _Downsampled:
  """Merges neighboring points; each keeps their range, so no spike is lost."""
  count = min(len(curve.x), max_points)
  rows = []
  for x, values in zip(
    np.array_split(curve.x, count), np.array_split(curve.values, count)
  ):
    finite = values[np.isfinite(values)]
    has_nan = len(finite) < len(values)
    finite = finite if len(finite) else np.array([np.nan])
    rows.append((x[-1], finite.min(), finite.mean(), finite.max(), has_nan))
  return _Downsampled(curve, *np.array(rows).T)


class _Frame(NamedTuple):
  """The ranges of a plot's axes; it is drawn in 1000 by 1000 units."""

  left: float
  right: float
  low: float
  high: float

  def x(self, values: np.ndarray) -> np.ndarray:
    return (values - self.left) / (self.right - self.left) * 1000

  def y(self, values: np.ndarray) -> np.ndarray:
    height = (values - self.low) / (self.high - self.low)
    return (1 - height.clip(0, 1)) * 1000  # SVG's y points down.


def _frame(curves: Sequence[_Downsampled]) -> _Frame:
  """Returns the frame of all curves; it may cut off rare spikes."""
  x = np.concatenate([x.x for x in curves])
  values = np.concatenate([y for x in curves for y in (x.low, x.high)])
  values = values[np.isfinite(values)] if np.isfinite(values).any() else [0, 1]
  low, high = float(np.min(values)), float(np.max(values))
  usual_low, usual_high = (float(np.percentile(values, q)) for q in (1, 99))
  usual = usual_high - usual_low
  if 0 < 10 * usual < high - low:
    low, high = max(low, usual_low - usual), min(high, usual_high + usual)
  reals = [c.curve.real for c in curves if c.curve.real is not None]
  low, high = min([low, *reals]), max([high, *reals])
  pad = (high - low) / 20
  if pad < 1e-100:
    pad = abs(high) / 20 or 1.0
  low_end = 0.0 if 0 <= low < pad else low - pad
  left, right = float(x.min()), float(x.max())
  left = 0.0 if 0 <= left < right / 10 else left
  return _Frame(left, right if right > left else left + 1, low_end, high + pad)


def ticks(low: float, high: float, least: float = 0.0) -> list[float]:
  """Returns about five round values between `low` and `high`."""
  raw = max((high - low) / 5, least)
  power = 10.0 ** math.floor(math.log10(raw))
  gap = next(x * power for x in (1, 2, 5, 10) if x * power >= raw * 0.999)
  return [
    i * gap for i in range(math.ceil(low / gap), math.floor(high / gap) + 1)
  ]


def draw(
  axes: Mapping[str, Sequence[Curve]], is_wide: bool = False, title: str = ""
) -> str:
  """Returns the HTML of a chart: for each axis an SVG with labels around it.

  Args:
    axes: Curves by axis: steps, images, seconds or workers. The first axis has
      all of them; where an axis has none, the plot says so.
    is_wide: Whether it takes all of the page's width.
    title: Stands before the names of the curves, if they do not say it.
  """
  first = next(iter(axes.values()))
  names = f"<em>{html.escape(title)}</em>" if title else ""
  names += "".join(map(_legend, first)) + _legend_of_reals(first)
  plots = [_plot(axis, curves, is_wide) for axis, curves in axes.items()]
  many = " many" * (len(first) > 4)
  return (
    f'<div class="card chart{" wide" * is_wide}{many}">'
    f'<div class="head"><span>{names}</span>'
    f"<output>{plots[0][1]}</output></div>\n"
    + "\n".join(plot for plot, _ in plots)
    + "</div>"
  )


def _legend(curve: Curve) -> str:
  kind = ' class="dashed"' * curve.is_dashed
  return f'<b{kind} style="--c:{curve.color}">{html.escape(curve.name)}</b>'


def _legend_of_reals(curves: Sequence[Curve]) -> str:
  """Returns what the dotted lines are; one is enough where all are equal."""
  reals = {x.real: x for x in curves if x.real is not None}
  return "".join(
    f'<b class="dots" style="--c:{_real_color(curve, curves)}">'
    f"real images {short(real)}</b>"
    for real, curve in reals.items()
  )


def _real_color(curve: Curve, curves: Sequence[Curve]) -> str:
  shared = len([x for x in curves if x.real == curve.real]) > 1
  return "var(--soft)" if shared else curve.color


def _plot(axis: str, curves: Sequence[Curve], is_wide: bool) -> Tuple[str, str]:
  """Returns a plot, and the text of its last values."""
  style = f"plot by-{axis}"
  if not curves:
    return f'<div class="{style}">{axis.capitalize()} not recorded.</div>', ""
  num_points = _MAX_POINTS if is_wide else _MAX_POINTS // 2
  downsampled = [_downsample(x, num_points) for x in curves]
  frame = _frame(downsampled)
  y_ticks = np.array(ticks(frame.low, frame.high))
  rules = "".join(f"M0,{y:.1f}h1000" for y in frame.y(y_ticks))
  labels = [
    f'<span class="y" style="top:{y / 10:.2f}%">{tick(value)}</span>'
    for value, y in zip(y_ticks, frame.y(y_ticks))
  ] + [
    f'<span class="x" style="left:{x / 10:.2f}%">{text}</span>'
    for x, text in _x_labels(axis, frame)
  ]
  labels.append(f'<span class="note">{_note(downsampled, frame)}</span>')
  titles = _titles(axis, downsampled)
  drawing = "".join(_paths(x, frame) for x in downsampled)
  drawing += _real_lines(curves, frame)
  return (
    f'<div class="{style}">'
    '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
    f'aria-label="{titles[-1][1]}">'
    f'<path class="rule" d="{rules}"/>{drawing}{_hovers(titles, frame)}'
    f"</svg>{''.join(labels)}</div>",
    titles[-1][1],
  )


def _x_labels(axis: str, frame: _Frame) -> Sequence[Tuple[float, str]]:
  """Returns places and texts of the ticks below a plot."""
  size, unit = 1.0, ""
  if axis == "seconds":
    size, unit = next(
      (size, f" {unit}") for size, unit, x in _TIME_UNITS if frame.right >= x
    )
  least = 0.0 if axis == "seconds" else 1.0
  values = np.array(ticks(frame.left / size, frame.right / size, least))
  texts = [
    f"{2**x:,.0f}" if axis == "workers" else tick(x) + unit for x in values
  ]
  return list(zip(frame.x(values * size), texts))


def _place(axis: str, x: float) -> str:
  """Returns a place on an axis, in words."""
  if axis == "seconds":
    return duration(x)
  if axis == "workers":
    return f"{2**x:,.0f} workers"
  return f"step {x:,.0f}" if axis == "steps" else f"{x:,.0f} images"


def _note(curves: Sequence[_Downsampled], frame: _Frame) -> str:
  """Returns a note about values that the plot does not show."""
  notes = []
  low = min(float(np.nanmin(x.low, initial=math.inf)) for x in curves)
  high = max(float(np.nanmax(x.high, initial=-math.inf)) for x in curves)
  if low < frame.low or high > frame.high:
    notes.append(f"from {short(low)} to {short(high)}")
  if any(x.has_nan.any() for x in curves):
    notes.append("red: not finite")
  return ", ".join(notes)


def _paths(curve: _Downsampled, frame: _Frame) -> str:
  """Returns SVG paths: the mean as a line, the range as a band, with gaps."""
  x, mean = frame.x(curve.x), frame.y(curve.mean)
  low, high = frame.y(curve.low), frame.y(curve.high)
  finite = np.flatnonzero(np.isfinite(curve.mean))
  line = band = ""
  for run in np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1):
    if len(run):
      line += f"M{_points(x[run], mean[run])}" + "h0" * (len(run) == 1)
    if (curve.low[run] < curve.high[run]).any():
      back = run[::-1]
      band += f"M{_points(x[run], high[run])} {_points(x[back], low[back])}Z"
  marks = "".join(f"M{at:.1f},1000v-60" for at in x[curve.has_nan > 0])
  paths = {"band": band, "line": line, "gone": marks}
  drawn = "".join(f'<path class="{x}" d="{d}"/>' for x, d in paths.items() if d)
  kind = ' class="dashed"' * curve.curve.is_dashed
  return f'<g{kind} style="--c:{curve.curve.color}">{drawn}</g>'


def _real_lines(curves: Sequence[Curve], frame: _Frame) -> str:
  reals = {x.real: x for x in curves if x.real is not None}
  return "".join(
    f'<path class="real" style="--c:{_real_color(curve, curves)}" '
    f'd="M0,{float(frame.y(np.array(real))):.1f}h1000"/>'
    for real, curve in reals.items()
  )


def _points(x: np.ndarray, y: np.ndarray) -> str:
  return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))


def _titles(
  axis: str, curves: Sequence[_Downsampled]
) -> Sequence[Tuple[float, str]]:
  """Returns some places on the axis, each with a text of its values."""
  places = np.unique(np.concatenate([x.x for x in curves]))
  titles = []
  for place in spread(list(places), _MAX_HOVERS):
    values = [
      f"{x.curve.name} " * (len(curves) > 1)
      + short(x.mean[np.abs(x.x - place).argmin()])
      for x in curves
      if x.x[0] <= place <= x.x[-1]
    ]
    text = f"{_place(axis, place)}: {', '.join(values)}"
    titles.append((place, html.escape(text)))
  return titles


def _hovers(titles: Sequence[Tuple[float, str]], frame: _Frame) -> str:
  """Returns SVG strips over the plot that show the values on hover."""
  x = frame.x(np.array([place for place, _ in titles]))
  edges = [0.0, *(x[1:] + x[:-1]) / 2, 1000.0]
  return "".join(
    f'<rect x="{a:.1f}" width="{max(b - a, 0):.1f}" height="1000">'
    f"<title>{text}</title></rect>"
    for a, b, (_, text) in zip(edges, edges[1:], titles)
  )


def duration(seconds: float) -> str:
  """Returns a time in words."""
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes} min"
  return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def short(value: Any) -> str:
  """Formats a number with four significant digits, or as an integer."""
  if not is_number(value):
    return "not finite"
  if 1e3 <= abs(value) < 1e6:
    return f"{value:,.0f}"
  return f"{value:.4g}" if 1e-3 <= abs(value) < 1e3 else tick(value)


def tick(value: float) -> str:
  """Formats a number for an axis."""
  for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if size <= abs(value) < 1e12:
      return f"{value / size:.4g}{letter}"
  return f"{value:.4g}"


def is_number(value: Any) -> bool:
  """Returns whether `value` is a number that can be drawn."""
  return isinstance(value, (int, float)) and abs(value) < 1e100


def spread(items: Sequence[Any], count: int) -> list[Any]:
  """Returns at most `count` items, evenly spaced, with the first and last."""
  indices = np.linspace(0, len(items) - 1, min(len(items), count))
  return [items[int(index)] for index in indices.round()]
