"""A worker's profile from the figures of the TPU compiler.

python -m tools.tpu_report --gin_file=... --cores=128 --json=16.json
python -m tools.tpu_report --gin_file=... --cores=64 --json=32.json
python -m tools.plan --gin_file=... --tpu_report=16.json --tpu_report=32.json

Nothing is measured. What the compiler does not know is left out: the input, the
noise scale, and the time to quantize gradients.
"""

import json
import pathlib
from typing import Any, Dict, List, Mapping, Optional, Sequence

from paragan_tf.engine.scaling.profile import MEMORY_SOURCES, Fit, Profile, fit

# What a TPU trains with, the fastest first.
_VARIANTS = ("bfloat16", "layout", "off")


def make_profile(
  reports: Sequence[str], counts: Any, num_batches: int, config_hash: str
) -> Profile:
  """Returns the profile of a core.

  Args:
    reports: Files of `tools.tpu_report --json`, each with another batch.
    counts: `gradient_bytes`, `state_bytes` and `message_bytes` of the run.
    num_batches: Batches of real images that a step takes.
    config_hash: Of the run's config.
  """
  found = [_read(path) for path in reports]
  steps = _rows(found, "step")
  if not steps:
    raise ValueError(
      f"`--tpu_report` has no figures of a step in {', '.join(reports)}: make "
      "them without `--roles`."
    )
  step = _fit(steps, "seconds_by_cycles")
  players = {who: _rows(found, who) for who in "gd"}
  return Profile(
    device=found[0]["topology"],
    num_threads=0,
    num_cores=1,
    config_hash=config_hash,
    batches=tuple(sorted(row["images"] for row in steps)),
    num_batches=num_batches,
    step_seconds=step,
    scheme_seconds={},
    player_seconds={
      # Half of the step is as good as nothing, and better than none.
      who: _fit(rows, "seconds_by_cycles")
      if rows
      else Fit(step.fixed / 2, step.per_image / 2)
      for who, rows in players.items()
    },
    memory_bytes=_fit(steps, "hbm_bytes"),
    memory_limit=int(found[0]["hbm_limit_bytes"]),
    memory_source=MEMORY_SOURCES[2],
    input_images_per_second=0.0,
    gradient_bytes=counts.gradient_bytes,
    state_bytes=counts.state_bytes,
    message_bytes=counts.message_bytes,
    codec_seconds={"encode": 0.0, "decode": 0.0},
    noise_scale={},
    exchange_engine="",
    exchange_workers=0,
    exchange_seconds={},
  )


def _read(path: str) -> Dict[str, Any]:
  try:
    found = json.loads(pathlib.Path(path).read_text())
  except (OSError, ValueError) as e:
    raise ValueError(f"`--tpu_report` '{path}' cannot be read: {e}") from e
  if not isinstance(found, dict) or "programs" not in found:
    raise ValueError(
      f"`--tpu_report` must be a file of `tools.tpu_report --json`, got "
      f"'{path}'."
    )
  return found


def _rows(
  reports: Sequence[Mapping[str, Any]], kind: str
) -> List[Mapping[str, Any]]:
  """Returns the figures of `step`, `g` or `d` in each report, by its batch."""
  rows = {}
  for report in reports:
    row = _fastest(report["programs"], kind)
    if row is not None:
      rows[row["images"]] = row
  return list(rows.values())


def _fastest(
  programs: Mapping[str, Any], kind: str
) -> Optional[Mapping[str, Any]]:
  for variant in _VARIANTS:
    row = programs.get(f"{kind}_{variant}")
    if row and not row["error"] and row["seconds_by_cycles"]:
      return row
  return None


def _fit(rows: Sequence[Mapping[str, Any]], name: str) -> Fit:
  return fit([row["images"] for row in rows], [row[name] for row in rows])
