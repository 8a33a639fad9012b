"""The folder of a run: its config, checkpoints, records, pictures and report.

    folder = RunFolder(model_dir, writers)   # writes nothing
    folder.open(config, step, g_info)        # creates the folder, locks it
    folder.log(step, {"d/loss": 0.7})
    folder.write_samples(step, grid, scale)
    folder.close()

While the folder is full or gone, records and pictures are kept and written
later, for as long as `timeout` says.

Of several processes only the chief writes: for the others these methods do
nothing. Checkpoints are written by all processes together.
"""

import os
import re
from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import best, report, samples
from paragan_tf.outputs.checkpoints import Checkpoints, Writers
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.outputs.patience import Outbox, Patience
from paragan_tf.outputs.records import Records, write_file
from paragan_tf.outputs.run_lock import RunLock

TIMEOUT = 600.0  # Seconds for which training goes on without its folder.
_CONFIG, _BROKEN, _G_INFO = "config.gin", "broken.txt", "generator.json"
# Files of the run itself that `write_file` was writing; other processes may be
# writing the report and their evaluations.
_PART = re.compile(
  r"(checkpoint|config\.gin|generator\.json|broken\.txt|metrics\.jsonl|"
  r"starts\.jsonl|run\.lock)\.(part|old)\d+"
)


