"""The speed of one step, against TF-GAN training the same nets.

    ours            our step in our loop
    tfgan           TF-GAN's `GANEstimator`, our very nets
    tfgan_session   TF-GAN's updates in a bare session, our very nets
    tfgan_plain     the same, with the nets as the papers write them:
                    upsampling and pooling apart from the convolutions

Each side has a process of its own, since the memory allocator is a setting of
the process; all trace first, then take turns. Ratios are taken within a round.
"""

import functools
import time

from tools.suites import step_figures
from tools.suites.meanwhile import Meanwhile
from tools.suites.ours import Ours
from tools.suites.rounds import say, take_turns
from tools.suites.suite import Options, Result
from tools.suites.tfgan import Session
from tools.suites.tfgan_estimator import Estimator
from tools.suites.workers import Worker, ask_all, closing

_ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
_PLAIN = (
  "hardware.Layout.resizes = 'apart'",
  "hardware.Layout.rgb_convs = 'plain'",
)
_QUICK_SECONDS, _FULL_SECONDS = 150, 450
_NUM_WARM_UP_STEPS = 2


def run(options: Options) -> Result:
  """Returns a table to read and the figures by name."""
  quick = options.quick
  deadline = time.monotonic() + (_QUICK_SECONDS if quick else _FULL_SECONDS)
  meanwhile = Meanwhile()
  num_steps = 1 if quick else 2
  say(f"Starting four processes; the load is {meanwhile.load:.1f}.")
  # TF-GAN's users have TensorFlow's own allocator.
  theirs = {_ALLOCATOR: None}
  workers = {
    "tfgan": Worker("tfgan", Estimator, theirs),
    "tfgan_session": Worker("tfgan_session", Session, theirs),
    "ours": Worker("ours", Ours),
    "tfgan_plain": Worker(
      "tfgan_plain", functools.partial(Session, _PLAIN), theirs
    ),
  }
  with closing(workers.values()):
    ask_all(workers.values(), "run", _NUM_WARM_UP_STEPS)
    work = dict(zip(workers, ask_all(workers.values(), "work")))
    summary, images = workers["ours"].ask("summary")
    turns = {
      name: functools.partial(worker.ask, "run", num_steps)
      for name, worker in workers.items()
    }
    turns["peak"] = functools.partial(workers["ours"].ask, "peak")
    results = take_turns(turns, deadline)
  figures = step_figures.gather(results, work, num_steps, images)
  figures.update(meanwhile.figures())
  return Result(f"{summary}\n\n{step_figures.table(figures)}", figures)
