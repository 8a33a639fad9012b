"""BigGAN (arXiv 1809.11096).

[z0, z1, ...] = z                    # as many chunks as blocks, and one
x = linear(z0)                       # to 4x4
x = block_i(x, [z_i, shared(label)]) # class-conditional norms
"""

import functools
from typing import List, Optional

import gin
import tensorflow as tf

from paragan_tf.nets import (
  affines,
  blocks,
  fused,
  layers,
  layout,
  norms,
  plans,
  residual,
)
from paragan_tf.nets.attention import SelfAttention
from paragan_tf.types import ImageSpec, Mode

_Z_CHUNK_SIZE = 20  # Length of each chunk of the latent in the paper.


@gin.register
class Generator(tf.Module):
  """Blocks whose norms depend on a chunk of the latent and on the class.

  All norms share one embedding of the class; without classes they depend on the
  latent alone. `z_dim` is by default 20 for the first layer and for each block,
  120 in all at 128 px.
  """

  needs_classes = False

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 96,
    z_dim: Optional[int] = None,
    shared_dim: int = 128,
    norm: norms.MakeNorm = norms.BatchNorm,
    attention: plans.Attention = "auto",
    remat: bool = False,
    name: str = "g",
  ):
    super().__init__(name=name)
    if self.needs_classes and not spec.num_classes:
      raise ValueError(
        "`num_classes` must be above 0 for this G, got 0: take data with "
        "labels, or BigGAN's G."
      )
    layers.check_dims(shared_dim=shared_dim)
    channels = plans.widths(spec.resolution, width, at_32=4)
    z_chunk = _z_chunk_size(z_dim, len(channels))
    self.z_dim, self.remat = z_chunk * len(channels), remat
    init = layers.orthogonal_init(seed)
    sizes = [8 << i for i in range(len(channels) - 1)]
    self.attention_block = plans.attention_block(
      attention, spec.resolution, sizes
    )
    size = z_chunk + (shared_dim if spec.num_classes else 0)
    affine = functools.partial(
      affines.ByVector, inputs=size, init=init, spectral=True
    )
    make_norm = functools.partial(norm, affine=affine)
    self.blocks: List[blocks.GeneratorBlock] = []
    self.attention: Optional[SelfAttention] = None
    with self.name_scope:
      self.shared = layers.make_shared_embedding(
        spec.num_classes, shared_dim, init
      )
      self.linear = layers.ToPixels(z_chunk, channels[0], init, spectral=True)
      for i, (inputs, outputs) in enumerate(zip(channels, channels[1:])):
        self.blocks.append(
          blocks.GeneratorBlock(
            inputs, outputs, init, make_norm, True, f"block{i}"
          )
        )
      if self.attention_block is not None:
        self.attention = SelfAttention(
          channels[self.attention_block + 1],
          init,
          True,
          blocks.num_chunks(remat),
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
    first, *conds = tf.split(z, len(self.blocks) + 1, 1)
    common = 0
    if self.shared is not None:
      common = self.shared.outputs
      shared = layout.cut_channels(self.shared(labels, forward), common)
      conds = [layers.concat(chunk, shared) for chunk in conds]
    x = self.linear(first, forward)
    x = blocks.run(
      self.blocks,
      self.attention,
      self.attention_block,
      x,
      conds,
      forward,
      self.remat,
      common,
    )
    return self.conv(tf.nn.relu(self.norm(x, None, forward)), forward)


@gin.register
class Discriminator(residual.Discriminator):
  """SAGAN's D, wider, with orthogonal initial values."""

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 96,
    attention: plans.Attention = "auto",
    conditioning: Optional[str] = None,
    embedding_dim: Optional[int] = None,
    remat: bool = False,
    name: str = "d",
  ):
    channels = plans.widths(spec.resolution, width, at_32=4)
    init = layers.orthogonal_init(seed)
    options = residual.Options(channels, init, True, attention, remat)
    super().__init__(
      spec, options, None, "sum", conditioning, embedding_dim, name
    )


def _z_chunk_size(z_dim: Optional[int], num: int) -> int:
  """Returns the length of each chunk of the latent."""
  if z_dim is None:
    return _Z_CHUNK_SIZE
  if z_dim < num or z_dim % num:
    near = max(num, z_dim - z_dim % num)
    raise ValueError(
      f"`z_dim` must be a multiple of {num}, for the first layer and each "
      f"block have a chunk of the latent, got {z_dim}: take {near}, say."
    )
  return z_dim // num
