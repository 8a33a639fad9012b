"""What the folder of a run says about it: scalars, metrics, starts, config.

    history = run_history.read(model_dir)
    history.curves["d/loss"].values
    history.to_axis("seconds", history.curves["d/loss"].steps)

Any process may read it while the run is written; what is missing is empty.
"""

import functools
import math
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import protocols, records, samples
from paragan_tf.outputs.curves import is_number, short

AXES = ("steps", "images", "seconds")
_NOT_SCALARS = {"step", "seconds", "metrics", "note"}
_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\.index")
_QUIET_SECONDS = 300.0  # A run that writes nothing for longer is not running.


class Scalar(NamedTuple):
  """A scalar over the run; values that are not finite are NaN."""

  steps: np.ndarray
  values: np.ndarray


class Metric(NamedTuple):
  """A metric under one protocol; `newest` is its last entry."""

  name: str
  protocol: Any
  scalar: Scalar
  newest: Dict[str, Any]

  @property
  def key(self) -> tuple:
    """Values may be compared if this is the same."""
    return self.name, protocols.key(self.protocol)

  @property
  def real_score(self) -> Optional[float]:
    """What real images get, if it is known."""
    value = records.real_score(self.newest)
    return value if is_number(value) else None

  def format_value(self) -> str:
    """Returns the newest value, with its deviation if there is one."""
    text, deviation = (
      short(self.newest.get("value")),
      self.newest.get("deviation"),
    )
    return f"{text} ± {short(deviation)}" if is_number(deviation) else text


