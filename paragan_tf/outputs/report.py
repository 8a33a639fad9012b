"""The report of a run: one HTML file with its pictures, curves and config.

It is made of what the run left in its folder (samples/*.png, metrics.jsonl,
config.gin), asks the network for nothing, and leaves out what is missing.
"""

import base64
import datetime
import html
import io
import json
import math
import os
import platform
from importlib import metadata
from typing import Any, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image

from paragan_tf.outputs import records, samples

_MAX_GRIDS = 8
_MAX_PNG_BYTES = 500_000  # A larger grid is embedded as a JPEG.
_MAX_JPEG_SIDE = 1280
_MAX_POINTS = 400
_MAX_HOVERS = 100
_LOSSES = ("d/loss", "g/loss", "d_loss", "g_loss")
_GROUPS = {
  "metrics": "Metrics",
  "d": "Discriminator",
  "g": "Generator",
  "run": "Run",
}
_PACKAGES = ("paragan_tf", "tensorflow", "tensorflow-gan", "numpy")

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root { --page: #f5f6f8; --card: #fff; --ink: #14171f; --soft: #626b7a;
  --line: #e3e6eb; --d: #e2603a; --g: #2f6bed; --other: #12957a;
  --gone: #d6333a; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0e1116; --card: #171b22; --ink: #e8ebf0; --soft: #97a0af;
    --line: #2a303a; --d: #ff8a65; --g: #79a6ff; --other: #4fd1b0;
    --gone: #ff6b70; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
    "Liberation Sans", sans-serif; font-variant-numeric: tabular-nums;
  -webkit-text-size-adjust: 100%; overflow-wrap: anywhere; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { margin: 0; font-size: 30px; line-height: 1.2; letter-spacing: -.02em; }
h2 { margin: 44px 0 14px; font-size: 19px; letter-spacing: -.01em; }
h3 { margin: 26px 0 10px; font-size: 14px; color: var(--soft); }
.soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); margin: 0;
  border-radius: 12px; padding: 16px 18px; min-width: 0; }
.tiles { display: grid; gap: 12px; margin: 24px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 0; font-size: 24px; font-weight: 600;
  letter-spacing: -.02em; }
.grids { position: relative; display: flex; flex-wrap: wrap; gap: 8px;
  justify-content: center; }
.grids input { position: absolute; opacity: 0; pointer-events: none; }
.grids figure { display: none; order: -1; flex: 0 0 100%; margin: 0 0 6px; }
.grids figure img { display: block; margin: 0 auto; width: 100%; height: auto;
  max-width: 720px; border-radius: 6px; image-rendering: pixelated; }
.grids figure img[data-large] { image-rendering: auto; }
.grids figcaption { text-align: center; margin-top: 8px; font-size: 13px;
  color: var(--soft); }
.grids input:checked + label + figure { display: block; }
.grids label { flex: 1 1 68px; max-width: 112px; padding: 5px; cursor: pointer;
  border: 2px solid var(--line); border-radius: 8px; text-align: center;
  font-size: 12px; color: var(--soft); }
.grids label:only-of-type { display: none; }
.grids label img { display: block; width: 100%; aspect-ratio: 1;
  object-fit: cover; border-radius: 4px; margin-bottom: 3px; }
.grids input:checked + label { border-color: var(--g); color: var(--ink); }
.grids input:focus-visible + label { outline: 2px solid var(--g); }
table { width: 100%; border-collapse: collapse; }
th { font-size: 13px; font-weight: 500; color: var(--soft); }
th, td { text-align: left; vertical-align: top; padding: 9px 12px 0 0; }
th, td[colspan] { padding: 0 0 9px; }
td[colspan] { font-size: 13px; color: var(--soft); }
tr:nth-child(odd) td { border-top: 1px solid var(--line); }
tr:last-child td[colspan] { padding-bottom: 0; }
b { font-weight: 600; }
summary { cursor: pointer; color: var(--g); }
.terms { display: grid; grid-template-columns: auto 1fr; gap: 3px 18px;
  margin: 0; font-size: 14px; }
