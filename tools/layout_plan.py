"""The plan of `tools/layout.py`: made of a config, as text and as a page."""

from typing import Dict, List, Optional, Sequence

from tools import cli
from tools.tpu import export, html_parts

# Rows of `paragan_tf/nets/layout_pass.py` for "g" and "d".
Plan = Dict[str, List]

_HEAD = (
  "tensor",
  "form",
  "dtype",
  "shape, channels last",
  "carried",
  "in tiles",
  "empty before",
  "empty after",
  "zeros",
  "reason",
)
NOTE = (
  "Empty: the part of the tiles that holds nothing, before and after channels "
  "are padded through the net; zeros: the part of those channels that is "
  "padding. Weights, slots and checkpoints are never padded, and float32."
)


def make_plan(
  gin_files: Sequence[str],
  bindings: Sequence[str],
  chip: Optional[str] = None,
  num_cores: int = 1,
) -> Plan:
  """Returns the rows of G and of D.

  Args:
    gin_files: Of the run.
    bindings: Read after them.
    chip: One of `hardware.PROFILES`, by default what the config says.
    num_cores: Among how many cores the run's batch is shared.
  """
  experiment = cli.import_experiment()
  lines = [*bindings]
  if chip:
    lines += [
      "from paragan_tf import hardware",
      f"hardware.Layout.hardware = '{chip}'",
    ]
  cli.import_quietly("paragan_tf.config").load(gin_files, lines)
  size = experiment.gin.query_parameter("Experiment.batch_size")
  export.check_cores(size, num_cores)
  spec = export.find_image_spec(experiment)
  with export.use_zero_weights():
    return experiment.plan_layout(spec, size // num_cores)


def list_lines(rows: Sequence) -> List[List[str]]:
  """Returns the cells of the table of one net, its head first."""
  lines = [list(_HEAD)]
  for row in rows:
    shapes = (row.shape, row.carried, row.tiles)
    shares = (row.waste_before, row.waste_after, row.zeros)
    lines.append(
      [
        row.name,
        row.form,
        row.dtype,
        *("x".join(map(str, shape)) for shape in shapes),
        *(f"{share:.0%}" for share in shares),
        f"{row.reason}; {row.dtype}: {row.dtype_reason}",
      ]
    )
  return lines


def format_text(plan: Plan) -> str:
  """Returns the tables for a terminal."""
  texts = []
  for who, rows in plan.items():
    lines = list_lines(rows)
    sizes = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    texts.append(f"{who}:")
    for line in lines:
      cells = (cell.ljust(size) for cell, size in zip(line, sizes))
      texts.append("  ".join(cells).rstrip())
  return "\n".join(texts)


def format_html(plan: Plan) -> str:
  """Returns a page that needs nothing else."""
  tables = [
    html_parts.make_section(
      f"Tensors of {who}", html_parts.make_table(list_lines(rows), 3)
    )
    for who, rows in plan.items()
  ]
  note = html_parts.make_paragraph(NOTE)
  return html_parts.render("Layout plan", [note, *tables])
