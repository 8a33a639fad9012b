"""Prints how each tensor of a run is laid out, before anything trains.

python -m tools.layout --gin_file=gin/runs/biggan_imagenet128_tpu.gin \
  --hardware=tpu_v3 --cores=128 --html=layout.html
"""

import pathlib

from absl import flags

from tools import cli, gin_flags, layout_plan

_GIN_FILE = flags.DEFINE_multi_string(
  "gin_file", None, "Config file; several are read in order.", required=True
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A single binding, read after the files."
)
_HARDWARE = flags.DEFINE_string(
  "hardware", None, "Hardware to plan for, as tpu_v3; by default the config's."
)
_CORES = flags.DEFINE_integer("cores", 1, "Cores that share the run's batch.")
_HTML = flags.DEFINE_string("html", None, "File for the table.")
_JSON = flags.DEFINE_string("json", None, "File for the plan.")


def main():
  """Plans, and prints the table."""
  gin_flags.allow_imports()
  for flag in (_HTML, _JSON):
    cli.exit_on_error(lambda flag=flag: cli.check_file(flag.name, flag.value))
  plan = cli.exit_on_error(
    lambda: layout_plan.make_plan(
      _GIN_FILE.value, _GIN_BINDINGS.value, _HARDWARE.value, _CORES.value
    )
  )
  print(layout_plan.format_text(plan))
  print(layout_plan.NOTE)
  if _HTML.value:
    pathlib.Path(_HTML.value).write_text(layout_plan.format_html(plan))
  path = _JSON.value
  if path:
    rows = {who: [r._asdict() for r in rows] for who, rows in plan.items()}
    cli.exit_on_error(lambda: cli.write_json("json", path, rows))


if __name__ == "__main__":
  cli.run(main)
