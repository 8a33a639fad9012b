"""The folder of a run: its config, checkpoints, records, pictures and report.

    folder = RunFolder(model_dir, writers)   # writes nothing
    folder.open(config, step, g_info)        # creates the folder
    folder.log(step, {"d/loss": 0.7})
    folder.write_samples(step, grid, scale)
    folder.close()

Of several processes only the chief writes: for the others these methods do
nothing. Checkpoints are written by all processes together.
"""

import os
from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import best, report, samples
from paragan_tf.outputs.checkpoints import Checkpoints, Writers
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.outputs.records import Records, write_file

_CONFIG, _BROKEN, _G_INFO = "config.gin", "broken.txt", "generator.json"


class RunFolder:
  """The files of one run.

  Attributes:
    path: Of the folder.
    is_writer: Whether this process writes.
    checkpoints: Of the run.
  """

  def __init__(self, path: str, writers: Writers):
    self.path = path
    self.is_writer = writers.process == 0
    self.checkpoints = Checkpoints(path, writers=writers)
    self._records: Optional[Records] = None

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
      write_file(os.path.join(self.path, _CONFIG), config.encode())
      g_info.write(os.path.join(self.path, _G_INFO))
    except (tf.errors.OpError, OSError) as e:
      raise ValueError(
        f"`model_dir` must be a writable folder, got '{self.path}' "
        f"({str(e).splitlines()[0]}): set another one."
      ) from e
    self._records = Records(self.path)
    self._records.rewind(step)

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
    if self._records is not None:
      self._records.start(step, facts)

  def log(self, step: int, scalars: Mapping[str, float]) -> None:
    """Records scalars."""
    if self._records is not None:
      self._records.write(step, scalars)

  def note(self, step: int, text: str) -> None:
    """Records a line of words."""
    if self._records is not None:
      self._records.note(step, text)

  def record_metrics(
    self, step: int, values: Sequence[Mapping[str, Any]]
  ) -> None:
    """Records metrics with their protocols."""
    if self._records is not None:
      self._records.metric(step, values)

  def keep_best(
    self,
    path: str,
    step: int,
    entries: Sequence[Mapping[str, Any]],
    best_by: Optional[str],
  ) -> None:
    """Keeps a copy of a checkpoint if it is the best by a metric."""
    if self.is_writer:
      best.Best(self.path).offer(path, step, best.choose(entries, best_by))

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
    if self._records is not None:
      samples.write_png(path, grid, scale)
      self._records.image(step, name, grid)

  def write_report(self) -> str:
    """Writes the report; returns its path."""
    return report.write(self.path)

  def close(self) -> None:
    """Closes the records."""
    if self._records is not None:
      self._records.close()
      self._records = None
