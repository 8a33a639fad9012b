"""Several runs side by side: their facts and metrics."""

import functools
import html
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from paragan_tf.outputs import curves, html_parts, protocols
from paragan_tf.outputs.html_parts import Cell
from paragan_tf.outputs.run_history import Metric, RunHistory

_UNKNOWN = "not recorded"


class Run(NamedTuple):
  """A run in a comparison; `name` is its own, `number` chooses its color."""

  name: str
  history: RunHistory
  number: int

  @property
  def swatch(self) -> str:
    """A square in the color of its curves."""
    curve = curves.Curve(
      self.name, np.zeros([0]), np.zeros([0]), None, self.number
    )
    return html_parts.make_swatch(curve.color, curve.is_dashed)

  @property
  def label(self) -> str:
    """Its swatch and name, as HTML."""
    return self.swatch + html.escape(self.name)


class Column(NamedTuple):
  """A metric under one protocol, of the runs that have it.

  Attributes:
    name: Of the metric.
    differences: From the other protocols of this name; empty if it has none.
    protocol: How it was measured.
    values: Runs with their metric.
  """

  name: str
  differences: str
  protocol: object
  values: Sequence[Tuple[Run, Metric]]


class Metrics(NamedTuple):
  """The metrics of all runs, a column for each protocol."""

  columns: Sequence[Column]

  def name_columns(self) -> List[str]:
    """Returns the names of the columns, with the differences of protocols."""
    return [
      f"{x.name} ({x.differences})" if x.differences else x.name
      for x in self.columns
    ]


class Comparison:
  """Runs to compare.

  Args:
    histories: Of the runs, by names that differ.
    price: Of an hour of one device, if it is known.
    now: The time in seconds, of this machine.
  """

  def __init__(
    self,
    histories: Dict[str, RunHistory],
    price: Optional[float],
    now: float,
  ):
    self.runs = [
      Run(name, history, i)
      for i, (name, history) in enumerate(histories.items())
    ]
    self._price = price
    self._now = now

  def list_facts(self) -> Tuple[List[Cell], List[List[Cell]]]:
    """Returns a head, and for each run a row: state, time, devices, cost."""
    head = ["State", "Step", "Images", "Time", "Images/s", "Devices"]
    head += ["Device-hours"] + ["Cost"] * (self._price is not None)
    return [Cell(x) for x in head], [self._list_facts(run) for run in self.runs]

  def _list_facts(self, run: Run) -> List[Cell]:
    history = run.history
    speed = history.curves.get("images_per_second")
    has_speed = speed is not None and np.isfinite(speed.values).any()
    hours = history.device_hours
    count, kind = map(history.read_start, ("num_devices", "device_kind"))
    steps = f"of {history.num_steps:,}" if history.num_steps else ""
    row = [
      Cell(history.describe_state(self._now)),
      Cell(f"{history.step:,}", steps),
      _known(history.images, "{:,}".format),
      _known(history.seconds, curves.duration),
      Cell(curves.short(float(np.nanmedian(speed.values))))
      if speed is not None and has_speed
      else Cell(_UNKNOWN),
      Cell(f"{count:,}", str(kind))
      if isinstance(count, int)
      else Cell(_UNKNOWN),
      _known(hours, _format_hours),
    ]
    if self._price is not None:
      cost = None if hours is None else hours * self._price
      row.append(_known(cost, _format_money))
    return row

  @functools.cached_property
  def metrics(self) -> Metrics:
    """The metrics of all runs, those of one name next to each other."""
    found: Dict[str, Dict[tuple, List[Tuple[Run, Metric]]]] = {}
    for run in self.runs:
      for metric in run.history.metrics:
        keys = found.setdefault(metric.name, {})
        keys.setdefault(metric.key, []).append((run, metric))
    columns = []
    for name, keys in found.items():
      used = [values[0][1].protocol for values in keys.values()]
      words = protocols.name_differences(used)
      columns += [
        Column(name, differences, protocol, values)
        for differences, protocol, values in zip(words, used, keys.values())
      ]
    return Metrics(columns)

  def list_metrics(self) -> Tuple[List[Cell], List[List[Cell]]]:
    """Returns a head, and for each run a row of its newest values."""
    columns = self.metrics.columns
    head = [Cell(x.name, x.differences) for x in columns]
    values = [{run.number: metric for run, metric in x.values} for x in columns]
    rows = [
      [_format_metric(column.get(run.number)) for column in values]
      for run in self.runs
    ]
    return head, rows


def _known(value, to_text) -> Cell:
  return Cell(_UNKNOWN if value is None else to_text(value))


def _format_hours(hours: float) -> str:
  return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"


def _format_money(amount: float) -> str:
  return "under 0.01" if 0 < amount < 0.01 else f"{amount:,.2f}"


def _format_metric(metric: Optional[Metric]) -> Cell:
  if metric is None:
    return html_parts.EMPTY
  note = f"step {metric.scalar.steps[-1]:,}"
  if metric.real_score is not None:
    note += f", real {curves.short(metric.real_score)}"
  return Cell(metric.format_value(), note)
