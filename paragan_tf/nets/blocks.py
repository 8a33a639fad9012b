"""The residual blocks of the backbones, and how a net runs them.

Every block is called with `(x, cond, mode)`; its norms depend on `cond`.
"""

import functools
from typing import Any, Optional, Sequence

import tensorflow as tf

from paragan_tf.nets import attention as attentions
from paragan_tf.nets import fused, layers, layout, norms
from paragan_tf.nets.forward import AnyMode, Forward
from paragan_tf.nets.remat import remat as rematerialize


def run(
  blocks: Sequence[tf.Module],
  attention: Optional[attentions.SelfAttention],
  attention_block: Optional[int],
  x: tf.Tensor,
  conds: Sequence[Any],
  forward: Forward,
  remat: bool,
  common: int = 0,
) -> tf.Tensor:
  """Runs x through the blocks, each with its own of `conds`.

  Attention follows the block number `attention_block`. With `remat`, only the
  input of each block is kept for the gradient. `common` is how many last
  entries all of `conds` have in common.
  """
  if not remat:
    forward = fused.projections(blocks, conds, forward, common)
  for i, (block, cond) in enumerate(zip(blocks, conds)):
    call = functools.partial(rematerialize, block) if remat else block
    x = call(x, cond, forward)
    if attention is not None and i == attention_block:
      x = attention(x, cond, forward)
  return x


def num_chunks(remat: bool) -> int:
  """Returns the number of chunks of attention; it divides all resolutions."""
  return 8 if remat else 1


