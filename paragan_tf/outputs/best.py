"""The best checkpoint of a run by one metric, kept beside the newest ones.

    best = Best("runs/fashion")
    path = best.stage(path, step)   # a copy, as the run may remove its own
    best.offer(path, step, value)   # keeps it if it is better
    best.discard_stage()

It is in the folder `best` of the run, with `best.json`: step, metric, value and
protocol. Values with different protocols are not compared: a value with a new
protocol replaces the old one.
"""

import json
import math
import os
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from paragan_tf.outputs.checkpoints import Checkpoints
from paragan_tf.outputs.records import write_file

_FOLDER, _STAGE, _FILE = "best", "candidate", "best.json"
# Of other metrics less is better. The names of some end in their extractor.
_MORE_IS_BETTER = (
  "precision",
  "recall",
  "density",
  "coverage",
  "inception_score",
  "classifier_score",
  "label_agreement",
  "classes_recognized",
)


class Record(NamedTuple):
  """What is known of the best checkpoint."""

  step: int
  name: str
  value: float
  protocol: Mapping[str, Any]


class Best:
  """The best checkpoint of the run in a folder."""

  def __init__(self, model_dir: str):
    self.folder = os.path.join(model_dir, _FOLDER)
    self._file = os.path.join(self.folder, _FILE)
    self._checkpoints = Checkpoints(self.folder, keep=1)
    self._stage_folder = os.path.join(self.folder, _STAGE)
    self._stage = Checkpoints(self._stage_folder, keep=1)

  def read(self) -> Optional[Record]:
    """Returns what is known of it; `None` if there is none yet."""
    if self.path() is None or not tf.io.gfile.exists(self._file):
      return None
    with tf.io.gfile.GFile(self._file) as f:
      fields = json.loads(f.read())
    return Record(*(fields[name] for name in Record._fields))

  def path(self) -> Optional[str]:
    """Returns the path of the checkpoint, or `None`."""
    return self._checkpoints.find_newest()

  def stage(self, path: str, step: int) -> str:
    """Copies a checkpoint that is going to be measured; returns the copy."""
    return self._stage.adopt(path, step)

  def discard_stage(self) -> None:
    """Removes the copy."""
    if tf.io.gfile.isdir(self._stage_folder):
      tf.io.gfile.rmtree(self._stage_folder)

  def offer(self, path: str, step: int, value: Mapping[str, Any]) -> bool:
    """Keeps a copy of a checkpoint if it is the best so far.

    Args:
      path: Of the checkpoint.
      step: Of the checkpoint.
      value: Of the metric: `name`, `value` and `protocol`.
    """
    number = value["value"]
    new = Record(step, value["name"], number, dict(value["protocol"]))
    if number is None or not math.isfinite(number):
      return False
    if not is_better(new, self.read()):
      return False
    # A file without its checkpoint counts as none, so this order is safe.
    self._checkpoints.adopt(path, step)
    fields = json.dumps(new._asdict(), indent=2) + "\n"
    write_file(self._file, fields.encode())
    return True


def choose(
  entries: Sequence[Mapping[str, Any]], best_by: Optional[str]
) -> Mapping[str, Any]:
  """Returns the value of the metric that decides; the first by default."""
  by_name = {entry["name"]: entry for entry in entries}
  name = best_by or next(iter(by_name), None)
  if name not in by_name:
    raise ValueError(
      f"`best_by` must be one of {', '.join(by_name)}, got '{name}'."
    )
  return by_name[name]


def is_better(new: Record, old: Optional[Record]) -> bool:
  """Returns whether a value is better; one with a new protocol always is."""
  if old is None:
    return True
  if (new.name, new.protocol) != (old.name, old.protocol):
    return True
  more = new.name.startswith(_MORE_IS_BETTER)
  return new.value > old.value if more else new.value < old.value
