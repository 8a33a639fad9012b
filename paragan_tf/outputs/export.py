"""Exports a generator as a SavedModel, which does not need this package.

    path = export(g, info, folder)      # folder/<time>
    found = find(folder)                # the newest one there
    g, info = load(found)               # G again, as a `types.Net`

Signatures, of a conditional G with `labels`:

    serving_default  z, labels -> images   uint8, `[b, h, w, c]`
    sample           seed, labels or num -> images and z
    floats           z, labels -> images   in [-1, 1]
    mix              z, weights -> images  in [-1, 1]; weights of the classes
"""

import contextlib
import os
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf.outputs.g_info import GInfo
from paragan_tf.types import Mode, Net

# Where TensorFlow Serving expects files that are not the model's.
_INFO = os.path.join("assets.extra", "paragan_tf.json")
_MODEL = "saved_model.pb"

# Draws latent codes `[num, z_dim]` of a seed, while it is traced.
DrawCodes = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def export(g: Net, info: GInfo, folder: str, draw_codes: DrawCodes) -> str:
  """Writes `folder`/<time>, as Estimators do, and returns that path.

  Args:
    g: Called in `Mode.EVAL`.
    info: What it is like.
    folder: For the export.
    draw_codes: Latent codes for the signature `sample`.
  """
  module = tf.Module()
  module.g = g
  module.counters = getattr(g, "counters", ())  # Of a user's net.
  path = _new_folder(folder)
  try:
    tf.saved_model.save(module, path, _make_signatures(g, info, draw_codes))
    info.write(os.path.join(path, _INFO))
  except BaseException as e:
    _remove(path)  # A signal, too, leaves no half of an export.
    if not isinstance(e, (tf.errors.OpError, OSError)):
      raise
    raise ValueError(
      f"The export must go to a folder that can be written, got '{folder}' "
      f"({str(e).splitlines()[0]}): give another one."
    ) from e
  return path


def _remove(path: str) -> None:
  with contextlib.suppress(tf.errors.OpError, OSError):
    tf.io.gfile.rmtree(path)


def to_pixels(images: tf.Tensor) -> tf.Tensor:
  """Maps [-1, 1] to uint8, as `samples.to_pixels` does."""
  images = tf.where(tf.math.is_nan(images), 0.0, images)
  images = (tf.clip_by_value(images, -1.0, 1.0) + 1.0) * 127.5
  return tf.cast(tf.round(images), tf.uint8)


def _make_signatures(g: Net, info: GInfo, draw_codes: DrawCodes):
  z = tf.TensorSpec([None, info.z_dim], tf.float32, "z")
  labels = tf.TensorSpec([None], tf.int32, "labels")
  seed = tf.TensorSpec([], tf.int64, "seed")
  classes = (labels,) if info.num_classes else ()

  def floats(z, labels=None):
    return {"images": g(z, labels, Mode.EVAL)}

  def pixels(z, labels=None):
    return {"images": to_pixels(g(z, labels, Mode.EVAL))}

  def sample(seed, labels):
    z = draw_codes(seed, tf.shape(labels)[0])
    return {"images": to_pixels(g(z, labels, Mode.EVAL)), "z": z}

  def sample_num(seed, num):
    z = draw_codes(seed, num)
    return {"images": to_pixels(g(z, None, Mode.EVAL)), "z": z}

  def mix(z, weights):
    return {"images": g(z, weights, Mode.EVAL)}

  num = tf.TensorSpec([], tf.int32, "num")
  of_seed = (sample, labels) if info.num_classes else (sample_num, num)
  signatures = {
    "serving_default": _trace(pixels, z, *classes),
    "sample": _trace(of_seed[0], seed, of_seed[1]),
    "floats": _trace(floats, z, *classes),
  }
  if info.mixes_classes:
    weights = tf.TensorSpec([None, info.num_classes], tf.float32, "weights")
    signatures["mix"] = _trace(mix, z, weights)
  return signatures


def _trace(fn, *specs):
  return tf.function(fn, autograph=False).get_concrete_function(*specs)


def find(folder: str) -> Optional[str]:
  """Returns the folder of an export: this one, or the newest one in it."""
  if tf.io.gfile.exists(os.path.join(folder, _MODEL)):
    return folder
  if not tf.io.gfile.isdir(folder):
    return None
  names = [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
  for name in sorted(filter(str.isdecimal, names), key=int, reverse=True):
    path = os.path.join(folder, name)
    if tf.io.gfile.exists(os.path.join(path, _MODEL)):
      return path
  return None


def load(path: str) -> Tuple[Net, GInfo]:
  """Returns the G of an export that `find` found."""
  file = os.path.join(path, _INFO)
  if not tf.io.gfile.exists(file):
    raise ValueError(
      f"'{path}' must be an export of this package, and it has no '{_INFO}': "
      "export the run again."
    )
  info = GInfo.read(file)
  try:
    return _ExportedG(tf.saved_model.load(path), info), info
  except (tf.errors.OpError, OSError, ValueError, KeyError) as e:
    reason = str(e).split("\n")[0][:200]
    raise ValueError(
      f"Export '{path}' cannot be read ({reason}): it is damaged; export the "
      "run again."
    ) from e


class _ExportedG:
  """The G of an export, as a `types.Net`."""

  def __init__(self, loaded: Any, info: GInfo):
    self._loaded = loaded  # Its variables live as long as this.
    self._floats = loaded.signatures["floats"]
    self._mix = loaded.signatures["mix"] if info.mixes_classes else None
    self.z_dim = info.z_dim
    self.variables: Sequence[tf.Variable] = ()
    self.trainable_variables: Sequence[tf.Variable] = ()

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps latent codes to images in [-1, 1]; `Mode.EVAL` is all it has."""
    del mode
    if labels is not None and labels.shape.rank == 2 and self._mix is not None:
      return self._mix(z=x, weights=labels)["images"]
    inputs: Dict[str, tf.Tensor] = {"z": x}
    if labels is not None:
      inputs["labels"] = labels
    return self._floats(**inputs)["images"]


def _new_folder(folder: str) -> str:
  stamp = int(time.time())
  while tf.io.gfile.exists(os.path.join(folder, str(stamp))):
    stamp += 1
  return os.path.join(folder, str(stamp))