class RunHistory:
  """A run, as its folder has it.

  Attributes:
    path: Of the folder.
    lines: Of metrics.jsonl, those with a step.
    starts: Of starts.jsonl: step, seconds, devices and versions of each start.
    config: The text of config.gin, or `None`.
    grids: Paths of the sample grids by step, oldest first.
  """

  def __init__(self, path: str):
    self.path = path
    self.lines = [
      x for x in records.read(path) if isinstance(x.get("step"), int)
    ]
    self.starts = records.read_starts(path)
    self.config = _read_text(os.path.join(path, "config.gin"))
    self.grids = samples.png_paths(path)
    self._names = tf.io.gfile.listdir(path) if tf.io.gfile.isdir(path) else []

  @property
  def name(self) -> str:
    """The name of the folder."""
    return os.path.basename(os.path.abspath(self.path))

  @property
  def is_run(self) -> bool:
    """Whether the folder has anything of a run."""
    checkpoints = any(map(_CHECKPOINT.fullmatch, self._names))
    return bool(
      self.lines or self.config is not None or self.grids or checkpoints
    )

  @property
  def exists(self) -> bool:
    """Whether there is such a folder."""
    return tf.io.gfile.isdir(self.path)

  def list_runs_inside(self) -> List[str]:
    """Returns sub-folders that are runs, a few of them."""
    paths = [os.path.join(self.path, x.rstrip("/")) for x in self._names]
    folders = [path for path in sorted(paths) if tf.io.gfile.isdir(path)]
    return [x for x in folders[:20] if RunHistory(x).is_run][:5]

  @functools.cached_property
  def step(self) -> int:
    """The last step that anything is known of."""
    found = [_CHECKPOINT.fullmatch(name) for name in self._names]
    saved = [int(x[1]) for x in found if x]
    return max([*(x["step"] for x in self.lines), *self.grids, *saved, 0])

  @property
  def seconds(self) -> Optional[float]:
    """The duration of the run so far, without breaks."""
    found = [x["seconds"] for x in self.lines if is_number(x.get("seconds"))]
    return max(found, default=None)

  def read_start(self, name: str) -> Any:
    """Returns a fact of the last start, or `None` if it was not recorded."""
    return self.starts[-1].get(name) if self.starts else None

  @property
  def notes(self) -> List[str]:
    """What the run has said of itself, with its steps."""
    found = [x for x in self.lines if isinstance(x.get("note"), str)]
    return [f"Step {x['step']:,}: {x['note']}" for x in found]

  @property
  def num_steps(self) -> Optional[int]:
    """The steps to train in all."""
    value = self.read_start("num_steps")
    return value if isinstance(value, int) else None

  @property
  def images(self) -> Optional[int]:
    """The real images trained on so far."""
    per_step = self.read_start("images_per_step")
    return self.step * per_step if isinstance(per_step, int) else None

  @property
  def device_hours(self) -> Optional[float]:
    """The time that devices were taken for; `None` if not all is recorded.

    A resumed run may have another number of devices. What a crash threw away
    is not counted, as no record is kept of it.
    """
    end = self.seconds
    if not self.starts or end is None:
      return None
    begins: List[Any] = [x.get("seconds") for x in self.starts]
    counts = [x.get("num_devices") for x in self.starts]
    is_known = all(map(is_number, [*begins, *counts]))
    if not is_known or self.starts[0].get("step") != 0:
      return None
    spans = np.diff([0.0, *begins[1:], max(end, *begins)])
    return float(np.dot(spans.clip(0.0), counts)) / 3600

  def describe_state(self, now: float) -> str:
    """Returns whether the run is finished, running or stopped.

    Args:
      now: The time in seconds, of this machine.
    """
    if self.num_steps is None:
      return "end not recorded"
    if self.step >= self.num_steps:
      return "finished"
    path = os.path.join(self.path, records.FILE)
    if tf.io.gfile.exists(path):
      age = now - tf.io.gfile.stat(path).mtime_nsec / 1e9
      if age < max(_QUIET_SECONDS, 3 * self._longest_gap()):
        return "running"
    return "stopped"

  def _longest_gap(self) -> float:
    seconds = [x["seconds"] for x in self.lines if is_number(x.get("seconds"))]
    return float(np.max(np.diff(seconds), initial=0.0))

  @functools.cached_property
  def curves(self) -> Dict[str, Scalar]:
    """Every scalar of the record, by name."""
    points: Dict[str, List[tuple]] = {}
    for line in self.lines:
      for name in line.keys() - _NOT_SCALARS:
        points.setdefault(name, []).append((line["step"], line[name]))
    return {name: _make_scalar(points[name]) for name in sorted(points)}

  @functools.cached_property
  def metrics(self) -> List[Metric]:
    """The metrics; two protocols of one name are two metrics."""
    histories: Dict[tuple, List[tuple]] = {}
    for line in self.lines:
      for entry in line.get("metrics") or ():
        step = entry.get("step")
        step = step if isinstance(step, int) else line["step"]
        key = str(entry.get("name")), protocols.key(entry.get("protocol"))
        histories.setdefault(key, []).append((step, entry))
    found = []
    for (name, _), history in histories.items():
      by_step = dict(
        sorted(history, key=lambda x: x[0])
      )  # The last one counts.
      newest = by_step[max(by_step)]
      scalar = _make_scalar([(s, x.get("value")) for s, x in by_step.items()])
      found.append(Metric(name, newest.get("protocol"), scalar, newest))
    return found

  def to_axis(self, axis: str, steps: np.ndarray) -> Optional[np.ndarray]:
    """Returns steps as images or seconds; `None` if that was not recorded.

    Seconds are those of training, also for values that were measured later.
    """
    if axis == "steps":
      return steps
    if axis == "images":
      per_step = self.read_start("images_per_step")
      return steps * per_step if is_number(per_step) else None
    clock = self._clock
    return np.interp(steps, *clock) if len(clock[0]) > 1 else None

  @functools.cached_property
  def _clock(self) -> tuple:
    """Steps, and the seconds at which they were done."""
    seconds: Dict[int, float] = {}
    for line in self.starts[:1] + self.lines:
      is_done = "metrics" not in line and is_number(line.get("seconds"))
      if is_done and isinstance(line.get("step"), int):
        seconds.setdefault(line["step"], line["seconds"])
    steps = sorted(seconds)
    return np.array(steps), np.array([seconds[step] for step in steps])


def read(model_dir: str) -> RunHistory:
  """Returns what a folder says about its run."""
  return RunHistory(model_dir)


def _make_scalar(points: Sequence[tuple]) -> Scalar:
  values = [value if is_number(value) else math.nan for _, value in points]
  return Scalar(
    np.array([step for step, _ in points]), np.array(values, np.float64)
  )


def _read_text(path: str) -> Optional[str]:
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path, "rb") as f:
    return f.read().decode(errors="replace")
