"""WGAN-GP's residual nets (arXiv 1704.00028), for a gradient penalty.

D has no spectral norm, and no batch norm: the penalty is on each image
independently.
"""

from typing import Optional

import gin

from paragan_tf.nets import layers, norms, plans, residual, sngan
from paragan_tf.types import ImageSpec


@gin.register
class Generator(sngan.Generator):
  """SNGAN's G: that of the paper, with class-conditional batch norm."""


@gin.register
class Discriminator(residual.Discriminator):
  """Residual blocks without norm, or with `@norms.LayerNorm`; mean pooling.

  The paper uses none at 32 px and layer norm at 64 px.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    norm: Optional[norms.MakeNorm] = None,
    conditioning: Optional[str] = None,
    remat: bool = False,
    name: str = "d",
  ):
    channels = plans.widths(spec.resolution, width)
    init = layers.glorot_init(seed)
    options = residual.Options(channels, init, remat=remat)
    super().__init__(spec, options, norm, "mean", conditioning, None, name)
