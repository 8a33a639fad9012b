"""Trains or compiles a run as the cores of a TPU would, without a TPU.

  python -m tools.tpu.rehearsal '{"gin_files": ["gin/runs/..."]}' FOLDER

Exports the programs that all cores run (`replicated.py`). With a topology, the
TPU compiler compiles them for as many cores. Without one, they run with their
collectives on virtual CPU devices (`virtual_cores.py`), and the same steps are
trained on the same images with `MirroredStrategy`: the weights must be equal.
Prints the figures as JSON. Needs the environment of the TPU compiler.
"""

import json
import pathlib
import subprocess
import sys
import types
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from tools import cli
from tools.tpu import environment, replicated
from tools.tpu.export import find_image_spec, use_zero_weights


class Rehearsal(NamedTuple):
  """What to rehearse.

  Attributes:
    gin_files: Of the run.
    bindings: Read after them.
    num_cores: Replicas, each on a core of its own.
    topology: What to compile for; `None` to run on virtual devices.
    num_steps: Steps to run; whole cycles of them are.
  """

  gin_files: Sequence[str]
  bindings: Sequence[str] = ()
  num_cores: int = 8
  topology: Optional[str] = None
  num_steps: int = 10


_EPSILON = 1.0
# Some images and labels of each call, `[calls, cores, ...]`.
Inputs = Sequence[np.ndarray]
# From the name of a variable to its values, `[cores, ...]`.
State = Dict[str, np.ndarray]


def rehearse(rehearsal: Rehearsal, folder: pathlib.Path) -> Dict[str, Any]:
  """Returns the figures; `folder` is for files in between."""
  if rehearsal.topology:
    return compile_for_cores(rehearsal, folder)
  return compare_with_strategy(rehearsal, folder)


def compile_for_cores(rehearsal: Rehearsal, folder: pathlib.Path):
  """Returns the compiler's figures of one cycle.

  Memory is that of the largest program; all else is the sum over the cycle.
  """
  assert rehearsal.topology
  with use_zero_weights():
    exported, batch_size = export(rehearsal)
  exported.write(folder)
  _call_virtual_cores("compile", folder, rehearsal)
  programs = json.loads((folder / "figures.json").read_text())
  errors = [p["error"] for p in programs if "error" in p]
  if errors:
    raise ValueError(f"The TPU compiler refused the program: {errors[0]}")
  phases = [programs[index] for index in exported.order]
  return {
    "batch_size": batch_size,
    "num_steps": len(phases),
    "memory_bytes": max(p["memory_bytes"] for p in programs),
    "state_bytes": max(p["state_bytes"] for p in programs),
    "flops": sum(p["flops"] for p in phases),
    "num_collectives": sum(sum(p["collectives"].values()) for p in phases),
    "collectives": _sum_counts(p["collectives"] for p in phases),
    "compiled_collectives": _sum_counts(
      p["compiled_collectives"] for p in phases
    ),
    "collective_bytes": sum(p["collective_bytes"] for p in phases),
    "compile_seconds": sum(p["seconds"] for p in programs),
  }


def _sum_counts(counts) -> Dict[str, int]:
  total: Dict[str, int] = {}
  for each in counts:
    for kind, num in each.items():
      total[kind] = total.get(kind, 0) + num
  return total


def compare_with_strategy(rehearsal: Rehearsal, folder: pathlib.Path):
  """Trains both ways; returns the largest differences of weights and of state.

  The change of weights since the start says how much a difference is. Weights
  are the trained base weights of both players and the average of G.
  Optimizers that divide by the root of `v` get a large epsilon: otherwise the
  sign of a gradient that is 0 but for rounding would decide their first steps.
  """
  from paragan_tf.engine import strategies

  devices = strategies.split_cpu(rehearsal.num_cores)
  exported, _ = export(rehearsal, _EPSILON)
  inputs = _draw_inputs(rehearsal, exported)
  on_cores = _run_on_cores(rehearsal, exported, inputs, folder)
  mirrored, trained, averaged = _run_mirrored(rehearsal, devices, inputs)
  gaps = {name: _gap(on_cores[name], mirrored[name]) for name in mirrored}
  changes = [_gap(exported.state[name], mirrored[name]) for name in trained]
  return {
    "num_steps": len(inputs[0]),
    "num_variables": len(gaps),
    "max_weight_gap": max(gaps[name] for name in trained + averaged),
    "max_weight_change": max(changes),
    "max_state_gap": max(gaps.values()),
  }


def export(rehearsal: Rehearsal, epsilon: Optional[float] = None):
  """Returns the exported step, and the run's batch size."""
  import tensorflow as tf

  num_cores = rehearsal.num_cores
  with replicated.trace_for_cores(num_cores):
    built = build(rehearsal, tf.distribute.get_strategy(), epsilon)
    return replicated.export_step(built, num_cores), built.batch_size


