"""What happens to a run between two calls of its loop: saves, signals, notices.

control = Control(folder, prepare_save, processes, cycle, callbacks, ...)
with control.watching():                 # signals, and notices of machines
  train(..., control.pace(should_stop))
control.save(step)                       # if that step is not saved
"""

import contextlib
from typing import (
  Callable,
  ContextManager,
  Iterator,
  NamedTuple,
  Optional,
  Sequence,
)

from paragan_tf import stopping, termination
from paragan_tf.callbacks import Callbacks
from paragan_tf.engine.budget import Seconds
from paragan_tf.engine.pace import Pace
from paragan_tf.engine.processes import Processes
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.outputs.saving import Saver
from paragan_tf.outputs.step_copy import StepCopy
from paragan_tf.types import Entry


class Limits(NamedTuple):
  """How long a run waits, and for what it looks out.

  Attributes:
    folder_timeout: Seconds for which training goes on without its folder.
    watcher: Returns why to stop, or `None`.
    seconds: Of training, if they are limited.
  """

  folder_timeout: float
  watcher: Optional[termination.Watcher] = None
  seconds: Optional[Seconds] = None


class Control:
  """Saves a run, and stops it.

  Attributes:
    stop: The request to stop; replace it by one that receives signals.
    saver: Of checkpoints.
  """

  def __init__(
    self,
    folder: RunFolder,
    prepare_save: Callable[[int], Sequence[Entry]],
    list_entries: Callable[[int], Sequence[Entry]],
    processes: Processes,
    cycle: int,
    callbacks: Callbacks,
    limits: Limits,
  ):
    self.stop = stopping.Request()
    self._processes = processes
    self._cycle = cycle
    self._watcher = limits.watcher
    self._seconds = limits.seconds
    self._list_entries = list_entries
    self.saver = Saver(
      folder.checkpoints,
      prepare_save,
      folder.make_patience("Checkpoints", limits.folder_timeout),
      lambda step, path: callbacks.call("on_save", step, path),
    )
    self._copy = StepCopy(self.saver)

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Looks out for notices; a request to stop just ends the block."""
    watch = termination.Watch(self._watcher, self.stop.request)
    try:
      with contextlib.suppress(stopping.Stopped):
        yield
    finally:
      watch.close()

  def pace(
    self, should_stop: Callable[[], bool], tick: Callable[[int], None]
  ) -> Pace:
    """Returns how many steps a call takes; all processes decide the same."""

    def on_tick(step: int) -> None:
      self.stop.has_unsaved = True
      tick(step)

    return Pace(
      lambda: should_stop() or self.stop.is_requested(),
      self._cycle,
      self._processes.mean_of,
      self._around_call,
      on_tick,
      budget=self._seconds,
    )

  @contextlib.contextmanager
  def _around_call(self, step: int, is_long: bool) -> Iterator[None]:
    """A request cuts off a call; of a long one, what was before is kept."""
    with contextlib.ExitStack() as stack:
      if is_long and self._processes.count == 1 and self.stop.is_by_signal:
        stack.enter_context(self._copy.during(step, self._list_entries(step)))
        stack.enter_context(self.stop.late(self._copy.save))
      stack.enter_context(self.interruptible())
      yield

  def interruptible(self) -> ContextManager[None]:
    """Makes a context for what a request may cut off: tracing, measuring."""
    if self._processes.count > 1:  # They stop together, after a step.
      return contextlib.nullcontext()
    return self.stop.interruptible()

  def save(self, step: int) -> None:
    """Saves a step unless it is saved, and waits until that is done."""
    self.saver.start(step)
    self.saver.wait()
