"""The figures of a TPU report, as text, JSON and HTML."""

import html
import json
import pathlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from tools import cli
from tools.tpu import programs

_OFF = {
  "resizes": "'apart'",
  "rgb_convs": "'plain'",
  "weights_as_matrices": "False",
  "recompute_attention": "False",
  "one_pass": "False",
  "gram_on_short_side": "False",
  "join_projections": "False",
  "join_power_iterations": "False",
  "float32_products": "False",
  "multiple": "1",
}
_PARTS = {
  "resizes": "'strided'",
  "rgb_convs": "'blocks'",
  "weights_as_matrices": "True",
  "recompute_attention": "True",
  "one_pass": "True",
  "gram_on_short_side": "True",
  "join_projections": "True",
  "join_power_iterations": "True",
}
_NOTE = (
  "Estimates of the TPU compiler for one core, without network and host. "
  "Time: its `optimal_seconds`, by multiply-adds and bytes, plus one second "
  "for each X64 custom call, a half of a 64-bit count, which it counts as "
  "minus one second; gains in time are of that sum. By cycles: the sum of "
  "what it expects of each operation, tiles and all, and the share of the MXU "
  "that comes of it. Nothing was run on a TPU."
)
_COMPARED = ("off", "layout", "bfloat16")
_MANY = 2**20  # Images: more than any core has.


class Row(NamedTuple):
  """The compiler's figures of one program.

  Attributes:
    seconds: The compiler's estimate of the whole, by multiply-adds and bytes;
      `optimal_seconds` without what that subtracts for 64-bit counts.
    seconds_by_cycles: The sum of its estimates of all operations.
    hbm_bytes: Arguments, results and temporary buffers.
    mxu: The share of the MXU's peak that the multiply-adds reach, by cycles.
    images: Of a core.
    images_fitting: That would fit into the memory of a core.
    error: Why there are no figures.
    optimal_seconds: As the compiler reports them.
  """

  name: str
  flops: float = 0.0
  bytes: float = 0.0
  seconds: float = 0.0
  seconds_by_cycles: float = 0.0
  hbm_bytes: int = 0
  mxu: float = 0.0
  images: int = 0
  images_fitting: int = 0
  wastes: Sequence[programs.Waste] = ()
  error: Optional[str] = None
  optimal_seconds: float = 0.0


def _get_profiles() -> Dict[str, Any]:
  return cli.import_quietly("paragan_tf.hardware").PROFILES


def find_chip(topology: str) -> str:
  """Returns the name of the profile of a topology, as of `v3:2x2`."""
  name = f"tpu_{topology.split(':')[0]}"
  known = [p[4:] for p in _get_profiles() if p.startswith("tpu_")]
  if ":" not in topology or name not in _get_profiles():
    raise ValueError(
      f"`--topology` must be one of {', '.join(known)}, a colon and a shape as "
      f"2x2, got '{topology}'."
    )
  return name


def make_variants(
  chip_name: str, ablation: bool, only: Sequence[str] = ()
) -> Dict[str, List[str]]:
  """Returns the bindings of all variants of the layout, or of some."""

  def make_bindings(parts: Dict[str, str], precision: str) -> List[str]:
    lines = [f"hardware.Layout.{key} = {value}" for key, value in parts.items()]
    return [*lines, f"player.precision = '{precision}'"]

  hardware = {"hardware": f"'{chip_name}'"}
  found = {
    "off": make_bindings(_OFF, "float32"),
    "layout": make_bindings(hardware, "float32"),
    "bfloat16": make_bindings(hardware, "bfloat16"),
  }
  if ablation:
    for key, value in _PARTS.items():
      found[f"only_{key}"] = make_bindings({**_OFF, key: value}, "float32")
    found["only_bfloat16"] = make_bindings(_OFF, "bfloat16")
  for name in only:
    if name not in found:
      raise ValueError(
        f"`--only` must be one of {', '.join(found)}, got '{name}'; with "
        "`--ablation` there are more."
      )
  return {name: found[name] for name in only or found}


