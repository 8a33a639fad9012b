"""The end of a D: features -> `Verdict`.

none        logits = linear(features)
projection  logits += <embedding(labels), features>   (arXiv 1802.05637)
ac          classes = linear(features)                (arXiv 1610.09585)
2c          embedding, proxy, both of unit length     (arXiv 2006.12681)
"""

from typing import Callable, Optional

import tensorflow as tf

from paragan_tf.nets import layers, layout
from paragan_tf.nets.forward import AnyMode
from paragan_tf.types import ImageSpec, Mode, Verdict

CONDITIONINGS = ("none", "projection", "ac", "2c")


class Judge:
  """A mix-in for D: calling it returns the logits of its `judge`."""

  judge: Callable[..., Verdict]

  def __call__(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps images to logits `[b]`."""
    return self.judge(images, labels, mode).logits


class Head(tf.Module):
  """The layers after the features; they have no name scope of their own.

  Attributes:
    conditioning: One of the above; by default a projection if there are
      classes, else none.
  """

  def __init__(
    self,
    features: int,
    spec: ImageSpec,
    init: layers.Init,
    spectral: bool,
    conditioning: Optional[str] = None,
    embedding_dim: Optional[int] = None,
  ):
    super().__init__()
    self.conditioning = _choose(conditioning, spec.num_classes)
    self.features, self.num_classes = features, spec.num_classes
    self.linear = layers.Linear(features, 1, init, spectral)
    self.embedding: Optional[layers.Embedding] = None
    self.classes: Optional[layers.Linear] = None
    # `tf.Module` sorts variables by attribute; this name keeps their order.
    self.to_embedding: Optional[layers.Linear] = None
    size = features
    if embedding_dim is not None:
      layers.check_dims(embedding_dim=embedding_dim)
    if self.conditioning == "2c":
      size = embedding_dim or features
      self.to_embedding = layers.Linear(
        features, size, init, spectral, name="place"
      )
    if self.conditioning == "ac":
      self.classes = layers.Linear(
        features, spec.num_classes, init, spectral, name="classes"
      )
    if self.conditioning in ("projection", "2c"):
      self.embedding = layers.Embedding(spec.num_classes, size, init, spectral)

  def __call__(
    self, features: tf.Tensor, labels: Optional[tf.Tensor], mode: AnyMode
  ) -> Verdict:
    """Maps `[b, features]` to all that D predicts."""
    features = tf.cast(features, tf.float32)
    logits = self.linear(features, mode)[:, 0]
    verdict = Verdict(logits, layout.cut_channels(features, self.features))
    if self.classes is not None:
      classes = self.classes(features, mode)
      classes = layout.cut_channels(classes, self.num_classes)
      return verdict._replace(classes=classes)
    if self.embedding is None:
      return verdict
    vectors = self.embedding(labels, mode)
    if self.to_embedding is None:
      features = layout.pad_channels(features, vectors.shape[1])
      closeness = tf.reduce_sum(features * vectors, 1)
      return verdict._replace(logits=logits + closeness)
    pair = (self.to_embedding(features, mode), vectors)
    embedding, proxy = (
      _unit(layout.cut_channels(x, self.embedding.outputs)) for x in pair
    )
    return verdict._replace(embedding=embedding, proxy=proxy)


def _unit(x: tf.Tensor) -> tf.Tensor:
  return tf.math.l2_normalize(x, 1)


def _choose(conditioning: Optional[str], num_classes: int) -> str:
  if conditioning is None:
    return "projection" if num_classes else "none"
  if conditioning not in CONDITIONINGS:
    raise ValueError(
      f"`conditioning` of a D must be one of {list(CONDITIONINGS)} or None, "
      f"got {conditioning!r}."
    )
  if conditioning != "none" and not num_classes:
    raise ValueError(
      f"`num_classes` must be above 0 for `conditioning` {conditioning!r}, "
      "got 0: take data with labels, or set `conditioning` to 'none'."
    )
  return conditioning
