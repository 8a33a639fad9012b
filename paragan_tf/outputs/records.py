"""The record of a run: metrics.jsonl, and the same values for TensorBoard.

    records = Records(model_dir)
    records.rewind(step)           # on resume: drops what came after `step`
    records.write(step, {"d/loss": 0.7, "g/loss": 1.2})
    records.metric(step, [{"name": "fid", "value": 9.1, "protocol": {...}}])
    records.start(step, {"num_devices": 4})   # a line of starts.jsonl
    records.close()

One process of a run writes; any process may `read` at the same time.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import time
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np
import tensorflow as tf
from PIL import Image

from paragan_tf.outputs import commit

FILE, _STARTS = "metrics.jsonl", "starts.jsonl"
EVALUATIONS = "evaluations.jsonl"  # Of processes beside the run.
_RESERVED = ("step", "seconds", "metrics", "note")
_Event = tf.compat.v1.Event
_Summary = tf.compat.v1.Summary


def write_file(path: str, data: bytes, sync: bool = False) -> None:
  """Writes a file atomically: a reader never sees a part of it.

  With `sync` it is on disk before it replaces an older one.
  """
  tf.io.gfile.makedirs(os.path.dirname(path) or ".")
  part = f"{path}.part{os.getpid()}"
  try:
    with tf.io.gfile.GFile(part, "wb") as f:
      f.write(data)
    if sync:
      commit.sync(part)
    tf.io.gfile.rename(part, path, overwrite=True)
  except BaseException:
    if tf.io.gfile.exists(part):
      tf.io.gfile.remove(part)
    raise


def encode_png(pixels: np.ndarray) -> bytes:
  """Encodes `[h, w, 1 or 3]` uint8 pixels as PNG."""
  is_picture = pixels.ndim == 3 and pixels.shape[2] in (1, 3)
  if pixels.dtype != np.uint8 or not is_picture:
    raise ValueError(
      "`pixels` must be uint8 of shape `[h, w, 1 or 3]`, got "
      f"{pixels.dtype} of shape {list(pixels.shape)}."
    )
  png = io.BytesIO()
  single = pixels.shape[2] == 1
  Image.fromarray(pixels[..., 0] if single else pixels).save(png, "PNG")
  return png.getvalue()


def real_score(metric: Mapping[str, Any]) -> Any:
  """Returns the `real_score` of a metric; older runs call it `floor`."""
  return metric.get("real_score", metric.get("floor"))


def read(model_dir: str) -> list[dict[str, Any]]:
  """Returns the complete lines of metrics.jsonl, and those of evaluations."""
  lines = _read_lines(os.path.join(model_dir, FILE))
  found = read_evaluations(model_dir)
  return sorted([*lines, *found], key=_step) if found else lines


def read_evaluations(model_dir: str) -> list[dict[str, Any]]:
  """Returns the lines of evaluations.jsonl, oldest first."""
  return _read_lines(os.path.join(model_dir, EVALUATIONS))


def seconds_at(model_dir: str, step: int) -> float:
  """Returns the duration of a run until a step; 0 if it is not known."""
  lines = _read_lines(os.path.join(model_dir, FILE))
  known = [x for x in lines if _step(x) <= step]
  return max((_to_float(x.get("seconds")) for x in known), default=0.0)


def read_starts(model_dir: str) -> list[dict[str, Any]]:
  """Returns the lines of starts.jsonl, oldest first."""
  return _read_lines(os.path.join(model_dir, _STARTS))


def _read_lines(path: str) -> list[dict[str, Any]]:
  lines = (_parse(line) for line in _read_text(path).split("\n"))
  return [line for line in lines if line is not None]


class Records:
  """Writes the record of one run.

  Every line of metrics.jsonl has `step` and `seconds`: the duration of the run
  since its first start, without the time between a stop and a resume.

  TensorBoard's events are written as records of protos and not by
  `tf.summary`, which silently drops them inside a v1 graph (an Estimator's
  hooks), and which starts the runtime, after which the CPU cannot be split into
  logical devices.
  """

  def __init__(self, model_dir: str, file: str = FILE):
    self._model_dir, self._file = model_dir, file
    self._events: dict[str, tf.io.TFRecordWriter] = {}
    self._torn: set[str] = set()
    self._reset(file, _read_lines(os.path.join(model_dir, file)))

  def rewind(self, step: int) -> None:
    """Drops the lines of steps after `step`, and an incomplete one.

    Also what other processes have measured after it.
    """
    for file in (EVALUATIONS, self._file):
      lines = _read_lines(os.path.join(self._model_dir, file))
      self._reset(file, [x for x in lines if _step(x) <= step])

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes scalars; metrics.jsonl has null for those that are not finite."""
    scalars = {name: float(value) for name, value in values.items()}
    for name in _RESERVED:
      if name in scalars:
        raise ValueError(f"`values` must not use the name {name!r}; rename it.")
    # In this order, as a line that is written again would count twice.
    self._write_scalars(step, scalars)
    self._append(step, scalars)

  def metric(
    self,
    step: int,
    entries: Sequence[Mapping[str, Any]],
    seconds: Optional[float] = None,
  ) -> None:
    """Writes metric values: dicts of name, value, real_score and protocol.

    In TensorBoard each protocol is a run of its own, so that values of
    different protocols never share a curve.

    Args:
      step: Of the checkpoint.
      entries: The values.
      seconds: Duration of the run until then; until now by default.
    """
    entries = [_to_json(entry) for entry in entries]
    for entry in entries:
      if "name" not in entry or "value" not in entry:
        raise ValueError(
          f"`entries` must each have a name and a value, got {entry}."
        )
    for entry in entries:
      if isinstance(entry["value"], (int, float)):
        scalar = {f"metrics/{entry['name']}": entry["value"]}
        run = f"protocol_{_digest(entry.get('protocol'))}"
        self._write_scalars(step, scalar, run)
    clock = {} if seconds is None else {"seconds": seconds}
    self._append(step, {**clock, "metrics": entries})

  def note(self, step: int, text: str) -> None:
    """Writes a line of words, for people."""
    self._append(step, {"note": text})

  def start(self, step: int, facts: Mapping[str, Any]) -> None:
    """Writes what the run starts, or resumes, with."""
    self._append(step, _to_json(facts), _STARTS)

  def image(self, step: int, name: str, pixels: np.ndarray) -> None:
    """Writes `[h, w, 1 or 3]` uint8 pixels for TensorBoard."""
    image = _Summary.Image(
      height=pixels.shape[0],
      width=pixels.shape[1],
      colorspace=pixels.shape[2],
      encoded_image_string=encode_png(pixels),
    )
    self._write_event(step, [_Summary.Value(tag=name, image=image)])

  def close(self) -> None:
    """Closes the event files; a later write opens new ones."""
    for events in self._events.values():
      # Each event was flushed; all values are in metrics.jsonl, too.
      with contextlib.suppress(tf.errors.OpError):
        events.close()
    self._events.clear()

  def _reset(self, file: str, lines: list[dict[str, Any]]) -> None:
    """Replaces a file by `lines`, and resumes the clock from them."""
    text = "".join(map(_to_line, lines))
    path = os.path.join(self._model_dir, file)
    if text != _read_text(path):
      write_file(path, text.encode())
    self._seconds = max(
      (_to_float(x.get("seconds")) for x in lines), default=0.0
    )
    self._start = time.monotonic()

  def _append(
    self, step: int, values: Mapping[str, Any], file: Optional[str] = None
  ) -> None:
    seconds = self._seconds + time.monotonic() - self._start
    line = {"step": int(step), "seconds": round(seconds, 3), **values}
    tf.io.gfile.makedirs(self._model_dir)
    # Opened for each line, because a bucket stores only files that are closed.
    path = os.path.join(self._model_dir, file or self._file)
    text = _to_line(line)
    if path in self._torn:  # Ends what a failed write has left.
      text = "\n" + text
    self._torn.add(path)
    with tf.io.gfile.GFile(path, "a") as f:
      f.write(text)
    self._torn.discard(path)

  def _write_scalars(
    self, step: int, scalars: Mapping[str, float], run: str = ""
  ) -> None:
    self._write_event(
      step,
      [_Summary.Value(tag=k, simple_value=v) for k, v in scalars.items()],
      run,
    )

  def _write_event(self, step: int, values: list[Any], run: str = "") -> None:
    if run not in self._events:
      folder = os.path.join(self._model_dir, "events", run)
      self._events[run] = _open_events(folder)
    event = _Event(
      wall_time=time.time(), step=int(step), summary=_Summary(value=values)
    )
    try:
      self._events[run].write(event.SerializeToString())
      self._events[run].flush()
    except tf.errors.OpError:
      del self._events[run]  # Its end is torn; the next one is a new file.
      raise


