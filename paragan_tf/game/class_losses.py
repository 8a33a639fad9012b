"""Losses of class-conditional GANs: D's on real images, G's on its fakes."""

from typing import Tuple

import gin
import tensorflow as tf

from paragan_tf.game.number_checks import check_positive
from paragan_tf.game.penalties import (
  Penalty,
  View,
  check_weight,
  require_output,
)
from paragan_tf.types import Verdict


@gin.register
class AuxiliaryClassifier(Penalty):
  """AC-GAN's cross-entropy of the label (arXiv 1610.09585).

  D's term is on real images and, `with_fakes`, on fakes, as in the paper.
  Without fakes D does not learn classes from G's mistakes.
  """

  who = "dg"

  def __init__(
    self,
    weight: float = 1.0,
    with_fakes: bool = True,
    period: int = 1,
    name: str = "auxiliary_classifier",
  ):
    super().__init__(period, name)
    self.weight = check_weight("weight", weight)
    self.with_fakes = with_fakes

  def term(self, view):
    """Returns the weighted mean over real images, over fakes, or both."""
    loss = self._cross_entropy(*_own_images(view, self))
    if view.who == "d" and self.with_fakes:
      loss += self._cross_entropy(view.fake, view.fake_labels)
    return self.weight * loss

  def _cross_entropy(self, verdict: Verdict, labels) -> tf.Tensor:
    return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=require_output(verdict, "classes", self)
      )
    )


@gin.register
class Contrastive(Penalty):
  """ContraGAN's 2C loss (arXiv 2006.12681), on the images of one replica.

  It pulls an image to its label's proxy and to images of its class, and pushes
  it from the rest. With `x` the embeddings, `e` the proxies and `t` the
  temperature, it is minus the log of the ratio of

      exp(x_i e_i / t) + sum of exp(x_i x_k / t)

  summed over the k != i of the same class, to the same summed over all k != i.
  """

  who = "dg"

  def __init__(
    self,
    weight: float = 1.0,
    temperature: float = 1.0,
    period: int = 1,
    name: str = "contrastive",
  ):
    super().__init__(period, name)
    self.weight = check_weight("weight", weight)
    self.temperature = check_positive("temperature", temperature)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    verdict, labels = _own_images(view, self)
    x, e = (
      require_output(verdict, what, self) for what in ("embedding", "proxy")
    )
    return self.weight * contrastive_loss(x, e, labels, self.temperature)


def contrastive_loss(
  x: tf.Tensor, e: tf.Tensor, labels: tf.Tensor, t: float
) -> tf.Tensor:
  """Returns the 2C loss of embeddings and proxies, both `[b, e]`."""
  to_proxy = tf.reduce_sum(x * e, 1, keepdims=True) / t
  to_images = tf.matmul(x, x, transpose_b=True) / t
  same = tf.equal(labels[:, None], labels[None])
  other = ~tf.eye(x.shape[0], dtype=tf.bool)

  def log_sum(mask):
    # Far below any cosine, but finite: infinity would make gradients NaN.
    kept = tf.where(mask, to_images, to_images.dtype.min / 2)
    return tf.reduce_logsumexp(tf.concat([to_proxy, kept], 1), 1)

  return tf.reduce_mean(log_sum(other) - log_sum(same & other))


def _own_images(view: View, penalty: Penalty) -> Tuple[Verdict, tf.Tensor]:
  """Returns D's outputs and labels of the images that a player trains on."""
  verdict, labels = view.real, view.batch.labels
  if view.who == "g":
    verdict, labels = view.fake, view.fake_labels
  if labels is None:
    raise ValueError(
      f"`{type(penalty).__name__}` needs labels, got `None`: use labeled data."
    )
  return verdict, labels
