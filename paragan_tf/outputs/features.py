"""Features of images from a classifier, which metrics are computed on.

    features, logits = extractor(images)   # images `[b, h, w, c]`, in [-1, 1]

An extractor also has a `name`, the `sha256` of its weights and a `resizer`: a
metric value has no meaning without them.
"""

import hashlib
import importlib.resources
from typing import Dict, Mapping, NamedTuple, Optional, Protocol, Tuple

import gin
import numpy as np
import tensorflow as tf


class Features(NamedTuple):
  """What an extractor computes from a batch.

  Attributes:
    features: Activations before the last layer, shape `[b, d]`.
    logits: Class scores, shape `[b, num_classes]`, or `None`.
  """

  features: tf.Tensor
  logits: Optional[tf.Tensor]


class Extractor(Protocol):
  """A callable from images in [-1, 1], `[b, h, w, c]`, to `Features`.

  It may also have `channels`, a tuple of what an image may have; `has_logits`;
  `num_features`; `batch_size`, how many images it takes at once; and `is_fid`,
  which only the network of FID may say of itself.
  """

  @property
  def name(self) -> str:
    """Its name, which the names of its metrics end in."""

  @property
  def sha256(self) -> str:
    """The hash of its weights."""

  @property
  def classes_of(self) -> str:
    """The data set whose classes it was trained on."""

  @property
  def resizer(self) -> str:
    """How it resizes images to the size it was trained on."""

  def __call__(self, images: tf.Tensor) -> Features:
    """Returns the features of `images`."""


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns the sha256 of arrays, in the order of their names."""
  digest = hashlib.sha256()
  for name in sorted(arrays):
    digest.update(np.ascontiguousarray(arrays[name]).tobytes())
  return digest.hexdigest()


def load_weights() -> Dict[str, np.ndarray]:
  """Returns the packaged arrays: float16 weights and `metadata`, as JSON."""
  package = importlib.resources.files("paragan_tf.outputs")
  with (package / "files" / "fashion_classifier.npz").open("rb") as f:
    return dict(np.load(f))


def to_gray(images: tf.Tensor, size: int) -> tf.Tensor:
  """Averages the colors and resizes to `[b, size, size, 1]`."""
  images = tf.reduce_mean(images, axis=-1, keepdims=True)
  # Inside the graph, so that all image sizes share one trace.
  gray = tf.cond(
    tf.reduce_all(tf.shape(images)[1:3] >= size),
    lambda: tf.image.resize(images, (size, size), "area"),
    lambda: tf.image.resize(images, (size, size), "bilinear", antialias=True),
  )
  return tf.ensure_shape(gray, (None, size, size, 1))


@gin.register
class FashionClassifier(tf.Module):
  """The classifier of Fashion-MNIST that ships with the package.

  `tools/train_classifier.py` made its weights. They are constants here, not
  variables, so no checkpoint stores them and no optimizer updates them.
  """

  classes_of = "fashion"
  channels: Tuple[int, ...] = (1,)
  has_logits = True
  num_features = 96
  resolution = 32
  resizer = "32, area (bilinear from below)"

  def __init__(self, name: str = "fashion"):
    super().__init__(name=name)
    weights = load_weights()
    weights.pop("metadata")
    self.sha256 = hash_arrays(weights)
    self._weights = {k: w.astype(np.float32) for k, w in weights.items()}

  @tf.function(input_signature=[tf.TensorSpec([None] * 4, tf.float32)])
  def __call__(self, images: tf.Tensor) -> Features:
    """Returns features of images in [-1, 1] of any size, `[b, h, w, c]`."""
    x = to_gray(images, self.resolution)
    for layer in ("conv0", "conv1", "conv2"):
      x = tf.nn.relu(self._conv(x, layer))
      x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, (-1, np.prod(x.shape[1:])))
    x = tf.nn.relu(self._dense(x, "features"))
    return Features(features=x, logits=self._dense(x, "logits"))

  def _conv(self, x: tf.Tensor, layer: str) -> tf.Tensor:
    kernel = self._weights[f"{layer}_kernel"]
    return tf.nn.conv2d(x, kernel, 1, "SAME") + self._bias(layer)

  def _dense(self, x: tf.Tensor, layer: str) -> tf.Tensor:
    return tf.matmul(x, self._weights[f"{layer}_kernel"]) + self._bias(layer)

  def _bias(self, layer: str) -> np.ndarray:
    return self._weights[f"{layer}_bias"]
