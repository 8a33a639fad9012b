"""The report of a run: one HTML file with its pictures, curves and config.

It is made from the files in the run's folder (samples/*.png, metrics.jsonl,
config.gin), needs no network, and skips what is missing.
"""

import base64
import datetime
import html
import importlib.resources
import io
import json
import math
import os
import platform
import string
from importlib import metadata
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image

from paragan_tf.outputs import records, samples
from paragan_tf.outputs.curves import (
  Curve,
  draw,
  is_number,
  short,
  spread,
  tick,
)

_MAX_GRIDS = 8
_MAX_PNG_BYTES = 500_000  # A larger grid is embedded as a JPEG.
_MAX_JPEG_SIDE = 1280
_LOSSES = ("d/loss", "g/loss", "d_loss", "g_loss")
_GROUPS = {
  "metrics": "Metrics",
  "d": "Discriminator",
  "g": "Generator",
  "input": "Input",
  "run": "Run",
}
_PACKAGES = ("paragan_tf", "tensorflow", "tensorflow-gan", "numpy")


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
    _interpolation(model_dir),
    _section("Metrics", _metric_table(metrics)),
    _section("Curves", _charts(curves, metrics)),
    _section("Config", _config(os.path.join(model_dir, "config.gin"))),
    _section("Environment", _environment()),
  )
  package = importlib.resources.files("paragan_tf.outputs")
  template = (package / "files" / "report.html").read_text()
  page = string.Template(template).substitute(
    title=html.escape(name), body="\n".join(body)
  )
  path = os.path.join(model_dir, "report.html")
  records.write_file(path, page.encode(errors="replace"))
  return path


def _section(title: str, content: str) -> str:
  return f"<section><h2>{title}</h2>\n{content}\n</section>"


def _placeholder(text: str) -> str:
  return f'<p class="soft">{text}</p>'


def _curve(name: str, points: Sequence[tuple[int, Any]]) -> Curve:
  values = [value if is_number(value) else math.nan for _, value in points]
  return Curve(name, np.array([step for step, _ in points]), np.array(values))


def _curves(lines: Sequence[dict[str, Any]]) -> dict[str, Curve]:
  """Returns every scalar of the record, by name."""
  points: dict[str, list[tuple[int, Any]]] = {}
  for line in lines:
    for name in line.keys() - {"step", "seconds", "metrics"}:
      points.setdefault(name, []).append((line["step"], line[name]))
  return {name: _curve(name, points[name]) for name in sorted(points)}


def _metrics(lines: Sequence[dict[str, Any]]) -> list[Metric]:
  """Returns the metrics; two protocols of one name are two metrics."""
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
    tiles.append(("Images/s", short(float(np.nanmedian(speed.values)))))
  seconds = [x["seconds"] for x in lines if is_number(x.get("seconds"))]
  if seconds:
    tiles.append(("Duration", _duration(max(seconds))))
  tiles += [(m.curve.name, short(m.newest.get("value"))) for m in metrics[:2]]
  cells = "".join(
    f'<div class="card"><dt>{html.escape(term)}</dt><dd>{value}</dd></div>'
    for term, value in tiles
  )
  return (
    f"<header><h1>{html.escape(name)}</h1>\n"
    f'<dl class="tiles">{cells}</dl></header>'
  )


def _grids(model_dir: str) -> str:
  """Returns the newest grid, with buttons for earlier ones."""
  paths = samples.png_paths(model_dir)
  pictures = {x: _picture(paths[x]) for x in spread(list(paths), _MAX_GRIDS)}
  pictures = {step: picture for step, picture in pictures.items() if picture}
  parts = [
    f'<input type="radio" name="grid" id="grid{step}"'
    f"{' checked' if step == max(pictures) else ''}>"
    f'<label for="grid{step}">{tick(step)}</label>'
    f"<figure>{picture}<figcaption>Step {step:,}</figcaption></figure>"
    for step, picture in pictures.items()
  ]
  if not parts:
    return _placeholder("No samples yet.")
  return '<div class="card grids">' + "\n".join(parts) + "</div>"


def _interpolation(model_dir: str) -> str:
  """Returns the section of samples interpolated between classes, if any."""
  path = samples.interpolation_path(model_dir)
  picture = _picture(path) if tf.io.gfile.exists(path) else ""
  if not picture:
    return ""
  return _section(
    "From class to class", f'<div class="card"><figure>{picture}</figure></div>'
  )


def _picture(path: str) -> str:
  """Returns the image with its bytes embedded; empty if it is damaged."""
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
    f"<td><b>{short(m.newest.get('value'))}</b></td>"
    f"<td>{_real_score(m.newest)}</td>"
    f"<td>{m.curve.steps[-1]:,}</td></tr>\n"
    f'<tr><td colspan="4">{_protocol(m.newest.get("protocol"))}</td></tr>\n'
    for m in metrics
  )
  if not rows:
    return _placeholder("No metrics yet.")
  return (
    '<div class="card"><table><thead><tr><th>Metric</th><th>Value</th>'
    "<th>Real images</th><th>Step</th></tr></thead>\n"
    f"<tbody>{rows}</tbody></table></div>"
  )


def _real_score(metric: Mapping[str, Any]) -> str:
  value = records.real_score(metric)
  return short(value) if is_number(value) else "not known"


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
    return _placeholder("No config.gin in the folder of the run.")
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
  """Returns charts: the losses in one, then all other scalars by group."""
  losses = [curves[name] for name in _LOSSES if name in curves]
  groups: dict[str, list[Curve]] = {key: [] for key in _GROUPS}
  groups["metrics"] += [m.curve for m in metrics if len(m.curve.steps) > 1]
  for name in [x for x in curves if x not in _LOSSES]:
    prefix = name.partition("/")[0] if "/" in name else "run"
    groups.setdefault(prefix, []).append(curves[name])
  parts = [draw(losses, is_wide=True)] if losses else []
  for prefix, members in groups.items():
    cards = [draw([curve]) for curve in members]
    if cards:
      title = _GROUPS.get(prefix, prefix)
      parts.append(f"<h3>{html.escape(title)}</h3>")
      parts.append('<div class="charts">' + "\n".join(cards) + "</div>")
  return "\n".join(parts) or _placeholder("Nothing in metrics.jsonl yet.")
