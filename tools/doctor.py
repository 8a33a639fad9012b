"""Checks everything that a run needs, before it starts.

python -m tools.doctor --gin_file=gin/runs/fashion.gin --model_dir=runs/fashion

Ends with exit code 0 if the run can start, else with 2.
"""

import os
import platform
import shutil
import sys
from importlib import metadata
from typing import Any, Dict, List, NamedTuple, Optional

from absl import flags
from packaging.requirements import Requirement

from paragan_tf import shipped
from tools import cli, gin_flags

_GIN_FILE = flags.DEFINE_multi_string(
  "gin_file", None, "Config file; several are read in order.", required=True
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
  "gin_bindings", [], "A single binding, read after the files."
)
_MODEL_DIR = flags.DEFINE_string("model_dir", "runs", "Folder of the run.")

# Those that only work together as they are pinned; some of them are pinned, and
# needed, for some Pythons only.
_CHECKED = (
  "tensorflow",
  "tensorflow-estimator",
  "tensorflow-gan",
  "tensorflow-probability",
  "tf-keras",
  "numpy",
  "gin-config",
)
_TPU = "tensorflow-tpu"
_GB = 1e9


class Finding(NamedTuple):
  """The result of one check: `mark` is "ok", "note" or "error"."""

  mark: str
  about: str
  text: str

  def __str__(self) -> str:
    return f"{self.mark:6}{self.about:10}{self.text}"


def main():
  """Reads the flags, checks, and prints the findings."""
  findings = show(versions())
  if any(x.mark == "error" for x in findings):  # Nothing else would import.
    sys.exit(2)
  gin_flags.allow_imports()
  module = cli.import_quietly("paragan_tf.run")
  findings += show(devices())
  findings += show(space(_MODEL_DIR.value))
  experiment = None
  try:
    module.config.load(_GIN_FILE.value, _GIN_BINDINGS.value)
    experiment = module.Experiment(module.strategies.choose().strategy)
  except module.config.WRONG as e:
    text = module.config.sentence(e)
    findings += show([Finding("error", "config", text)])
  if experiment is not None:
    findings += show(model(experiment, _MODEL_DIR.value))
    findings += show(data(experiment))
    findings += show(step(experiment))
  wrong = sum(x.mark == "error" for x in findings)
  if wrong:
    print(f"{wrong} problem(s) must be fixed first.")
    sys.exit(2)
  print("The run can start.")


def show(findings: List[Finding]) -> List[Finding]:
  """Prints findings immediately; some checks are slow."""
  for finding in findings:
    print(finding, flush=True)
  return findings


def versions() -> List[Finding]:
  """Compares what is installed with the pins of the package."""
  found = [Finding("ok", "python", platform.python_version())]
  if not (3, 9) <= sys.version_info[:2] <= (3, 13):
    text = f"{platform.python_version()}: TensorFlow needs 3.9 to 3.13."
    found = [Finding("error", "python", text)]
  pins = _pins()
  found += [_version(x, pins[x]) for x in _CHECKED if x in pins]
  return found + _tpu_files()


def _pins() -> Dict[str, str]:
  """Returns the versions that the lock has for this Python."""
  lines = (shipped.ROOT / "requirements.lock").read_text().splitlines()
  pinned = [Requirement(line) for line in lines if line[:1].isalpha()]
  return {
    pin.name: str(pin.specifier).removeprefix("==")
    for pin in pinned
    if pin.marker is None or pin.marker.evaluate()
  }


def _tpu_files() -> List[Finding]:
  """Checks that TensorFlow's files are those of the build for TPUs.

  Both packages write the same folder, and pip lets the later one win.
  """
  try:
    files = metadata.files(_TPU) or []
  except metadata.PackageNotFoundError:
    return []
  library = next(x for x in files if x.match("tensorflow/libtensorflow_cc.so*"))
  if os.path.getsize(library.locate()) == library.size:
    return [Finding("ok", "package", f"{_TPU} {metadata.version(_TPU)}")]
  text = (
    f"{_TPU} is overwritten by tensorflow: `pip install --force-reinstall "
    f"--no-deps {_TPU}=={metadata.version(_TPU)}`."
  )
  return [Finding("error", "package", text)]


def _version(name: str, pinned: Optional[str]) -> Finding:
  try:
    installed = metadata.version(name)
  except metadata.PackageNotFoundError:
    text = f"{name} is not installed: `pip install -r requirements.lock`."
    return Finding("error", "package", text)
  if pinned is not None and installed != pinned:
    text = f"{name} is {installed}, tested with {pinned}."
    return Finding("note", "package", text)
  return Finding("ok", "package", f"{name} {installed}")


