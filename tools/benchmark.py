"""Measures how fast we are, on this machine.

python -m tools.benchmark --suite=step --quick --json=step.json
"""

import json
import os
from typing import Callable, Dict, Optional, Tuple

from absl import flags

from tools import cli
from tools.suites import engines, step

# From whether to be quick to a table for people and figures for programs.
Suite = Callable[[bool], Tuple[str, Dict[str, float]]]

SUITES: Dict[str, Suite] = {
  "step": step.run,
  "engines": engines.run,
}

_SUITE = flags.DEFINE_string(
  "suite", None, f"What to measure: {', '.join(SUITES)}.", required=True
)
_QUICK = flags.DEFINE_bool(
  "quick", False, "Takes under three minutes, with more noise."
)
_JSON = flags.DEFINE_string("json", None, "File for the figures.")


def main():
  """Reads the flags, measures, and says what came out."""
  suite = cli.checked(lambda: _suite(_SUITE.value))
  cli.checked(lambda: _check_file(_JSON.value))
  table, figures = cli.checked(lambda: suite(_QUICK.value))
  print(table)
  if _JSON.value:
    cli.checked(lambda: _write(_JSON.value, figures))


def _suite(name: str) -> Suite:
  if name not in SUITES:
    raise ValueError(
      f"`--suite` must be one of {', '.join(SUITES)}, got '{name}'."
    )
  return SUITES[name]


def _check_file(path: Optional[str]) -> None:
  """Says before the measuring what would fail after it."""
  if path is None:
    return
  folder = os.path.dirname(os.path.abspath(path))
  if not os.path.isdir(folder):
    raise ValueError(
      f"`--json` must be a file in a folder that is there, got '{path}': make "
      f"'{folder}' first."
    )
  there = os.path.exists(path)
  if os.path.isdir(path) or not os.access(path if there else folder, os.W_OK):
    raise _cannot_write(path)


def _write(path: str, figures: Dict[str, float]) -> None:
  try:
    with open(path, "w") as f:
      json.dump(figures, f, indent=2)
      f.write("\n")
  except OSError as e:
    raise _cannot_write(path) from e


def _cannot_write(path: str) -> ValueError:
  return ValueError(
    f"`--json` must be a file that can be written, got '{path}': give another "
    "one."
  )


if __name__ == "__main__":
  cli.run(main)
