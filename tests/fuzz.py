"""Gives programs thousands of bad inputs, and counts what should not happen.

python -m tests.fuzz --scale=1      # `make fuzz`

Inputs are made by hypothesis, or by flipping, cutting and repeating bytes of
good files. Each ends in success or in one sentence: no traceback, no hang, no
file outside of the run's folder. Most go through the functions that the
programs call, in this process; flags and checkpoints go to real processes.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback

import gin
import hypothesis
import numpy as np
import PIL.Image
import tensorflow as tf
from hypothesis import strategies as st

from paragan_tf import comparison, config, experiment, trial
from paragan_tf.data import arrays, image_errors, preflight, shards, sources
from paragan_tf.data.encoded import Streaming
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import cluster
from paragan_tf.outputs import image_files, report, run_history
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.run import Run
from tests import train_test
from tools import cli, packing
from tools.encoded_images import open_source

_SECONDS = 30  # Longer is a hang.
OUTCOMES = ("taken", "refused", "traceback", "hang", "outside")
# Parts of bindings, right and wrong.
NAMES = (
  "Experiment.batch_size",
  "Experiment.loss",
  "Experiment.schedule",
  "Experiment.seed",
  "Experiment.ema",
  "Experiment.augment",
  "Experiment.extractor",
  "Experiment.truncation",
  "InputFn.source",
  "InputFn.resolution",
  "InputFn.conditional",
  "InputFn.only_labels",
  "InputFn.prefetch",
  "Transform.crop",
  "g/player.net",
  "d/player.net",
  "g/player.exchange",
  "g/player.optimizer",
  "g/player.penalties",
  "g/player.precision",
  "g/player.regularizer",
  "g/player.clip_norm",
  "Sequential.num_d_steps",
  "optimizers.Adam.learning_rate",
  "optimizers.Adam.beta1",
  "optimizers.Adam.beta2",
  "optimizers.Adam.epsilon",
  "linear.Generator.z_dim",
  "linear.Discriminator.spectral",
  "ema.Ema.decay",
  "ema.Ema.start_step",
  "Run.num_steps",
  "Run.max_images",
  "Run.max_seconds",
  "Run.log_every",
  "Run.save_every",
  "Run.measure_every",
  "Run.best_by",
  "Run.num_metric_samples",
  "Run.folder_timeout",
  "Run.worker_timeout",
  "Run.termination_watcher",
  "Run.watchdog",
  "no.such.name",
  "import os",
  "include",
)
REFERENCES = (
  "@experiment.Experiment",
  "@linear.Generator",
  "@linear.Discriminator",
  "@losses.hinge",
  "@losses.hinge()",
  "@optimizers.Adam",
  "@no.such",
  "@",
  "%macro",
  "@gin.singleton()",
)


# Names with values of the right kinds, right and wrong.
_INTS = ("0", "1", "2", "3", "7", "8", "16", "32", "64", "-1", "1000000000",
         "4294967296", "9223372036854775808", "None")  # fmt: skip
_FLOATS = ("0.0", "-0.0", "1.0", "0.5", "-0.5", "0", "1", "1e30", "-1e30",
           "1e-30", "1e999", "-1e999", "None")  # fmt: skip
_EXCHANGES = ("@exchange.AllReduce", "@exchange.Periodic",
              "@exchange.AccumulatedGradients", "@gossip.Gossip",
              "@quantize.Quantized")  # fmt: skip
_PENALTIES = ("[@penalties.R1()]", "[@penalties.LeCam()]", "[]",
              "[@penalties.R1(), @penalties.R1()]",
              "[@penalties.GradientPenalty()]",
              "[@penalties.FeatureMatching()]")  # fmt: skip
KINDS = {
  _INTS: (
    "Experiment.batch_size", "Experiment.seed", "Experiment.num_standing",
    "InputFn.resolution", "InputFn.prefetch", "InputFn.label", "InputFn.seed",
    "Sequential.num_d_steps", "Sequential.num_g_steps",
    "Sequential.g_batch_size", "Asynchronous.cache_depth",
    "Asynchronous.g_batch_size", "Asynchronous.d_per_group",
    "exchange.Periodic.period", "exchange.AccumulatedGradients.period",
    "linear.Generator.z_dim", "ema.Ema.start_step", "Run.num_steps",
    "Run.max_images", "Run.log_every", "Run.sample_every", "Run.save_every",
    "Run.measure_every", "Run.num_metric_samples", "penalties.R1.period",
    "penalties.LeCam.start_step", "watchdog.Watchdog.every",
    "watchdog.Watchdog.patience", "watchdog.Watchdog.max_skipped",
  ),
  _FLOATS: (
    "optimizers.Adam.learning_rate", "optimizers.Adam.beta1",
    "optimizers.Adam.beta2", "optimizers.Adam.epsilon", "ema.Ema.decay",
    "g/player.clip_norm", "Experiment.truncation", "penalties.R1.weight",
    "Run.max_seconds", "Run.folder_timeout", "Run.worker_timeout",
    "watchdog.Watchdog.min_diversity", "watchdog.Watchdog.max_logit",
  ),
  _EXCHANGES: ("g/player.exchange", "d/player.exchange"),
  _PENALTIES: ("g/player.penalties", "d/player.penalties"),
  ("@optimizers.SGD", "@optimizers.Adam", "@optimizers.AdaBelief"):
    ("g/player.optimizer", "d/player.optimizer"),
  ("@schedule.Asynchronous", "@schedule.Simultaneous", "@schedule.Sequential"):
    ("Experiment.schedule",),
  ("@losses.hinge", "@losses.wasserstein", "@losses.TopK", "@losses.TopK()",
   "@losses.least_squares", "@losses.non_saturating", "@penalties.R1"):
    ("Experiment.loss",),
  ("'float32'", "'bfloat16'", "'float16'", "'x'"): ("g/player.precision",),
  ("@augment.Ada", "@augment.DiffAugment", "None"): ("Experiment.augment",),
  ("'fashion'", "None", "'x'", "'auto'"): ("Experiment.extractor",),
  ("['fid']", "[]", "['kid', 'fid']", "['x']"): ("Experiment.metrics",),
  ("[0]", "[0, 0]", "[99]", "['Coat']", "['x']", "[-1]", "None"):
    ("InputFn.only_labels",),
  ("True", "False"): ("InputFn.conditional", "linear.Discriminator.spectral"),
  ("'fid'", "'frechet_fashion'", "None"): ("Run.best_by",),
  ("@termination.gce", "@termination.file", "None"):
    ("Run.termination_watcher",),
}  # fmt: skip
MODULES = (
  "from paragan_tf import run",
  "from paragan_tf import termination",
  "from paragan_tf import watchdog",
  "from paragan_tf.game import augment",
  "from paragan_tf.game import losses",
  "from paragan_tf.game import penalties",
  "from paragan_tf.game import regularizers",
  "from paragan_tf.nets import linear",
  "from paragan_tf.sync import exchange",
  "from paragan_tf.sync import gossip",
  "from paragan_tf.sync import quantize",
)


class HangError(Exception):
  """An input took too long."""


def is_sentence(error):
  """Returns whether a program would end with one sentence."""
  return cli.is_mistake(error) and str(error).strip()


class Fuzzer:
  """Counts outcomes by target.

  Attributes:
    counts: `{target: {outcome: number}}`.
    failures: `(target, input, words)` of what should not happen.
    seconds: By target.
  """

  def __init__(self, folder, seed=0):
    self.folder = pathlib.Path(folder)
    self.random = np.random.RandomState(seed)
    self.counts = collections.defaultdict(collections.Counter)
    self.failures = []
    self.seconds = {}
    self.seed = seed

  def attempt(self, target, given, fn):
    """Calls `fn`; it may return, or end with a sentence."""
    before = self._list_files()

    def stop(*_):
      raise HangError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    words = ""
    try:
      with contextlib.redirect_stdout(io.StringIO()):
        fn()
      outcome = "taken"
    except HangError:
      outcome = "hang"
    except Exception as e:
      outcome = "refused" if is_sentence(e) else "traceback"
      words = traceback.format_exc()
    finally:
      signal.alarm(0)
    self.count(target, given, outcome, words)
    new = self._list_files() - before
    if new:
      self.count(target, given, "outside", str(new))

  def count(self, target, given, outcome, words=""):
    """Counts an outcome."""
    self.counts[target][outcome] += 1
    if outcome not in ("taken", "refused"):
      self.failures.append((target, given, words))

  def process(self, target, given, process):
    """Counts the outcome of a program that has ended."""
    output = process.stdout + process.stderr
    is_sentence = process.stderr.count("Error: ") == 1
    if "Traceback" in output or process.returncode not in (0, 2):
      self.count(target, given, "traceback", output[-3000:])
    elif process.returncode == 0 or is_sentence:
      self.count(target, given, "refused" if process.returncode else "taken")
    else:
      self.count(target, given, "traceback", output[-3000:])

  def _list_files(self):
    """Returns the files beside the one folder that may be written."""
    found = set(os.listdir("."))
    return found | {x for x in os.listdir(self.folder) if x != "run"}

  def damage(self, data):
    """Returns bytes with a few of them changed, cut out or repeated."""
    data = bytearray(data)
    for _ in range(self.random.randint(1, 4)):
      if not data:
        break
      at = self.random.randint(len(data))
      kind = self.random.randint(6)
      if kind < 3:
        data[at] ^= 1 << self.random.randint(8)
      elif kind == 3:
        del data[at:]
      elif kind == 4:
        size = self.random.randint(1, 64)
        data[at : at + size] = self.random.bytes(size)
      else:
        data[at:at] = data[at : at + self.random.randint(1, 64)]
    return bytes(data)

  def table(self):
    """Returns all counts as text."""
    head = ["input", "tried", *OUTCOMES]
    rows = [head]
    for target, found in sorted(self.counts.items()):
      tried = sum(found[x] for x in OUTCOMES[:4])
      rows.append([target, tried, *(found[x] for x in OUTCOMES)])
    total = [sum(row[i] for row in rows[1:]) for i in range(1, len(head))]
    rows.append(["all", *total])
    return "\n".join(
      f"{row[0]:14}" + "".join(f"{x:>11}" for x in row[1:]) for row in rows
    )


def given_by(strategy, count, fn, seed=0):
  """Calls `fn` with `count` values that hypothesis makes."""

  @hypothesis.seed(seed)
  @hypothesis.settings(
    max_examples=count,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  @hypothesis.given(strategy)
  def run(value):
    fn(value)

  run()


def values():
  """Returns a strategy of values in gin's syntax."""
  scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 70),
    st.floats(),
    st.text(max_size=12),
    st.binary(max_size=6),
  ).map(repr)
  leaves = st.one_of(scalars, st.sampled_from(REFERENCES))
  return st.recursive(
    leaves,
    lambda x: st.lists(x, max_size=3).map(lambda v: f"[{', '.join(v)}]"),
    max_leaves=4,
  )