def build(rehearsal: Rehearsal, strategy, epsilon: Optional[float] = None):
  """Builds the experiment, with optimizers of that epsilon.

  No image is read.
  """
  experiment = cli.import_experiment()
  experiment.gin.clear_config()
  cli.import_quietly("paragan_tf.config").load(
    rehearsal.gin_files, rehearsal.bindings
  )
  spec = find_image_spec(experiment)
  built = experiment.Experiment(
    strategy,
    input_fn=lambda: types.SimpleNamespace(spec=spec),
    batch_size=_find_batch_size(experiment, rehearsal.num_cores),
  )
  for player in built.step.players.values():
    for module in (player.optimizer, *player.optimizer.submodules):
      if epsilon and hasattr(module, "epsilon"):
        module.epsilon = epsilon
  return built


def _find_batch_size(experiment, num_cores: int) -> int:
  """Returns the run's batch, enlarged if it is no multiple of the cores."""
  bindings = experiment.gin.get_bindings(experiment.Experiment)
  size = bindings.get("batch_size", 64)
  return -(-size // num_cores) * num_cores


def _draw_inputs(rehearsal: Rehearsal, exported) -> Inputs:
  random = np.random.RandomState(0)
  cycle = len(exported.order)
  num_calls = max(1, rehearsal.num_steps // cycle) * cycle
  first = [num_calls, rehearsal.num_cores]
  images = random.uniform(-1.0, 1.0, [*first, *exported.image_shape])
  num_classes = max(1, exported.num_classes)
  labels = random.randint(0, num_classes, [*first, exported.image_shape[0]])
  return images.astype(np.float32), labels.astype(np.int32)


def _run_on_cores(rehearsal, exported, inputs: Inputs, folder) -> State:
  """Returns the state after the calls of the exported programs."""
  exported.write(folder)
  cycle, num_calls = len(exported.order), len(inputs[0])
  given = {"order": [exported.order[i % cycle] for i in range(num_calls)]}
  for i, values in enumerate(inputs):
    given.update((f"input_{call}_{i}", x) for call, x in enumerate(values))
  values = exported.state.values()
  given.update((f"state_{i}", value) for i, value in enumerate(values))
  np.savez(folder / "arguments.npz", **given)
  _call_virtual_cores("run", folder, rehearsal)
  found = np.load(folder / "results.npz")
  return {name: found[f"state_{i}"] for i, name in enumerate(exported.state)}


def _call_virtual_cores(command: str, folder, rehearsal: Rehearsal) -> None:
  script = pathlib.Path(__file__).with_name("virtual_cores.py")
  call = [environment.get_python(), script, command, folder]
  call += [rehearsal.num_cores, *filter(None, [rehearsal.topology])]
  done = subprocess.run(
    [str(x) for x in call], capture_output=True, text=True, check=False
  )
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    raise ValueError(f"The program of all cores fails: {lines[-1]}")


def _run_mirrored(rehearsal: Rehearsal, devices: List[str], inputs: Inputs):
  """Returns the state after training with a strategy, and names of weights.

  They are those that are trained, then those of the average of G.
  """
  import tensorflow as tf

  from paragan_tf.engine import strategies

  strategy = tf.distribute.MirroredStrategy(devices)
  built = build(rehearsal, strategy, _EPSILON)
  step = built.step

  def make_program(phase):
    def replica(images, labels):
      step(images, labels if built.spec.num_classes else None, phase)

    return tf.function(
      lambda *batch: strategy.run(replica, args=batch), autograph=False
    )

  def distribute(value):
    return strategy.experimental_distribute_values_from_function(
      lambda context: tf.constant(value[context.replica_id_in_sync_group])
    )

  programs = [make_program(phase) for phase in range(step.cycle)]
  for i, batch in enumerate(zip(*inputs)):
    programs[i % step.cycle](*map(distribute, batch))
  state = {
    v.name: np.stack([x.numpy() for x in strategies.copies(strategy, v)])
    for v in step.variables
  }
  trained = [w for player in step.players.values() for w in player.base]
  averaged = step.ema.twin.trainable_variables
  return state, [w.name for w in trained], [w.name for w in averaged]


def _gap(a: np.ndarray, b: np.ndarray) -> float:
  if not a.size:
    return 0.0
  return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))


def main() -> None:
  """Rehearses the first argument in the folder of the second."""
  rehearsal = Rehearsal(**json.loads(sys.argv[1]))
  figures = cli.exit_on_error(
    lambda: rehearse(rehearsal, pathlib.Path(sys.argv[2]))
  )
  print(json.dumps(figures))


if __name__ == "__main__":
  main()
