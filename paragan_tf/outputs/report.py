"""The report of a run: one HTML file with its pictures, curves and config.

It is made from the files in the run's folder (samples/*.png, metrics.jsonl,
starts.jsonl, config.gin), needs no network, and skips what is missing.
"""

import datetime
import html
import os
import platform
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from paragan_tf.outputs import (
  charts,
  embedded,
  environment,
  html_parts,
  label_section,
  protocols,
  records,
  run_history,
  samples,
)
from paragan_tf.outputs.charts import Series
from paragan_tf.outputs.curves import duration, short
from paragan_tf.outputs.html_parts import Cell
from paragan_tf.outputs.run_history import Metric, RunHistory

_LOSSES = ("d/loss", "g/loss", "d_loss", "g_loss")
_GROUPS = {
  "d": "Discriminator",
  "g": "Generator",
  "input": "Input",
  "run": "Run",
}
# What starts.jsonl has, and what it is called on the page.
_FACTS = {
  "num_replicas": "Replicas",
  "num_processes": "Processes",
  "engine": "Engine",
  "batch_size": "Batch size",
  "images_per_step": "Images per step",
  "platform": "Machine",
}


def write(model_dir: str, failure: str = "") -> str:
  """Writes report.html into the folder of a run and returns its path.

  Args:
    model_dir: The folder.
    failure: Why the last measurement failed, if it did.
  """
  history = run_history.read(model_dir)
  page = html_parts.render(
    history.name,
    _make_header(history),
    html_parts.make_section("Samples", _make_samples(history)),
    _make_interpolation(model_dir),
    html_parts.make_section("Metrics", _make_metrics(history, failure)),
    label_section.make(model_dir),
    _make_notes(history),
    charts.make_section("Curves", [history], _make_charts(history)),
    html_parts.make_section("Config", _make_config(history)),
    html_parts.make_section("Environment", _make_environment(history)),
  )
  records.write_file(path(model_dir), page.encode(errors="replace"))
  return path(model_dir)


def path(model_dir: str) -> str:
  """Returns where the report of a run is."""
  return os.path.join(model_dir, "report.html")


def _make_header(history: RunHistory) -> str:
  tiles = [("Steps", f"{history.step:,}")]
  speed = history.curves.get("images_per_second")
  if speed is not None and np.isfinite(speed.values).any():
    tiles.append(("Images/s", short(float(np.nanmedian(speed.values)))))
  if history.seconds is not None:
    tiles.append(("Duration", duration(history.seconds)))
  names = _name_metrics(history.metrics)
  tiles += [
    (name, short(metric.newest.get("value")))
    for name, metric in list(zip(names, history.metrics))[:2]
  ]
  return html_parts.make_header(history.name, html_parts.make_tiles(tiles))


def _make_samples(history: RunHistory) -> str:
  slider = embedded.make_slider(history.grids)
  return slider or html_parts.make_paragraph("No samples yet.")


def _make_notes(history: RunHistory) -> str:
  """Returns the section of what was not as planned, if anything."""
  if not history.notes:
    return ""
  notes = html_parts.make_list(history.notes)
  return html_parts.make_section("Plan", html_parts.make_card(notes))


def _make_interpolation(model_dir: str) -> str:
  """Returns the section of samples interpolated between classes, if any."""
  path = samples.interpolation_path(model_dir)
  picture = embedded.embed(path, "Samples between two classes")
  if not picture:
    return ""
  figure = embedded.make_figure(
    picture, "Each row has one latent code, and goes from a class to the next."
  )
  return html_parts.make_section(
    "From class to class", html_parts.make_card(figure)
  )


def _name_metrics(metrics: Sequence[Metric]) -> List[str]:
  """Returns a name for each metric; of several protocols, what differs too."""
  names = [metric.name for metric in metrics]
  for name in [x for x in dict.fromkeys(names) if names.count(x) > 1]:
    places = [i for i, metric in enumerate(metrics) if metric.name == name]
    found = protocols.name_differences([metrics[i].protocol for i in places])
    for i, words in zip(places, found):
      names[i] = f"{name} ({words})"
  return names


def _make_metrics(history: RunHistory, failure: str) -> str:
  note = html_parts.make_paragraph(failure) if failure else ""
  return note + _make_metric_table(history.metrics)


