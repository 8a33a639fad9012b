"""The TPU compiler's figures of a run's step, without a TPU.

python -m tools.tpu_report --gin_file=gin/runs/biggan_imagenet128_tpu.gin \
  --topology=v3:2x2 --json=tpu.json --html=tpu.html

Compiles the step without a layout pass, with the layout, and with the layout in
bfloat16. All figures are the compiler's estimates for one core:
no network, no host.

python -m tools.tpu_report --gin_file=gin/runs/smoke.gin --rehearse

Compiles the programs that all cores run, collectives included, for 8, 128 and
1024 cores, and runs them on 8 virtual CPU devices against `MirroredStrategy`.
A batch that is no multiple of the cores is enlarged.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Dict, List, Tuple

from absl import flags

from tools import cli, gin_flags
from tools.tpu import environment, figures, rehearsal_report, rows
from tools.tpu.export import Program

_GIN_FILE = flags.DEFINE_multi_string(
  "gin_file", None, "Config file; several are read in order.", required=True
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A single binding, read after the files."
)
_TOPOLOGY = flags.DEFINE_string(
  "topology", "v3:2x2", "TPU to compile for: v2 to v6e, and its shape."
)
_CORES = flags.DEFINE_integer("cores", 128, "Cores that share the run's batch.")
_ROLES = flags.DEFINE_bool(
  "roles", False, "Compiles G's and D's part of a run with a role split."
)
_ABLATION = flags.DEFINE_bool(
  "ablation", False, "Compiles each part of the layout alone as well."
)
_ONLY = flags.DEFINE_multi_string(
  "only", [], "Compiles these variants alone, e.g. `bfloat16`."
)
_REHEARSE = flags.DEFINE_bool(
  "rehearse", False, "Compiles and runs the programs of many cores instead."
)
_REHEARSE_CORES = flags.DEFINE_multi_integer(
  "rehearse_cores",
  list(rehearsal_report.TOPOLOGIES),
  "Cores to compile for; may be repeated.",
)
_JSON = flags.DEFINE_string("json", None, "File for the figures.")
_HTML = flags.DEFINE_string("html", None, "File for the tables.")
_KEEP = flags.DEFINE_string("keep", None, "Folder for the programs.")


def main():
  """Exports, compiles, and prints the report."""
  gin_flags.allow_imports()
  if _REHEARSE.value:
    _rehearse()
    return
  chip = cli.exit_on_error(lambda: figures.find_chip(_TOPOLOGY.value))
  variants = cli.exit_on_error(
    lambda: figures.make_variants(chip, _ABLATION.value, _ONLY.value)
  )
  for flag in (_JSON, _HTML):
    cli.exit_on_error(lambda flag=flag: cli.check_file(flag.name, flag.value))
  _install()
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(_KEEP.value or temporary)
    folder.mkdir(parents=True, exist_ok=True)
    found = cli.exit_on_error(lambda: _compile_all(folder, chip, variants))
  report = figures.Report(_TOPOLOGY.value, chip, found)
  print(report.text())
  if _HTML.value:
    pathlib.Path(_HTML.value).write_text(report.html())
  if _JSON.value:
    cli.exit_on_error(
      lambda: cli.write_json("json", _JSON.value, report.json())
    )
  failure = report.failure()
  if failure:
    cli.fail(failure)


def _rehearse() -> None:
  """Rehearses the run on many cores, and prints the verdict."""
  for flag in (_HTML, _KEEP):
    if flag.value:
      cli.fail(f"`--{flag.name}` and `--rehearse` exclude each other.")
  cores = _REHEARSE_CORES.value
  cli.exit_on_error(lambda: rehearsal_report.check_cores(cores))
  cli.exit_on_error(lambda: cli.check_file(_JSON.name, _JSON.value))
  _install()
  report = cli.exit_on_error(
    lambda: rehearsal_report.rehearse(
      _GIN_FILE.value, _GIN_BINDINGS.value, cores
    )
  )
  print(report.text())
  path = _JSON.value
  if path:
    cli.exit_on_error(lambda: cli.write_json("json", path, report.json()))
  failure = report.failure()
  if failure:
    cli.fail(failure)


def _install() -> None:
  """Makes the compiler's environment, unless it is there."""
  if environment.is_installed():
    return
  print(
    f"Making the TPU compiler's environment in '{environment.get_folder()}'; "
    "this is done once.",
    file=sys.stderr,
  )
  cli.exit_on_error(environment.install)


def _compile_all(
  folder: pathlib.Path, chip: str, variants: Dict[str, List[str]]
) -> List[rows.Row]:
  """Returns a row for each variant and role, in their order."""
  roles = ("g", "d") if _ROLES.value else (None,)
  jobs: Dict[str, Program] = {
    f"{role or 'step'}_{name}": Program(
      _GIN_FILE.value,
      [*_GIN_BINDINGS.value, *bindings],
      _CORES.value,
      role,
    )
    for role in roles
    for name, bindings in variants.items()
  }
  # Tracing and compiling take about a core each.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    done = {
      name: pool.submit(_compile, folder / f"{name}.hlo", program)
      for name, program in jobs.items()
    }
    return [rows.read_row(name, *done[name].result(), chip) for name in jobs]


def _compile(path: pathlib.Path, program: Program) -> Tuple[pathlib.Path, int]:
  """Returns the path of the compiler's output, and the images of a core."""
  print(f"Compiling {path.stem}: some minutes.", file=sys.stderr, flush=True)
  text = json.dumps(program._asdict())
  num_images = _run([sys.executable, "-m", "tools.tpu.export", text, str(path)])
  compiler = pathlib.Path(environment.__file__).with_name("compiler.py")
  _run([environment.get_python(), str(compiler), _TOPOLOGY.value, str(path)])
  return path, int(num_images)


def _run(command: List[str]) -> str:
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    errors = [x for x in lines if x.startswith("Error: ")] or lines
    raise ValueError(errors[-1].removeprefix("Error: "))
  return done.stdout


if __name__ == "__main__":
  cli.run(main)
