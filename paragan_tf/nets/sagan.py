"""SAGAN (arXiv 1805.08318): SNGAN with attention, and spectral norm in both."""

from typing import Optional

import gin

from paragan_tf.nets import layers, norms, plans, residual
from paragan_tf.types import ImageSpec


@gin.register
class Generator(residual.Generator):
  """SNGAN's G with spectral norm and attention."""

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    z_dim: int = 128,
    norm: norms.MakeNorm = norms.BatchNorm,
    modulation: str = "class",
    attention: plans.Attention = "auto",
    remat: bool = False,
    name: str = "g",
  ):
    channels = plans.widths(spec.resolution, width)
    init = layers.glorot_init(seed)
    options = residual.Options(channels, init, True, attention, remat)
    super().__init__(spec, options, norm, z_dim, modulation, name)


@gin.register
class Discriminator(residual.Discriminator):
  """SNGAN's D with attention."""

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    attention: plans.Attention = "auto",
    conditioning: Optional[str] = None,
    remat: bool = False,
    name: str = "d",
  ):
    channels = plans.widths(spec.resolution, width)
    init = layers.glorot_init(seed)
    options = residual.Options(channels, init, True, attention, remat)
    super().__init__(spec, options, None, "sum", conditioning, None, name)
