"""Measures how fast we are, on this machine.

python -m tools.benchmark --suite=step --quick --json=step.json
python -m tools.benchmark --suite=async --json=async.json --png=async.png
"""

import json
import os
from typing import Dict, Optional

from absl import flags

from tools import cli
from tools.suites import (
  apart,
  backbones,
  engines,
  inputs,
  layouts,
  step,
  wire,
)
from tools.suites.suite import Options, Suite

SUITES: Dict[str, Suite] = {
  "step": step.run,
  "engines": engines.run,
  "async": apart.run,
  "backbones": backbones.run,
  "input": inputs.run,
  "layout": layouts.run,
  "wire": wire.run,
}

_SUITE = flags.DEFINE_string(
  "suite", None, f"What to measure: {', '.join(SUITES)}.", required=True
)
_QUICK = flags.DEFINE_bool(
  "quick", False, "Takes under three minutes, with more noise."
)
_QUALITY = flags.DEFINE_bool(
  "quality",
  False,
  "Measures only what is learned, not how fast; 15 minutes with --quick.",
)
_JSON = flags.DEFINE_string("json", None, "File for the figures.")
_PNG = flags.DEFINE_string("png", None, "File for the plot, if there is one.")


def main():
  """Reads the flags, measures, and says what came out."""
  suite = cli.checked(lambda: _suite(_SUITE.value))
  for flag in (_JSON, _PNG):
    cli.checked(lambda flag=flag: _check_file(flag.name, flag.value))
  options = Options(_QUICK.value, _QUALITY.value)
  result = cli.checked(lambda: suite(options))
  print(result.table)
  if _JSON.value:
    cli.checked(lambda: _write(_JSON.value, result.figures))
  if _PNG.value and result.draw:
    result.draw(_PNG.value)


def _suite(name: str) -> Suite:
  if name not in SUITES:
    raise ValueError(
      f"`--suite` must be one of {', '.join(SUITES)}, got '{name}'."
    )
  return SUITES[name]


def _check_file(flag: str, path: Optional[str]) -> None:
  """Says before the measuring what would fail after it."""
  if path is None:
    return
  folder = os.path.dirname(os.path.abspath(path))
  if not os.path.isdir(folder):
    raise ValueError(
      f"`--{flag}` must be a file in a folder that is there, got '{path}': "
      f"make '{folder}' first."
    )
  there = os.path.exists(path)
  if os.path.isdir(path) or not os.access(path if there else folder, os.W_OK):
    raise _cannot_write(flag, path)


def _write(path: str, figures: Dict[str, float]) -> None:
  try:
    with open(path, "w") as f:
      json.dump(figures, f, indent=2)
      f.write("\n")
  except OSError as e:
    raise _cannot_write("json", path) from e


def _cannot_write(flag: str, path: str) -> ValueError:
  return ValueError(
    f"`--{flag}` must be a file that can be written, got '{path}': give "
    "another one."
  )


if __name__ == "__main__":
  cli.run(main)
