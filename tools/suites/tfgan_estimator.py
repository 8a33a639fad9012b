"""TF-GAN's `GANEstimator` on our nets and data, one step at a time.

    estimator = Estimator()        # builds its graph, stops before step 1
    seconds = estimator.run(2)     # runs exactly two steps

One of its steps is both updates, and D's loss on another batch for its log.
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

from tools.suites.flops import MultiplyAdds, count_operations
from tools.suites.tfgan import TfganInputs, count_train_ops


class Estimator:
  """TF-GAN's `GANEstimator`; its `train` runs in a thread, step by step.

  It writes no summaries, no checkpoints and no log.
  """

  def __init__(self, bindings: Sequence[str] = ()):
    _restore_getargspec()
    self._inputs = TfganInputs(bindings)
    self._gate = _Gate()
    self._ops: Any = None
    estimator, hook = self._make_estimator(), _make_gate_hook(self._gate)

    def train():
      try:
        estimator.train(self._inputs.make_dataset, hooks=[hook])
      except Exception as e:  # `_Gate.wait` raises it.
        self._gate.fail(e)

    threading.Thread(target=train, daemon=True).start()
    self._gate.wait()

  def run(self, num_steps: int) -> float:
    """Trains; returns the seconds it took."""
    started = time.perf_counter()
    self._gate.open(num_steps)
    self._gate.wait()
    return time.perf_counter() - started

  def count_multiply_adds(self) -> MultiplyAdds:
    """Counts one step: both updates, and what is fetched."""
    fetched = count_operations(self._gate.fetched)
    return count_train_ops(self._ops).plus(fetched)

  def count_updates(self) -> Dict[str, int]:
    """Returns the number of updates of each player."""
    return self._inputs.count_updates(self._gate.session)

  def _make_estimator(self):
    import tensorflow as tf
    import tensorflow_gan as tfgan

    return tfgan.estimator.GANEstimator(
      generator_fn=self._inputs.call_generator,
      discriminator_fn=self._inputs.call_discriminator,
      generator_loss_fn=tfgan.losses.wasserstein_hinge_generator_loss,
      discriminator_loss_fn=tfgan.losses.wasserstein_hinge_discriminator_loss,
      # Functions, called in the graph that the estimator makes.
      generator_optimizer=lambda: self._inputs.make_adam("g"),
      discriminator_optimizer=lambda: self._inputs.make_adam("d"),
      get_hooks_fn=self._make_hooks,
      add_summaries=None,
      use_loss_summaries=False,
      config=tf.estimator.RunConfig(
        # Not written to, but a checkpoint there would be restored.
        model_dir=os.path.join(tempfile.gettempdir(), uuid.uuid4().hex),
        save_summary_steps=0,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        log_step_count_steps=None,
      ),
    )

  def _make_hooks(self, ops):
    import tensorflow_gan as tfgan

    self._ops = ops
    return tfgan.get_sequential_train_hooks()(ops)


class _Gate:
  """Stops the estimator's thread before each step.

  Attributes:
    session: The estimator's session; its thread does not use it while stopped.
    fetched: The operations that the estimator fetches at each step.
  """

  def __init__(self) -> None:
    self.session: Any = None
    self.fetched: List[Any] = []
    self._left = 0  # Steps requested and not begun.
    self._requests: queue.Queue = queue.Queue()
    self._stops: queue.Queue = queue.Queue()

  def open(self, num_steps: int) -> None:
    """Requests steps."""
    self._requests.put(num_steps)

  def wait(self) -> None:
    """Returns when all requested steps are done."""
    error = self._stops.get()
    if error is not None:
      raise RuntimeError("`GANEstimator` ended by itself.") from error

  def fail(self, error: Exception) -> None:
    """Lets `wait` raise: the estimator's thread has ended."""
    self._stops.put(error)

  def stop(self, session, fetched: Sequence[Any]) -> None:
    """Stops the calling thread until a step is requested."""
    if not self._left:
      self.session, self.fetched = session, list(fetched)
      self._stops.put(None)
      self._left = self._requests.get()
    self._left -= 1


def _make_gate_hook(gate: _Gate):
  import tensorflow as tf

  class GateHook(tf.estimator.SessionRunHook):
    """Runs before the hooks that make the updates."""

    def before_run(self, run_context):
      fetches = tf.nest.flatten(run_context.original_args.fetches)
      ops = [getattr(fetch, "op", fetch) for fetch in fetches]
      gate.stop(run_context.session, ops)

  return GateHook()


def _restore_getargspec() -> None:
  """Restores what TF-GAN's `gan_loss` calls; Python 3.11 removed it."""
  if not hasattr(inspect, "getargspec"):
    spec = collections.namedtuple("spec", "args varargs keywords defaults")
    inspect.getargspec = (  # type: ignore[assignment]
      lambda fn: spec(*inspect.getfullargspec(fn)[:4])  # type: ignore
    )
