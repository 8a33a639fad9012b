"""Consistency regularization: D's logits should not change by augmentation."""

import gin
import tensorflow as tf

from paragan_tf.game.augment import flip_and_shift
from paragan_tf.game.number_checks import check_positive
from paragan_tf.game.penalties import (
  Penalty,
  View,
  check_weight,
  draw,
  normal,
)
from paragan_tf.types import Verdict


@gin.register
class Consistency(Penalty):
  """CR (arXiv 1910.12027): `weight * E(D(x) - D(T(x)))^2` on real images.

  `T` flips and shifts at random.
  """

  def __init__(
    self, weight: float = 10.0, period: int = 1, name: str = "consistency"
  ):
    super().__init__(period, name)
    self.weight = check_weight("weight", weight)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    return self.weight * _real_distance(view, self.name)


@gin.register
class BalancedConsistency(Penalty):
  """bCR (arXiv 2002.04724): CR on real images and on fakes."""

  def __init__(
    self,
    real_weight: float = 10.0,
    fake_weight: float = 10.0,
    period: int = 1,
    name: str = "balanced_consistency",
  ):
    super().__init__(period, name)
    self.real_weight = check_weight("real_weight", real_weight)
    self.fake_weight = check_weight("fake_weight", fake_weight)

  def term(self, view):
    """Returns the sum of both weighted means."""
    real = _real_distance(view, f"{self.name}/real")
    fakes = tf.stop_gradient(view.fakes)
    transformed = _transform(view, f"{self.name}/fake", fakes)
    fake = _distance(view.fake, view.d(transformed, view.fake_labels))
    return self.real_weight * real + self.fake_weight * fake


@gin.register
class LatentConsistency(Penalty):
  """zCR (arXiv 2002.04724): for latent codes with noise added.

  D's term is `d_weight * E(D(G(z)) - D(G(z')))^2`, so that D ignores the noise.
  G's is `-g_weight * E(G(z) - G(z'))^2`, also a mean over pixels, so that G's
  images depend on it. `z' - z` is normal with `deviation`.
  """

  who = "dg"

  def __init__(
    self,
    d_weight: float = 5.0,
    g_weight: float = 0.5,
    deviation: float = 0.03,
    period: int = 1,
    name: str = "latent_consistency",
  ):
    super().__init__(period, name)
    self.d_weight = check_weight("d_weight", d_weight)
    self.g_weight = check_weight("g_weight", g_weight)
    self.deviation = check_positive("deviation", deviation)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    if view.g is None:
      raise ValueError(
        "`LatentConsistency` needs both players, got one of them: use a "
        "schedule in which every replica trains both."
      )
    z = view.batch.z
    perturbed = z + self.deviation * normal(view, self.name, z)
    fakes = view.g(perturbed, view.fake_labels)
    if view.who == "g":
      return -self.g_weight * tf.reduce_mean((view.fakes - fakes) ** 2)
    verdict = view.d(tf.stop_gradient(fakes), view.fake_labels)
    return self.d_weight * _distance(view.fake, verdict)


def _real_distance(view: View, purpose: str) -> tf.Tensor:
  transformed = _transform(view, purpose, view.batch.images)
  return _distance(view.real, view.d(transformed, view.batch.labels))


def _transform(view: View, purpose: str, images: tf.Tensor) -> tf.Tensor:
  return flip_and_shift(images, draw(view, purpose, images.shape[0]))


def _distance(a: Verdict, b: Verdict) -> tf.Tensor:
  return tf.reduce_mean((a.logits - b.logits) ** 2)