def fuzz_bindings(fuzzer, count):
  """Configs: values of all kinds, and text that is no config."""
  lines = st.one_of(
    st.tuples(st.sampled_from(NAMES), values()).map(" = ".join),
    st.tuples(st.sampled_from(NAMES), st.text(max_size=20)).map(" = ".join),
    st.text(max_size=40),
    st.sampled_from(["from ", "import ", "include ", "x = "]).flatmap(
      lambda word: st.text(max_size=20).map(lambda rest: word + rest)
    ),
  )

  given_by(
    lines,
    count,
    lambda line: fuzzer.attempt(
      "bindings", line, lambda: build_run(fuzzer, line)
    ),
    fuzzer.seed,
  )
  gin.clear_config()


def fuzz_values(fuzzer, count):
  """Configs: one to three values of the right kinds; a step is traced."""
  pairs = [(name, x) for kind, names in KINDS.items() for name in names
           for x in kind]  # fmt: skip
  for _ in range(count):
    chosen = fuzzer.random.choice(len(pairs), fuzzer.random.randint(1, 4))
    lines = "\n".join(" = ".join(pairs[i]) for i in chosen)
    fuzzer.attempt("values", lines, lambda x=lines: build_run(fuzzer, x, True))
  gin.clear_config()


def build_run(fuzzer, lines, traces=False):
  """Builds the run of a config, as a program would."""
  config.load(
    ["gin/runs/smoke.gin"],
    [
      *MODULES,
      "g/player.net = @linear.Generator",
      "d/player.net = @linear.Discriminator",
      lines,
    ],
  )
  try:
    made = experiment.Experiment(tf.distribute.get_strategy())
    Run(made, f"{fuzzer.folder}/run/none").restore()
  except config.WRONG as e:
    raise ValueError(config.sentence(e)) from e
  if traces:
    trial.trace_a_step(made, 0)


