"""Exports a trained G as a SavedModel, which does not need this package.

python -m tools.export --model_dir=runs/fashion --output=exports/fashion
"""

from absl import flags

from tools import cli

_MODEL_DIR = flags.DEFINE_string(
  "model_dir", None, "Folder of a run.", required=True
)
_OUTPUT = flags.DEFINE_string(
  "output",
  None,
  "Folder; the export is a folder in it, named by the time.",
  required=True,
)
_STEP = flags.DEFINE_string(
  "step", None, "Which checkpoint: a number or `best`; the newest by default."
)
_TRUNCATION = flags.DEFINE_float(
  "truncation",
  None,
  "Truncates the latent codes of a seed at this many standard deviations; by "
  "default as the run does, `inf` for never.",
)


def main():
  """Reads the flags and exports."""
  module = cli.import_quietly("paragan_tf.trained")
  path = cli.exit_on_error(
    lambda: module.load(_MODEL_DIR.value, cli.read_step(_STEP.value)).export(
      _OUTPUT.value, _TRUNCATION.value
    )
  )
  print(f"Export: {path}", flush=True)


if __name__ == "__main__":
  cli.run(main)
