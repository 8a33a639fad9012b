"""Exports a trained G as a SavedModel or ONNX file, free of this package.

python -m tools.export --model_dir=runs/fashion --output=exports/fashion
"""

from absl import flags

from tools import cli, gin_flags

_MODEL_DIR = flags.DEFINE_string(
  "model_dir", None, "Folder of a run.", required=True
)
_OUTPUT = flags.DEFINE_string(
  "output",
  None,
  "Folder; the export is a folder in it, named by the time. Or x.onnx.",
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
_FORMAT = flags.DEFINE_enum(
  "format",
  "saved_model",
  ["saved_model", "onnx"],
  "Of the export; ONNX needs the extra `onnx` of this package.",
)


def main():
  """Reads the flags and exports."""
  print(f"Export: {cli.exit_on_error(_export)}", flush=True)


def _export() -> str:
  gin_flags.allow_imports()
  module = cli.import_quietly("paragan_tf.trained")
  g = module.load(_MODEL_DIR.value, cli.read_step(_STEP.value))
  if _FORMAT.value == "saved_model":
    return g.export(_OUTPUT.value, _TRUNCATION.value)
  if _TRUNCATION.value is not None:
    raise ValueError(
      "`--truncation` must be left out with `--format=onnx`, got "
      f"{_TRUNCATION.value}: an ONNX file takes latent codes, not a seed."
    )
  return g.export_onnx(_OUTPUT.value)


if __name__ == "__main__":
  cli.run(main)
