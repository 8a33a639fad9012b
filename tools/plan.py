"""Plans a run on many workers from the profile of one worker here.

python -m tools.plan --gin_file=gin/runs/fashion.gin --num_workers=8 \
  --link=ethernet_10g --output=plan.gin

Then train it: python -m tools.train --gin_file=gin/runs/fashion.gin \
  --gin_file=plan.gin --model_dir=runs/planned
"""

import pathlib

from absl import flags

from tools import cli, gin_flags

_GIN_FILE = flags.DEFINE_multi_string(
  "gin_file", None, "Config file; several are read in order.", required=True
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A single binding, read after the files."
)
_NUM_WORKERS = flags.DEFINE_integer(
  "num_workers", None, "Workers to plan for, each one device.", required=True
)
_BS = flags.DEFINE_integer(
  "bs",
  None,
  "Images of an update, over all workers; by default the config's "
  "batch for each worker.",
)
_NUM_UPDATES = flags.DEFINE_integer("num_updates", 0, "Updates to train for.")
_NUM_IMAGES = flags.DEFINE_integer(
  "num_images", 0, "Images to train on; by default as many as the config does."
)
_SCHEME = flags.DEFINE_string(
  "scheme", "", "Scheme that --output realizes; by default the fastest."
)
_RATE_RULE = flags.DEFINE_enum(
  "rate_rule", "none", ["linear", "sqrt", "none"], "How rates follow the batch."
)
_LINK = flags.DEFINE_string(
  "link", "ethernet_10g", "Link between workers; a wrong name lists all."
)
_BANDWIDTH = flags.DEFINE_float(
  "bandwidth", None, "Bytes a second of a link of your own, in place of --link."
)
_LATENCY = flags.DEFINE_float(
  "latency", 0.0, "Seconds of a message over a link of your own."
)
_WORKERS_PER_MACHINE = flags.DEFINE_integer(
  "workers_per_machine", 1, "Workers that share a machine's cores and memory."
)
_JITTER = flags.DEFINE_float(
  "jitter", 0.0, "Standard deviation of a step, relative to its mean."
)
_PRICE = flags.DEFINE_float("price", 0.0, "Price of a device for an hour.")
_TILE = flags.DEFINE_integer(
  "tile",
  0,
  "What a worker's batch should be a multiple of; by default 8 if "
  "--link is that of a TPU.",
)
_NUM_THREADS = flags.DEFINE_integer(
  "num_threads", 0, "Threads of the worker to profile; 0 takes all."
)
_BATCHES = flags.DEFINE_multi_integer(
  "batches", [], "A worker's batch to measure; two or more."
)
_PROFILE = flags.DEFINE_string(
  "profile", None, "File with a profile to plan from, instead of measuring."
)
_TPU_REPORT = flags.DEFINE_multi_string(
  "tpu_report",
  [],
  "File of `tools.tpu_report --json`, to plan for a TPU; one for each batch.",
)
_CACHE_DIR = flags.DEFINE_string(
  "cache_dir", None, "Folder of profiles; by default in the user's cache."
)
_REFRESH = flags.DEFINE_bool("refresh", False, "Measures the profile anew.")
_ACTS = flags.DEFINE_bool(
  "acts", False, "Lets the run change what turns out otherwise than planned."
)
_OUTPUT = flags.DEFINE_string(
  "output", None, "Gin file that realizes the plan."
)
_HTML = flags.DEFINE_string("html", None, "File for the table and the plot.")
_JSON = flags.DEFINE_string("json", None, "File for all figures.")


def main():
  """Profiles, plans, prints and writes."""
  for flag in (_OUTPUT, _HTML, _JSON):
    cli.exit_on_error(lambda flag=flag: cli.check_file(flag.name, flag.value))
  gin_flags.allow_imports()
  module = cli.import_quietly("paragan_tf.planning")
  report = cli.exit_on_error(lambda: _make_report(module))
  print(report.text())
  if _OUTPUT.value:
    cli.exit_on_error(lambda: _write(module, report, _OUTPUT.value))
  if _HTML.value:
    pathlib.Path(_HTML.value).write_text(report.html(), encoding="utf-8")
  if _JSON.value:
    cli.exit_on_error(
      lambda: cli.write_json("json", _JSON.value, report.json())
    )


def _make_report(module):
  source = module.Source(
    tuple(_GIN_FILE.value),
    tuple(_GIN_BINDINGS.value),
    _NUM_THREADS.value,
    tuple(_BATCHES.value),
  )
  module.load(source)
  # What is wrong with the goal is said before anything is measured.
  goal = _make_goal(module, 1)
  module.plan.check_goal(goal)
  if _PROFILE.value:
    found = module.read(_PROFILE.value)
  elif _TPU_REPORT.value:
    found = _profile_tpu(module, source, goal.config_hash)
  else:
    found = module.profile(
      source, _CACHE_DIR.value, _REFRESH.value, module.show_progress()
    )
  goal = _make_goal(module, found.num_batches)
  machine = module.Machine(
    workers=_WORKERS_PER_MACHINE.value,
    cores=found.num_cores,
    jitter=_JITTER.value,
  )
  return module.Report(found, goal._replace(machine=machine))


def _profile_tpu(module, source, config_hash: str):
  """Returns the profile of a TPU's core, as its compiler estimates it."""
  from tools.suites.scaling import paper
  from tools.tpu import profile

  counts = paper.count(source.gin_files[0], source.gin_bindings)
  module.load(source)  # Counting reads other configs.
  return profile.make_profile(
    _TPU_REPORT.value, counts, module.read_num_batches(), config_hash
  )


def _make_goal(module, num_batches: int):
  link = _LINK.value
  if _BANDWIDTH.value is not None:
    link = module.Link("your link", _BANDWIDTH.value, _LATENCY.value)
  is_tpu = isinstance(link, str) and link.startswith("tpu")
  return module.read_goal(
    _NUM_WORKERS.value,
    _BS.value,
    _NUM_UPDATES.value,
    _NUM_IMAGES.value,
    link,
    num_batches,
    rate_rule=_RATE_RULE.value,
    price=_PRICE.value,
    tile=_TILE.value or (8 if is_tpu else 1),
  )


def _write(module, report, path: str) -> None:
  found = report.choose(_SCHEME.value)
  module.write_gin(found, path, _ACTS.value)
  print(
    f"Wrote '{path}', which trains `{found.scheme}`: give it to "
    "`tools.train` as the last `--gin_file`."
  )


if __name__ == "__main__":
  cli.run(main)
