"""Whether all schemes would train on a TPU, without one.

    traced     TensorFlow's `TPUStrategy`, on made-up cores, traces the loop
    compiled   the TPU compiler compiles the programs of 1024 cores
    run        the programs of 8 cores, on virtual CPU devices, train to the
               weights of `MirroredStrategy`

The nets are linear and, without `--quick`, a small SNGAN as well; optimizers
are plain, as adaptive ones magnify rounding. `SHOW` has a function for each
group of figures.
"""

import json
import subprocess
import sys
from typing import (
  Any,
  Callable,
  Dict,
  List,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
)

from tools import cli
from tools.suites.interleave import log_progress
from tools.suites.suite import Options, Result
from tools.tpu import environment, rehearsal_report
from tools.tpu.rehearsal import Rehearsal

_RUN = "gin/runs/smoke.gin"
_SGD, _OPTIMISTIC = "optimizers.SGD", "optimistic.OptimisticSGD"
# Name: files in `gin/sync`, and optimizer.
SCHEMES: Dict[str, Tuple[Sequence[str], str]] = {
  "sync": (["all_reduce"], _SGD),
  "every_other_step": (["every_other_step"], _SGD),
  "gradients_every_other_step": (["gradients_every_other_step"], _SGD),
  "paragan": (["paragan"], _SGD),
  "async_gradients": (["async", "gradients_every_other_step"], _SGD),
  "gossip": (["gossip"], _OPTIMISTIC),
  "quantized": (["quantized"], _OPTIMISTIC),
}
NETS: Dict[str, Tuple[str, ...]] = {
  "linear": (),
  "sngan": ("sngan.Generator.width = 4", "sngan.Discriminator.width = 4"),
}
_MANY = 1024


class Found(NamedTuple):
  """What was found out about one scheme.

  Attributes:
    traced: Whether the loop was traced, with no message in a branch.
    compiled: Whether it compiles for many cores, with each net.
    gaps: Of weights, for each net; `None` where it did not run.
  """

  traced: bool
  compiled: bool
  gaps: List[Optional[float]]


def make_rehearsal(scheme: str, net: str) -> Rehearsal:
  """Returns the rehearsal of a scheme with a small pair of nets."""
  sync, optimizer = SCHEMES[scheme]
  bindings = make_bindings(net, optimizer)
  return Rehearsal([_RUN, *(f"gin/sync/{s}.gin" for s in sync)], bindings)


def make_bindings(net: str, optimizer: str) -> List[str]:
  """Returns the bindings of a small pair of nets, both with one optimizer."""
  bindings = [
    f"from paragan_tf.nets import {net}",
    "from paragan_tf.game import optimistic",
    "from paragan_tf.game import optimizers",
    f"{optimizer}.learning_rate = 0.01",
    f"experiment.player.optimizer = @{optimizer}",
    *NETS.get(net, ()),
  ]
  for side, kind in (("g", "Generator"), ("d", "Discriminator")):
    bindings.append(f"{side}/experiment.player.net = @{net}.{kind}")
    bindings.append(f"{side}/experiment.player.optimizer = @{optimizer}")
  return bindings


def run(options: Options) -> Result:
  """Returns a table and the figures by name."""
  if not environment.is_installed():
    log_progress("Making the TPU compiler's environment; this is done once.")
    environment.install()
  nets = list(NETS)[:1] if options.quick else list(NETS)
  schemes = options.select_sides(SCHEMES)
  found = {name: _rehearse(name, nets) for name in schemes}
  figures: Dict[str, Any] = {}
  for show in SHOW:
    figures.update(show(found))
  return Result(format_table(found, figures), figures)


