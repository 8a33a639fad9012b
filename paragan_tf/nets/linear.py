"""A linear pair, for tests: small, exact, without state."""

import math
from typing import Optional

import gin
import tensorflow as tf

from paragan_tf.nets import heads, layers, layout
from paragan_tf.types import ImageSpec, Mode, Verdict


@gin.register
class Generator(tf.Module):
  """One matrix from latent (and class) to image, then tanh."""

  def __init__(
    self, spec: ImageSpec, seed: int, z_dim: int = 4, name: str = "g"
  ):
    super().__init__(name=name)
    layers.check_dims(z_dim=z_dim)
    self.spec = spec
    self.z_dim = z_dim
    pixels = spec.resolution**2 * spec.channels
    init = layers.normal_init(0.1, seed)
    with self.name_scope:
      self.linear = layers.Linear(z_dim + spec.num_classes, pixels, init)

  def __call__(
    self, z: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps `[b, z_dim]` to images in [-1, 1]."""
    if self.spec.num_classes:
      weights = layers.class_weights(labels, self.spec.num_classes)
      z = layers.concat(z, weights)
    size = self.spec.resolution
    shape = [size, size, self.spec.channels]
    x = layout.cut_channels(self.linear(z, mode), math.prod(shape))
    return tf.reshape(tf.tanh(x), [-1, *shape])


@gin.register
class Discriminator(heads.Judge, tf.Module):
  """One vector from image (and class) to logit."""

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    spectral: bool = False,
    name: str = "d",
  ):
    super().__init__(name=name)
    self.spec = spec
    pixels = spec.resolution**2 * spec.channels
    init = layers.normal_init(0.1, seed)
    with self.name_scope:
      self.linear = layers.Linear(pixels + spec.num_classes, 1, init, spectral)

  def judge(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> Verdict:
    """Maps images to all that D predicts."""
    x = tf.reshape(images, [-1, images.shape[1:].num_elements()])
    if self.spec.num_classes:
      weights = layers.class_weights(labels, self.spec.num_classes)
      x = layers.concat(x, weights)
    return Verdict(self.linear(x, mode)[:, 0], x)
