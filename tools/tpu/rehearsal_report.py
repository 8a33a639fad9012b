"""Rehearses a run on the cores of a TPU, and says what came of it.

The run's programs are compiled for each number of cores by the TPU compiler,
and run on 8 virtual CPU devices against `MirroredStrategy`; each in a process
of its own (`rehearsal.py`).
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from tools.tpu.rehearsal import Rehearsal

# Cores, and a TPU that has as many.
TOPOLOGIES = {8: "v3:2x2", 128: "v3:8x8", 1024: "v3:16x32"}
NUM_VIRTUAL = 8
NUM_STEPS = 10
# Rounding differs between XLA and TensorFlow. Larger gaps are faults, and so
# are gaps that are much of what was learned.
MAX_WEIGHT_GAP = 1e-5
MAX_SHARE = 0.01
_ROUNDING = 1e-7
# Of all virtual devices and steps: minutes on two cores of a CPU.
MAX_FLOPS = 1e12
MAX_BYTES = 4e9
_ROOT = pathlib.Path(__file__).resolve().parents[2]


class Row(NamedTuple):
  """What one rehearsal has shown.

  Attributes:
    name: What was done.
    figures: Of `rehearsal.py`; `None` if it failed or was skipped.
    failure: What is wrong, if anything.
    skipped: Why it was left out, if it was.
  """

  name: str
  figures: Optional[Mapping[str, Any]] = None
  failure: Optional[str] = None
  skipped: Optional[str] = None


class Report(NamedTuple):
  """What all rehearsals of a run have shown."""

  rows: Sequence[Row]

  def failure(self) -> Optional[str]:
    """Returns what is wrong, in one sentence, if anything is."""
    failed = [row for row in self.rows if row.failure]
    if not failed:
      return None
    return f"{failed[0].name} failed: {failed[0].failure}"

  def text(self) -> str:
    """Returns a table with a line for each rehearsal."""
    rows = [(row.name, _describe(row)) for row in self.rows]
    width = max(len(name) for name, _ in rows) + 2
    lines = [f"{name:{width}}{words}" for name, words in rows]
    return "\n".join([*lines, f"{'verdict':{width}}{self._verdict()}"])

  def _verdict(self) -> str:
    if self.failure():
      return "not ready for these cores"
    if any(row.skipped for row in self.rows):
      return "compiles for all of these cores; what it computes is not tested"
    return "compiles for all of these cores, and computes what it should"

  def json(self) -> Dict[str, Any]:
    """Returns all of it, for programs."""
    rows = [row._asdict() for row in self.rows]
    return {"rows": rows, "failure": self.failure()}


def rehearse(
  gin_files: Sequence[str], bindings: Sequence[str], cores: Sequence[int]
) -> Report:
  """Compiles a run for each number of cores, and runs it on virtual ones."""
  check_cores(cores)
  wanted = [
    Rehearsal(gin_files, bindings, num, TOPOLOGIES[num])
    for num in sorted({NUM_VIRTUAL, *cores})
  ]
  # Tracing and compiling take about a core each.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    rows = list(pool.map(run_one, wanted))
  reasons = {row.failure for row in rows}
  if len(reasons) == 1 and None not in reasons:
    raise ValueError(rows[0].failure)
  rows.append(_run_virtual(gin_files, bindings, rows[0]))
  return Report([row for row in rows if _is_asked(row, cores)])


def check_cores(cores: Sequence[int]) -> None:
  """Raises a `ValueError` for a number of cores that is not supported."""
  for num in cores:
    if num not in TOPOLOGIES:
      known = ", ".join(map(str, TOPOLOGIES))
      raise ValueError(
        f"`--rehearse_cores` must be some of {known}, got {num}."
      )


def _is_asked(row: Row, cores: Sequence[int]) -> bool:
  return row.name not in {_name(num) for num in TOPOLOGIES if num not in cores}


def _name(num_cores: int) -> str:
  return f"{num_cores} cores, compiled"


def run_one(wanted: Rehearsal) -> Row:
  """Returns the outcome of a rehearsal, in a process of its own."""
  virtual = f"{wanted.num_cores} cores, run"
  name = _name(wanted.num_cores) if wanted.topology else virtual
  print(f"Rehearsing {name}: some minutes.", file=sys.stderr, flush=True)
  text = json.dumps(wanted._asdict())
  with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
      [sys.executable, "-m", "tools.tpu.rehearsal", text, folder],
      capture_output=True,
      text=True,
      check=False,
      cwd=_ROOT,
    )
  if done.returncode:
    return Row(name, failure=_find_error(done.stderr))
  figures = json.loads(done.stdout.splitlines()[-1])
  return Row(name, figures, _find_gap(figures))


def _find_gap(figures: Mapping[str, Any]) -> Optional[str]:
  """Returns what is wrong with the weights, if anything is."""
  if "max_weight_gap" not in figures:
    return None
  gap, change = figures["max_weight_gap"], figures["max_weight_change"]
  if gap <= min(MAX_WEIGHT_GAP, max(_ROUNDING, MAX_SHARE * change)):
    return None
  return (
    f"its weights differ by {gap:.1e} from MirroredStrategy's, which have "
    f"changed by {change:.1e}; rounding makes at most {MAX_WEIGHT_GAP:g} and "
    f"{MAX_SHARE:.0%} of that."
  )


def _find_error(text: str) -> str:
  lines = text.strip().splitlines() or ["no reason given"]
  errors = [x for x in lines if x.startswith("Error: ")] or lines
  return errors[-1].removeprefix("Error: ")


def _run_virtual(gin_files, bindings, compiled: Row) -> Row:
  """Runs the programs, unless that would take too long."""
  name = f"{NUM_VIRTUAL} cores, run"
  figures = compiled.figures
  if not figures:
    return Row(name, skipped="it does not compile.")
  steps = max(NUM_STEPS, figures["num_steps"])
  flops = NUM_VIRTUAL * figures["flops"] * steps / figures["num_steps"]
  num_bytes = NUM_VIRTUAL * figures["memory_bytes"]
  if flops > MAX_FLOPS or num_bytes > MAX_BYTES:
    return Row(
      name,
      skipped=f"too large for a CPU: {flops:.1e} operations and "
      f"{num_bytes / 1e9:.1f} GB, of at most {MAX_FLOPS:.0e} and "
      f"{MAX_BYTES / 1e9:.0f} GB; make the nets smaller.",
    )
  return run_one(
    Rehearsal(gin_files, bindings, NUM_VIRTUAL, num_steps=NUM_STEPS)
  )


def _describe(row: Row) -> str:
  if row.failure:
    return f"FAILED: {row.failure}"
  if row.skipped:
    return f"skipped: {row.skipped}"
  figures = row.figures or {}
  if "max_weight_gap" in figures:
    return (
      f"equal; after {figures['num_steps']} steps on virtual devices, weights "
      f"differ from MirroredStrategy's by {figures['max_weight_gap']:.1e}, and "
      f"have changed by {figures['max_weight_change']:.1e}"
    )
  steps = figures["num_steps"]
  words: List[str] = [
    f"valid; batch {figures['batch_size']:,}",
    f"{figures['memory_bytes'] / 2**20:,.1f} MiB a core",
    f"{figures['num_collectives'] / steps:,.1f} collectives a step of "
    f"{figures['collective_bytes'] / steps / 2**20:,.3f} MiB",
    f"compiled in {figures['compile_seconds']:.0f} s",
  ]
  return ", ".join(words)
