"""One player's gradient, on one replica.

    fake   = g(z, labels)
    scores = d(images), d(fake)
    loss   = loss_fn(scores).d or .g
    grads  = d loss / d the player's own weights

Each player receives the gradient of its own loss only; the opponent is watched
and left as it is.
"""

from typing import Callable, List, NamedTuple, Optional

import tensorflow as tf

from paragan_tf.game.losses import LossFn
from paragan_tf.types import Batch, Mode, Net, Scores


class Fakes(NamedTuple):
  """What G drew, and the way back to its weights.

  Attributes:
    images: `[b, h, w, c]`, in [-1, 1].
    labels: The class ids that they were drawn for, `[b]`, or `None`.
    pull_back: From the gradient of `images` to those of G's weights; once.
  """

  images: tf.Tensor
  labels: Optional[tf.Tensor]
  pull_back: Callable[[tf.Tensor], List[tf.Tensor]]


class Move(NamedTuple):
  """What a player would do: its loss and gradients, before any exchange."""

  loss: tf.Tensor
  grads: List[tf.Tensor]


def repeated(values: Optional[tf.Tensor], size: int) -> Optional[tf.Tensor]:
  """Returns `size` rows of a batch, from the first on, over again."""
  if values is None or values.shape[0] == size:
    return values
  return tf.gather(values, tf.range(size) % values.shape[0])


def draw(g: Net, batch: Batch, mode: Mode) -> Fakes:
  """Returns G's fakes; `Mode.TURN` if G is to move on them."""
  weights = g.trainable_variables
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weights)
    images = g(batch.z, batch.labels, mode)
  return Fakes(
    images, batch.labels, lambda grad: tape.gradient(images, weights, grad)
  )


def d_move(fakes: Fakes, d: Net, batch: Batch, loss_fn: LossFn) -> Move:
  """Returns D's move."""
  weights = d.trainable_variables
  fakes = fakes._replace(images=tf.stop_gradient(fakes.images))
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weights)
    loss = loss_fn(_scores(d, batch, fakes)).d
  return Move(loss, list(tape.gradient(loss, weights)))


def g_move(fakes: Fakes, d: Net, batch: Batch, loss_fn: LossFn) -> Move:
  """Returns G's move against D as it stands."""
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(fakes.images)
    scores = Scores(
      # Left out of the graph by TensorFlow where the loss does not ask for it.
      real=d(batch.images, batch.labels, Mode.WATCH),
      fake=d(fakes.images, fakes.labels, Mode.WATCH),
    )
    loss = loss_fn(scores).g
  return Move(loss, list(fakes.pull_back(tape.gradient(loss, fakes.images))))


def _scores(d: Net, batch: Batch, fakes: Fakes) -> Scores:
  """Scores real and fake in one pass, or in two if D has batch statistics."""
  if getattr(d, "uses_batch_statistics", False):
    return Scores(
      real=d(batch.images, batch.labels, Mode.TURN),
      fake=d(fakes.images, fakes.labels, Mode.WATCH),
    )
  images = tf.concat([batch.images, fakes.images], 0)
  labels = None
  if batch.labels is not None:
    labels = tf.concat([batch.labels, fakes.labels], 0)
  sizes = [batch.images.shape[0], fakes.images.shape[0]]
  return Scores(*tf.split(d(images, labels, Mode.TURN), sizes))
