"""A copy of what was trained before a long step, in case that is cut off.

    copy = StepCopy(saver)
    with copy.during(step, entries):     # in the main thread
      train_a_long_step()
    path = copy.save()                   # in another one, meanwhile

No checkpoint can be made while a step changes the variables. What was there
before it is kept in the host's memory instead, if that is large enough.
"""

import contextlib
import threading
from typing import Dict, Iterator, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf.outputs.checkpoints import collect
from paragan_tf.outputs.saving import Saver, copy_if_it_fits
from paragan_tf.types import Entry


class StepCopy:
  """Keeps the values of one step, for another thread to save.

  Args:
    saver: Of the run.
  """

  def __init__(self, saver: Saver):
    self._saver = saver
    self._lock = threading.Lock()
    self._kept: Optional[Tuple[int, Dict[str, tf.Tensor]]] = None

  @contextlib.contextmanager
  def during(self, step: int, entries: Sequence[Entry]) -> Iterator[None]:
    """Keeps the values of entries for the length of the block."""
    values = copy_if_it_fits(collect(entries))
    self._kept = None if values is None else (step, values)
    try:
      yield
    finally:
      with self._lock:
        self._kept = None

  def save(self) -> Optional[str]:
    """Saves what is kept; returns its checkpoint, `None` if there is nothing.

    For a thread that then ends the program: once it is saved, the block does
    not end any more.
    """
    self._lock.acquire()
    if self._kept is not None:
      path = self._saver.write_kept(*self._kept)
      if path is not None:
        return path  # And the lock stays.
    self._lock.release()
    return None
