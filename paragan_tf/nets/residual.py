"""The residual G and D that SNGAN, SAGAN, WGAN-GP and BigGAN's D are made of.

Their files choose the options, and name the papers.
"""

import functools
from typing import List, NamedTuple, Optional, Tuple

import tensorflow as tf

from paragan_tf.nets import (
  affines,
  attention,
  blocks,
  fused,
  heads,
  layers,
  norms,
  plans,
)
from paragan_tf.types import ImageSpec, Mode, Verdict


class Options(NamedTuple):
  """What both nets of a residual pair are made with.

  Attributes:
    channels: At 4, 8, 16, ... pixels.
    init: The initial values of all kernels.
    spectral: Whether kernels are divided by their spectral norm.
    attention: At which resolution, see `plans.Attention`.
    remat: Whether the gradient computes blocks again, see `remat.py`.
  """

  channels: Tuple[int, ...]
  init: layers.Init
  spectral: bool = False
  attention: plans.Attention = None
  remat: bool = False


class Generator(tf.Module):
  """A linear layer to 4x4, blocks that double it, one conv to the image.

  `modulation` says what the norms' scale and shift depend on: `"class"`, or
  `"self"` for the latent and the class (arXiv 1810.01365).
  """

  def __init__(
    self,
    spec: ImageSpec,
    options: Options,
    norm: norms.MakeNorm,
    z_dim: int,
    modulation: str,
    name: str,
  ):
    super().__init__(name=name)
    layers.check_dims(z_dim=z_dim)
    self.spec, self.z_dim, self.remat = spec, z_dim, options.remat
    self.modulation = modulation
    channels, init, spectral = options.channels, options.init, options.spectral
    sizes = [8 << i for i in range(len(channels) - 1)]
    conditional = self._conditional(norm, init)
    self.attention_block = plans.attention_block(
      options.attention, spec.resolution, sizes
    )
    self.blocks: List[blocks.GeneratorBlock] = []
    self.attention: Optional[attention.SelfAttention] = None
    with self.name_scope:
      self.linear = layers.ToPixels(z_dim, channels[0], init, spectral)
      for i, (inputs, outputs) in enumerate(zip(channels, channels[1:])):
        self.blocks.append(
          blocks.GeneratorBlock(
            inputs, outputs, init, conditional, spectral, f"block{i}"
          )
        )
      if self.attention_block is not None:
        self.attention = attention.SelfAttention(
          channels[self.attention_block + 1],
          init,
          spectral,
          blocks.num_chunks(self.remat),
        )
      self.norm = norm(channels[-1])
      self.conv = layers.ToImage(
        channels[-1], spec.channels, init, spectral=spectral
      )

  def __call__(
    self, z: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps `[b, z_dim]` to images in [-1, 1]."""
    forward = fused.begin(self, mode)
    x = self.linear(z, forward)
    conds = [self._cond(z, labels)] * len(self.blocks)
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

  def _conditional(
    self, norm: norms.MakeNorm, init: layers.Init
  ) -> norms.MakeNorm:
    """Returns the function that makes the norms of blocks."""
    num_classes = self.spec.num_classes
    if self.modulation == "class":
      return functools.partial(norm, num_classes=num_classes)
    if self.modulation != "self":
      raise ValueError(
        "`modulation` of a G must be 'class' or 'self', "
        f"got {self.modulation!r}."
      )
    affine = functools.partial(
      affines.SelfModulation,
      inputs=self.z_dim + num_classes,
      init=init,
    )
    return functools.partial(norm, affine=affine)

  def _cond(self, z: tf.Tensor, labels: Optional[tf.Tensor]):
    if self.modulation == "class":
      return labels if self.spec.num_classes else None
    if not self.spec.num_classes:
      return z
    return layers.concat(z, layers.class_weights(labels, self.spec.num_classes))


class Discriminator(heads.Judge, tf.Module):
  """Blocks that halve the resolution, a pool over all pixels, a head.

  `pooling` is `"sum"` or `"mean"`; the head is chosen by `conditioning`, see
  `heads.py`.
  """

  def __init__(
    self,
    spec: ImageSpec,
    options: Options,
    norm: Optional[norms.MakeNorm],
    pooling: str,
    conditioning: Optional[str],
    embedding_dim: Optional[int],
    name: str,
  ):
    super().__init__(name=name)
    self.pooling, self.remat = _check_pooling(pooling), options.remat
    init, spectral = options.init, options.spectral
    downs = plans.downs(spec.resolution)
    sizes = plans.after(spec.resolution, downs)
    self.attention_block = plans.attention_block(
      options.attention, spec.resolution, sizes
    )
    inputs = spec.channels
    self.blocks: List[blocks.DiscriminatorBlock] = []
    self.attention: Optional[attention.SelfAttention] = None
    with self.name_scope:
      for i, outputs in enumerate(options.channels[::-1]):
        self.blocks.append(
          blocks.DiscriminatorBlock(
            inputs,
            outputs,
            init,
            norm,
            spectral,
            downs[i],
            i == 0,
            f"block{i}",
          )
        )
        inputs = outputs
        if i == self.attention_block:
          self.attention = attention.SelfAttention(
            outputs, init, spectral, blocks.num_chunks(self.remat)
          )
      self.head = heads.Head(
        inputs, spec, init, spectral, conditioning, embedding_dim
      )
    self.uses_batch_statistics = bool(norms.batch_norms(self))

  def judge(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> Verdict:
    """Maps images to all that D predicts."""
    forward = fused.begin(self, mode)
    conds = [None] * len(self.blocks)
    x = blocks.run(
      self.blocks,
      self.attention,
      self.attention_block,
      images,
      conds,
      forward,
      self.remat,
    )
    return self.head(pool_pixels(x, self.pooling), labels, forward)


def pool_pixels(x: tf.Tensor, pooling: str) -> tf.Tensor:
  """Sums or averages the features of all pixels, after a relu."""
  reduce = tf.reduce_sum if pooling == "sum" else tf.reduce_mean
  return reduce(tf.nn.relu(x), [1, 2])


def _check_pooling(pooling: str) -> str:
  if pooling not in ("sum", "mean"):
    raise ValueError(
      f"`pooling` of a D must be 'sum' or 'mean', got {pooling!r}."
    )
  return pooling
