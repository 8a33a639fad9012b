"""Compares runs on one page: samples, curves, metrics, cost and config.

python -m tools.compare runs/a runs/b --price_per_device_hour=1.2
"""

from typing import List

from absl import flags

from tools import cli

_OUTPUT = flags.DEFINE_string(
  "output", "compare.html", "The page to write, one file that needs no network."
)
_PRICE = flags.DEFINE_float(
  "price_per_device_hour",
  None,
  "What an hour of one device costs, in any currency: the page shows costs.",
  lower_bound=0.0,
)
_NUM = flags.DEFINE_integer(
  "num", None, "How many samples, about 64 by default."
)
_CLASSES = flags.DEFINE_list(
  "classes",
  None,
  "Numbers or names of the classes to draw; by default all, ten of many.",
)
_SEED = flags.DEFINE_integer("seed", 0, "Of the latent codes, for all runs.")
_TRUNCATION = flags.DEFINE_float(
  "truncation", None, "Of the latent codes; by default that of each run."
)


def main(runs: List[str]) -> None:
  """Writes the page, and prints the table."""
  if not runs:
    cli.fail(
      "`compare` needs the folders of runs, got none: name them, as in "
      "`compare runs/a runs/b`."
    )
  cli.exit_on_error(lambda: cli.check_file("output", _OUTPUT.value))
  comparison = cli.import_quietly("paragan_tf.comparison")
  drawing = comparison.Drawing(
    _NUM.value, _CLASSES.value, _SEED.value, _TRUNCATION.value
  )
  result = cli.exit_on_error(
    lambda: comparison.compare(runs, _PRICE.value, drawing)
  )
  cli.exit_on_error(
    lambda: cli.write_text("output", _OUTPUT.value, result.page)
  )
  print(result.table)
  print(f"Page: {_OUTPUT.value}", flush=True)


if __name__ == "__main__":
  cli.run_with_words(main)