.terms dt { color: var(--soft); }
.terms dd { margin: 0; }
td .terms { margin-top: 6px; font-size: 13px; color: var(--ink); }
.charts { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
.head { display: flex; flex-wrap: wrap; justify-content: space-between;
  gap: 0 12px; font-size: 13px; min-height: 20px; }
.head b { margin-right: 10px; }
.head output { color: var(--soft); }
.head b::before { content: ""; display: inline-block; width: 14px; height: 3px;
  border-radius: 2px; background: var(--c); margin-right: 6px;
  vertical-align: middle; }
.plot { position: relative; height: 160px; margin: 12px 4px 22px 44px; }
.wide .plot { height: 240px; }
.plot svg { display: block; width: 100%; height: 100%; overflow: visible; }
.plot span { position: absolute; font-size: 11px; line-height: 1;
  color: var(--soft); white-space: nowrap; }
.plot .y { right: 100%; margin-right: 8px; transform: translateY(-50%); }
.plot .x { top: 100%; margin-top: 8px; transform: translateX(-50%); }
.plot .note { top: -2px; right: 0; color: var(--gone); }
path { vector-effect: non-scaling-stroke; fill: none; }
.rule { stroke: var(--line); }
.line { stroke: var(--c); stroke-width: 1.75; stroke-linejoin: round;
  stroke-linecap: round; }
.band { fill: var(--c); opacity: .2; }
.gone { stroke: var(--gone); stroke-width: 2; }
rect { fill: transparent; }
rect:hover { fill: var(--soft); fill-opacity: .2; }
pre { margin: 12px 0 0; overflow: auto; max-height: 70vh;
  overflow-wrap: normal; font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo,
    Consolas, "Liberation Mono", monospace; }
@media (max-width: 600px) {
  main { padding: 24px 12px 40px; }
  h1 { font-size: 24px; }
  .card { padding: 12px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tiles dd { font-size: 20px; }
  .grids label { flex-basis: 58px; max-width: 76px; padding: 3px; } }
"""

# Without it the strip shows steps and no small pictures, and the numbers under
# the pointer come as the browser's own hints.
_SCRIPT = """
for (const label of document.querySelectorAll(".grids label")) {
  const small = new Image();
  small.src = label.nextElementSibling.firstElementChild.src;
  small.alt = "";
  label.prepend(small);
}
for (const chart of document.querySelectorAll(".chart")) {
  const output = chart.querySelector("output"), newest = output.textContent;
  chart.onpointerover = event => {
    const title = event.target.querySelector(":scope > title");
    output.textContent = title ? title.textContent : newest;
  };
  chart.onpointerleave = () => { output.textContent = newest; };
}
"""


class Curve(NamedTuple):
  """One scalar over the run; what was not finite is NaN."""

  name: str
  steps: np.ndarray
  values: np.ndarray


class Metric(NamedTuple):
  """One metric under one protocol; `newest` is its last entry."""

  curve: Curve
  newest: dict[str, Any]


def write(model_dir: str) -> str:
  """Writes report.html into the folder of a run and returns its path."""
  lines = records.read(model_dir)
  lines = [x for x in lines if isinstance(x.get("step"), int)]
  name = os.path.basename(os.path.abspath(model_dir))
  curves, metrics = _curves(lines), _metrics(lines)
  body = (
    _headline(name, lines, curves, metrics),
    _section("Samples", _grids(model_dir)),
    _section("Metrics", _metric_table(metrics)),
    _section("Curves", _charts(curves, metrics)),
    _section("Config", _config(os.path.join(model_dir, "config.gin"))),
    _section("Environment", _environment()),
  )
  page = _PAGE.format(
    title=html.escape(name), style=_STYLE, script=_SCRIPT, body="\n".join(body)
  )
  path = os.path.join(model_dir, "report.html")
  records.write_file(path, page.encode(errors="replace"))
  return path


def _section(title: str, content: str) -> str:
  return f"<section><h2>{title}</h2>\n{content}\n</section>"


def _missing(text: str) -> str:
  return f'<p class="soft">{text}</p>'


def _is_number(value: Any) -> bool:
  """Says whether it is a number that can be drawn."""
  return isinstance(value, (int, float)) and abs(value) < 1e100


def _curve(name: str, points: Sequence[tuple[int, Any]]) -> Curve:
  values = [value if _is_number(value) else math.nan for _, value in points]
  return Curve(name, np.array([step for step, _ in points]), np.array(values))


def _curves(lines: Sequence[dict[str, Any]]) -> dict[str, Curve]:
  """Collects every scalar of the record, by name."""
  points: dict[str, list[tuple[int, Any]]] = {}
  for line in lines:
    for name in line.keys() - {"step", "seconds", "metrics"}:
      points.setdefault(name, []).append((line["step"], line[name]))
  return {name: _curve(name, points[name]) for name in sorted(points)}


def _metrics(lines: Sequence[dict[str, Any]]) -> list[Metric]:
  """Collects the metrics; two protocols of one name are two metrics."""
  histories: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}
  for line in lines:
    for entry in line.get("metrics") or ():
      protocol = json.dumps(entry.get("protocol"), sort_keys=True)
      key = (str(entry.get("name")), protocol)
      histories.setdefault(key, []).append((line["step"], entry))
  names = [name for name, _ in histories]
  metrics = []
  for i, history in enumerate(histories.values()):
    name = names[i]
    if names.count(name) > 1:
      name += f", protocol {names[: i + 1].count(name)}"
    curve = _curve(name, [(step, x.get("value")) for step, x in history])
    metrics.append(Metric(curve, history[-1][1]))
  return metrics


def _short(value: Any) -> str:
  """Formats a number with the three or four digits that count."""
  if not _is_number(value):
    return "not finite"
  if 1e3 <= abs(value) < 1e6:
    return f"{value:,.0f}"
  return f"{value:.4g}" if 1e-3 <= abs(value) < 1e3 else _tick(value)


def _tick(value: float) -> str:
  for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if size <= abs(value) < 1e12:
      return f"{value / size:.4g}{letter}"
  return f"{value:.4g}"


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes} min"
  return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _headline(
  name: str,
  lines: Sequence[dict[str, Any]],
  curves: dict[str, Curve],
  metrics: Sequence[Metric],
) -> str:
  tiles = [("Steps", f"{max((x['step'] for x in lines), default=0):,}")]
  speed = curves.get("images_per_second")
  if speed is not None and np.isfinite(speed.values).any():
    tiles.append(("Images/s", _short(float(np.nanmedian(speed.values)))))
  seconds = [x["seconds"] for x in lines if _is_number(x.get("seconds"))]
  if seconds:
    tiles.append(("Duration", _duration(max(seconds))))
  tiles += [(m.curve.name, _short(m.newest.get("value"))) for m in metrics[:2]]
  cells = "".join(
    f'<div class="card"><dt>{html.escape(term)}</dt><dd>{value}</dd></div>'
    for term, value in tiles
  )
  return (
    f"<header><h1>{html.escape(name)}</h1>\n"
    f'<dl class="tiles">{cells}</dl></header>'
  )


def _grids(model_dir: str) -> str:
  """Shows the newest grid, and a strip to look at earlier ones."""
  paths = samples.png_paths(model_dir)
  pictures = {x: _picture(paths[x]) for x in _spread(list(paths), _MAX_GRIDS)}
  pictures = {step: picture for step, picture in pictures.items() if picture}
  parts = [
    f'<input type="radio" name="grid" id="grid{step}"'
    f"{' checked' if step == max(pictures) else ''}>"
    f'<label for="grid{step}">{_tick(step)}</label>'
    f"<figure>{picture}<figcaption>Step {step:,}</figcaption></figure>"
    for step, picture in pictures.items()
  ]
  if not parts:
    return _missing("No samples yet.")
  return '<div class="card grids">' + "\n".join(parts) + "</div>"


def _spread(items: Sequence[Any], count: int) -> list[Any]:
  """Picks at most `count` items evenly, the first and the last among them."""
  places = np.linspace(0, len(items) - 1, min(len(items), count))
  return [items[int(place)] for place in places.round()]


def _picture(path: str) -> str:
  """Returns the image with its bytes inside, or nothing if it is broken."""
  with tf.io.gfile.GFile(path, "rb") as f:
    data = f.read()
  try:
    image = Image.open(io.BytesIO(data))
    image.load()
  except (OSError, SyntaxError, ValueError):
    return ""
  kind, large = "png", " data-large" if image.width > 720 else ""
  if len(data) > _MAX_PNG_BYTES:
    kind, jpeg = "jpeg", io.BytesIO()
    image.thumbnail((_MAX_JPEG_SIDE, _MAX_JPEG_SIDE))
    image.convert("RGB").save(jpeg, "JPEG", quality=88)
    data = jpeg.getvalue()
  return (
    f'<img src="data:image/{kind};base64,{base64.b64encode(data).decode()}"'
    f' width="{image.width}" height="{image.height}" alt="Samples"{large}>'
  )


def _metric_table(metrics: Sequence[Metric]) -> str:
  rows = "".join(
    f"<tr><td>{html.escape(m.curve.name)}</td>"
    f"<td><b>{_short(m.newest.get('value'))}</b></td>"
    f"<td>{_floor(m.newest.get('floor'))}</td>"
    f"<td>{m.curve.steps[-1]:,}</td></tr>\n"
    f'<tr><td colspan="4">{_protocol(m.newest.get("protocol"))}</td></tr>\n'
    for m in metrics
  )
  if not rows:
    return _missing("No metrics yet.")
  return (
    '<div class="card"><table><thead><tr><th>Metric</th><th>Value</th>'
    "<th>Floor</th><th>Step</th></tr></thead>\n"
    f"<tbody>{rows}</tbody></table></div>"
  )


def _floor(value: Any) -> str:
  return _short(value) if _is_number(value) else "not known"


def _protocol(protocol: Any) -> str:
  if not protocol:
    return "Protocol not known"
  terms = protocol if isinstance(protocol, dict) else {"protocol": protocol}
  return f"<details><summary>Protocol</summary>{_terms(terms)}</details>"


def _terms(values: dict[str, Any]) -> str:
  pairs = [
    (term, value if isinstance(value, str) else json.dumps(value))
    for term, value in values.items()
  ]
  cells = "".join(
    f"<dt>{html.escape(term)}</dt><dd>{html.escape(value)}</dd>"
    for term, value in pairs
  )
  return f'<dl class="terms">{cells}</dl>'


def _config(path: str) -> str:
  if not tf.io.gfile.exists(path):
    return _missing("No config.gin in the folder of the run.")
  with tf.io.gfile.GFile(path, "rb") as f:
    text = html.escape(f.read().decode(errors="replace"))
  return (
    '<details class="card"><summary>config.gin</summary>'
    f"<pre>{text}</pre></details>"
  )


def _environment() -> str:
  now = datetime.datetime.now(datetime.timezone.utc)
  terms = {
    "Report written": f"{now:%Y-%m-%d %H:%M} UTC",
    "Machine": platform.platform(),
    "Python": platform.python_version(),
  }
  for package in _PACKAGES:
    try:
      terms[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      terms[package] = "not installed"
  return f'<div class="card">{_terms(terms)}</div>'


def _charts(curves: dict[str, Curve], metrics: Sequence[Metric]) -> str:
  """Draws the losses together, then every other scalar, group by group."""
  losses = [curves[name] for name in _LOSSES if name in curves]
  groups: dict[str, list[Curve]] = {key: [] for key in _GROUPS}
  groups["metrics"] += [m.curve for m in metrics if len(m.curve.steps) > 1]
  for name in [x for x in curves if x not in _LOSSES]:
    prefix = name.partition("/")[0] if "/" in name else "run"
    groups.setdefault(prefix, []).append(curves[name])
  parts = [_chart(losses, is_wide=True)] if losses else []
  for prefix, members in groups.items():
    cards = [_chart([curve]) for curve in members]
    if cards:
      title = _GROUPS.get(prefix, prefix)
      parts.append(f"<h3>{html.escape(title)}</h3>")
      parts.append('<div class="charts">' + "\n".join(cards) + "</div>")
  return "\n".join(parts) or _missing("Nothing in metrics.jsonl yet.")


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


def _ticks(low: float, high: float, least: float = 0.0) -> list[float]:
  """Picks about five round values between two."""
  raw = max((high - low) / 5, least)
  power = 10.0 ** math.floor(math.log10(raw))
  gap = next(x * power for x in (1, 2, 5, 10) if x * power >= raw * 0.999)
  return [
    i * gap for i in range(math.ceil(low / gap), math.floor(high / gap) + 1)
  ]


def _chart(curves: Sequence[Curve], is_wide: bool = False) -> str:
  """Draws curves as an SVG that stretches, with its labels around it."""
  thin = [
    _thin(x, _MAX_POINTS if is_wide else _MAX_POINTS // 2) for x in curves
  ]
  frame = _frame(thin)
  y_ticks = np.array(_ticks(frame.low, frame.high))
  x_ticks = np.array(_ticks(frame.left, frame.right, least=1.0))
  rules = "".join(f"M0,{y:.1f}h1000" for y in frame.y(y_ticks))
  labels = [
    f'<span class="y" style="top:{y / 10:.2f}%">{_tick(tick)}</span>'
    for tick, y in zip(y_ticks, frame.y(y_ticks))
  ] + [
    f'<span class="x" style="left:{x / 10:.2f}%">{_tick(tick)}</span>'
    for tick, x in zip(x_ticks, frame.x(x_ticks))
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
    notes.append(f"from {_short(low)} to {_short(high)}")
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
  for step in _spread(list(longest.steps), _MAX_HOVERS):
    values = [
      f"{curve.name} " * (len(curves) > 1)
      + _short(curve.mean[np.abs(curve.steps - step).argmin()])
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