class GeneratorBlock(tf.Module):
  """norm, relu, conv up, norm, relu, conv; the shortcut is a 1x1 conv up."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: layers.Init,
    norm: norms.MakeNorm,
    spectral: bool,
    name: str,
  ):
    super().__init__(name=name)
    conv = functools.partial(layers.Conv, init=init, spectral=spectral)
    with self.name_scope:
      self.norm1 = norm(inputs, name="norm1")
      self.conv1 = conv(inputs, outputs, resize="up", name="conv1")
      self.norm2 = norm(outputs, name="norm2")
      self.conv2 = conv(outputs, outputs, name="conv2")
      self.shortcut = conv(
        inputs, outputs, size=1, resize="up", name="shortcut"
      )

  def __call__(self, x: tf.Tensor, cond: Any, mode: AnyMode) -> tf.Tensor:
    """Doubles the resolution."""
    h = self.conv1(tf.nn.relu(self.norm1(x, cond, mode)), mode)
    h = self.conv2(tf.nn.relu(self.norm2(h, cond, mode)), mode)
    return h + self.shortcut(x, mode)


class DiscriminatorBlock(tf.Module):
  """relu, conv, relu, conv (down); the shortcut is a 1x1 conv.

  Where shapes do not differ, the shortcut is the input itself. The block at the
  image has no relu at its start. If there are norms, one precedes each relu.
  """

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: layers.Init,
    norm: Optional[norms.MakeNorm],
    spectral: bool,
    down: bool,
    first: bool,
    name: str,
  ):
    super().__init__(name=name)
    resize = "down" if down else None
    conv = functools.partial(layers.Conv, init=init, spectral=spectral)
    self.first = first
    self.norm1: Optional[norms.Norm] = None
    self.norm2: Optional[norms.Norm] = None
    self.shortcut: Optional[layers.Conv] = None
    with self.name_scope:
      if norm is not None and not first:
        self.norm1 = norm(inputs, name="norm1")
      if norm is not None:
        self.norm2 = norm(outputs, name="norm2")
      self.conv1 = conv(inputs, outputs, name="conv1")
      self.conv2 = conv(outputs, outputs, resize=resize, name="conv2")
      if down or inputs != outputs:
        self.shortcut = conv(
          inputs, outputs, size=1, resize=resize, name="shortcut"
        )

  def __call__(self, x: tf.Tensor, cond: Any, mode: AnyMode) -> tf.Tensor:
    """Keeps or halves the resolution."""
    h = x if self.first else _norm_relu(self.norm1, x, mode)
    h = _norm_relu(self.norm2, self.conv1(h, mode), mode)
    h = self.conv2(h, mode)
    return h + (x if self.shortcut is None else self.shortcut(x, mode))


class DeepGeneratorBlock(tf.Module):
  """BigGAN-deep's: norm, relu and conv four times, 1x1, 3x3 (up), 3x3, 1x1.

  Three of them have a quarter of the channels. The shortcut is the input: as
  many channels as are needed, upsampled (arXiv 1809.11096, appendix B).
  """

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: layers.Init,
    norm: norms.MakeNorm,
    spectral: bool,
    up: bool,
    name: str,
  ):
    super().__init__(name=name)
    self.up, self.outputs = up, outputs
    inner = _quarter(inputs)
    conv = functools.partial(layers.Conv, init=init, spectral=spectral)
    resize = "up" if up else None
    with self.name_scope:
      self.norms = [
        norm(channels, name=f"norm{i + 1}")
        for i, channels in enumerate([inputs, inner, inner, inner])
      ]
      self.convs = [
        conv(inputs, inner, size=1, name="conv1"),
        conv(inner, inner, resize=resize, name="conv2"),
        conv(inner, inner, name="conv3"),
        conv(inner, outputs, size=1, name="conv4"),
      ]

  def __call__(self, x: tf.Tensor, cond: Any, mode: AnyMode) -> tf.Tensor:
    """Keeps or doubles the resolution."""
    h = x
    for norm, conv in zip(self.norms, self.convs):
      h = conv(tf.nn.relu(norm(h, cond, mode)), mode)
    x = layout.cut_channels(x, self.outputs)
    x = layout.pad_channels(x, h.shape[-1])
    return h + (layout.upsample(x) if self.up else x)


class DeepDiscriminatorBlock(tf.Module):
  """BigGAN-deep's: relu and conv four times, 1x1, 3x3, 3x3, 1x1 (down).

  Three of them have a quarter of the channels. The shortcut is the input,
  pooled, and a 1x1 conv of it for the channels that it lacks.
  """

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: layers.Init,
    spectral: bool,
    down: bool,
    name: str,
  ):
    super().__init__(name=name)
    self.down, self.inputs = down, inputs
    inner = _quarter(outputs)
    conv = functools.partial(layers.Conv, init=init, spectral=spectral)
    resize = "down" if down else None
    self.more: Optional[layers.Conv] = None
    with self.name_scope:
      self.convs = [
        conv(inputs, inner, size=1, name="conv1"),
        conv(inner, inner, name="conv2"),
        conv(inner, inner, name="conv3"),
        conv(inner, outputs, size=1, resize=resize, name="conv4"),
      ]
      if outputs > inputs:
        self.more = conv(inputs, outputs - inputs, size=1, name="more")

  def __call__(self, x: tf.Tensor, cond: Any, mode: AnyMode) -> tf.Tensor:
    """Keeps or halves the resolution."""
    h = x
    for conv in self.convs:
      h = conv(tf.nn.relu(h), mode)
    x = layout.pool(x) if self.down else x
    if self.more is not None:
      more = layout.cut_channels(self.more(x, mode), self.more.outputs)
      x = tf.concat([layout.cut_channels(x, self.inputs), more], -1)
    return h + layout.pad_channels(x, h.shape[-1])


def _norm_relu(
  norm: Optional[norms.Norm], x: tf.Tensor, mode: AnyMode
) -> tf.Tensor:
  return tf.nn.relu(x if norm is None else norm(x, None, mode))


def _quarter(channels: int) -> int:
  if channels % 4:
    raise ValueError(
      "`width` of a deep net must give every block a number of channels that "
      f"4 divides, got {channels}: take a multiple of 4."
    )
  return channels // 4
