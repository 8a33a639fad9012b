"""The manifest of a GAN for each label: `labels.json`, and who wrote what.

    model_dir/config.gin                the config of all labels
    model_dir/labels.json               the state of all labels
    model_dir/labels/00003/             the run of label 3
    model_dir/labels/00003/label.json   its state

A pool writes the state of its own labels, and then the manifest from all of
them. So pools of other labels, on other machines, may work beside it.
"""

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from paragan_tf.outputs.records import write_file

MANIFEST, _STATE, _LABELS = "labels.json", "label.json", "labels"
_VERSION = 1

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, STOPPED, EMPTY = "failed", "stopped", "no images"


class LabelState(NamedTuple):
  """How far a label is.

  Attributes:
    label: Its class id.
    name: Its name.
    images: How many it is trained on.
    state: 'waiting', 'running', 'done', 'failed', 'stopped' or 'no images'.
    steps: Trained so far.
    seconds: Of its run so far, without breaks.
    budget: `num_steps`, `max_images` and `max_seconds`, as far as they are set.
    restarts: How often it failed and began again.
    reason: Why it failed last, if it did.
  """

  label: int
  name: str
  images: int
  state: str = WAITING
  steps: int = 0
  seconds: float = 0.0
  budget: Mapping[str, float] = {}
  restarts: int = 0
  reason: str = ""


def is_pool(model_dir: str) -> bool:
  """Returns whether a folder has a GAN for each label."""
  return tf.io.gfile.exists(os.path.join(model_dir, MANIFEST))


def folder(model_dir: str, label: int) -> str:
  """Returns the folder of a label's run."""
  return os.path.join(model_dir, _LABELS, f"{label:05d}")


def write_state(model_dir: str, state: LabelState) -> None:
  """Writes the state of one label."""
  _write(os.path.join(folder(model_dir, state.label), _STATE), state._asdict())


def read_state(model_dir: str, label: int) -> Optional[LabelState]:
  """Returns the state of a label; `None` without one that can be read."""
  found = _read(os.path.join(folder(model_dir, label), _STATE))
  return None if found is None else _parse(found)


def write_manifest(
  model_dir: str,
  source: str,
  states: Sequence[LabelState],
  own: Sequence[int],
) -> None:
  """Writes the manifest of all labels.

  Args:
    model_dir: The folder of all labels.
    source: The name of the data.
    states: Of all labels, as far as this pool knows.
    own: Labels of this pool; what others have written of theirs counts.
  """
  known = set(own)
  found = [
    x if x.label in known else read_state(model_dir, x.label) or x
    for x in states
  ]
  content = {
    "version": _VERSION,
    "source": source,
    "num_labels": len(found),
    "labels": [x._asdict() for x in found],
  }
  _write(os.path.join(model_dir, MANIFEST), content)


def read_manifest(model_dir: str) -> List[LabelState]:
  """Returns the states of all labels, by their class ids."""
  path = os.path.join(model_dir, MANIFEST)
  found = _read(path)
  states = [_parse(x) for x in (found or {}).get("labels", ())]
  complete = [x for x in states if x is not None]
  if not complete or len(complete) < len(states):
    raise ValueError(
      f"'{path}' cannot be read: it is damaged; the command that trained the "
      "labels writes it again."
    )
  return complete


def _parse(content: Mapping[str, Any]) -> Optional[LabelState]:
  known = {k: v for k, v in content.items() if k in LabelState._fields}
  try:
    return LabelState(**known)
  except TypeError:
    return None


def _write(path: str, content: Mapping[str, Any]) -> None:
  write_file(path, (json.dumps(content, indent=1) + "\n").encode())


def _read(path: str) -> Optional[Dict[str, Any]]:
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path, "rb") as f:
    text = f.read().decode(errors="replace")
  try:
    found = json.loads(text)
  except ValueError:
    return None
  return found if isinstance(found, dict) else None
