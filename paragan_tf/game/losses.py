"""Loss functions of GANs: `Scores` -> `Losses` of both players.

    loss_fn = at(loss_fn, step)    # Once a step; `TopK` depends on the step.
    losses  = loss_fn(scores)

Values and gradients are TF-GAN's, bit for bit, without its label smoothing: its
default of 0.25 is in none of the papers.
"""

import inspect
from typing import Callable, Union

import gin
import tensorflow as tf

from paragan_tf.types import Losses, Scores

LossFn = Callable[[Scores], Losses]

_mean = tf.reduce_mean


@gin.register
def hinge(scores: Scores) -> Losses:
  """Returns the hinge losses (arXiv 1705.02894)."""
  real, fake = scores
  return Losses(
    d=_mean(tf.nn.relu(1.0 - real)) + _mean(tf.nn.relu(1.0 + fake)),
    g=-_mean(fake),
  )


@gin.register
def non_saturating(scores: Scores) -> Losses:
  """Returns the losses of arXiv 1406.2661, where G maximizes log D."""
  real, fake = scores
  return Losses(
    d=_cross_entropy(1.0, real) + _cross_entropy(0.0, fake),
    g=_cross_entropy(1.0, fake),
  )


@gin.register
def wasserstein(scores: Scores) -> Losses:
  """Returns the Wasserstein losses (arXiv 1701.07875)."""
  real, fake = scores
  return Losses(d=_mean(fake) - _mean(real), g=-_mean(fake))


@gin.register
def least_squares(scores: Scores) -> Losses:
  """Returns the least-squares losses (arXiv 1611.04076)."""
  real, fake = scores
  a, b, c = 0.0, 1.0, 1.0  # What D wants of fakes and of images; what G wants.
  return Losses(
    d=_mean(tf.square(real - b) / 2.0) + _mean(tf.square(fake - a) / 2.0),
    g=_mean(tf.square(fake - c) / 2.0),
  )


@gin.register
def relativistic(scores: Scores) -> Losses:
  """Returns the relativistic average losses (arXiv 1807.00734)."""
  real, fake = scores
  real, fake = real - _mean(fake), fake - _mean(real)
  return Losses(
    d=_cross_entropy(1.0, real) + _cross_entropy(0.0, fake),
    g=_cross_entropy(0.0, real) + _cross_entropy(1.0, fake),
  )


@gin.register
class TopK:
  """Top-k training: only the best fakes are in G's loss (arXiv 2002.06224).

  Of the `b` fakes of one replica, G learns from the `k` with the highest
  scores; D learns from all. `k` starts at `b`, is multiplied by `gamma` every
  `every` steps (an epoch in the paper), and ends at `nu * b`.

  G's `loss_fn` must be a mean over the fakes, which `relativistic` is not.
  """

  def __init__(
    self,
    loss_fn: LossFn = hinge,
    nu: float = 0.5,
    gamma: float = 0.99,
    every: int = 1000,
  ):
    if not 0.0 < nu <= 1.0:
      raise ValueError(f"`nu` must be in (0, 1], got {nu}.")
    if not 0.0 < gamma <= 1.0:
      raise ValueError(f"`gamma` must be in (0, 1], got {gamma}.")
    if every < 1:
      raise ValueError(f"`every` must be at least 1, got {every}.")
    if inspect.unwrap(loss_fn) is inspect.unwrap(relativistic):
      raise ValueError(
        "`loss_fn` must be a mean over fakes, got `relativistic`, which "
        "compares each with all: use `hinge` or another."
      )
    self.loss_fn = loss_fn
    self.nu = nu
    self.gamma = gamma
    self.every = every

  def k(self, step: tf.Tensor, b: int) -> tf.Tensor:
    """Returns `k` of `b` fakes at a step, an int32 in [1, b]."""
    epoch = tf.cast(step // self.every, tf.float32)
    fraction = tf.maximum(tf.pow(self.gamma, epoch), self.nu)
    # 1e-3, because rounding may put a product just below an integer.
    return tf.maximum(tf.cast(fraction * b + 1e-3, tf.int32), 1)

  def at(self, step: tf.Tensor) -> LossFn:
    """Returns the loss function of a step."""

    def loss_fn(scores: Scores) -> Losses:
      d = self.loss_fn(scores).d
      k = self.k(step, scores.fake.shape[0])
      return Losses(d=d, g=_top_k_g_loss(self.loss_fn, scores, k))

    return loss_fn


def at(loss_fn: Union[LossFn, TopK], step: tf.Tensor) -> LossFn:
  """Returns the loss function of a step; only `TopK` depends on it."""
  return loss_fn.at(step) if isinstance(loss_fn, TopK) else loss_fn


def _top_k_g_loss(loss_fn: LossFn, scores: Scores, k: tf.Tensor) -> tf.Tensor:
  """Returns G's mean loss over the `k` highest scores; exactly `k` with ties.

  A constant replaces the other scores, so that shapes do not depend on `k`. Its
  contribution to the mean is known, and subtracted.
  """
  best = tf.sort(scores.fake, direction="DESCENDING")
  b = best.shape[0]
  constant = tf.stop_gradient(tf.fill([b], best[0]))
  filled = tf.where(tf.range(b) < k, best, constant)
  with_constant = loss_fn(scores._replace(fake=filled)).g
  of_constant = tf.stop_gradient(loss_fn(scores._replace(fake=constant)).g)
  num_rest = tf.cast(b - k, best.dtype)
  total = b * with_constant - num_rest * of_constant
  return total / tf.cast(k, best.dtype)


def _cross_entropy(label: float, logits: tf.Tensor) -> tf.Tensor:
  """Returns the mean cross-entropy of logits; the label of images is 1."""
  labels = label * tf.ones_like(logits)
  return _mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
