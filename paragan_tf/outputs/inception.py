"""The Inception network of FID, as a graph of constants.

`make inception` fetches its weights. Only a Fréchet distance of these 2048
features is called FID (arXiv 1706.08500). Torchvision's and Keras' InceptionV3
are other networks: here average pools leave the padding out, the last block has
a max pool, and pixels become (x - 128) / 128.
"""

import os
from typing import Dict, Optional, Tuple

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import array_files
from paragan_tf.outputs import resizers
from paragan_tf.outputs.features import Features, hash_arrays

DEFAULT_PATH = "data/inception2015.npz"
SHA256 = "aca234075598f656c90b0ea229437ed411eecfe0bbe18073db2c7f38a4dd198e"
TAPS = (64, 192, 768, 2048)

_EPSILON = 1e-3
_SIZE = 299


@gin.register
class Inception(tf.Module):
  """The network of FID: 2048 features of an image, or those of a lower layer.

  Args:
    path: The file that `make inception` writes.
    resizer: `tf-legacy` (the original FID), `pytorch` or `clean`.
    num_features: 2048 for FID; 64, 192 or 768 for a lower layer.
  """

  classes_of = "imagenet"
  channels: Tuple[int, ...] = (1, 3)
  has_logits = False
  batch_size = 64  # More is not faster, and 256 images take 2 GB.

  def __init__(
    self,
    path: str = DEFAULT_PATH,
    resizer: str = "tf-legacy",
    num_features: int = 2048,
    name: Optional[str] = None,
  ):
    if num_features not in TAPS:
      raise ValueError(f"`num_features` must be in {TAPS}, got {num_features}.")
    suffix = "" if num_features == 2048 else str(num_features)
    super().__init__(name=name or f"inception{suffix}")
    arrays = _load(path)
    self.sha256 = hash_arrays(arrays)
    self._resize = resizers.find(resizer)
    self.resizer = f"{_SIZE}, {resizer}"
    self.num_features = num_features
    self._weights = _fold(arrays)

  @property
  def is_fid(self) -> bool:
    """Whether distances of these features may be called FID."""
    return self.num_features == 2048 and self.sha256 == SHA256

  @tf.function(input_signature=[tf.TensorSpec([None] * 4, tf.float32)])
  def __call__(self, images: tf.Tensor) -> Features:
    """Returns features of images in [-1, 1] of any size, `[b, h, w, c]`."""
    shape = tf.shape(images)
    images = tf.broadcast_to(images, [shape[0], shape[1], shape[2], 3])
    pixels = self._resize((images + 1.0) * 127.5, _SIZE)
    x = tf.ensure_shape((pixels - 128.0) / 128.0, (None, _SIZE, _SIZE, 3))
    return Features(tf.reduce_mean(self._forward(x), (1, 2)), None)

  def _forward(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the tapped layer, `[b, h, w, num_features]`."""
    x = self._conv(x, "conv", 2)
    x = self._conv(x, "conv_1", padding="VALID")
    x = _max_pool(self._conv(x, "conv_2"))
    if self.num_features == 64:
      return x
    x = self._conv(x, "conv_3")
    x = _max_pool(self._conv(x, "conv_4", padding="VALID"))
    if self.num_features == 192:
      return x
    for block in ("mixed", "mixed_1", "mixed_2"):
      x = self._branches(x, block, 2, 3)
    x = self._reduce(x, "mixed_3", self._conv(x, "mixed_3.conv", 2), "tower", 3)
    for block in ("mixed_4", "mixed_5", "mixed_6", "mixed_7"):
      x = self._branches(x, block, 3, 5)
    if self.num_features == 768:
      return x
    tower = self._tower(x, "mixed_8.tower", 2, last_stride=2)
    x = self._reduce(x, "mixed_8", tower, "tower_1", 4)
    x = self._wide(x, "mixed_9", _average_pool(x))
    return self._wide(x, "mixed_10", tf.nn.max_pool2d(x, 3, 1, "SAME"))

  def _branches(self, x: tf.Tensor, block: str, depth: int, depth_1: int):
    """A convolution, two towers and a pool, side by side."""
    pooled = self._conv(_average_pool(x), f"{block}.tower_2.conv")
    return tf.concat(
      [
        self._conv(x, f"{block}.conv"),
        self._tower(x, f"{block}.tower", depth),
        self._tower(x, f"{block}.tower_1", depth_1),
        pooled,
      ],
      -1,
    )

  def _reduce(self, x, block: str, first, tower: str, depth: int):
    """Halves the resolution."""
    last = self._tower(x, f"{block}.{tower}", depth, last_stride=2)
    return tf.concat([first, last, _max_pool(x)], -1)

  def _wide(self, x: tf.Tensor, block: str, pooled: tf.Tensor) -> tf.Tensor:
    """A block whose towers end in two convolutions side by side."""
    a = self._conv(x, f"{block}.tower_conv")
    b = self._conv(x, f"{block}.tower_1_conv")
    b = self._conv(b, f"{block}.tower_1_conv_1")
    parts = [
      self._conv(x, f"{block}.conv"),
      self._conv(a, f"{block}.tower_mixed_conv"),
      self._conv(a, f"{block}.tower_mixed_conv_1"),
      self._conv(b, f"{block}.tower_1_mixed_conv"),
      self._conv(b, f"{block}.tower_1_mixed_conv_1"),
      self._conv(pooled, f"{block}.tower_2_conv"),
    ]
    return tf.concat(parts, -1)

  def _tower(self, x: tf.Tensor, tower: str, depth: int, last_stride: int = 1):
    for i in range(depth):
      stride = last_stride if i == depth - 1 else 1
      x = self._conv(x, f"{tower}.conv{f'_{i}' if i else ''}", stride)
    return x

  def _conv(self, x, layer: str, stride: int = 1, padding: str = "SAME"):
    kernel, bias = self._weights[layer]
    padding = padding if stride == 1 else "VALID"
    y = tf.nn.conv2d(x, kernel, stride, padding)
    return tf.nn.relu(tf.nn.bias_add(y, bias))


def _max_pool(x: tf.Tensor) -> tf.Tensor:
  return tf.nn.max_pool2d(x, 3, 2, "VALID")


def _average_pool(x: tf.Tensor) -> tf.Tensor:
  # TensorFlow's average leaves the padding out of the count, as FID's does.
  return tf.nn.avg_pool2d(x, 3, 1, "SAME")


def _load(path: str) -> Dict[str, np.ndarray]:
  if not os.path.exists(path):
    raise ValueError(
      f"`Inception` needs its weights, and '{path}' does not exist: run "
      "`make inception`, or set `inception.Inception.path`."
    )
  try:
    arrays = array_files.read(path)
  except ValueError as e:
    raise ValueError(
      f"`path` must be a file that `make inception` wrote, got '{path}' ({e})."
    ) from e
  if "mixed_10.tower_2_conv/kernel" not in arrays:
    raise ValueError(
      f"`path` must be a file that `make inception` wrote, got '{path}'."
    )
  return arrays


def _fold(
  arrays: Dict[str, np.ndarray],
) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
  """Returns kernels and biases with batch norm inside them."""
  weights = {}
  for layer in {name.split("/")[0] for name in arrays}:
    kernel, beta, mean, variance = (
      arrays[f"{layer}/{part}"].astype(np.float64)
      for part in ("kernel", "beta", "mean", "variance")
    )
    scale = 1.0 / np.sqrt(variance + _EPSILON)
    weights[layer] = (
      (kernel * scale).astype(np.float32),
      (beta - mean * scale).astype(np.float32),
    )
  return weights
