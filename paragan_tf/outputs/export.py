"""Exports a generator as a SavedModel, which does not need this package."""

import os
import time
from typing import Optional

import tensorflow as tf

from paragan_tf.types import Mode, Net


def export(g: Net, conditional: bool, folder: str) -> str:
  """Writes `folder`/<time>, as Estimators do, and returns that path.

  Its signature `serving_default` takes `z`, `[b, z_dim]`, and `labels`, `[b]`,
  if the model is conditional, and returns `images`, `[b, h, w, c]` in [-1, 1].
  """
  z_dim = g.z_dim  # type: ignore[attr-defined]
  z = tf.TensorSpec([None, z_dim], tf.float32, "z")
  labels = tf.TensorSpec([None], tf.int32, "labels")

  def images(z: tf.Tensor, labels: Optional[tf.Tensor] = None):
    return {"images": g(z, labels, Mode.EVAL)}

  module = tf.Module()
  module.g = g
  module.counters = getattr(g, "counters", ())  # Of a user's net.
  module.serve = tf.function(images, autograph=False)
  signature = (z, labels) if conditional else (z,)
  path = _new_folder(folder)
  tf.saved_model.save(
    module,
    path,
    {"serving_default": module.serve.get_concrete_function(*signature)},
  )
  return path


def _new_folder(folder: str) -> str:
  stamp = int(time.time())
  while tf.io.gfile.exists(os.path.join(folder, str(stamp))):
    stamp += 1
  return os.path.join(folder, str(stamp))
