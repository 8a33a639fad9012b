"""Exports a generator as an ONNX file, by tf2onnx, which is installed apart."""

import importlib
from typing import Any, Dict

import numpy as np
import tensorflow as tf

from paragan_tf.outputs.export import to_pixels
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.outputs.records import write_file
from paragan_tf.types import Mode, Net

_OPSET = 17
# Levels of 256: both round, and compute in another order.
_MAX_DIFFERENCE = 2


def check_path(path: str) -> None:
  """Raises a `ValueError` if a file cannot be of this format."""
  if not path.endswith(".onnx"):
    raise ValueError(
      f"`output` must end in .onnx for an ONNX file, got '{path}': change its "
      "ending."
    )


def export(g: Net, info: GInfo, path: str, z: np.ndarray) -> str:
  """Writes an ONNX file: `z`, and `labels` if conditional, to uint8 `images`.

  It is run by onnxruntime and compared with G before it is written.

  Args:
    g: Called in `Mode.EVAL`.
    info: What it is like.
    path: Of the file.
    z: Latent codes to compare with, `[n, z_dim]`.
  """
  check_path(path)
  tf2onnx, runtime = (_import(name) for name in ("tf2onnx", "onnxruntime"))
  signature = [tf.TensorSpec([None, info.z_dim], tf.float32, "z")]
  if info.num_classes:
    signature.append(tf.TensorSpec([None], tf.int32, "labels"))

  def pixels(z, labels=None):
    return tf.identity(to_pixels(g(z, labels, Mode.EVAL)), name="images")

  traced = tf.function(pixels, autograph=False)
  inputs: Dict[str, np.ndarray] = {"z": z}
  if info.num_classes:
    inputs["labels"] = (np.arange(len(z)) % info.num_classes).astype(np.int32)
  expected = traced(*map(tf.constant, inputs.values())).numpy()
  model = _convert(tf2onnx, traced, signature)
  _compare(runtime, model, inputs, expected)
  write_file(path, model)
  return path


def _import(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError as e:
    raise ValueError(
      f"An ONNX file needs the package `{name}`, which is not installed: "
      "`pip install 'paragan_tf[onnx]'`, in a checkout `pip install -c "
      "requirements.lock '.[onnx]'`, with Python 3.10 or later."
    ) from e


def _convert(tf2onnx: Any, traced, signature) -> bytes:
  try:
    convert = importlib.import_module("tf2onnx.convert")
    made, _ = convert.from_function(traced, signature, opset=_OPSET)
    return made.SerializeToString()
  except Exception as e:
    raise ValueError(
      f"tf2onnx {tf2onnx.__version__} cannot convert this G "
      f"({type(e).__name__}: {str(e).splitlines()[0][:200]}): export a "
      "SavedModel instead, `--format=saved_model`."
    ) from e


def _compare(
  runtime: Any, model: bytes, inputs: Dict[str, np.ndarray], expected
) -> None:
  """Raises a `ValueError` if onnxruntime draws other images."""
  session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
  found = session.run(None, inputs)[0]
  difference = np.abs(found.astype(int) - expected.astype(int)).max()
  if difference > _MAX_DIFFERENCE:
    raise ValueError(
      f"The ONNX file must draw what G draws, up to {_MAX_DIFFERENCE} levels "
      f"of 255, and differs by {difference}: export a SavedModel instead, "
      "`--format=saved_model`."
    )
