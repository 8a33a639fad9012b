"""TF-GAN's `GANEstimator` on our nets and data, one step at a time.

    estimator = Estimator()        # builds its graph, waits before step 1
    seconds = estimator.run(2)     # lets it make two steps, no more

A step of it is both updates, and D's loss on a further batch for its log.
"""

import collections
import inspect
import os
import queue
import tempfile
import threading
import time
import uuid
from typing import Any, Dict, List, Sequence

from tools.suites.tfgan import Side, work_of_updates
from tools.suites.work import Work, count


class Estimator:
  """TF-GAN's `GANEstimator`, its `train` in a thread that waits for orders.

  It writes no summaries, no checkpoints and no log.
  """

  def __init__(self, bindings: Sequence[str] = ()):
    _give_getargspec_back()
    self._side = Side(bindings)
    self._gate = _Gate()
    self._ops: Any = None
    estimator, hook = self._estimator(), _gate_hook(self._gate)

    def train():
      try:
        estimator.train(self._side.data, hooks=[hook])
      except Exception as e:  # Whoever waits at the gate raises it.
        self._gate.fail(e)

    threading.Thread(target=train, daemon=True).start()
    self._gate.wait()

  def run(self, num_steps: int) -> float:
    """Trains; returns the seconds it took."""
    started = time.perf_counter()
    self._gate.let_through(num_steps)
    self._gate.wait()
    return time.perf_counter() - started

  def work(self) -> Work:
    """Returns the work of one step: both updates, and what is fetched."""
    return work_of_updates(self._ops).plus(count(self._gate.fetched))

  def updates(self) -> Dict[str, int]:
    """Returns how often each player has moved."""
    return self._side.count_updates(self._gate.session)

  def _estimator(self):
    import tensorflow as tf
    import tensorflow_gan as tfgan

    return tfgan.estimator.GANEstimator(
      generator_fn=self._side.g,
      discriminator_fn=self._side.d,
      generator_loss_fn=tfgan.losses.wasserstein_hinge_generator_loss,
      discriminator_loss_fn=tfgan.losses.wasserstein_hinge_discriminator_loss,
      # Functions, called in the graph that the estimator makes.
      generator_optimizer=lambda: self._side.adam("g"),
      discriminator_optimizer=lambda: self._side.adam("d"),
      get_hooks_fn=self._hooks,
      add_summaries=None,
      use_loss_summaries=False,
      config=tf.estimator.RunConfig(
        # Nothing is written there, but a checkpoint would be looked for.
        model_dir=os.path.join(tempfile.gettempdir(), uuid.uuid4().hex),
        save_summary_steps=0,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        log_step_count_steps=None,
      ),
    )

  def _hooks(self, ops):
    import tensorflow_gan as tfgan

    self._ops = ops
    return tfgan.get_sequential_train_hooks()(ops)


class _Gate:
  """Where the estimator's thread stops before each step.

  Attributes:
    session: The estimator's session, free while its thread waits.
    fetched: The operations that the estimator asks of it at each step.
  """

  def __init__(self) -> None:
    self.session: Any = None
    self.fetched: List[Any] = []
    self._left = 0  # Steps ordered and not begun.
    self._orders: queue.Queue = queue.Queue()
    self._arrivals: queue.Queue = queue.Queue()

  def let_through(self, num_steps: int) -> None:
    """Orders steps."""
    self._orders.put(num_steps)

  def wait(self) -> None:
    """Returns when all steps ordered are done."""
    error = self._arrivals.get()
    if error is not None:
      raise RuntimeError("`GANEstimator` ended by itself.") from error

  def fail(self, error: Exception) -> None:
    """Tells the one who waits that nobody will come any more."""
    self._arrivals.put(error)

  def arrive(self, session, fetched: Sequence[Any]) -> None:
    """Stops the calling thread until a step is ordered."""
    if not self._left:
      self.session, self.fetched = session, list(fetched)
      self._arrivals.put(None)
      self._left = self._orders.get()
    self._left -= 1


def _gate_hook(gate: _Gate):
  import tensorflow as tf

  class GateHook(tf.estimator.SessionRunHook):
    """Comes before the hooks that make the updates."""

    def before_run(self, run_context):
      fetches = tf.nest.flatten(run_context.original_args.fetches)
      ops = [getattr(fetch, "op", fetch) for fetch in fetches]
      gate.arrive(run_context.session, ops)

  return GateHook()


def _give_getargspec_back() -> None:
  """Lets TF-GAN's `gan_loss` ask for it: Python 3.11 took it away."""
  if not hasattr(inspect, "getargspec"):
    spec = collections.namedtuple("spec", "args varargs keywords defaults")
    inspect.getargspec = (  # type: ignore[assignment]
      lambda fn: spec(*inspect.getfullargspec(fn)[:4])  # type: ignore
    )
