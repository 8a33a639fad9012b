"""DCGAN (arXiv 1511.06434), conditional with a projection if asked."""

from typing import List, Optional

import gin
import tensorflow as tf

from paragan_tf.nets import layers, norms
from paragan_tf.types import ImageSpec, Mode


def num_doublings(resolution: int) -> int:
  """Returns how often 4 pixels double to `resolution`."""
  doublings = (resolution // 4).bit_length() - 1
  if resolution < 32 or 4 << doublings != resolution:
    raise ValueError(
      "`resolution` of a DCGAN must be a power of two from 32 up, "
      f"got {resolution}: set the data's `resolution` to one."
    )
  return doublings


class Deconv(tf.Module):
  """A transposed 4x4 convolution of stride 2."""

  def __init__(self, inputs: int, outputs: int, init: layers.Init, name: str):
    super().__init__(name=name)
    self.outputs = outputs
    with self.name_scope:
      self.weight = layers.Weight([4, 4, outputs, inputs], init, False)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b")

  def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
    """Doubles the resolution."""
    shape = [tf.shape(x)[0], 2 * x.shape[1], 2 * x.shape[2], self.outputs]
    y = tf.nn.conv2d_transpose(x, self.weight(mode), shape, 2, "SAME")
    return tf.nn.bias_add(y, self.bias)


class StridedConv(tf.Module):
  """A 4x4 convolution of stride 2."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: layers.Init,
    spectral: bool,
    name: str,
  ):
    super().__init__(name=name)
    with self.name_scope:
      self.weight = layers.Weight([4, 4, inputs, outputs], init, spectral)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b")

  def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
    """Halves the resolution."""
    y = tf.nn.conv2d(x, self.weight(mode), 2, "SAME")
    return tf.nn.bias_add(y, self.bias)


@gin.register
class Generator(tf.Module):
  """A linear layer to 4x4, then norm, relu and deconvolution to the image.

  `width` is the number of channels at half the image's resolution; it doubles
  towards 4x4.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    z_dim: int = 100,
    name: str = "g",
  ):
    super().__init__(name=name)
    self.z_dim = z_dim
    doublings = num_doublings(spec.resolution)
    channels = [width << i for i in reversed(range(doublings))]
    init = layers.normal_init(0.02, seed)
    self.norms: List[norms.BatchNorm] = []
    self.deconvs: List[Deconv] = []
    with self.name_scope:
      self.linear = layers.Linear(z_dim, 16 * channels[0], init)
      for i, outputs in enumerate([*channels[1:], spec.channels]):
        inputs = channels[i]
        self.norms.append(
          norms.BatchNorm(inputs, spec.num_classes, name=f"norm{i}")
        )
        self.deconvs.append(Deconv(inputs, outputs, init, f"deconv{i}"))

  def __call__(
    self, z: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps `[b, z_dim]` to images in [-1, 1]."""
    x = self.linear(z, mode)
    x = tf.reshape(x, [-1, 4, 4, x.shape[1] // 16])
    for norm, deconv in zip(self.norms, self.deconvs):
      x = deconv(tf.nn.relu(norm(x, labels, mode)), mode)
    return tf.tanh(x)


@gin.register
class Discriminator(tf.Module):
  """Strided convolutions to 4x4, then a linear layer and a projection.

  With `spectral` every kernel is divided by its spectral norm and there is no
  batch norm; without it the paper's batch norm stands after all but the first.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    spectral: bool = True,
    name: str = "d",
  ):
    super().__init__(name=name)
    self.uses_batch_statistics = not spectral
    doublings = num_doublings(spec.resolution)
    init = layers.normal_init(0.02, seed)
    inputs = spec.channels
    self.convs: List[StridedConv] = []
    self.norms: List[Optional[norms.BatchNorm]] = []
    self.embedding: Optional[layers.Embedding] = None
    with self.name_scope:
      for i in range(doublings):
        outputs = width << i
        self.convs.append(
          StridedConv(inputs, outputs, init, spectral, f"conv{i}")
        )
        has_norm = i > 0 and not spectral
        self.norms.append(
          norms.BatchNorm(outputs, name=f"norm{i}") if has_norm else None
        )
        inputs = outputs
      self.linear = layers.Linear(16 * inputs, 1, init, spectral)
      if spec.num_classes:
        self.embedding = layers.Embedding(
          spec.num_classes, 16 * inputs, init, spectral
        )

  def __call__(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps images to logits `[b]`."""
    x = images
    for conv, norm in zip(self.convs, self.norms):
      x = conv(x, mode)
      x = tf.nn.leaky_relu(x if norm is None else norm(x, None, mode))
    features = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    logits = self.linear(features, mode)[:, 0]
    if self.embedding is None:
      return logits
    return logits + tf.reduce_sum(features * self.embedding(labels, mode), 1)