def read_row(
  name: str, path: pathlib.Path, num_images: int, chip_name: str
) -> Row:
  """Reads the compiler's output."""
  stats = json.loads(path.with_suffix(".json").read_text())
  if "error" in stats:
    return Row(name, error=stats["error"])
  text = path.with_suffix(".txt").read_text()
  profile = _get_profiles()[chip_name]
  by_cycles = programs.count_cycles(text) / profile.hertz
  total = stats["argument_bytes"] + stats["output_bytes"] + stats["temp_bytes"]
  return Row(
    name,
    stats["flops"],
    stats["bytes"],
    stats["optimal_seconds"] + programs.count_x64_calls(text),
    by_cycles,
    total + stats["code_bytes"] - stats["alias_bytes"],
    stats["flops"] / by_cycles / profile.flops,
    num_images,
    _count_fitting(stats, num_images, profile),
    programs.find_waste(text),
    optimal_seconds=stats["optimal_seconds"],
  )


def _count_fitting(stats: Dict[str, Any], num_images: int, profile) -> int:
  """Returns how many images fit, if temporary buffers grow with them."""
  batch_shape = cli.import_quietly("paragan_tf.data.batch_shape")
  each = stats["temp_bytes"] / num_images
  fixed = stats["argument_bytes"] + stats["code_bytes"]
  return batch_shape.batch_per_core(profile, _MANY, fixed, each)


