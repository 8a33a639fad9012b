"""One player's gradient, on one replica.

    fake   = g(z, labels)
    scores = d(images), d(fake)
    loss   = loss_fn(scores).d or .g, and what is due beside it
    grads  = d loss / d the player's own weights

Each player receives the gradient of its own loss only; the opponent is watched
and left as it is.
"""

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import gin
import tensorflow as tf

from paragan_tf import hardware
from paragan_tf.game.augment import Augment
from paragan_tf.game.losses import LossFn
from paragan_tf.game.penalties import Penalty, View
from paragan_tf.types import Batch, Mode, Net, Scores, Verdict


class LossTerms(NamedTuple):
  """What a move counts beside the loss of the game.

  Attributes:
    penalties: Those of the player that are due.
    augment: Changes what D sees, if anything does.
    g: The net, for penalties that draw again; `None` where it is not at hand.
    seed: For draws: the run's, and another one for each round of a step.
    step: Count of steps, for draws.
  """

  penalties: Sequence[Penalty] = ()
  augment: Optional[Augment] = None
  g: Optional[Net] = None
  seed: int = 0
  step: Optional[tf.Tensor] = None

  def seen(self, images: tf.Tensor, purpose: str) -> tf.Tensor:
    """Returns images as D is to see them."""
    if self.augment is None:
      return images
    assert self.step is not None
    return self.augment(images, self.seed, self.step, purpose)


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
  """What a player would do, before any exchange.

  Attributes:
    loss: What it wants to be small.
    grads: Of its weights.
    scores: What D said, in a move of D.
  """

  loss: tf.Tensor
  grads: List[tf.Tensor]
  scores: Optional[Scores] = None


def repeated(values: Optional[tf.Tensor], size: int) -> Optional[tf.Tensor]:
  """Returns `size` rows of a batch, from the first on, over again."""
  if values is None or values.shape[0] == size:
    return values
  return tf.gather(values, tf.range(size) % values.shape[0])


def draw(g: Net, batch: Batch, mode: Mode) -> Fakes:
  """Returns G's fakes; `Mode.TRAIN` if G is to move on them."""
  weights = g.trainable_variables
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weights)
    images = g(batch.z, batch.labels, mode)
  return Fakes(
    images, batch.labels, lambda grad: tape.gradient(images, weights, grad)
  )


def d_move(
  fakes: Fakes,
  d: Net,
  batch: Batch,
  loss_fn: LossFn,
  terms: LossTerms = LossTerms(),  # noqa: B008
) -> Move:
  """Returns D's move."""
  weights = d.trainable_variables
  batch = batch._replace(images=terms.seen(batch.images, "real"))
  images = terms.seen(tf.stop_gradient(fakes.images), "fake")
  fakes = fakes._replace(images=images)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weights)
    real, fake = _verdicts(d, batch, fakes)
    scores = Scores(real.logits, fake.logits)
    loss = loss_fn(scores).d
    loss += _penalty("d", terms, d, batch, fakes, real, fake)
  # A head of classes has none while its penalty is not due.
  grads = tape.gradient(loss, weights, unconnected_gradients="zero")
  return Move(loss, list(grads), scores)


def g_move(
  fakes: Fakes,
  d: Net,
  batch: Batch,
  loss_fn: LossFn,
  terms: LossTerms = LossTerms(),  # noqa: B008
) -> Move:
  """Returns G's move against D as it stands."""
  batch = batch._replace(images=terms.seen(batch.images, "real"))
  weights = terms.g.trainable_variables if terms.penalties and terms.g else []
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch([fakes.images, *weights])
    seen = fakes._replace(images=terms.seen(fakes.images, "fake"))
    # Left out of the graph by TensorFlow where nobody asks for it.
    real = judge(d, batch.images, batch.labels, Mode.FROZEN)
    fake = judge(d, seen.images, seen.labels, Mode.FROZEN)
    loss = loss_fn(Scores(real.logits, fake.logits)).g
    loss += _penalty("g", terms, d, batch, seen, real, fake)
  through, *direct = tape.gradient(loss, [fakes.images, *weights])
  grads = list(fakes.pull_back(through))
  for i, grad in enumerate(direct):
    if grad is not None:
      grads[i] += grad
  return Move(loss, grads)


def judge(d: Net, images, labels, mode: Mode) -> Verdict:
  """Returns all that D says, or its logits if that is all."""
  full = getattr(d, "judge", None)
  if full is not None:
    return full(images, labels, mode)
  return Verdict(d(images, labels, mode))


def _verdicts(d: Net, batch: Batch, fakes: Fakes) -> Tuple[Verdict, Verdict]:
  """Judges real and fake in one pass, or in two if D has batch statistics."""
  with gin.config_scope("d"):
    apart = not hardware.Layout().one_pass
  if apart or getattr(d, "uses_batch_statistics", False):
    return (
      judge(d, batch.images, batch.labels, Mode.TRAIN),
      judge(d, fakes.images, fakes.labels, Mode.FROZEN),
    )
  images = tf.concat([batch.images, fakes.images], 0)
  labels = None
  if batch.labels is not None:
    labels = tf.concat([batch.labels, fakes.labels], 0)
  sizes = [batch.images.shape[0], fakes.images.shape[0]]
  parts = [
    (None, None) if part is None else tf.split(part, sizes)
    for part in judge(d, images, labels, Mode.TRAIN)
  ]
  real, fake = zip(*parts)
  return Verdict(*real), Verdict(*fake)


def _penalty(who, terms: LossTerms, d: Net, batch, fakes, real, fake):
  """Returns the sum of the penalties that are due."""
  if not terms.penalties:
    return 0.0
  g = terms.g
  assert terms.step is not None

  def draw_again(z, labels):
    # Changed as the fakes were, so that what differs is G's doing.
    assert g is not None
    return terms.seen(g(z, labels, Mode.FROZEN), "fake")

  view = View(
    who,
    lambda images, labels: judge(d, images, labels, Mode.FROZEN),
    None if g is None else draw_again,
    batch,
    fakes.images,
    fakes.labels,
    real,
    fake,
    terms.seed,
    terms.step,
  )
  return tf.add_n([penalty(view) for penalty in terms.penalties])
