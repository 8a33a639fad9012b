"""What each player wants: `Scores` -> `Losses`, one function a game.

They are TF-GAN's, with its label smoothing off: its default of .25 is in none
of the papers.
"""

from typing import Callable

import gin

from paragan_tf.types import Losses, Scores

LossFn = Callable[[Scores], Losses]


@gin.register
def hinge(scores: Scores) -> Losses:
  """Returns the hinge losses (arXiv 1705.02894)."""
  return _tfgan("wasserstein_hinge", scores, loss_collection=None)


@gin.register
def non_saturating(scores: Scores) -> Losses:
  """Returns the cross-entropies of arXiv 1406.2661; G maximizes log D."""
  return _tfgan("modified", scores, label_smoothing=0.0, loss_collection=None)


@gin.register
def wasserstein(scores: Scores) -> Losses:
  """Returns the critic's difference (arXiv 1701.07875)."""
  return _tfgan("wasserstein", scores, loss_collection=None)


@gin.register
def least_squares(scores: Scores) -> Losses:
  """Returns half the squared distances to 0 and 1 (arXiv 1611.04076)."""
  return _tfgan("least_squares", scores, loss_collection=None)


@gin.register
def relativistic(scores: Scores) -> Losses:
  """Returns the relativistic average losses (arXiv 1807.00734)."""
  losses = _wargs()
  return Losses(
    d=losses.relativistic_discriminator_loss(scores.real, scores.fake),
    g=losses.relativistic_generator_loss(scores.real, scores.fake),
  )


def _tfgan(kind: str, scores: Scores, **options) -> Losses:
  losses = _wargs()
  d_loss_fn = getattr(losses, f"{kind}_discriminator_loss")
  g_loss_fn = getattr(losses, f"{kind}_generator_loss")
  return Losses(
    d=d_loss_fn(scores.real, scores.fake, **options),
    g=g_loss_fn(scores.fake, **options),
  )


def _wargs():
  # Imported on first use: it brings tensorflow-probability, 1.5 s.
  import tensorflow_gan as tfgan

  return tfgan.losses.wargs
