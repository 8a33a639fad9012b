"""Measures how fast we are, on this machine.

python -m tools.benchmark --suite=step --quick --json=step.json
python -m tools.benchmark --suite=async --json=async.json --png=async.png
"""

from typing import Dict

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
_ONLY = flags.DEFINE_list(
  "only", [], "Lets these sides learn only, where a suite lets some learn."
)
_JSON = flags.DEFINE_string("json", None, "File for the figures.")
_PNG = flags.DEFINE_string("png", None, "File for the plot, if there is one.")


def main():
  """Reads the flags, measures, and says what came out."""
  suite = cli.checked(lambda: _suite(_SUITE.value))
  for flag in (_JSON, _PNG):
    cli.checked(lambda flag=flag: cli.check_file(flag.name, flag.value))
  options = Options(_QUICK.value, _QUALITY.value, tuple(_ONLY.value))
  result = cli.checked(lambda: suite(options))
  print(result.table)
  if _JSON.value:
    cli.checked(lambda: cli.write_json("json", _JSON.value, result.figures))
  if _PNG.value and result.draw:
    result.draw(_PNG.value)


def _suite(name: str) -> Suite:
  if name not in SUITES:
    raise ValueError(
      f"`--suite` must be one of {', '.join(SUITES)}, got '{name}'."
    )
  return SUITES[name]


if __name__ == "__main__":
  cli.run(main)
