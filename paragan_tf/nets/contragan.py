"""ContraGAN (arXiv 2006.12681): BigGAN whose D has the 2C head."""

from typing import Optional

import gin

from paragan_tf.nets import biggan, plans
from paragan_tf.types import ImageSpec


@gin.register
class Generator(biggan.Generator):
  """BigGAN's G; it requires classes, since D's head does."""

  needs_classes = True


@gin.register
class Discriminator(biggan.Discriminator):
  """BigGAN's D, with an embedding of the image and one of its label.

  Both have the length `embedding_dim`, by default that of the features.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 96,
    attention: plans.Attention = "auto",
    embedding_dim: Optional[int] = None,
    remat: bool = False,
    name: str = "d",
  ):
    super().__init__(
      spec, seed, width, attention, "2c", embedding_dim, remat, name
    )