def fuzz_clusters(fuzzer, count):
  """`TF_CONFIG`: JSON of all kinds, near what it should be, and no JSON."""
  scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["a:1", "b:2", "a:99999", "chief", "worker"]),
  )
  anything = st.recursive(
    scalars,
    lambda x: st.one_of(
      st.lists(x, max_size=3),
      st.dictionaries(
        st.sampled_from(["cluster", "task", "worker", "type", "index", "x"]),
        x,
        max_size=3,
      ),
    ),
    max_leaves=8,
  )
  near = st.fixed_dictionaries(
    {
      "cluster": st.fixed_dictionaries({"worker": anything}),
      "task": st.fixed_dictionaries(
        {"type": st.sampled_from(["worker", "chief", 3]), "index": anything}
      ),
    }
  )
  texts = st.one_of(
    anything.map(json.dumps), near.map(json.dumps), st.text(max_size=40)
  )
  given_by(
    texts,
    count,
    lambda text: fuzzer.attempt(
      "TF_CONFIG",
      text,
      lambda: cluster.from_environment({"TF_CONFIG": text}),
    ),
    fuzzer.seed,
  )


def _encode(kind, size, **options):
  pixels = np.random.RandomState(size).randint(256, size=[size, size, 3])
  file = io.BytesIO()
  PIL.Image.fromarray(pixels.astype(np.uint8)).save(file, kind, **options)
  return file.getvalue()


