"""The page that compares runs: one HTML file that needs no network."""

import datetime
import html
from typing import Dict, List, Sequence, Tuple

from paragan_tf.outputs import (
  charts,
  compared_samples,
  html_parts,
  protocols,
)
from paragan_tf.outputs.charts import Series
from paragan_tf.outputs.compared_runs import Comparison, Metrics, Run
from paragan_tf.outputs.html_parts import Cell

# Scalars that mean the same in every run, whatever its losses are.
_SCALARS = ("d/loss", "g/loss", "images_per_second", "input_wait")
_DEVICES = (
  "A device is a TPU core, a GPU, or all of the CPU of a process. Device-hours "
  "count the run's own time: not breaks, nor steps that a crash threw away."
)


def render(
  comparison: Comparison,
  differences: Sequence[Tuple[str, Sequence[str]]],
  drawn: compared_samples.AllDrawn,
) -> str:
  """Returns the page.

  Args:
    comparison: The runs, and what is known of them.
    differences: Names of config values, and the value of each run.
    drawn: The samples of each run, or why there are none.
  """
  runs = comparison.runs
  names = ", ".join(run.name for run in runs)
  now = datetime.datetime.now(datetime.timezone.utc)
  head, rows = comparison.list_facts()
  return html_parts.render(
    f"Comparison of {names}",
    html_parts.make_header(
      "Comparison of runs" if len(runs) > 1 else f"Run {runs[0].name}",
      html_parts.make_paragraph(f"Written {now:%Y-%m-%d %H:%M} UTC."),
    ),
    html_parts.make_section(
      "Runs",
      html_parts.make_card(_make_table(runs, head, rows)),
      html_parts.make_paragraph(_DEVICES, "soft below"),
    ),
    html_parts.make_section(
      "Samples", compared_samples.make_samples(runs, drawn)
    ),
    html_parts.make_section("Metrics", _make_metrics(comparison)),
    charts.make_section(
      "Curves", [run.history for run in runs], _make_charts(comparison)
    ),
    html_parts.make_section("Config", _make_config(runs, differences)),
  )


def _make_table(
  runs: Sequence[Run], head: Sequence[Cell], rows: Sequence[Sequence[Cell]]
) -> str:
  """Returns a table with a row for each run, named in the run's color."""
  named = [
    [Cell(run.name, swatch=run.swatch), *row] for run, row in zip(runs, rows)
  ]
  return html_parts.make_table([Cell("Run"), *head], named)


def _make_metrics(comparison: Comparison) -> str:
  found = comparison.metrics
  if not found.columns:
    return html_parts.make_paragraph("No metrics yet.")
  head, rows = comparison.list_metrics()
  details = [
    html_parts.make_details(
      f"Protocol of {words}",
      html_parts.make_terms(protocols.list_terms(column.protocol)),
    )
    for words, column in zip(found.name_columns(), found.columns)
    if column.protocol
  ]
  several = any(column.differences for column in found.columns)
  note = html_parts.make_paragraph(
    "Values of different protocols have columns of their own; they cannot be "
    "compared.",
    "soft below",
  )
  return "\n".join(
    [
      html_parts.make_card(
        _make_table(comparison.runs, head, rows), "".join(details)
      ),
      note if several else "",
    ]
  )


def _make_charts(comparison: Comparison) -> List[str]:
  """Returns charts of metrics and of a few scalars, a curve for each run."""
  groups: Dict[str, List[Series]] = _group_metrics(comparison.metrics)
  for name in _SCALARS:
    groups[name] = [
      Series(run.name, run.history, run.history.curves[name], None, run.number)
      for run in comparison.runs
      if name in run.history.curves
    ]
  drawn, constants = [], []
  for name, members in groups.items():
    if any(x.varies for x in members):
      drawn.append(charts.draw(members, title=name))
    else:
      constants += [x._replace(name=f"{name} of {x.name}") for x in members]
  parts = [charts.make_grid(drawn)] if drawn else []
  parts += filter(None, [charts.name_constants(constants)])
  return parts or [html_parts.make_paragraph("Nothing in metrics.jsonl yet.")]


def _group_metrics(metrics: Metrics) -> Dict[str, List[Series]]:
  """Returns the metrics of more than one step, by the name of their column."""
  groups: Dict[str, List[Series]] = {}
  for words, column in zip(metrics.name_columns(), metrics.columns):
    members = [
      Series(
        run.name, run.history, metric.scalar, metric.real_score, run.number
      )
      for run, metric in column.values
      if len(metric.scalar.steps) > 1
    ]
    if members:
      groups[words] = members
  return groups


def _make_config(
  runs: Sequence[Run], differences: Sequence[Tuple[str, Sequence[str]]]
) -> str:
  """Returns the values that differ, each with the runs that have it."""
  missing = [run.name for run in runs if run.history.config is None]
  parts = []
  if missing:
    words = f"No config.gin: {', '.join(missing)}."
    parts.append(html_parts.make_paragraph(words))
  elif not differences:
    words = "All values are the same." if len(runs) > 1 else "One run only."
    parts.append(html_parts.make_paragraph(words))
  known = [run for run in runs if run.history.config is not None]
  rows = []
  for name, values in differences:
    by_value: Dict[str, List[Run]] = {}
    for run, value in zip(known, values):
      by_value.setdefault(value, []).append(run)
    lines = "".join(
      f"<dd><code>{html.escape(value)}</code>"
      f"<span>{' '.join(run.label for run in members)}</span></dd>"
      for value, members in by_value.items()
    )
    rows.append(f"<dt><code>{html.escape(name)}</code></dt>{lines}")
  if rows:
    text = f'<dl class="differences">{"".join(rows)}</dl>'
    parts.append(html_parts.make_card(text))
  return "\n".join(parts)