def _open_events(folder: str) -> tf.io.TFRecordWriter:
  """Opens an event file; names sort by time, as TensorBoard reads them."""
  tf.io.gfile.makedirs(folder)
  now = time.time()
  name = f"events.out.tfevents.{now:017.6f}.{os.getpid()}"
  writer = tf.io.TFRecordWriter(os.path.join(folder, name))
  version = _Event(wall_time=now, file_version="brain.Event:2")
  writer.write(version.SerializeToString())
  return writer


def _read_text(path: str) -> str:
  if not tf.io.gfile.exists(path):
    return ""
  with tf.io.gfile.GFile(path, "rb") as f:
    return f.read().decode(errors="replace")


def _parse(line: str) -> Optional[dict[str, Any]]:
  """Returns the line as a dict, or `None` if it is incomplete."""
  try:
    value = json.loads(line)
  except ValueError:
    return None
  return value if isinstance(value, dict) else None


def _to_line(values: Mapping[str, Any]) -> str:
  return json.dumps(_to_json(values), allow_nan=False) + "\n"


def _to_json(value: Any) -> Any:
  """Converts a value for JSON; floats that are not finite become null."""
  if isinstance(value, (np.generic, np.ndarray, tf.Tensor)):
    value = np.asarray(value).tolist()
  if isinstance(value, Mapping):
    return {str(k): _to_json(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [_to_json(v) for v in value]
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  return value if isinstance(value, (int, str, type(None))) else str(value)


def _to_float(value: Any) -> float:
  return float(value) if isinstance(value, (int, float)) else 0.0


def _step(line: Mapping[str, Any]) -> Union[int, float]:
  """Returns the line's step, or infinity if it has none."""
  step = line.get("step")
  return step if isinstance(step, int) else math.inf


def _digest(protocol: Any) -> str:
  text = json.dumps(protocol, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:6]