def _make_metric_table(metrics: Sequence[Metric]) -> str:
  if not metrics:
    return html_parts.make_paragraph("No metrics yet.")
  head = ("Metric", "Value", "Real images", "Step", "Protocol")
  rows = [
    [
      Cell(name),
      Cell(m.format_value()),
      Cell("not known" if m.real_score is None else short(m.real_score)),
      Cell(f"{m.scalar.steps[-1]:,}"),
      Cell(parts=_make_protocol(m)),
    ]
    for name, m in zip(_name_metrics(metrics), metrics)
  ]
  table = html_parts.make_table([Cell(x) for x in head], rows)
  return html_parts.make_card(table, style="metrics")


def _make_protocol(metric: Metric) -> str:
  terms = protocols.list_terms(metric.protocol)
  versions = metric.newest.get("versions")
  if isinstance(versions, dict):
    terms["versions"] = ", ".join(f"{k} {v}" for k, v in versions.items())
  summary = protocols.describe(metric.protocol)
  if not terms:
    return html.escape(summary)
  return html_parts.make_details(summary, html_parts.make_terms(terms))


def _make_config(history: RunHistory) -> str:
  if history.config is None:
    return html_parts.make_paragraph("No config.gin in the folder of the run.")
  text = f"<pre>{html.escape(history.config)}</pre>"
  return html_parts.make_details("config.gin", text, style="card")


def _make_environment(history: RunHistory) -> str:
  """Returns what the run was trained with; without a record, what is here."""
  now = datetime.datetime.now(datetime.timezone.utc)
  terms: Dict[str, Any] = {}
  versions = history.read_start("versions")
  if isinstance(versions, dict):
    count, kind = map(history.read_start, ("num_devices", "device_kind"))
    terms["Trained on"] = f"{count} x {kind}"
    for fact, name in _FACTS.items():
      terms[name] = history.read_start(fact)
  else:
    terms["Machine"] = platform.platform()
    versions = environment.read_versions()
  terms.update(versions)
  terms["Report written"] = f"{now:%Y-%m-%d %H:%M} UTC"
  return html_parts.make_card(html_parts.make_terms(terms))


def _make_charts(history: RunHistory) -> List[str]:
  """Returns charts: metrics, the losses in one, all other scalars by group."""
  parts, constants = _make_metric_charts(history)
  series = {
    name: Series(name, history, scalar)
    for name, scalar in history.curves.items()
  }
  losses = [series[name] for name in _LOSSES if name in series]
  if any(x.varies for x in losses):
    parts += ["<h3>Losses</h3>", charts.draw(losses, is_wide=True)]
  else:
    constants += losses
  groups: Dict[str, List[Series]] = {key: [] for key in _GROUPS}
  for name in [x for x in series if x not in _LOSSES]:
    prefix = name.partition("/")[0] if "/" in name else "run"
    groups.setdefault(prefix, []).append(series[name])
  for prefix, members in groups.items():
    constants += [x for x in members if not x.varies]
    drawn = [charts.draw([x]) for x in members if x.varies]
    if drawn:
      title = _GROUPS.get(prefix, prefix)
      parts.append(f"<h3>{html.escape(title)}</h3>")
      parts.append(charts.make_grid(drawn))
  parts += filter(None, [charts.name_constants(constants)])
  empty = html_parts.make_paragraph("Nothing in metrics.jsonl yet.")
  return parts or [empty]


def _make_metric_charts(
  history: RunHistory,
) -> Tuple[List[str], List[Series]]:
  """Returns a chart for each metric, a curve for each protocol; and the rest.

  What was measured once is in the table of metrics, and has no curve.
  """
  names: Dict[str, List[Metric]] = {}
  for metric in history.metrics:
    if len(metric.scalar.steps) > 1:
      names.setdefault(metric.name, []).append(metric)
  drawn: List[str] = []
  constants: List[Series] = []
  for name, metrics in names.items():
    words = protocols.name_differences([x.protocol for x in metrics])
    members = [
      Series(word or name, history, metric.scalar, metric.real_score, i)
      for i, (metric, word) in enumerate(zip(metrics, words))
    ]
    if any(x.varies for x in members):
      drawn.append(charts.draw(members, title=name * (len(metrics) > 1)))
    else:
      constants += [x._replace(name=name) for x in members]
  parts = ["<h3>Metrics</h3>", charts.make_grid(drawn)] if drawn else []
  return parts, constants
