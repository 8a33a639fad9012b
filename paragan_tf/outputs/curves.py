"""Draws curves as inline SVG: mean, range, a few ticks, values on hover."""

import html
import math
from typing import Any, NamedTuple, Sequence

import numpy as np

_MAX_POINTS = 400
_MAX_HOVERS = 100


class Curve(NamedTuple):
  """A scalar over the run; values that are not finite are NaN."""

  name: str
  steps: np.ndarray
  values: np.ndarray


class _Downsampled(NamedTuple):
  """A curve of few points; NaN where none of a point's values is finite."""

  name: str
  steps: np.ndarray
  low: np.ndarray
  mean: np.ndarray
  high: np.ndarray
  has_nan: np.ndarray  # Whether a value of this point is not finite.


def _downsample(curve: Curve, max_points: int) -> _Downsampled:
  """Merges neighboring points; each keeps their range, so no spike is lost."""
  count = min(len(curve.steps), max_points)
  rows = []
  for steps, values in zip(
    np.array_split(curve.steps, count), np.array_split(curve.values, count)
  ):
    finite = values[np.isfinite(values)]
    has_nan = len(finite) < len(values)
    finite = finite if len(finite) else np.array([np.nan])
    rows.append((steps[-1], finite.min(), finite.mean(), finite.max(), has_nan))
  return _Downsampled(curve.name, *np.array(rows).T)


class _Frame(NamedTuple):
  """The ranges of a chart's axes; it is drawn in 1000 by 1000 units."""

  left: float
  right: float
  low: float
  high: float

  def x(self, steps: np.ndarray) -> np.ndarray:
    return (steps - self.left) / (self.right - self.left) * 1000

  def y(self, values: np.ndarray) -> np.ndarray:
    height = (values - self.low) / (self.high - self.low)
    return (1 - height.clip(0, 1)) * 1000  # SVG's y points down.


def _frame(curves: Sequence[_Downsampled]) -> _Frame:
  """Returns the frame of all curves; it may cut off rare spikes."""
  steps = np.concatenate([x.steps for x in curves])
  values = np.concatenate([y for x in curves for y in (x.low, x.high)])
  values = values[np.isfinite(values)] if np.isfinite(values).any() else [0, 1]
  low, high = float(np.min(values)), float(np.max(values))
  usual_low, usual_high = (float(np.percentile(values, q)) for q in (1, 99))
  usual = usual_high - usual_low
  if 0 < 10 * usual < high - low:
    low, high = max(low, usual_low - usual), min(high, usual_high + usual)
  pad = (high - low) / 20
  if pad < 1e-100:
    pad = abs(high) / 20 or 1.0
  low_end = 0.0 if 0 <= low < pad else low - pad
  left, right = steps.min(), steps.max()
  left = 0 if 0 <= left < right / 10 else left
  return _Frame(left, right if right > left else left + 1, low_end, high + pad)


def ticks(low: float, high: float, least: float = 0.0) -> list[float]:
  """Returns about five round values between `low` and `high`."""
  raw = max((high - low) / 5, least)
  power = 10.0 ** math.floor(math.log10(raw))
  gap = next(x * power for x in (1, 2, 5, 10) if x * power >= raw * 0.999)
  return [
    i * gap for i in range(math.ceil(low / gap), math.floor(high / gap) + 1)
  ]


def draw(curves: Sequence[Curve], is_wide: bool = False) -> str:
  """Returns the HTML of a chart: a scalable SVG with labels around it."""
  num_points = _MAX_POINTS if is_wide else _MAX_POINTS // 2
  downsampled = [_downsample(x, num_points) for x in curves]
  frame = _frame(downsampled)
  y_ticks = np.array(ticks(frame.low, frame.high))
  x_ticks = np.array(ticks(frame.left, frame.right, least=1.0))
  rules = "".join(f"M0,{y:.1f}h1000" for y in frame.y(y_ticks))
  labels = [
    f'<span class="y" style="top:{y / 10:.2f}%">{tick(value)}</span>'
    for value, y in zip(y_ticks, frame.y(y_ticks))
  ] + [
    f'<span class="x" style="left:{x / 10:.2f}%">{tick(value)}</span>'
    for value, x in zip(x_ticks, frame.x(x_ticks))
  ]
  names = "".join(
    f'<b style="--c:{_color(x.name)}">{html.escape(x.name)}</b>' for x in curves
  )
  labels.append(f'<span class="note">{_note(downsampled, frame)}</span>')
  titles = _titles(downsampled)
  return (
    f'<div class="card chart{" wide" * is_wide}">'
    f'<div class="head"><span>{names}</span>'
    f'<output>{titles[-1][1]}</output></div>\n<div class="plot">'
    '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img">'
    f'<path class="rule" d="{rules}"/>'
    + "".join(_paths(x, frame) for x in downsampled)
    + _hovers(titles, frame)
    + f"</svg>{''.join(labels)}</div></div>"
  )


def _note(curves: Sequence[_Downsampled], frame: _Frame) -> str:
  """Returns a note about values that the chart does not show."""
  notes = []
  low = min(float(np.nanmin(x.low, initial=math.inf)) for x in curves)
  high = max(float(np.nanmax(x.high, initial=-math.inf)) for x in curves)
  if low < frame.low or high > frame.high:
    notes.append(f"from {short(low)} to {short(high)}")
  if any(x.has_nan.any() for x in curves):
    notes.append("red: not finite")
  return ", ".join(notes)


def _color(name: str) -> str:
  player = name[:1] if name[1:2] in ("/", "_") else ""
  return f"var(--{player})" if player in ("d", "g") else "var(--other)"


def _paths(curve: _Downsampled, frame: _Frame) -> str:
  """Returns SVG paths: the mean as a line, the range as a band, with gaps."""
  x, mean = frame.x(curve.steps), frame.y(curve.mean)
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
  return (
    f'<g style="--c:{_color(curve.name)}"><path class="band" d="{band}"/>'
    f'<path class="line" d="{line}"/><path class="gone" d="{marks}"/></g>'
  )


def _points(x: np.ndarray, y: np.ndarray) -> str:
  return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))


def _titles(curves: Sequence[_Downsampled]) -> list[tuple[float, str]]:
  """Returns some steps, each with a text of its values."""
  longest = max(curves, key=lambda x: len(x.steps))
  titles = []
  for step in spread(list(longest.steps), _MAX_HOVERS):
    values = [
      f"{curve.name} " * (len(curves) > 1)
      + short(curve.mean[np.abs(curve.steps - step).argmin()])
      for curve in curves
    ]
    text = f"step {step:,.0f}: {', '.join(values)}"
    titles.append((step, html.escape(text)))
  return titles


def _hovers(titles: Sequence[tuple[float, str]], frame: _Frame) -> str:
  """Returns SVG strips over the chart that show the values on hover."""
  x = frame.x(np.array([step for step, _ in titles]))
  edges = [0.0, *(x[1:] + x[:-1]) / 2, 1000.0]
  return "".join(
    f'<rect x="{a:.1f}" width="{max(b - a, 0):.1f}" height="1000">'
    f"<title>{text}</title></rect>"
    for a, b, (_, text) in zip(edges, edges[1:], titles)
  )


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
