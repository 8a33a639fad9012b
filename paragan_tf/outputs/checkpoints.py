"""Checkpoints: a flat map from variable names to values.

The keys are the variables' own names, so any engine reads any other's files
(`stored.py`). A checkpoint exists as soon as it is committed (`commit.py`), and
the newest whole one counts: damaged ones are named and left out.

With several processes the chief writes the variables whose replicas agree, if
it has them. Each process writes the others for its own replicas, and the chief
merges the parts:

    write(folder/model.ckpt-9.tmp/parts/00001, own replicas)  # each process
    agree()
    merge and commit                                          # the chief
    agree()
"""

import contextlib
import json
import os
import re
import sys
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from paragan_tf.outputs import commit, stored
from paragan_tf.outputs.patience import IO_ERRORS
from paragan_tf.outputs.records import write_file
from paragan_tf.types import Entry

KEEP = 3  # Checkpoints of a run; the oldest is removed after the next save.
_PREFIX, _STATE = "model.ckpt", "checkpoint"


class Writers(NamedTuple):
  """The processes that write a checkpoint together.

  Attributes:
    process: Index of this process; 0 is the chief.
    num: Number of processes.
    any: Whether a flag is true in any process; all must call it.
  """

  process: int = 0
  num: int = 1
  any: Callable[[bool], bool] = bool


