"""The tuples that pass between rooms."""

import enum
from typing import NamedTuple, Optional, Protocol, Sequence

import tensorflow as tf


class Mode(enum.Enum):
  """How a net is called.

  Batch norm and spectral norm carry state. It is updated only in the turn of
  the player who owns it, never while an opponent trains against it.
  """

  TRAIN = "train"  # Its own turn: batch statistics, state is updated.
  FROZEN = "frozen"  # The opponent's turn: batch statistics, state is kept.
  EVAL = "eval"  # Sampling and measuring: stored statistics.


class Batch(NamedTuple):
  """One replica's share of one step.

  Attributes:
    images: Real images in [-1, 1], shape `[b, h, w, c]`.
    labels: Class ids of `images`, shape `[b]`, or `None` if unconditional.
    z: Latent codes for the generator, shape `[b, z_dim]`, or `None` until they
      are drawn.
  """

  images: tf.Tensor
  labels: Optional[tf.Tensor]
  z: Optional[tf.Tensor]


class Scores(NamedTuple):
  """What D says: one logit an image, shape `[b]`, larger is more real."""

  real: tf.Tensor
  fake: tf.Tensor


class Verdict(NamedTuple):
  """All that D can say of images, by its method `judge`, if it has one.

  Attributes:
    logits: `[b]`, larger is more real; what calling D returns.
    features: What the last layer sees, `[b, c]`.
    classes: Class logits of an AC-GAN, `[b, num_classes]`.
    embedding: The images' places in ContraGAN's space, `[b, e]`, unit length.
    proxy: Their labels' places there, `[b, e]`, unit length.
  """

  logits: tf.Tensor
  features: Optional[tf.Tensor] = None
  classes: Optional[tf.Tensor] = None
  embedding: Optional[tf.Tensor] = None
  proxy: Optional[tf.Tensor] = None


class Losses(NamedTuple):
  """What each player wants to be small, scalars."""

  d: tf.Tensor
  g: tf.Tensor


class ImageSpec(NamedTuple):
  """What a data set asks of a net: size, channels and number of classes.

  `num_classes` is 0 when there are no labels to condition on.
  """

  resolution: int
  channels: int
  num_classes: int


class Net(Protocol):
  """What a step asks of a net: `tf.Module`s and adapted user nets have it.

  G maps `(z, labels, mode)` to images; D maps `(images, labels, mode)` to
  logits `[b]`. G says the length of its latent code, `z_dim`; a D with batch
  norm says `uses_batch_statistics`, and scores real and fake apart.
  """

  trainable_variables: Sequence[tf.Variable]
  variables: Sequence[tf.Variable]

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps one replica's batch."""