def fuzz_images(fuzzer, count):
  """Image files, as trained on, as packed and as measured."""
  folder = fuzzer.folder / "run" / "images"
  folder.mkdir(parents=True)
  exif = PIL.Image.Exif()
  exif[0x112] = 6
  good = {
    ".jpg": [
      _encode("JPEG", 40),
      _encode("JPEG", 40, progressive=True),
      _encode("JPEG", 40, exif=exif),
    ],
    ".png": [_encode("PNG", 24)],
    ".bmp": [_encode("BMP", 16)],
    ".webp": [_encode("WEBP", 40), _encode("WEBP", 24, lossless=True)],
  }
  for i in range(count):
    ending = list(good)[i % len(good)]
    options = good[ending]
    data = fuzzer.damage(options[fuzzer.random.randint(len(options))])
    path = folder / f"a{ending}"
    path.write_bytes(data)

    def run(path=path, data=data):
      image_errors.find_decode_error(data)
      image_errors.find_decode_error(data, python=False)
      with contextlib.suppress(ValueError):
        sources.list_images(str(folder), decode=True)
      image_files.Files([str(path)], 8)[0:1]

    fuzzer.attempt("images", data, run)
    path.unlink()


def fuzz_arrays(fuzzer, count):
  """npz and npy files."""
  path = fuzzer.folder / "run" / "a.npz"
  path.parent.mkdir(exist_ok=True)
  pixels, labels = np.zeros([9, 8, 8], np.uint8), np.arange(9)
  good = []
  for save in (np.savez, np.savez_compressed):
    file = io.BytesIO()
    save(file, images=pixels, labels=labels)
    good.append(file.getvalue())
  file = io.BytesIO()
  np.save(file, pixels)
  good.append(file.getvalue())
  for i in range(count):
    data = fuzzer.damage(good[i % 3])
    path.write_bytes(data)
    load = arrays.load_npy if i % 3 == 2 else arrays.load_npz
    fuzzer.attempt("arrays", data, lambda load=load: load(str(path)))


