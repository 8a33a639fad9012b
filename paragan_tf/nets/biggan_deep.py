"""BigGAN-deep (arXiv 1809.11096, appendix B): bottlenecks, more blocks.

The latent is not split: every norm depends on all of it, and on the embedding
of the class, which all norms share.
"""

import functools
from typing import List, Optional

import gin
import tensorflow as tf

from paragan_tf.nets import (
  affines,
  blocks,
  fused,
  heads,
  layers,
  layout,
  norms,
  plans,
)
from paragan_tf.nets.attention import SelfAttention
from paragan_tf.nets.residual import pool_pixels
from paragan_tf.types import ImageSpec, Mode, Verdict


@gin.register
class Generator(tf.Module):
  """Blocks that keep the resolution, each followed by one that doubles it.

  `depth` is the number of blocks at each resolution; the last one doubles it.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 128,
    z_dim: int = 128,
    shared_dim: int = 128,
    depth: int = 2,
    norm: norms.MakeNorm = norms.BatchNorm,
    attention: plans.Attention = "auto",
    remat: bool = False,
    name: str = "g",
  ):
    super().__init__(name=name)
    layers.check_dims(z_dim=z_dim, shared_dim=shared_dim)
    channels = plans.widths(spec.resolution, width, at_32=4)
    self.z_dim, self.remat = z_dim, remat
    init = layers.orthogonal_init(seed)
    size = z_dim + (shared_dim if spec.num_classes else 0)
    affine = functools.partial(
      affines.ByVector, inputs=size, init=init, spectral=True
    )
    make_norm = functools.partial(norm, affine=affine)
    _check_depth(depth)
    sizes = [8 << i for i in range(len(channels) - 1)]
    stage = plans.attention_block(attention, spec.resolution, sizes)
    self.attention_block = None if stage is None else depth * (stage + 1) - 1
    self.blocks: List[blocks.DeepGeneratorBlock] = []
    self.attention: Optional[SelfAttention] = None
    with self.name_scope:
      self.shared = layers.make_shared_embedding(
        spec.num_classes, shared_dim, init
      )
      self.linear = layers.ToPixels(size, channels[0], init, spectral=True)
      for inputs, outputs in zip(channels, channels[1:]):
        for i in range(depth):
          up = i == depth - 1
          self.blocks.append(
            blocks.DeepGeneratorBlock(
              inputs,
              outputs if up else inputs,
              init,
              make_norm,
              True,
              up,
              f"block{len(self.blocks)}",
            )
          )
      if stage is not None:
        self.attention = SelfAttention(
          channels[stage + 1], init, True, blocks.num_chunks(remat)
        )
      self.norm = norm(channels[-1])
      self.conv = layers.ToImage(
        channels[-1], spec.channels, init, spectral=True
      )

  def __call__(
    self, z: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps `[b, z_dim]` to images in [-1, 1]."""
    forward = fused.begin(self, mode)
    if self.shared is not None:
      shared = self.shared(labels, forward)
      z = layers.concat(z, layout.cut_channels(shared, self.shared.outputs))
    x = self.linear(z, forward)
    conds = [z] * len(self.blocks)
    x = blocks.run(
      self.blocks,
      self.attention,
      self.attention_block,
      x,
      conds,
      forward,
      self.remat,
    )
    return self.conv(tf.nn.relu(self.norm(x, None, forward)), forward)


@gin.register
class Discriminator(heads.Judge, tf.Module):
  """One conv, then blocks that halve the resolution, each followed by others.

  `depth` is the number of blocks at each resolution; the first one halves it.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 128,
    depth: int = 2,
    attention: plans.Attention = "auto",
    conditioning: Optional[str] = None,
    remat: bool = False,
    name: str = "d",
  ):
    super().__init__(name=name)
    self.remat = remat
    _check_depth(depth)
    inputs, *channels = plans.widths(spec.resolution, width, at_32=4)[::-1]
    init = layers.orthogonal_init(seed)
    downs = plans.downs(spec.resolution)[: len(channels)]
    sizes = plans.after(spec.resolution, downs)
    stage = plans.attention_block(attention, spec.resolution, sizes)
    self.attention_block = None if stage is None else depth * (stage + 1) - 1
    self.blocks: List[blocks.DeepDiscriminatorBlock] = []
    self.attention: Optional[SelfAttention] = None
    with self.name_scope:
      self.conv = layers.Conv(spec.channels, inputs, init, spectral=True)
      for outputs, down in zip(channels, downs):
        for i in range(depth):
          self.blocks.append(
            blocks.DeepDiscriminatorBlock(
              inputs,
              outputs,
              init,
              True,
              down and i == 0,
              f"block{len(self.blocks)}",
            )
          )
          inputs = outputs
      if stage is not None:
        self.attention = SelfAttention(
          channels[stage], init, True, blocks.num_chunks(remat)
        )
      self.head = heads.Head(inputs, spec, init, True, conditioning)

  def judge(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> Verdict:
    """Maps images to all that D predicts."""
    forward = fused.begin(self, mode)
    x = self.conv(images, forward)
    conds = [None] * len(self.blocks)
    x = blocks.run(
      self.blocks,
      self.attention,
      self.attention_block,
      x,
      conds,
      forward,
      self.remat,
    )
    return self.head(pool_pixels(x, "sum"), labels, forward)


def _check_depth(depth: int) -> None:
  if depth < 1:
    raise ValueError(f"`depth` must be at least 1, got {depth}.")
