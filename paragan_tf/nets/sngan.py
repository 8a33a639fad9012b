"""SNGAN's residual pair (arXiv 1802.05957).

Conditional as in arXiv 1802.05637: class-conditional batch norm in G, a
projection of the class in D.
"""

from typing import List, Optional, Tuple

import gin
import tensorflow as tf

from paragan_tf.nets import layers, norms
from paragan_tf.types import ImageSpec, Mode

# Channels at 4, 8, 16, ... pixels, in units of `width`, for each resolution.
_WIDTHS = {
  32: (1, 1, 1, 1),
  64: (16, 8, 4, 2, 1),
  128: (16, 16, 8, 4, 2, 1),
  256: (16, 16, 8, 8, 4, 2, 1),
}


def widths(resolution: int, width: int) -> Tuple[int, ...]:
  """Returns the channels at 4, 8, 16, ... pixels."""
  if resolution not in _WIDTHS:
    raise ValueError(
      f"`resolution` of an SNGAN must be one of {sorted(_WIDTHS)}, "
      f"got {resolution}: set the data's `resolution` to one of them."
    )
  return tuple(width * unit for unit in _WIDTHS[resolution])


class GeneratorBlock(tf.Module):
  """norm, relu, conv up, norm, relu, conv; beside it a 1x1 conv up."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    num_classes: int,
    init: layers.Init,
    name: str,
  ):
    super().__init__(name=name)
    with self.name_scope:
      self.norm1 = norms.BatchNorm(inputs, num_classes, name="norm1")
      self.conv1 = layers.Conv(inputs, outputs, init, resize="up", name="conv1")
      self.norm2 = norms.BatchNorm(outputs, num_classes, name="norm2")
      self.conv2 = layers.Conv(outputs, outputs, init, name="conv2")
      self.shortcut = layers.Conv(
        inputs, outputs, init, size=1, resize="up", name="shortcut"
      )

  def __call__(self, x, labels, mode: Mode) -> tf.Tensor:
    """Doubles the resolution."""
    h = self.conv1(tf.nn.relu(self.norm1(x, labels, mode)), mode)
    h = self.conv2(tf.nn.relu(self.norm2(h, labels, mode)), mode)
    return h + self.shortcut(x, mode)


class DiscriminatorBlock(tf.Module):
  """relu, conv, relu, conv (down); beside it a 1x1 conv where shapes differ.

  The block at the image starts without the relu.
  """

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: layers.Init,
    down: bool,
    first: bool,
    name: str,
  ):
    super().__init__(name=name)
    resize = "down" if down else None
    self.first = first
    self.shortcut: Optional[layers.Conv] = None
    with self.name_scope:
      self.conv1 = layers.Conv(
        inputs, outputs, init, spectral=True, name="conv1"
      )
      self.conv2 = layers.Conv(
        outputs, outputs, init, resize=resize, spectral=True, name="conv2"
      )
      if down or inputs != outputs:
        self.shortcut = layers.Conv(
          inputs,
          outputs,
          init,
          size=1,
          resize=resize,
          spectral=True,
          name="shortcut",
        )

  def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
    """Keeps or halves the resolution."""
    h = x if self.first else tf.nn.relu(x)
    h = self.conv2(tf.nn.relu(self.conv1(h, mode)), mode)
    return h + (x if self.shortcut is None else self.shortcut(x, mode))


@gin.register
class Generator(tf.Module):
  """A linear layer to 4x4, blocks that double it, one conv to the image."""

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    z_dim: int = 128,
    name: str = "g",
  ):
    super().__init__(name=name)
    self.z_dim = z_dim
    channels = widths(spec.resolution, width)
    init = layers.glorot_init(seed)
    self.blocks: List[GeneratorBlock] = []
    with self.name_scope:
      self.linear = layers.Linear(z_dim, 16 * channels[0], init)
      for i, (inputs, outputs) in enumerate(zip(channels, channels[1:])):
        self.blocks.append(
          GeneratorBlock(inputs, outputs, spec.num_classes, init, f"block{i}")
        )
      self.norm = norms.BatchNorm(channels[-1])
      self.conv = layers.Conv(channels[-1], spec.channels, init)

  def __call__(
    self, z: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps `[b, z_dim]` to images in [-1, 1]."""
    x = self.linear(z, mode)
    x = tf.reshape(x, [-1, 4, 4, x.shape[1] // 16])
    for block in self.blocks:
      x = block(x, labels, mode)
    return tf.tanh(self.conv(tf.nn.relu(self.norm(x, None, mode)), mode))


@gin.register
class Discriminator(tf.Module):
  """Blocks that halve the resolution, a sum over pixels, a projection."""

  def __init__(
    self, spec: ImageSpec, seed: int, width: int = 64, name: str = "d"
  ):
    super().__init__(name=name)
    channels = widths(spec.resolution, width)[::-1]
    init = layers.glorot_init(seed)
    # At 32 px the paper halves twice and ends on two blocks of 8 px.
    num_down = 2 if spec.resolution == 32 else len(channels) - 1
    inputs = spec.channels
    self.blocks: List[DiscriminatorBlock] = []
    self.embedding: Optional[layers.Embedding] = None
    with self.name_scope:
      for i, outputs in enumerate(channels):
        self.blocks.append(
          DiscriminatorBlock(
            inputs, outputs, init, i < num_down, i == 0, f"block{i}"
          )
        )
        inputs = outputs
      self.linear = layers.Linear(inputs, 1, init, spectral=True)
      if spec.num_classes:
        self.embedding = layers.Embedding(
          spec.num_classes, inputs, init, spectral=True
        )

  def __call__(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps images to logits `[b]`."""
    x = images
    for block in self.blocks:
      x = block(x, mode)
    features = tf.reduce_sum(tf.nn.relu(x), [1, 2])
    logits = self.linear(features, mode)[:, 0]
    if self.embedding is None:
      return logits
    return logits + tf.reduce_sum(features * self.embedding(labels, mode), 1)
