"""Curves as inline SVG: a mean line with its range, few ticks, hover texts."""

import html
import math
from typing import Any, NamedTuple, Sequence

import numpy as np

_MAX_POINTS = 400
_MAX_HOVERS = 100


class Curve(NamedTuple):
  """One scalar over the run; what was not finite is NaN."""

  name: str
  steps: np.ndarray
  values: np.ndarray


class _Thin(NamedTuple):
  """A curve of few points; NaN where nothing was finite."""

  name: str
  steps: np.ndarray
  low: np.ndarray
  mean: np.ndarray
  high: np.ndarray
  gone: np.ndarray  # Whether a value of this point was not finite.


def _thin(curve: Curve, max_points: int) -> _Thin:
  """Joins neighbors into points that keep their range: no spike is lost."""
  count = min(len(curve.steps), max_points)
  rows = []
  for steps, values in zip(
    np.array_split(curve.steps, count), np.array_split(curve.values, count)
  ):
    known = values[np.isfinite(values)]
    is_gone = len(known) < len(values)
    known = known if len(known) else np.array([np.nan])
    rows.append((steps[-1], known.min(), known.mean(), known.max(), is_gone))
  return _Thin(curve.name, *np.array(rows).T)


class _Frame(NamedTuple):
  """The range of a chart, drawn as 1000 by 1000 units, y downwards."""

  left: float
  right: float
  low: float
  high: float

  def x(self, steps: np.ndarray) -> np.ndarray:
    return (steps - self.left) / (self.right - self.left) * 1000

  def y(self, values: np.ndarray) -> np.ndarray:
    share = (values - self.low) / (self.high - self.low)
    return (1 - share.clip(0, 1)) * 1000


def _frame(curves: Sequence[_Thin]) -> _Frame:
  """Fits all curves, but lets rare spikes run out of the chart."""
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
  """Picks about five round values between two."""
  raw = max((high - low) / 5, least)
  power = 10.0 ** math.floor(math.log10(raw))
  gap = next(x * power for x in (1, 2, 5, 10) if x * power >= raw * 0.999)
  return [
    i * gap for i in range(math.ceil(low / gap), math.floor(high / gap) + 1)
  ]


def draw(curves: Sequence[Curve], is_wide: bool = False) -> str:
  """Draws curves as an SVG that stretches, with its labels around it."""
  thin = [
    _thin(x, _MAX_POINTS if is_wide else _MAX_POINTS // 2) for x in curves
  ]
  frame = _frame(thin)
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
  labels.append(f'<span class="note">{_note(thin, frame)}</span>')
  titles = _titles(thin)
  return (
    f'<div class="card chart{" wide" * is_wide}">'
    f'<div class="head"><span>{names}</span>'
    f'<output>{titles[-1][1]}</output></div>\n<div class="plot">'
    '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img">'
    f'<path class="rule" d="{rules}"/>'
    + "".join(_paths(x, frame) for x in thin)
    + _hovers(titles, frame)
    + f"</svg>{''.join(labels)}</div></div>"
  )


def _note(curves: Sequence[_Thin], frame: _Frame) -> str:
  """Says what the chart could not draw."""
  notes = []
  low = min(float(np.nanmin(x.low, initial=math.inf)) for x in curves)
  high = max(float(np.nanmax(x.high, initial=-math.inf)) for x in curves)
  if low < frame.low or high > frame.high:
    notes.append(f"from {short(low)} to {short(high)}")
  if any(x.gone.any() for x in curves):
    notes.append("red: not finite")
  return ", ".join(notes)


def _color(name: str) -> str:
  player = name[:1] if name[1:2] in ("/", "_") else ""
  return f"var(--{player})" if player in ("d", "g") else "var(--other)"


def _paths(curve: _Thin, frame: _Frame) -> str:
  """Draws the mean as a line and the range as a band, broken at gaps."""
  x, mean = frame.x(curve.steps), frame.y(curve.mean)
  low, high = frame.y(curve.low), frame.y(curve.high)
  known = np.flatnonzero(np.isfinite(curve.mean))
  line = band = ""
  for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
    if len(run):
      line += f"M{_points(x[run], mean[run])}" + "h0" * (len(run) == 1)
    if (curve.low[run] < curve.high[run]).any():
      back = run[::-1]
      band += f"M{_points(x[run], high[run])} {_points(x[back], low[back])}Z"
  gone = "".join(f"M{place:.1f},1000v-60" for place in x[curve.gone > 0])
  return (
    f'<g style="--c:{_color(curve.name)}"><path class="band" d="{band}"/>'
    f'<path class="line" d="{line}"/><path class="gone" d="{gone}"/></g>'
  )


def _points(x: np.ndarray, y: np.ndarray) -> str:
  return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))


def _titles(curves: Sequence[_Thin]) -> list[tuple[float, str]]:
  """Puts the values at some steps into words."""
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
  """Covers the chart with strips that tell the values under the pointer."""
  x = frame.x(np.array([step for step, _ in titles]))
  edges = [0.0, *(x[1:] + x[:-1]) / 2, 1000.0]
  return "".join(
    f'<rect x="{a:.1f}" width="{max(b - a, 0):.1f}" height="1000">'
    f"<title>{text}</title></rect>"
    for a, b, (_, text) in zip(edges, edges[1:], titles)
  )


def short(value: Any) -> str:
  """Formats a number with the three or four digits that count."""
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
  """Says whether it is a number that can be drawn."""
  return isinstance(value, (int, float)) and abs(value) < 1e100


def spread(items: Sequence[Any], count: int) -> list[Any]:
  """Picks at most `count` items evenly, the first and the last among them."""
  places = np.linspace(0, len(items) - 1, min(len(items), count))
  return [items[int(place)] for place in places.round()]
