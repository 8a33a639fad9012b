"""The HTML page of a TPU report: one file that needs no network."""

from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from tools.tpu import html_parts, rows
from tools.tpu.rows import Row

if TYPE_CHECKING:
  from tools.tpu.figures import Report


def render(report: "Report") -> str:
  """Returns the page."""
  return html_parts.render(
    f"A training step on TPU {report.topology}",
    [
      html_parts.make_paragraph(
        f"A device is {report.device}, with {rows.format_gb(report.limit)} for "
        "a program. Estimates of the TPU compiler, nothing was run on a TPU."
      ),
      *(_make_verdict(report, r) for r in report.find_best()),
      html_parts.make_tiles(_list_tiles(report)),
      *_make_charts(report),
      *_make_tables(report),
      html_parts.make_paragraph(report.note, "note"),
    ],
  )


def _make_verdict(report: "Report", r: Row) -> str:
  fits = not r.error and r.hbm_bytes <= report.limit
  name = rows.describe(r.name)
  return html_parts.make_paragraph(
    f"{name[0].upper()}{name[1:]}: {report.format_verdict(r)}",
    f"verdict {'good' if fits else 'bad'}",
  )


def _list_tiles(report: "Report") -> List[Tuple[str, str]]:
  """Returns the figures of the step that matter most."""
  best = [r for r in report.find_best() if not r.error]
  if not best:
    return []
  slowest = max(best, key=lambda r: r.seconds_by_cycles)
  roofline = None
  if all(r.seconds is not None for r in best):
    roofline = max(r.seconds or 0.0 for r in best)
  gains = {gain.key: gain.format() for gain in report.compute_gains()}
  return [
    ("time of the step, by cycles", _format_ms(slowest.seconds_by_cycles)),
    ("time of the step, by roofline", _format_ms(roofline)),
    ("times as fast as without a layout", gains["gain_cycles"]),
    ("memory (HBM)", rows.format_gb(max(r.hbm_bytes for r in best))),
    ("share of the MXU's peak", f"{slowest.mxu:.0%}"),
  ]


def _make_charts(report: "Report") -> List[str]:
  there = [r for r in report.rows.values() if not r.error]
  if not there:
    return []
  cycles = html_parts.make_cycles_chart(
    [
      (rows.describe(r.name), r.cycles, _format_ms(r.seconds_by_cycles))
      for r in there
    ]
  )
  memory = html_parts.make_memory_chart(
    [(rows.describe(r.name), r.hbm_bytes) for r in there], report.limit
  )
  return [
    html_parts.make_section("Where the cycles go", cycles),
    html_parts.make_section("Memory of a device", memory),
  ]


def _make_tables(report: "Report") -> List[str]:
  gains = [["compared with the layout off", "value"]]
  gains += [[gain.words, gain.format()] for gain in report.compute_gains()]
  programs = html_parts.make_table(report.table(in_words=True))
  wastes = html_parts.make_table(_list_wastes(report), num_words=3)
  return [
    html_parts.make_section("Programs", programs),
    html_parts.make_section("Gains", html_parts.make_table(gains)),
    html_parts.make_section(
      "In words", html_parts.make_list(report.sentences())
    ),
    html_parts.make_section("Tiles left empty", wastes),
  ]


def _list_wastes(report: "Report") -> Sequence[List[str]]:
  """Returns a head, and a line for each shape that wastes memory."""
  lines = [["program", "tensor", "from", "tensors", "empty", "of a tile"]]
  for r in report.rows.values():
    lines += [
      [
        rows.describe(r.name),
        w.shape,
        w.name,
        str(w.num),
        rows.format_gb(w.empty_bytes),
        f"{w.share:.0%}",
      ]
      for w in r.wastes
    ]
  return lines


def _format_ms(seconds: Optional[float]) -> str:
  return "-" if seconds is None else f"{1e3 * seconds:.1f} ms"