def _rehearse(scheme: str, nets: List[str]) -> Found:
  log_progress(f"Rehearsing {scheme}.")
  wanted = [make_rehearsal(scheme, net) for net in nets]
  topology = rehearsal_report.TOPOLOGIES[_MANY]
  many = [w._replace(num_cores=_MANY, topology=topology) for w in wanted]
  compiled = [rehearsal_report.run_one(w) for w in many]
  trained = [rehearsal_report.run_one(w) for w in wanted]
  return Found(
    all(is_traced(w) for w in wanted),
    not any(row.failure for row in compiled),
    [row.figures["max_weight_gap"] if row.figures else None for row in trained],
  )


def is_traced(wanted: Rehearsal) -> bool:
  """Returns whether `TPUStrategy` traces a run's loop as a TPU needs it."""
  cli.import_experiment()
  import tensorflow as tf

  from tools.tpu import rehearsal, virtual_tpu

  try:
    with tf.Graph().as_default():
      strategy = virtual_tpu.make_strategy(wanted.num_cores)
      program = virtual_tpu.trace_loop(rehearsal.build(wanted, strategy))
      found = virtual_tpu.find_communication(program.graph)
  except ValueError as e:
    log_progress(f"Not traced: {e}")
    return False
  return bool(found) and not any(message.in_branch for message in found)


def count_schemes(found: Dict[str, Found]) -> Dict[str, float]:
  """Returns how many schemes came through, and the largest gap."""
  limit = rehearsal_report.MAX_WEIGHT_GAP
  gaps = [gap for each in found.values() for gap in each.gaps]
  return {
    "schemes_traced": sum(each.traced for each in found.values()),
    f"schemes_compiled_{_MANY}": sum(each.compiled for each in found.values()),
    f"schemes_run_{rehearsal_report.NUM_VIRTUAL}": sum(
      all(gap is not None and gap <= limit for gap in each.gaps)
      for each in found.values()
    ),
    "max_weight_gap": max(float("inf") if g is None else g for g in gaps),
  }


def compare_checkpoints(found: Dict[str, Found]) -> Dict[str, float]:
  """Returns the bytes of a checkpoint of 8 replicas, relative to one replica.

  The largest ratio of all schemes whose replicas differ within a period.
  """
  del found
  log_progress("Comparing checkpoints of 8 replicas and of one.")
  one, many = (_measure("checkpoint_bytes", num) for num in ("1", "8"))
  ratio = max(many[scheme] / one[scheme] for scheme in one)
  return {"checkpoint_bytes_ratio_8_to_1": ratio}


def count_builds(found: Dict[str, Found]) -> Dict[str, float]:
  """Returns how often TPUEstimator builds its graph in one run."""
  del found
  from paragan_tf.engine import estimator

  try:
    estimator.check_exists()
  except ValueError as e:
    log_progress(f"Not counted: {e}")
    return {}
  log_progress("Counting what TPUEstimator builds.")
  return {"estimator_builds": _measure("estimator_builds")}


def _measure(module: str, *arguments: str) -> Any:
  """Returns what a module of this suite prints, in a process of its own."""
  command = [sys.executable, "-m", f"tools.suites.rehearsal.{module}"]
  done = subprocess.run(
    [*command, *arguments], capture_output=True, text=True, check=False
  )
  if done.returncode:
    raise ValueError(f"`{module}` failed: {done.stderr.strip()[-500:]}")
  return json.loads(done.stdout.splitlines()[-1])


# Each returns figures by name, from what was found out about the schemes.
SHOW: List[Callable[[Dict[str, Found]], Dict[str, float]]] = [
  count_schemes,
  compare_checkpoints,
  count_builds,
]


def format_table(found: Dict[str, Found], figures: Dict[str, float]) -> str:
  """Returns what was found as text."""
  lines = [f"{'':28}{'traced':8}{f'compiled for {_MANY}':22}weights differ by"]
  yes = {True: "yes", False: "no"}
  for name, each in found.items():
    gaps = ", ".join("failed" if g is None else f"{g:.1e}" for g in each.gaps)
    lines.append(f"{name:28}{yes[each.traced]:8}{yes[each.compiled]:22}{gaps}")
  lines += [f"{name:32}{value:g}" for name, value in figures.items()]
  return "\n".join(lines)