def _pack(fuzzer):
  folder = fuzzer.folder / "run" / "photos"
  folder.mkdir(parents=True)
  for i in range(12):
    (folder / f"{i}.jpg").write_bytes(_encode("JPEG", 16 + i))
  output = fuzzer.folder / "run" / "packed"
  output.mkdir()
  images = open_source(f"folder:{folder}", "train", None, "refuse")
  content = packing.write_shard(str(output), "a.tfrecord", images)
  (output / "parts").mkdir()
  os.makedirs(
    os.path.dirname(packing._part_path(str(output), "")), exist_ok=True
  )
  packing.finish(str(output), images, {"a.tfrecord": content})
  return output


def fuzz_records(fuzzer, count):
  """TFRecords, their manifest and index, up to the first batch."""
  folder = _pack(fuzzer)
  names = ("a.tfrecord", "manifest.json", "index.npz")
  good = {name: (folder / name).read_bytes() for name in names}

  def read_all(pattern):
    made = InputFn(
      lambda: sources.tfrecord(pattern, num_heldout=2),
      resolution=16,
      conditional=False,
      streaming=Streaming(window=4),
    )
    preflight.check(made, 10)

  for i in range(count):
    name = names[i % 3]
    data = fuzzer.damage(good[name])
    (folder / name).write_bytes(data)
    pattern = str(folder / ("manifest.json" if i % 2 else "a.tfrecord"))
    target = "TFRecords" if name == names[0] else "manifests"
    fuzzer.attempt(target, data, lambda pattern=pattern: read_all(pattern))
    if name != names[0]:
      path = str(folder / "manifest.json")
      fuzzer.attempt(target, data, lambda path=path: shards.read_manifest(path))
    (folder / name).write_bytes(good[name])


def fuzz_run_files(fuzzer, count):
  """What a run leaves: its records and what its G is like."""
  folder = fuzzer.folder / "run" / "files"
  folder.mkdir(parents=True)
  rows = [{"step": i, "time": 1e9 + i, "d/loss": 0.5 * i} for i in range(5)]
  protocol = {"extractor": "x", "num_samples": 5}
  value = {"name": "fid", "value": 1.0, "real_score": 0.5, "protocol": protocol}
  rows.append({"step": 5, "time": 1e9 + 9, "metrics": [value]})
  info = GInfo(32, 1, 10, 64, ("a", "b"))
  info.write(str(folder / "generator.json"))
  good = {
    "metrics.jsonl": "".join(json.dumps(x) + "\n" for x in rows).encode(),
    "starts.jsonl": json.dumps({"step": 0, "time": 1.0}).encode() + b"\n",
    "config.gin": b"run.Run.num_steps = 5\n",
    "generator.json": (folder / "generator.json").read_bytes(),
  }
  for name, data in good.items():
    (folder / name).write_bytes(data)

  def read_all():
    history = run_history.read(str(folder))
    report.write(str(folder))
    comparison.compare([str(folder)])
    GInfo.read(str(folder / "generator.json"))
    return history

  for i in range(count):
    name = list(good)[i % len(good)]
    data = fuzzer.damage(good[name])
    (folder / name).write_bytes(data)
    target = "metrics.jsonl" if name == "metrics.jsonl" else "run's files"
    fuzzer.attempt(target, data, read_all)
    (folder / name).write_bytes(good[name])


FLAGS = {
  "train": (
    ["--gin_file=gin/runs/smoke.gin", "--dry_run"],
    ["gin_file", "gin_bindings", "model_dir", "num_cpu_replicas", "engine",
     "tpu", "join_timeout", "allow_gin_imports", "use_tpu"],
  ),
  "evaluate": (
    [],
    ["model_dir", "metrics", "extractor", "reference", "num", "resolution",
     "truncation", "step", "json", "best_by"],
  ),
  "sample": (
    [],
    ["model_dir", "output", "num", "classes", "seed", "truncation", "step",
     "truncation_sweep", "interpolate", "frames", "nearest"],
  ),
  "compare": ([], ["output", "price_per_device_hour"]),
  "export": ([], ["model_dir", "output", "step", "truncation", "format"]),
  "launch": ([], ["num_workers", "threads_per_worker", "print"]),
}  # fmt: skip


