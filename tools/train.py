"""Trains one experiment.

python -m tools.train --gin_file=gin/runs/fashion.gin --model_dir=runs/fashion
"""

from absl import flags

from tools import cli

_GIN_FILE = flags.DEFINE_multi_string(
  "gin_file", None, "Config file; several are read in order.", required=True
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A single binding, read after the files."
)
_MODEL_DIR = flags.DEFINE_string(
  "model_dir",
  None,
  "Folder of the run; a run that is there goes on.",
  required=True,
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "Shows what would run, and writes nothing."
)
_NUM_CPU_REPLICAS = flags.DEFINE_integer(
  "num_cpu_replicas", 0, "Splits the CPU into this many replicas."
)


def main():
  """Reads the flags and trains."""
  experiment = cli.import_experiment()

  run = cli.checked(
    lambda: experiment.prepare(
      _GIN_FILE.value,
      _GIN_BINDINGS.value,
      _MODEL_DIR.value,
      _NUM_CPU_REPLICAS.value,
    )
  )
  if _DRY_RUN.value:
    print(run.summary())
    return
  cli.checked(run.open)
  stop = cli.StopSignals()
  try:
    run(stop.asked)
  except FloatingPointError as e:
    cli.fail(str(e))


if __name__ == "__main__":
  cli.run(main)