def devices() -> List[Finding]:
  """Lists the devices."""
  import tensorflow as tf

  found = [Finding("ok", "devices", f"{os.cpu_count()} CPU cores")]
  gpus = tf.config.list_physical_devices("GPU")
  for gpu in gpus:
    name = tf.config.experimental.get_device_details(gpu).get("device_name")
    found.append(Finding("ok", "devices", f"{name or gpu.name}"))
  if not gpus:
    text = "No GPU; a Cloud TPU is chosen with `--tpu` when training."
    found.append(Finding("note", "devices", text))
  return found


def space(folder: str) -> List[Finding]:
  """Checks free disk space and memory."""
  if "://" in folder:
    return [Finding("note", "disk", f"'{folder}' is elsewhere, not measured.")]
  there = _nearest_folder(folder)
  if not os.path.isdir(there):
    text = f"'{there}' is a file: give another `--model_dir`."
    return [Finding("error", "disk", text)]
  if not os.access(there, os.W_OK):
    text = f"'{there}' cannot be written: give another `--model_dir`."
    return [Finding("error", "disk", text)]
  free = shutil.disk_usage(there).free / _GB
  found = [Finding("ok" if free > 1 else "note", "disk", f"{free:.1f} GB free")]
  memory = _free_memory()
  if memory is not None:
    found.append(Finding("ok", "memory", f"{memory / _GB:.1f} GB free"))
  return found


def _nearest_folder(folder: str) -> str:
  """Returns the nearest existing parent folder."""
  there = os.path.abspath(folder)
  while not os.path.exists(there):
    there = os.path.dirname(there)
  return there


def _free_memory() -> Optional[float]:
  try:
    with open("/proc/meminfo") as f:
      fields = dict(line.split(":") for line in f)
  except OSError:  # Not on Linux.
    return None
  return 1024.0 * int(fields["MemAvailable"].split()[0])


def model(experiment: Any, folder: str) -> List[Finding]:
  """Checks the size of the nets, and whether they fit."""
  found = [Finding("ok", "config", x) for x in experiment.summary().split("\n")]
  step = experiment.step
  weights = sum(
    variable.shape.num_elements()
    for side in step.players.values()
    for variable in side.net.trainable_variables
  )
  state = 4.0 * sum(v.shape.num_elements() for v in step.variables)
  num_replicas = experiment.strategy.num_replicas_in_sync
  needed = num_replicas * (state + 4.0 * weights)
  text = (
    f"{weights:,} weights; weights, their gradients and optimizers "
    f"{needed / _GB:.2f} GB, activations come on top"
  )
  free = _free_memory()
  if free is not None and needed > free:
    text += f"; {free / _GB:.1f} GB are free"
  found.append(
    Finding("ok" if free is None or needed < free else "error", "model", text)
  )
  if "://" not in folder:
    found += _checkpoints(state, folder)
  return found


def _checkpoints(state: float, folder: str) -> List[Finding]:
  free = shutil.disk_usage(_nearest_folder(folder)).free
  keep = cli.import_quietly("paragan_tf.run").checkpoints.KEEP
  needed = (keep + 1) * state
  if needed > free:
    text = (
      f"A run keeps {keep} checkpoints and writes the next one before the "
      f"oldest goes, which need {needed / _GB:.1f} GB, {free / _GB:.1f} are "
      "free: make room, or give another `--model_dir`."
    )
    return [Finding("error", "disk", text)]
  return []


def step(experiment: Any) -> List[Finding]:
  """Builds what metrics need, and traces a step."""
  trial = cli.import_quietly("paragan_tf.trial")
  try:
    trial.check_measuring(experiment)
    found = [Finding("ok", "metrics", "what they need is here")]
    trial.trace_a_step(experiment, 0)
  except ValueError as e:
    return [Finding("error", "step", " ".join(str(e).split()))]
  return [*found, Finding("ok", "step", "a step can be traced")]


def data(experiment: Any) -> List[Finding]:
  """Looks at the images as training would."""
  input_fn = experiment.input_fn
  try:
    odd = experiment.check_input()
  except ValueError as e:
    return [Finding("error", "data", " ".join(str(e).split()))]
  remarks = [*odd, *experiment.input_remarks()]
  found = [Finding("note", "data", x) for x in remarks]
  text = (
    f"'{input_fn.name}', {input_fn.num_images:,} images; the first batch is "
    "as it must be"
  )
  return [Finding("ok", "data", text), *found]


if __name__ == "__main__":
  cli.run(main)
