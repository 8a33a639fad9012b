"""Runs a suite of benchmarks on this machine.

python -m tools.benchmark --suite=step --quick --json=step.json
python -m tools.benchmark --suite=async --json=async.json --png=async.png
"""

from typing import Dict

from absl import flags

from tools import cli
from tools.suites import (
  async_,
  backbones,
  engines,
  layout,
  per_label,
  quality,
  rehearsal,
  scaling,
  step,
  wire,
)
from tools.suites import input as input_
from tools.suites.suite import Options, Suite

SUITES: Dict[str, Suite] = {
  "step": step.run,
  "engines": engines.run,
  # A package cannot be called `async`, which is a keyword of Python.
  "async": async_.run,
  "backbones": backbones.run,
  "input": input_.run,
  "layout": layout.run,
  "per_label": per_label.run,
  "quality": quality.run,
  "rehearsal": rehearsal.run,
  "scaling": scaling.run,
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
  "only", [], "Trains these sides only, where a suite measures quality."
)
_JSON = flags.DEFINE_string("json", None, "File for the figures.")
_PNG = flags.DEFINE_string("png", None, "File for the plot, if there is one.")


def main():
  """Reads the flags, runs a suite, and prints its table."""
  suite = cli.exit_on_error(lambda: _find_suite(_SUITE.value))
  for flag in (_JSON, _PNG):
    cli.exit_on_error(lambda flag=flag: cli.check_file(flag.name, flag.value))
  options = Options(
    _QUICK.value, _QUALITY.value, tuple(_ONLY.value), _JSON.value
  )
  result = cli.exit_on_error(lambda: suite(options))
  print(result.table)
  if _JSON.value:
    cli.exit_on_error(
      lambda: cli.write_json("json", _JSON.value, result.figures)
    )
  if _PNG.value and result.draw:
    result.draw(_PNG.value)


def _find_suite(name: str) -> Suite:
  if name not in SUITES:
    raise ValueError(
      f"`--suite` must be one of {', '.join(SUITES)}, got '{name}'."
    )
  return SUITES[name]


if __name__ == "__main__":
  cli.run(main)