class Checkpoints:
  """The newest checkpoints of one run, in its folder.

  `guard` is called before a save, and raises if the folder is not as it was.
  """

  def __init__(
    self,
    folder: str,
    keep: int = KEEP,
    writers: Writers = Writers(),  # noqa: B008 - It is immutable.
    guard: Callable[[], None] = lambda: None,
  ):
    if keep < 1:
      raise ValueError(f"`keep` must be at least 1, got {keep}.")
    self._folder = folder
    self._keep = keep
    self._writers = writers
    self._guard = guard
    self._named: Set[str] = set()

  def save(self, step: int, entries: Sequence[Entry]) -> str:
    """Writes a checkpoint; earlier ones stay valid until it is complete.

    All processes must call it.
    """
    path = self.path(step)
    if self.needs_parts(entries):
      self._save_parts(path, entries)
    elif self.is_writer:
      self.write(step, collect(entries))
    return path

  @property
  def is_writer(self) -> bool:
    """Whether this process commits checkpoints."""
    return self._writers.process == 0

  def needs_parts(self, entries: Sequence[Entry]) -> bool:
    """Returns whether other processes have values that the chief lacks."""
    entries = [entry.complete() for entry in entries]
    by_chief = all(e.agrees and e.all_replicas[0] == 0 for e in entries)
    return self._writers.num > 1 and not by_chief

  def write(self, step: int, values: Dict[str, tf.Tensor]) -> str:
    """Writes a checkpoint of values that are all in this process."""
    path = self.path(step)
    self._guard()
    commit.discard_stage(path)
    _write(commit.stage(path), values)
    self._commit(path)
    return path

  def adopt(self, source: str, step: int) -> str:
    """Copies a checkpoint of another folder, as the newest one here."""
    path = self.path(step)
    tf.io.gfile.makedirs(self._folder)
    commit.copy(source, path)
    self._keep_newest(path)
    return path

  def _save_parts(self, path: str, entries: Sequence[Entry]) -> None:
    parts = os.path.join(f"{path}.tmp", "parts")
    own = os.path.join(parts, f"{self._writers.process:05d}")
    with self._together("write its part"):
      self._guard()
      tf.io.gfile.makedirs(parts)
      _write(own, collect(entries))
    with self._together("merge the parts"):
      if self.is_writer:
        tf.raw_ops.MergeV2Checkpoints(
          checkpoint_prefixes=[
            os.path.join(parts, f"{i:05d}") for i in range(self._writers.num)
          ],
          destination_prefix=commit.stage(path),
          delete_old_dirs=True,
        )
        self._commit(path)

  @contextlib.contextmanager
  def _together(self, what: str):
    """Does something in all processes; what fails in one fails in all."""
    error: Optional[Exception] = None
    try:
      yield
    except IO_ERRORS as e:
      error = e
    if self._writers.any(error is not None):
      raise OSError(f"A process could not {what}.") from error

  def _commit(self, path: str) -> None:
    commit.commit(path)
    self._keep_newest(path)

  def _keep_newest(self, path: str) -> None:
    """Lists checkpoints up to `path`, and removes the oldest.

    Later ones, which were damaged or given up, are no part of this run's course
    any more.
    """
    step = step_of(path)
    earlier = [p for p in self.paths() if step_of(p) < step]
    kept = [*earlier, path][-self._keep :]
    self._write_state(kept)
    steps = {step_of(p) for p in kept}
    for other in commit.list_files(self._folder).committed():
      if other not in steps:
        commit.remove(self._folder, other)

  def recover(self) -> None:
    """Removes what killed saves left, and lists the whole checkpoints.

    No other process may be saving here.
    """
    for name in commit.remove_debris(self._folder):
      self._note(f"Removed '{name}', which a save that did not end had left.")
    whole = [p for p in self.paths() if p not in self._named]
    if whole:
      self._write_state(whole[-self._keep :])

  def _write_state(self, paths: Sequence[str]) -> None:
    # Names have no folder, so that the run's folder can be moved.
    names = [json.dumps(os.path.basename(p)) for p in paths]
    lines = [f"model_checkpoint_path: {names[-1]}"]
    lines += [f"all_model_checkpoint_paths: {name}" for name in names]
    text = "\n".join(lines).encode()
    write_file(os.path.join(self._folder, _STATE), text, sync=True)

  def path(self, step: int) -> str:
    """Returns the path of a step's checkpoint."""
    return os.path.join(self._folder, f"{_PREFIX}-{step}")

  def paths(self) -> List[str]:
    """Returns the paths of checkpoints with files of the right size.

    The oldest comes first. Whether bytes have changed is not known.
    """
    steps = commit.list_files(self._folder).committed()
    paths = [self.path(step) for step in steps]
    return [p for p in paths if commit.find_damage(p, True) is None]

  def find_newest(self) -> Optional[str]:
    """Returns the newest whole checkpoint, or `None`; names damaged ones."""
    steps = commit.list_files(self._folder).committed()
    for path in map(self.path, reversed(steps)):
      damage = commit.find_damage(path)
      if damage is None:
        return path
      if path not in self._named:
        self._named.add(path)
        self._note(f"Checkpoint '{path}' is damaged and left out: {damage}.")
    return None

  def latest(self) -> Optional[str]:
    """Returns the newest whole checkpoint, or `None` if there is none.

    If there are damaged ones only, that is an error: a run would start over.
    """
    newest = self.find_newest()
    steps = commit.list_files(self._folder).committed()
    if newest is None and steps:
      path = self.path(steps[-1])
      raise ValueError(
        f"All checkpoints in '{self._folder}' are damaged, the newest is "
        f"'{path}' ({commit.find_damage(path)}): bring back a copy, or remove "
        f"their files ({_PREFIX}-*) to start over."
      )
    return newest

  def check(self, path: str) -> None:
    """Raises a `ValueError` if a checkpoint is damaged."""
    damage = commit.find_damage(path)
    if damage is not None:
      raise ValueError(
        f"Checkpoint '{path}' is damaged ({damage}): take another one."
      )

  def _note(self, text: str) -> None:
    if self.is_writer:
      print(f"Warning: {text}", file=sys.stderr, flush=True)


def collect(entries: Sequence[Entry]) -> Dict[str, tf.Tensor]:
  """Returns the values that this process saves, by key."""
  variables = stored.by_key([entry.complete() for entry in entries])
  return {key: variable.read_value() for key, variable in variables.items()}


def step_of(path: str) -> int:
  """Returns the step of a checkpoint by its path."""
  return int(re.findall(r"\d+$", path)[0])


def _write(prefix: str, values: Dict[str, tf.Tensor]) -> None:
  tf.raw_ops.SaveV2(
    prefix=prefix,
    tensor_names=list(values),
    shape_and_slices=[""] * len(values),
    tensors=list(values.values()),
  )
