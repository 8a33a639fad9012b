"""The speed of one step, compared with TF-GAN training the same nets.

    ours            our step in our loop
    tfgan           TF-GAN's `GANEstimator`, with our nets
    tfgan_session   TF-GAN's updates in a bare session, with our nets
    tfgan_plain     the same, with the nets as the papers write them:
                    upsampling and pooling apart from the convolutions

Each side has a process of its own, since the memory allocator is a setting of
the process. All trace first, then run interleaved. Ratios are taken within a
repetition.
"""

import functools
import time
from typing import Any, Dict

from tools.suites.interleave import interleave, log_progress
from tools.suites.machine_load import MachineLoad
from tools.suites.ours import Ours
from tools.suites.step import figures
from tools.suites.suite import Options, Result
from tools.suites.tfgan import Session, check_peer
from tools.suites.tfgan_estimator import Estimator
from tools.suites.workers import Worker, call_all, close_all

_ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
_PLAIN = (
  "hardware.Layout.resizes = 'apart'",
  "hardware.Layout.rgb_convs = 'plain'",
)
_QUICK_SECONDS, _FULL_SECONDS = 150, 450
_NUM_WARM_UP_STEPS = 2


def run(options: Options) -> Result:
  """Returns a table and the figures by name."""
  check_peer()
  quick = options.quick
  deadline = time.monotonic() + (_QUICK_SECONDS if quick else _FULL_SECONDS)
  machine = MachineLoad()
  num_steps = 1 if quick else 2
  log_progress(f"Starting four processes; the load is {machine.load:.1f}.")
  workers = _start_workers()
  with close_all(workers.values()):
    call_all(workers.values(), "run", _NUM_WARM_UP_STEPS)
    counts = call_all(workers.values(), "count_multiply_adds")
    multiply_adds = dict(zip(workers, counts))
    summary, images = workers["ours"].call("summarize")
    tasks: Dict[str, Any] = {
      name: functools.partial(worker.call, "run", num_steps)
      for name, worker in workers.items()
    }
    tasks["peak"] = functools.partial(workers["ours"].call, "measure_peak")
    results = interleave(tasks, deadline)
  values = figures.gather(results, multiply_adds, num_steps, images)
  values.update(machine.figures())
  return Result(f"{summary}\n\n{figures.format_table(values)}", values)


def _start_workers() -> Dict[str, Worker]:
  # TF-GAN's users have TensorFlow's own allocator.
  theirs = {_ALLOCATOR: None}
  return {
    "tfgan": Worker("tfgan", Estimator, theirs),
    "tfgan_session": Worker("tfgan_session", Session, theirs),
    "ours": Worker("ours", Ours),
    "tfgan_plain": Worker(
      "tfgan_plain", functools.partial(Session, _PLAIN), theirs
    ),
  }