def fuzz_flags(fuzzer, count, server):
  """Command lines, in real processes."""
  words = ["", "0", "-1", "nan", "inf", "x", "/dev/null", "/", "foo://x", "é",
           "1e9", "9" * 20, "[", "@x", "''", "a,b", "best"]  # fmt: skip
  target = fuzzer.folder / "run"
  target.mkdir(exist_ok=True)
  for _ in range(count):
    tool = list(FLAGS)[fuzzer.random.randint(len(FLAGS))]
    given, names = FLAGS[tool]
    given = list(given)
    if "model_dir" in names:
      given.append(f"--model_dir={target}/none")
    if "output" in names:
      given.append(f"--output={target}/output")
    for _ in range(fuzzer.random.randint(1, 4)):
      name = names[fuzzer.random.randint(len(names))]
      value = words[fuzzer.random.randint(len(words))]
      if name in ("output", "json") and value:
        value = f"{target}/{value}"
      given.append(f"--{name}={value}")
    if fuzzer.random.randint(4) == 0:
      given.append(words[fuzzer.random.randint(len(words))])
    fuzzer.process("flags", [tool, *given], server.run(f"tools.{tool}", *given))


def fuzz_checkpoints(fuzzer, count, server):
  """Checkpoints of a run, from which samples are drawn."""
  folder = fuzzer.folder / "run" / "trained"
  more = ("run.Run.num_steps = 2", "run.Run.save_every = 2",
          "Experiment.extractor = None")  # fmt: skip
  trained = server.run(
    "tools.train",
    "--gin_file=gin/runs/smoke.gin",
    f"--model_dir={folder}",
    *(f"--gin_bindings={x}" for x in more),
  )
  assert trained.returncode == 0, trained.stderr
  names = [x for x in sorted(os.listdir(folder)) if "ckpt" in x]
  names += ["checkpoint", "config.gin", "generator.json"]
  good = {
    name: (folder / name).read_bytes()
    for name in names
    if (folder / name).is_file()
  }
  for i in range(count):
    name = list(good)[i % len(good)]
    data = fuzzer.damage(good[name])
    (folder / name).write_bytes(data)
    process = server.run(
      "tools.sample",
      f"--model_dir={folder}",
      f"--output={fuzzer.folder}/run/samples.png",
      "--num=4",
    )
    fuzzer.process("checkpoints", [name, data], process)
    (folder / name).write_bytes(good[name])


# How many inputs each target takes at scale 1, 2,700 in all.
IN_PROCESS = {
  "clusters": (fuzz_clusters, 400),
  "arrays": (fuzz_arrays, 400),
  "images": (fuzz_images, 400),
  "records": (fuzz_records, 300),
  "run_files": (fuzz_run_files, 400),
  "bindings": (fuzz_bindings, 400),
  "values": (fuzz_values, 200),
}
BY_PROGRAMS = {
  "flags": (fuzz_flags, 150),
  "checkpoints": (fuzz_checkpoints, 50),
}


def run_all(folder, scale, server=None, only=None, seed=0):
  """Fuzzes all targets, about `2700 * scale` inputs; returns the fuzzer."""
  fuzzer = Fuzzer(folder, seed)
  (fuzzer.folder / "run").mkdir(exist_ok=True)
  for targets, more in ((IN_PROCESS, ()), (BY_PROGRAMS, (server,))):
    for name, (fuzz, count) in targets.items():
      if (only is None or name in only) and None not in more:
        began = time.monotonic()
        fuzz(fuzzer, max(2, round(count * scale)), *more)
        fuzzer.seconds[name] = time.monotonic() - began
  return fuzzer


def main():
  """Fuzzes, prints the table, and fails if something should not happen."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--scale", type=float, default=1.0)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--only", choices=[*IN_PROCESS, *BY_PROGRAMS], nargs="+")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder, \
      tempfile.TemporaryDirectory() as outputs:  # fmt: skip
    server = train_test.ForkServer(outputs)
    fuzzer = run_all(folder, args.scale, server, args.only, args.seed)
    server.close()
  for target, given, words in fuzzer.failures[:20]:
    print(f"{target}: {given!r}\n{words}", file=sys.stderr)
  print(fuzzer.table())
  print(f"{sum(fuzzer.seconds.values()):.0f} seconds")
  sys.exit(1 if fuzzer.failures else 0)


if __name__ == "__main__":
  main()