class RunFolder:
  """The files of one run.

  Attributes:
    path: Of the folder.
    is_writer: Whether this process writes.
    checkpoints: Of the run.
  """

  def __init__(self, path: str, writers: Writers, timeout: float = TIMEOUT):
    self.path = path
    self.is_writer = writers.process == 0
    self.lock = RunLock(path)
    self.checkpoints = Checkpoints(path, writers=writers, guard=self._guard)
    self._outbox = Outbox(self.make_patience("Records", timeout), self._guard)
    self._records: Optional[Records] = None

  def make_patience(self, what: str, timeout: float) -> Patience:
    """Returns how long to go on while something cannot be written here."""
    last = self.checkpoints.find_newest
    return Patience(f"{what} in '{self.path}'", timeout, last)

  def check_path(self) -> None:
    """Raises a `ValueError` if the folder could not be made; writes nothing."""
    if "://" in self.path or not self.is_writer:
      return
    there = os.path.abspath(self.path)
    while not os.path.lexists(there):
      there = os.path.dirname(there)
    if not os.path.isdir(there):
      raise ValueError(
        f"`model_dir` must be a folder, got '{self.path}': '{there}' is a file."
      )
    if not os.access(there, os.W_OK | os.X_OK):
      raise ValueError(
        f"`model_dir` must be a writable folder, got '{self.path}': '{there}' "
        "cannot be written; set another one."
      )

  def check_lock(self) -> None:
    """Raises a `ValueError` if another run has the folder."""
    self.lock.check()

  def _guard(self) -> None:
    """Raises if the folder is gone, so that no other one is begun there."""
    if not self.lock.is_taken or self.lock.is_held():
      return
    if not tf.io.gfile.exists(os.path.join(self.path, _CONFIG)):
      raise FileNotFoundError(f"'{self.path}' is gone, or is another folder")
    self.lock.take()

  def read_config(self) -> Optional[str]:
    """Returns the config of the run in this folder, or `None`."""
    path = os.path.join(self.path, _CONFIG)
    if not tf.io.gfile.exists(path):
      return None
    with tf.io.gfile.GFile(path) as f:
      return f.read()

  def read_g_info(self) -> Optional[GInfo]:
    """Returns what the G of the run is like; older runs do not say it."""
    path = os.path.join(self.path, _G_INFO)
    return GInfo.read(path) if tf.io.gfile.exists(path) else None

  def open(self, config: str, step: int, g_info: GInfo) -> None:
    """Creates the folder, saves the config, opens the records at a step."""
    if not self.is_writer:
      return
    try:
      tf.io.gfile.makedirs(self.path)
      self.lock.take()
      self.checkpoints.recover()
      self._remove_parts()
      write_file(os.path.join(self.path, _CONFIG), config.encode(), sync=True)
      g_info.write(os.path.join(self.path, _G_INFO))
      self._records = Records(self.path)
      self._records.rewind(step)
    except (tf.errors.OpError, OSError) as e:
      raise ValueError(
        f"`model_dir` must be a writable folder, got '{self.path}' "
        f"({str(e).splitlines()[0]}): set another one."
      ) from e

  def _remove_parts(self) -> None:
    """Removes files that a killed run was about to rename."""
    for name in tf.io.gfile.listdir(self.path):
      if _PART.fullmatch(name):
        tf.io.gfile.remove(os.path.join(self.path, name))

  def write_broken(self, images: Sequence[Tuple[str, str]]) -> Optional[str]:
    """Lists images that are skipped, and why; returns the file, if any."""
    if not (self.is_writer and images):
      return None
    path = os.path.join(self.path, _BROKEN)
    rows = [f"{image}\t{reason}\n" for image, reason in images]
    write_file(path, "".join(rows).encode())
    return path

  def start(self, step: int, facts: Mapping[str, Any]) -> None:
    """Records what the run starts, or resumes, with."""
    records = self._records
    if records is not None:
      self._outbox.write(lambda: records.start(step, facts))

  def roll_back(self, path: str, step: int) -> None:
    """Makes a checkpoint the newest one; forgets what came after its step."""
    if self.is_writer:
      self.checkpoints.adopt(path, step)
    if self._records is not None:
      self._records.rewind(step)

  def log(self, step: int, scalars: Mapping[str, float]) -> None:
    """Records scalars."""
    records = self._records
    if records is not None:
      self._outbox.write(lambda: records.write(step, scalars))

  def note(self, step: int, text: str) -> None:
    """Records a line of words."""
    records = self._records
    if records is not None:
      self._outbox.write(lambda: records.note(step, text))

  def record_metrics(
    self, step: int, values: Sequence[Mapping[str, Any]]
  ) -> None:
    """Records metrics with their protocols."""
    records = self._records
    if records is not None:
      self._outbox.write(lambda: records.metric(step, values))

  def keep_best(
    self,
    path: str,
    step: int,
    entries: Sequence[Mapping[str, Any]],
    best_by: Optional[str],
  ) -> None:
    """Keeps a copy of a checkpoint if it is the best by a metric."""
    if self.is_writer:
      value = best.choose(entries, best_by)
      self._outbox.write(lambda: self._offer(path, step, value))

  def _offer(self, path: str, step: int, value: Mapping[str, Any]) -> None:
    if tf.io.gfile.exists(f"{path}.index"):  # The run may have removed it.
      best.Best(self.path).offer(path, step, value)

  def samples_path(self, step: int) -> str:
    """Returns the path of a step's samples."""
    return samples.png_path(self.path, step)

  def write_samples(self, step: int, grid: np.ndarray, scale: int) -> None:
    """Writes a picture of samples."""
    self._write_picture(self.samples_path(step), "samples", step, grid, scale)

  def write_interpolation(
    self, step: int, grid: np.ndarray, scale: int
  ) -> None:
    """Writes the picture of samples interpolated between classes."""
    path = samples.interpolation_path(self.path)
    self._write_picture(path, "interpolation", step, grid, scale)

  def _write_picture(self, path, name, step, grid, scale) -> None:
    records = self._records
    if records is not None:
      self._outbox.write(lambda: samples.write_png(path, grid, scale))
      self._outbox.write(lambda: records.image(step, name, grid))

  def write_report(self, failure: str = "") -> str:
    """Writes what is left, then the report; returns its path.

    Args:
      failure: Why nothing was measured, if that failed.
    """
    self._outbox.write(lambda: report.write(self.path, failure))
    self._outbox.wait()
    return report.path(self.path)

  def close(self) -> None:
    """Closes the records and gives the lock back."""
    if self._records is not None:
      self._records.close()
      self._records = None
    self.lock.release()
