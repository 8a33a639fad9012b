"""SNGAN's residual nets (arXiv 1802.05957).

Conditional as in arXiv 1802.05637: class-conditional batch norm in G, a
projection of the class in D.
"""

from typing import Optional

import gin

from paragan_tf.nets import layers, norms, plans, residual
from paragan_tf.types import ImageSpec


@gin.register
class Generator(residual.Generator):
  """Residual blocks with class-conditional batch norm."""

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    z_dim: int = 128,
    norm: norms.MakeNorm = norms.BatchNorm,
    modulation: str = "class",
    remat: bool = False,
    name: str = "g",
  ):
    channels = plans.widths(spec.resolution, width)
    init = layers.glorot_init(seed)
    options = residual.Options(channels, init, remat=remat)
    super().__init__(spec, options, norm, z_dim, modulation, name)


@gin.register
class Discriminator(residual.Discriminator):
  """Residual blocks with spectral norm, sum pooling, and a projection."""

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    conditioning: Optional[str] = None,
    remat: bool = False,
    name: str = "d",
  ):
    channels = plans.widths(spec.resolution, width)
    init = layers.glorot_init(seed)
    options = residual.Options(channels, init, spectral=True, remat=remat)
    super().__init__(spec, options, None, "sum", conditioning, None, name)