class Report:
  """All rows, and the gains of the layout."""

  def __init__(self, topology: str, chip_name: str, rows: Sequence[Row]):
    self.topology = topology
    self.limit = _get_profiles()[chip_name].memory
    self.rows = {r.name: r for r in rows}

  def json(self) -> Dict[str, Any]:
    """Returns the figures; `None` for a missing one, and the `reason`."""
    figures: Dict[str, Any] = {
      "topology": self.topology,
      "hbm_limit_bytes": self.limit,
      "note": _NOTE,
      "programs": {
        r.name: {**r._asdict(), "wastes": [w._asdict() for w in r.wastes]}
        for r in self.rows.values()
      },
    }
    figures.update(self._compute_gains())
    missing = self._explain_missing()
    figures["reason"] = missing and f"Figures are missing: {missing}"
    return figures

  def failure(self) -> Optional[str]:
    """Returns why there is no figure at all, or `None` if there are some."""
    if not all(r.error for r in self.rows.values()):
      return None
    return (
      f"The TPU compiler took none of the programs: {self._explain_missing()}"
    )

  def _compute_gains(self) -> Dict[str, Optional[float]]:
    """Returns the gains; of a role split, those of the slowest and largest."""
    off, layout, half = (self._find_roles(name) for name in _COMPARED)

    def ratio(ours: Sequence[Row], theirs: Sequence[Row], figure: str):
      if not (ours and theirs):
        return None
      return _find_max(ours, figure) / _find_max(theirs, figure)

    return {
      "gain_time": ratio(off, half, "seconds"),
      "gain_time_layout_only": ratio(off, layout, "seconds"),
      "gain_cycles": ratio(off, half, "seconds_by_cycles"),
      "gain_cycles_layout_only": ratio(off, layout, "seconds_by_cycles"),
      "hbm_ratio": ratio(half, off, "hbm_bytes"),
      "hbm_bytes": _find_max(half, "hbm_bytes") if half else None,
      "hbm_bytes_off": _find_max(off, "hbm_bytes") if off else None,
    }

  def _list_names(self, variant: str) -> List[str]:
    roles = dict.fromkeys(name.split("_", 1)[0] for name in self.rows)
    return [f"{role}_{variant}" for role in roles]

  def _find_roles(self, variant: str) -> List[Row]:
    """Returns a row for each role, or none where one of them has no figures."""
    found = [self.rows.get(name) for name in self._list_names(variant)]
    rows = [r for r in found if r is not None and not r.error]
    return rows if len(rows) == len(found) else []

  def _explain_missing(self) -> Optional[str]:
    """Returns which programs that are compared have no figures, and why."""
    reasons = []
    for name in (n for v in _COMPARED for n in self._list_names(v)):
      if name not in self.rows:
        reasons.append(f"`{name}` was not asked for, leave `--only` out")
      elif self.rows[name].error:
        reasons.append(f"`{name}` did not compile, {self.rows[name].error}")
    return "; ".join(reasons) + "." if reasons else None

  def table(self) -> List[List[str]]:
    """Returns a head, and a line for each program."""
    head = ["program", "GFLOP", "GB", "ms", "ms by cycles", "HBM GB", "MXU"]
    head += ["images", "fitting"]
    lines = [head]
    for r in self.rows.values():
      if r.error:
        lines.append([r.name, r.error[:200]])
        continue
      lines.append(
        [
          r.name,
          f"{r.flops / 1e9:.0f}",
          f"{r.bytes / 1e9:.1f}",
          f"{1e3 * r.seconds:.1f}",
          f"{1e3 * r.seconds_by_cycles:.1f}",
          f"{r.hbm_bytes / 1e9:.2f}",
          f"{r.mxu:.0%}",
          str(r.images),
          str(r.images_fitting),
        ]
      )
    return lines

  def text(self) -> str:
    """Returns the report as text."""
    lines = [f"TPU {self.topology}, {self.limit / 1024**3:.0f} GB a core"]
    for cells in self.table():
      lines.append(f"{cells[0]:34}" + "".join(f"{c:>13}" for c in cells[1:]))
    for name, gain in self._compute_gains().items():
      lines.append(f"{name:34}{_format_number(gain, 2):>13}")
    lines += [_format_proposal(r) for r in self.rows.values() if not r.error]
    for r in self.rows.values():
      lines.append(f"Tiles left empty, {r.name}:" if r.wastes else "")
      lines += [
        f"  {w.shape:34}{w.empty_bytes / 1e6:>9.0f} MB in {w.num}, "
        f"{w.share:.1%} of a tile, {w.name}"
        for w in r.wastes
      ]
    return "\n".join([*lines, _NOTE])

  def html(self) -> str:
    """Returns the report as an HTML page."""
    wastes = [["program", "tensor", "tensors", "empty MB", "empty", "from"]]
    for r in self.rows.values():
      wastes += [
        [
          r.name,
          w.shape,
          str(w.num),
          f"{w.empty_bytes / 1e6:.0f}",
          f"{w.share:.1%}",
          w.name,
        ]
        for w in r.wastes
      ]
    gains = [["figure", "value"]]
    gains += [
      [k, _format_number(v, 3)] for k, v in self._compute_gains().items()
    ]
    tables = "".join(
      _make_html_table(rows) for rows in (self.table(), gains, wastes)
    )
    return (
      "<!doctype html><meta charset=utf-8><title>TPU report</title><style>"
      "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;"
      "margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;"
      "text-align:left}</style>"
      f"<h1>TPU {html.escape(self.topology)}</h1><p>{_NOTE}</p>{tables}"
    )


def _format_proposal(r: Row) -> str:
  """Returns a sentence about the batch that would fit into a core."""
  if r.images_fitting <= r.images:
    return (
      f"Batch, {r.name}: a core has {r.images} images, and no room for more."
    )
  return (
    f"Batch, {r.name}: a core has {r.images} images, and room for "
    f"{r.images_fitting}: `Experiment.batch_size` may be up to "
    f"{r.images_fitting / max(1, r.images):.1f} times as large; it is yours to "
    "set."
  )


def _find_max(rows: Sequence[Row], figure: str) -> float:
  return max(getattr(r, figure) for r in rows)


def _format_number(value: Optional[float], digits: int) -> str:
  return "-" if value is None else f"{value:.{digits}f}"


def _make_html_table(rows: Sequence[Sequence[str]]) -> str:
  lines = []
  for i, cells in enumerate(rows):
    tag = "th" if i == 0 else "td"
    lines.append(
      "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells)
    )
  return f"<table>{''.join(lines)}</table>"
