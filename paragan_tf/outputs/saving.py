"""Saves checkpoints while training goes on.

    saver = Saver(checkpoints, prepare, patience)
    saver.start(9)      # copies the values; a thread writes them
    saver.poll()        # raises what the thread met
    saver.wait()        # until the last one is committed

The values are copied where memory allows it, or else written at once. So are
those of which other processes have a part, as all must then write together. A
write that fails is tried again with backoff, for as long as `patience` lasts.
"""

import os
import re
import threading
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence

import tensorflow as tf

from paragan_tf.outputs.checkpoints import Checkpoints, collect, step_of
from paragan_tf.outputs.patience import IO_ERRORS, FolderError, Patience
from paragan_tf.types import Entry

_MEMORY_SHARE = 0.5  # Of the memory that is left, for a copy.


class Saver:
  """Writes the checkpoints of a run, one at a time.

  Args:
    checkpoints: Where to.
    prepare: Returns the entries to save at a step; all processes together.
    patience: With a folder that cannot be written.
    on_saved: Called by `poll` and `wait` with step and path of each checkpoint
      that was committed since.

  Attributes:
    last: The path of the last one that was committed.
  """

  def __init__(
    self,
    checkpoints: Checkpoints,
    prepare: Callable[[int], Sequence[Entry]],
    patience: Patience,
    on_saved: Callable[[int, str], None] = lambda step, path: None,
  ):
    self._checkpoints = checkpoints
    self._prepare = prepare
    self._patience = patience
    self._on_saved = on_saved
    self.last: Optional[str] = None
    self._step: Optional[int] = None  # That was asked for last.
    self._thread: Optional[threading.Thread] = None
    self._give_up = threading.Event()
    self._error: Optional[BaseException] = None
    self._news: List[str] = []
    self._again: Optional[Callable[[], str]] = None

  def restored(self, path: Optional[str]) -> None:
    """Notes the checkpoint that the run resumes from."""
    self.last = path
    self._step = None if path is None else step_of(path)

  def start(self, step: int) -> None:
    """Saves a step, unless that was asked for; returns before it is written.

    All processes must call it. An older save that still fails is given up.
    """
    if step != self._step:
      self._join(give_up=self._patience.is_failing)
      self._step = step
      entries = self._prepare(step)
      if self._checkpoints.needs_parts(entries):
        self._write_now(lambda: self._checkpoints.save(step, entries))
      elif self._checkpoints.is_writer:
        self._write(step, collect(entries))
      else:
        self._committed(self._checkpoints.path(step))
    self.poll()

  def poll(self) -> None:
    """Raises what a save met, and reports those that were committed."""
    if self._thread is not None and not self._thread.is_alive():
      self._join()
    if self._error is not None:
      error, self._error = self._error, None
      raise error
    while self._news:
      path = self._news.pop(0)
      self._on_saved(step_of(path), path)

  def join(self) -> None:
    """Waits for the save under way, whatever becomes of it."""
    self._join()

  def write_kept(
    self, step: int, values: Dict[str, tf.Tensor]
  ) -> Optional[str]:
    """Writes values that were kept, from any thread; `None` if it fails.

    Returns:
      The checkpoint; it may be there already.
    """
    self._join(give_up=self._patience.is_failing)
    path = self._checkpoints.path(step)
    if path != self.last:
      self._try(lambda: self._checkpoints.write(step, values))
    return path if path == self.last else None

  def wait(self) -> None:
    """Waits until the last save is committed, or raises."""
    self._join()
    while self._again is not None:
      self._write_now(self._again)
      if self._again is not None:
        time.sleep(0.5)
    self.poll()

  def _write(self, step: int, values: Dict[str, tf.Tensor]) -> None:
    copies = copy_if_it_fits(values)
    if copies is None:
      self._write_now(lambda: self._checkpoints.write(step, values))
      return
    self._again = None
    self._give_up.clear()
    self._thread = threading.Thread(
      target=self._retry,
      args=(lambda: self._checkpoints.write(step, copies),),
      name=f"save {step}",
    )
    self._thread.start()

  def _write_now(self, write: Callable[[], str]) -> None:
    """Writes without a copy; a failure is left to `wait` or the next save."""
    self._again = None
    if self._try(write) is not None:
      self._again = write

  def _retry(self, write: Callable[[], str]) -> None:
    """Writes until it works, is given up, or has taken too long."""
    while True:
      seconds = self._try(write)
      if seconds is None or self._give_up.wait(seconds):
        return

  def _try(self, write: Callable[[], str]) -> Optional[float]:
    """Writes; returns the seconds after which to try again, if that helps."""
    try:
      self._committed(write())
      self._patience.succeeded()
    except IO_ERRORS as e:
      try:
        return self._patience.failed(e)
      except FolderError as too_long:
        self._error = too_long
    except Exception as e:  # `poll` raises it.
      self._error = e
    return None

  def _committed(self, path: str) -> None:
    self.last = path
    self._news.append(path)

  def _join(self, give_up: bool = False) -> None:
    if self._thread is None:
      return
    if give_up:
      self._give_up.set()
    while self._thread.is_alive():
      self._thread.join(0.1)  # Lets signals through.
    self._thread = None


def copy_if_it_fits(
  values: Mapping[str, tf.Tensor],
) -> Optional[Dict[str, tf.Tensor]]:
  """Returns copies in the host's memory, `None` if that is too small."""
  sizes = [x.dtype.size * x.shape.num_elements() for x in values.values()]
  if sum(sizes) > _MEMORY_SHARE * available_memory():
    return None
  return {key: _copy(value) for key, value in values.items()}


def available_memory() -> float:
  """Returns the bytes that this process may still take; infinite if unknown."""
  found = [float("inf")]
  text = _read("/proc/meminfo")
  match = re.search(r"MemAvailable: +(\d+) kB", text)
  if match:
    found.append(1024.0 * int(match[1]))
  limit = _read("/sys/fs/cgroup/memory.max").strip()
  used = _read("/sys/fs/cgroup/memory.current").strip()
  if limit.isdigit() and used.isdigit():
    found.append(float(limit) - float(used))
  return min(found)


def _copy(value: tf.Tensor) -> tf.Tensor:
  """Returns a copy in the host's memory, which no update changes."""
  with tf.device("/cpu:0"):
    return tf.raw_ops.DeepCopy(x=tf.identity(value))


def _read(path: str) -> str:
  if not os.path.exists(path):
    return ""
  with open(path, encoding="ascii") as f:
    return f.read()
