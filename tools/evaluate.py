"""Measures a run, an export, or images in files.

python -m tools.evaluate --model_dir=runs/fashion
python -m tools.evaluate --model_dir=runs/fashion --follow
python -m tools.evaluate samples photos --metrics=fid,kid
"""

from typing import List

from absl import flags

from paragan_tf import stopping
from tools import cli, gin_flags

_MODEL_DIR = flags.DEFINE_string(
  "model_dir", None, "Folder of a run or of an export."
)
_METRICS = flags.DEFINE_list(
  "metrics", None, "Which metrics, as fid,kid; all that can be by default."
)
_EXTRACTOR = flags.DEFINE_string(
  "extractor",
  None,
  "Whose features: inception, inception:clean, mobilenet, fashion, keras:PATH, "
  "saved_model:PATH or hub:HANDLE; by default as the run does.",
)
_REFERENCE = flags.DEFINE_string(
  "reference",
  None,
  "What to compare with: a folder of images, an npz file of images, or one of "
  "statistics (mu, sigma); by default what the run was trained on.",
)
_NUM = flags.DEFINE_integer(
  "num", None, "How many samples or images; by default as the run does."
)
_RESOLUTION = flags.DEFINE_integer(
  "resolution", None, "Crops and resizes images in files to this size."
)
_TRUNCATION = flags.DEFINE_float(
  "truncation", None, "Of the latent codes; by default as the run does."
)
_SEED = flags.DEFINE_integer(
  "seed", None, "Of the latent codes; by default that of all runs."
)
_STEP = flags.DEFINE_string(
  "step", None, "Which checkpoint: a number or `best`; the newest by default."
)
_FOLLOW = flags.DEFINE_bool(
  "follow", False, "Measures each new checkpoint until the run is complete."
)
_BEST_BY = flags.DEFINE_string(
  "best_by",
  None,
  "The metric whose best checkpoint is kept; the first by default.",
)
_POLL_SECONDS = flags.DEFINE_float(
  "poll_seconds", 5.0, "Seconds between two looks at the run.", lower_bound=0.1
)
_REFERENCE_DIR = flags.DEFINE_string(
  "reference_dir", None, "Folder where statistics of real images are kept."
)
_JSON = flags.DEFINE_string("json", None, "File for the values.")
_FOLLOWING = stopping.End(
  words="the same command measures what is not measured yet.", asked=""
)


def main(words: List[str]) -> None:
  """Reads the flags and measures."""
  cli.exit_on_error(lambda: _check(words))
  with cli.stoppable(_FOLLOWING if _FOLLOW.value else None) as stop:
    gin_flags.allow_imports()
    module = cli.import_quietly("paragan_tf.following")
    request = _make_request(module, words)
    if words:
      result = cli.exit_on_error(
        lambda: module.measure_images(words[0], request)
      )
      _show(module, result)
    else:
      cli.exit_on_error(lambda: _measure_run(module, request, stop))


def _make_request(module, words: List[str]):
  request = module.Request(
    metrics=_METRICS.value,
    extractor=_EXTRACTOR.value,
    num=_NUM.value,
    reference=words[1] if len(words) == 2 else _REFERENCE.value,
    resolution=_RESOLUTION.value,
    truncation=_TRUNCATION.value,
    reference_dir=_REFERENCE_DIR.value,
  )
  return request if _SEED.value is None else request._replace(seed=_SEED.value)


def _measure_run(module, request, stop: stopping.Stop) -> None:
  follower = module.Follower(
    _MODEL_DIR.value, request, _BEST_BY.value, stop=stop
  )
  if not _FOLLOW.value:
    return _show(module, follower.measure(cli.read_step(_STEP.value)))
  return follower.follow(
    lambda result: _show(module, result),
    stop.is_requested,
    _POLL_SECONDS.value,
  )


def _show(module, result) -> None:
  if result.step is not None:
    print(f"Step {result.step:,}")
  print(module.format_values(result.values), flush=True)
  if result.best_by is not None:
    print(f"The best so far by {result.best_by}: kept in best/.", flush=True)
  if _JSON.value:
    entries = [value.to_json() for value in result.values]
    figures = {"step": result.step, "metrics": entries}
    cli.write_json("json", _JSON.value, figures)


def _check(words: List[str]) -> None:
  cli.check_file("json", _JSON.value)
  if bool(words) == bool(_MODEL_DIR.value):
    raise ValueError(
      "Either `--model_dir` or the images must be given: `--model_dir="
      "runs/fashion`, or two folders as in `evaluate samples photos`."
    )
  if len(words) > 2:
    raise ValueError(
      f"At most two sets of images can be compared, got {len(words)}."
    )
  if len(words) == 2 and _REFERENCE.value:
    raise ValueError(
      f"`--reference` must be left out, got '{_REFERENCE.value}': the second "
      f"set, '{words[1]}', is the reference."
    )
  if _FOLLOW.value and (words or _STEP.value):
    raise ValueError(
      "`--follow` measures every checkpoint of a run: give `--model_dir`, and "
      "no `--step`."
    )


if __name__ == "__main__":
  cli.run_with_words(main, own_signals=True)
