"""The tuples that pass between rooms."""

import enum
from typing import NamedTuple, Optional, Protocol, Sequence, Tuple

import tensorflow as tf


class Mode(enum.Enum):
  """How a net is called.

  Batch norm and spectral norm have state. It is updated only in the turn of the
  player who owns it, never while the opponent trains against it.
  """

  TRAIN = "train"  # Its own turn: batch statistics, state is updated.
  FROZEN = "frozen"  # The opponent's turn: batch statistics, state is kept.
  EVAL = "eval"  # Sampling and measuring: stored statistics.


class Batch(NamedTuple):
  """One replica's shard of a step's batch.

  Attributes:
    images: Real images in [-1, 1], shape `[b, h, w, c]`.
    labels: Class ids of `images`, shape `[b]`, or `None` if unconditional.
    z: Latent codes for the generator, shape `[b, z_dim]`, or `None` until they
      are sampled.
  """

  images: tf.Tensor
  labels: Optional[tf.Tensor]
  z: Optional[tf.Tensor]


class Scores(NamedTuple):
  """D's logits, one per image, shape `[b]`; larger is more real."""

  real: tf.Tensor
  fake: tf.Tensor


class Verdict(NamedTuple):
  """All that D predicts of images: what its method `judge` returns.

  Attributes:
    logits: `[b]`, larger is more real; what calling D returns.
    features: The input of the last layer, `[b, c]`.
    classes: Class logits of an AC-GAN, `[b, num_classes]`.
    embedding: ContraGAN's embedding of the images, `[b, e]`, unit length.
    proxy: Its embedding of their labels, `[b, e]`, unit length.
  """

  logits: tf.Tensor
  features: Optional[tf.Tensor] = None
  classes: Optional[tf.Tensor] = None
  embedding: Optional[tf.Tensor] = None
  proxy: Optional[tf.Tensor] = None


class Losses(NamedTuple):
  """What each player minimizes, scalars."""

  d: tf.Tensor
  g: tf.Tensor


class ImageSpec(NamedTuple):
  """The images of a data set: size, channels and number of classes.

  `num_classes` is 0 when there are no labels to condition on.
  """

  resolution: int
  channels: int
  num_classes: int


class Net(Protocol):
  """What a step needs of a net: a `tf.Module` or an adapted user's net.

  G maps `(z, labels, mode)` to images; D maps `(images, labels, mode)` to
  logits `[b]`. G has the length of its latent code as `z_dim`. A D with batch
  norm has `uses_batch_statistics`, and is called with real and fake images
  separately.
  """

  trainable_variables: Sequence[tf.Variable]
  variables: Sequence[tf.Variable]

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps one replica's batch."""


class VectorSlice(NamedTuple):
  """A part of a vector in a checkpoint that is summed over replicas.

  Attributes:
    key: Where the first replica's vector is kept.
    size: Entries of the vector.
    start: The first entry of the part.
  """

  key: str
  size: int
  start: int


class Entry(NamedTuple):
  """One variable of a run, as a checkpoint keeps it.

  Attributes:
    name: Its key.
    copies: Its plain variable on each replica of this process that has one.
    agrees: Whether all copies hold the same value, so that one is kept.
    replicas: The ids of the replicas of `copies`; by default from 0 on.
    all_replicas: The ids of all replicas that have a copy, in any process; by
      default `replicas`.
    num_replicas: Of the run; by default as many as have a copy.
    merge_rule: How to read a checkpoint of more or fewer replicas: the `mean`
      or the `sum` of their values. If `None`, such a checkpoint is refused.
    optional: Whether a checkpoint may lack it; it is then zeros.
    residual_source: What is added to it, if a checkpoint has that and the run
      has no such variable.
  """

  name: str
  copies: Tuple[tf.Variable, ...]
  agrees: bool
  replicas: Tuple[int, ...] = ()
  all_replicas: Tuple[int, ...] = ()
  num_replicas: int = 0
  merge_rule: Optional[str] = None
  optional: bool = False
  residual_source: Optional[VectorSlice] = None

  def complete(self) -> "Entry":
    """Returns the entry with its defaults filled in."""
    replicas = self.replicas or tuple(range(len(self.copies)))
    everywhere = self.all_replicas or replicas
    num = self.num_replicas or len(everywhere)
    return self._replace(
      replicas=replicas, all_replicas=everywhere, num_replicas=num
    )
