"""Draws samples from a trained G, without its data set.

python -m tools.sample --model_dir=runs/fashion --output=samples.png
"""

from typing import List, Optional

from absl import flags

from tools import cli, gin_flags

_MODEL_DIR = flags.DEFINE_string(
  "model_dir", None, "Folder of a run or of an export.", required=True
)
_OUTPUT = flags.DEFINE_string(
  "output",
  "samples.png",
  "A grid as x.png, arrays as x.npz, an interpolation as x.gif or x.webp, or a "
  "folder for single PNGs.",
)
_NUM = flags.DEFINE_integer(
  "num",
  None,
  "How many samples, 64 by default; of a sweep or an interpolation how many "
  "rows or columns, 8 by default.",
)
_CLASSES = flags.DEFINE_list(
  "classes", None, "Numbers or names of classes, in turn; all by default."
)
_SEED = flags.DEFINE_integer("seed", 0, "Of the latent codes.")
_TRUNCATION = flags.DEFINE_float(
  "truncation",
  None,
  "Truncates latent codes at this many standard deviations; by default as the "
  "run does, `inf` for never.",
)
_STEP = flags.DEFINE_string(
  "step", None, "Which checkpoint: a number or `best`; the newest by default."
)
_SWEEP = flags.DEFINE_list(
  "truncation_sweep", None, "Truncations, as 0.5,1,2: one row each."
)
_INTERPOLATE = flags.DEFINE_enum(
  "interpolate", None, ["z", "class"], "Between latent codes or classes."
)
_FRAMES = flags.DEFINE_integer(
  "frames", None, "Images of an interpolation, 8 by default, 24 in .gif, .webp."
)
_NEAREST = flags.DEFINE_string(
  "nearest", None, "Training images, as folder:PATH, to show the nearest ones."
)


def main():
  """Reads the flags and draws."""
  gin_flags.allow_imports()
  module = cli.import_quietly("paragan_tf.sample_files")
  request = cli.exit_on_error(
    lambda: module.Request(
      output=_OUTPUT.value,
      num=_NUM.value,
      classes=_CLASSES.value,
      seed=_SEED.value,
      truncation=_TRUNCATION.value,
      truncation_sweep=_read_numbers(_SWEEP.value),
      interpolate=_INTERPOLATE.value,
      num_frames=_FRAMES.value,
      nearest=_NEAREST.value,
    )
  )
  cli.exit_on_error(
    lambda: module.write_samples(
      _MODEL_DIR.value, request, cli.read_step(_STEP.value)
    )
  )


def _read_numbers(texts: Optional[List[str]]) -> Optional[List[float]]:
  try:
    return None if texts is None else [float(text) for text in texts]
  except ValueError as e:
    raise ValueError(
      "`--truncation_sweep` must be numbers, as 0.5,1,2, got "
      f"'{','.join(texts or [])}'."
    ) from e


if __name__ == "__main__":
  cli.run(main)
