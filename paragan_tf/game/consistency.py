"""Penalties on a change of mind: D says the same of what looks the same."""

import gin
import tensorflow as tf

from paragan_tf.game.augment import flip_and_shift
from paragan_tf.game.penalties import Penalty, View, draw, normal, positive
from paragan_tf.types import Verdict


@gin.register
class Consistency(Penalty):
  """CR (arXiv 1910.12027): D says the same of real images flipped and shifted.

  `weight * E(D(x) - D(T(x)))^2`.
  """

  def __init__(
    self, weight: float = 10.0, period: int = 1, name: str = "consistency"
  ):
    super().__init__(period, name)
    self.weight = positive("weight", weight)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    return self.weight * _real_change(view, self.name)


@gin.register
class BalancedConsistency(Penalty):
  """bCR (arXiv 2002.04724): CR of real images and of fakes."""

  def __init__(
    self,
    real_weight: float = 10.0,
    fake_weight: float = 10.0,
    period: int = 1,
    name: str = "balanced_consistency",
  ):
    super().__init__(period, name)
    self.real_weight = positive("real_weight", real_weight)
    self.fake_weight = positive("fake_weight", fake_weight)

  def term(self, view):
    """Returns the sum of both weighted means."""
    real = _real_change(view, f"{self.name}/real")
    fakes = tf.stop_gradient(view.fakes)
    moved = _moved(view, f"{self.name}/fake", fakes)
    fake = _change(view.fake, view.d(moved, view.fake_labels))
    return self.real_weight * real + self.fake_weight * fake


@gin.register
class LatentConsistency(Penalty):
  """zCR (of the same paper): of codes that are a little off.

  D pays `d_weight * E(D(G(z)) - D(G(z')))^2`, and is to see no difference; G
  pays `-g_weight * E(G(z) - G(z'))^2`, a mean over pixels, too, and is to make
  one. `z' - z` is normal with `deviation`.
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
    self.d_weight = positive("d_weight", d_weight)
    self.g_weight = positive("g_weight", g_weight)
    self.deviation = positive("deviation", deviation)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    if view.g is None:
      raise ValueError(
        "`LatentConsistency` needs G beside D, got a player alone: take a "
        "schedule in which every replica plays both."
      )
    z = view.batch.z
    near = z + self.deviation * normal(view, self.name, z)
    fakes = view.g(near, view.fake_labels)
    if view.who == "g":
      return -self.g_weight * tf.reduce_mean((view.fakes - fakes) ** 2)
    verdict = view.d(tf.stop_gradient(fakes), view.fake_labels)
    return self.d_weight * _change(view.fake, verdict)


def _real_change(view: View, purpose: str) -> tf.Tensor:
  moved = _moved(view, purpose, view.batch.images)
  return _change(view.real, view.d(moved, view.batch.labels))


def _moved(view: View, purpose: str, images: tf.Tensor) -> tf.Tensor:
  return flip_and_shift(images, draw(view, purpose, images.shape[0]))


def _change(one: Verdict, other: Verdict) -> tf.Tensor:
  return tf.reduce_mean((one.logits - other.logits) ** 2)
