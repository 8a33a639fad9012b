"""WGAN-GP's residual pair (arXiv 1704.00028), for a gradient penalty.

No spectral norm, and no batch norm in D: the penalty is on each image alone.
"""

from typing import Optional

import gin

from paragan_tf.nets import layers, norms, plans, residual, sngan
from paragan_tf.types import ImageSpec


@gin.register
class Generator(sngan.Generator):
  """SNGAN's G, which is this paper's with batch norm of the class."""


@gin.register
class Discriminator(residual.Discriminator):
  """Residual blocks without norm, or with `@norms.LayerNorm`, and a mean.

  The paper takes none at 32 px and layer norm at 64 px.
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
