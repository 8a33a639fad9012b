"""The figures of a TPU report, as text, JSON and HTML."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from tools.tpu import page, rows
from tools.tpu.rows import Row

_OFF = {
  "resizes": "'apart'",
  "rgb_convs": "'plain'",
  "store_kernels": "False",
  "moments_in_one_pass": "False",
  "weights_as_matrices": "False",
  "recompute_attention": "False",
  "sum_after_product": "False",
  "one_pass": "False",
  "gram_on_short_side": "False",
  "join_projections": "False",
  "join_power_iterations": "False",
  "float32_products": "False",
  "select_updates": "False",
  "pad_channels": "1",
}
_PARTS = {
  "resizes": "'strided'",
  "rgb_convs": "'blocks'",
  "weights_as_matrices": "True",
  "recompute_attention": "True",
  "sum_after_product": "True",
  "one_pass": "True",
  "gram_on_short_side": "True",
  "join_projections": "True",
  "join_power_iterations": "True",
  "select_updates": "True",
}
_NOTE = (
  "Estimates of the TPU compiler for one device, without network and host. By "
  "its roofline: its `optimal_seconds`, by multiply-adds and bytes, plus one "
  "second for each operation that it counts as minus one second because it "
  "does not know its time: halves of a 64-bit count, weights that are fetched "
  "in slices. It adds in 32 bits, hence the rounding error, and counts a loop "
  "once. By its cycles: the sum of what it expects of each operation, tiles "
  "and all, and the share of the MXU that comes of it; of a conditional, the "
  "longest branch; of a loop, all turns if they are known. Nothing was run on "
  "a TPU."
)
_COMPARED = ("off", "layout", "bfloat16")
# What a device of a topology is, where it is not a chip of one core.
_DEVICES = {
  "tpu_v2": "one of a chip's two cores",
  "tpu_v3": "one of a chip's two cores",
  "tpu_v4": "one of a chip's two cores",
  "tpu_v5p": "a chip, its two cores joined",
}


def find_chip(topology: str) -> str:
  """Returns the name of the profile of a topology, as of `v3:2x2`."""
  name = f"tpu_{topology.split(':')[0]}"
  known = [p[4:] for p in rows.get_profiles() if p.startswith("tpu_")]
  if ":" not in topology or name not in rows.get_profiles():
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


class Gain(NamedTuple):
  """A figure that compares programs, `None` if it is missing."""

  key: str
  words: str
  value: Optional[float]

  def format(self) -> str:
    """Returns the value with its unit."""
    if self.value is None:
      return "-"
    if self.key.startswith("hbm_bytes"):
      return rows.format_gb(self.value)
    return f"{self.value:.2f}"


class Report:
  """All rows, and the gains of the layout."""

  def __init__(self, topology: str, chip_name: str, found: Sequence[Row]):
    self.topology = topology
    self.note = _NOTE
    self.device = _DEVICES.get(chip_name, "a chip")
    self.limit = rows.get_profiles()[chip_name].memory
    self.rows = {r.name: r for r in found}

  def json(self) -> Dict[str, Any]:
    """Returns the figures; `None` for a missing one, and the `reason`."""
    figures: Dict[str, Any] = {
      "topology": self.topology,
      "device": self.device,
      "hbm_limit_bytes": self.limit,
      "note": _NOTE,
      "programs": {
        r.name: {
          **r._asdict(),
          "wastes": [w._asdict() for w in r.wastes],
          "cycles": dict(r.cycles),
        }
        for r in self.rows.values()
      },
    }
    figures.update({gain.key: gain.value for gain in self.compute_gains()})
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

  def compute_gains(self) -> List[Gain]:
    """Returns the gains; of a role split, those of the slowest and largest."""
    off, layout, half = (self._find_roles(name) for name in _COMPARED)
    more = "times as fast as without a layout, by its"
    alone = "the same, layout alone"
    time, cycles, hbm = "seconds", "seconds_by_cycles", "hbm_bytes"
    return [
      Gain("gain_time", f"{more} roofline", _divide(off, half, time)),
      Gain("gain_time_layout_only", alone, _divide(off, layout, time)),
      Gain("gain_cycles", f"{more} cycles", _divide(off, half, cycles)),
      Gain("gain_cycles_layout_only", alone, _divide(off, layout, cycles)),
      Gain("hbm_ratio", "share of the memory", _divide(half, off, hbm)),
      Gain("hbm_bytes", "memory (HBM)", _find_max(half, hbm)),
      Gain("hbm_bytes_off", "the same, layout off", _find_max(off, hbm)),
    ]

  def _list_names(self, variant: str) -> List[str]:
    roles = dict.fromkeys(name.split("_", 1)[0] for name in self.rows)
    return [f"{role}_{variant}" for role in roles]

  def _find_roles(self, variant: str) -> List[Row]:
    """Returns a row for each role, or none where one of them has no figures."""
    found = [self.rows.get(name) for name in self._list_names(variant)]
    there = [r for r in found if r is not None and not r.error]
    return there if len(there) == len(found) else []

  def _explain_missing(self) -> Optional[str]:
    """Returns which programs that are compared have no figures, and why."""
    reasons = []
    for name in (n for v in _COMPARED for n in self._list_names(v)):
      row = self.rows.get(name)
      if row is None:
        reasons.append(f"`{name}` was not asked for, leave `--only` out")
      elif row.error:
        reasons.append(f"`{name}` did not compile, {row.error}")
      elif row.seconds is None:
        reasons.append(
          f"`{name}` has no time by the roofline, {row.seconds_reason}"
        )
    return "; ".join(reasons) + "." if reasons else None

  def table(self, in_words: bool = False) -> List[List[str]]:
    """Returns a head, and a line for each program."""
    head = ["program", "GFLOP", "GB", "ms", "ms by cycles", "HBM GB", "MXU"]
    head += ["images", "fitting"]
    if in_words:
      head = ["program", "work, GFLOP", "moved, GB", "time by roofline, ms"]
      head += ["time by cycles, ms", "memory (HBM), GB", "share of the peak"]
      head += ["images", "images that fit"]
    return [head, *(_make_line(r, in_words) for r in self.rows.values())]

  def text(self) -> str:
    """Returns the report as text."""
    lines = [
      f"TPU {self.topology}: a device is {self.device}, with "
      f"{rows.format_gb(self.limit)} for a program"
    ]
    for cells in self.table():
      lines.append(f"{cells[0]:34}" + "".join(f"{c:>13}" for c in cells[1:]))
    for gain in self.compute_gains():
      lines.append(f"{gain.words:50}{gain.format():>10}")
    lines += self.sentences()
    for r in self.rows.values():
      lines += [_format_cycles(r)] if r.cycles else []
      lines += [f"Tiles left empty, {r.name}:"] if r.wastes else []
      lines += [
        f"  {w.shape:34}{w.empty_bytes / 1e6:>9.0f} MB in {w.num}, "
        f"{w.share:.1%} of a tile, {w.name}"
        for w in r.wastes
      ]
    return "\n".join([*lines, _NOTE])

  def sentences(self) -> List[str]:
    """Returns whether each program fits, what else would, and what lacks."""
    found = []
    for r in self.rows.values():
      name = rows.describe(r.name)
      found.append(f"Memory, {name}: {self.format_verdict(r)}")
      if not r.error:
        found.append(f"Batch, {name}: {_format_proposal(r)}")
      if r.seconds is None:
        found.append(f"Time, {name}: none by roofline, {r.seconds_reason}.")
      if r.num_loops:
        found.append(
          f"Loops, {name}: {r.num_loops} of them run a number of times that is "
          "not known, and count once."
        )
      if r.num_kernels:
        found.append(
          f"Kernels, {name}: {r.num_kernels} of them, such as attention, have "
          "no cycles and are missing in the time by cycles."
        )
    return found

  def format_verdict(self, r: Row) -> str:
    """Returns whether a program fits into the memory of a device."""
    if r.error and "RESOURCE_EXHAUSTED" not in r.error:
      return "it did not compile."
    if r.error:
      return "it does not fit, by the compiler."
    fits = r.hbm_bytes <= self.limit
    return (
      f"it {'fits' if fits else 'does not fit'}, "
      f"{rows.format_gb(r.hbm_bytes)} of {rows.format_gb(self.limit)}."
    )

  def find_best(self) -> List[Row]:
    """Returns the rows of the fastest variant that was asked for."""
    for variant in reversed(_COMPARED):
      found = [self.rows.get(name) for name in self._list_names(variant)]
      if any(found):
        return [r for r in found if r]
    return list(self.rows.values())[-1:]

  def html(self) -> str:
    """Returns the report as an HTML page."""
    return page.render(self)


def _make_line(r: Row, in_words: bool) -> List[str]:
  name = rows.describe(r.name) if in_words else r.name
  if r.error:
    return [name, r.error[:200]]
  time = "-" if r.seconds is None else f"{1e3 * r.seconds:.1f}"
  if r.seconds is not None and r.seconds_rounding > 5e-5:
    time += f"\u00b1{1e3 * r.seconds_rounding:.1f}"
  return [
    name,
    f"{r.flops / 1e9:.0f}",
    f"{r.bytes / 1e9:.1f}",
    time,
    f"{1e3 * r.seconds_by_cycles:.1f}",
    f"{r.hbm_bytes / 1e9:.2f}",
    f"{r.mxu:.0%}",
    str(r.images),
    str(r.images_fitting),
  ]


def _format_cycles(r: Row) -> str:
  total = sum(r.cycles.values())
  ranked = sorted(r.cycles.items(), key=lambda item: -item[1])
  shares = (f"{group} {cycles / total:.0%}" for group, cycles in ranked)
  return f"Cycles, {r.name}: {', '.join(shares)}"


def _format_proposal(r: Row) -> str:
  """Returns a sentence about the batch that would fit into a core."""
  if r.images_fitting <= r.images:
    return f"a core has {r.images} images, and no room for more."
  return (
    f"a core has {r.images} images, and room for {r.images_fitting}: "
    "`Experiment.batch_size` may be up to "
    f"{r.images_fitting / max(1, r.images):.1f} times as large; it is yours to "
    "set."
  )


def _find_max(found: Sequence[Row], figure: str) -> Optional[float]:
  """Returns the largest, or `None` where one is missing."""
  values = [getattr(r, figure) for r in found]
  return None if not values or None in values else max(values)


def _divide(
  ours: Sequence[Row], theirs: Sequence[Row], figure: str
) -> Optional[float]:
  above, below = _find_max(ours, figure), _find_max(theirs, figure)
  return above / below if above is not None and below else None
