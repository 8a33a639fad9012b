"""Trains one experiment.

python -m tools.train --gin_file=gin/runs/fashion.gin --model_dir=runs/fashion
"""

import sys

from absl import flags

from paragan_tf import stopping
from tools import cli, gin_flags

_GIN_FILE = flags.DEFINE_multi_string(
  "gin_file", None, "Config file; several are read in order.", required=True
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A single binding, read after the files."
)
_MODEL_DIR = flags.DEFINE_string(
  "model_dir",
  None,
  "Folder of the run; a run that is there is resumed.",
  required=True,
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "Shows what would run, and writes nothing."
)
_NUM_CPU_REPLICAS = flags.DEFINE_integer(
  "num_cpu_replicas", 0, "Splits the CPU of a process into this many replicas."
)
_TPU = flags.DEFINE_string(
  "tpu", None, "Cloud TPU: its name, grpc:// address, or `local` on a TPU VM."
)
_TPU_ZONE = flags.DEFINE_string("tpu_zone", None, "Zone of the TPU.")
_GCP_PROJECT = flags.DEFINE_string("gcp_project", None, "Project of the TPU.")
_USE_TPU = flags.DEFINE_bool("use_tpu", False, "Insists on a TPU.")
_JOIN_TIMEOUT = flags.DEFINE_float(
  "join_timeout", 300.0, "Seconds to wait for the other processes."
)
_GRACE_SECONDS = flags.DEFINE_float(
  "grace_seconds",
  None,
  "Ends this long after a signal, saved or not; by default when it is saved.",
)
_ENGINE = flags.DEFINE_enum(
  "engine",
  "strategy",
  ["strategy", "tpu_estimator"],
  "What runs the step: a tf.distribute strategy or TPUEstimator.",
)
_LABEL_SHARD = flags.DEFINE_string(
  "label_shard",
  None,
  "Of a GAN for each label: trains part i of n of the labels, as 2/8; or "
  "array/8, where i is the task of a SLURM array or of an indexed job.",
)


def main():
  """Reads the flags and trains."""
  stop = cli.exit_on_error(lambda: stopping.Stop(_GRACE_SECONDS.value))
  gin_flags.allow_imports()
  module = cli.import_quietly("paragan_tf.training")
  try:
    _run(module, stop)
  except module.FAILED as e:
    cli.fail(str(e), 1)
  except module.ERRORS as e:
    cli.fail(str(e))
  except module.AGAIN as e:
    cli.fail(str(e), stopping.EXIT_AGAIN)


def _run(module, stop: stopping.Stop) -> None:
  run = cli.exit_on_error(
    lambda: module.prepare(
      _GIN_FILE.value,
      _GIN_BINDINGS.value,
      _MODEL_DIR.value,
      module.strategies.DeviceOptions(
        _NUM_CPU_REPLICAS.value,
        _TPU.value,
        _TPU_ZONE.value,
        _GCP_PROJECT.value,
        _USE_TPU.value,
        _JOIN_TIMEOUT.value,
      ),
      _ENGINE.value,
      _LABEL_SHARD.value,
    )
  )
  if _DRY_RUN.value:
    cli.exit_on_error(run.rehearse)
    print(run.summary())
    return
  run.attach(stop)
  try:
    cli.exit_on_error(run.open)
    stop.begin()
    is_complete = run()
  finally:
    run.folder.close()
  if not is_complete:
    sys.exit(stopping.EXIT_AGAIN)


if __name__ == "__main__":
  cli.run(main, own_signals=True)
