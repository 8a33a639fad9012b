"""One player's gradient, on one replica.

    fake   = g(z, labels)
    scores = d(images), d(fake)
    loss   = loss_fn(scores).d or .g, plus the penalties that are due
    grads  = d loss / d the player's own weights

Each player receives the gradient of its own loss only; the opponent does not
change.
"""

from typing import (
  Any,
  Callable,
  List,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
  Union,
)

import tensorflow as tf

from paragan_tf.game.augment import Augment
from paragan_tf.game.losses import LossFn
from paragan_tf.game.penalties import Penalty, View
from paragan_tf.types import Batch, Mode, Net, Scores, Verdict


class LossTerms(NamedTuple):
  """Terms of a player's loss beside the game's.

  Attributes:
    penalties: The player's penalties that are due.
    augment: Augments all images that D is called with; optional.
    g: The net, for penalties that draw more samples; `None` if not available.
    seed: For random numbers; each round of a step has its own.
    step: Count of steps, for random numbers.
    one_pass: Whether D scores real and fake images in one pass, where it has no
      batch statistics.
    loss_scale: Multiplies the loss, and so the gradients; `None` for 1.
  """

  penalties: Sequence[Penalty] = ()
  augment: Optional[Augment] = None
  g: Optional[Net] = None
  seed: Union[int, tf.Tensor] = 0
  step: Optional[tf.Tensor] = None
  one_pass: bool = True
  loss_scale: Optional[tf.Tensor] = None

  def augment_images(self, images: tf.Tensor, purpose: str) -> tf.Tensor:
    """Returns augmented images for D."""
    if self.augment is None:
      return images
    assert self.step is not None
    return self.augment(images, self.seed, self.step, purpose)


class Fakes(NamedTuple):
  """Images of G, and how their gradient reaches its weights.

  Attributes:
    images: `[b, h, w, c]`, in [-1, 1].
    labels: The class ids that they were sampled for, `[b]`, or `None`.
    pull_back: Maps the gradient of `images` to those of G's weights. It can be
      called once.
  """

  images: tf.Tensor
  labels: Optional[tf.Tensor]
  pull_back: Callable[[tf.Tensor], List[tf.Tensor]]


class Move(NamedTuple):
  """What a player computes in its turn, before any exchange.

  Attributes:
    loss: What it minimizes.
    grads: The gradient of its weights, multiplied by the loss scale.
    scores: D's logits, in a move of D.
  """

  loss: tf.Tensor
  grads: List[tf.Tensor]
  scores: Optional[Scores] = None


def repeat_rows(values: Optional[tf.Tensor], size: int) -> Optional[tf.Tensor]:
  """Returns `size` rows of a batch, repeated from the first if too few."""
  if values is None or values.shape[0] == size:
    return values
  return tf.gather(values, tf.range(size) % values.shape[0])


def draw(
  g: Net,
  batch: Batch,
  mode: Mode,
  compute: Callable[[Callable], Any] = lambda fn: fn(),
) -> Fakes:
  """Returns G's fakes.

  Args:
    g: The net.
    batch: Its latent codes and class ids.
    mode: `Mode.TRAIN` if G is to be trained on the fakes.
    compute: Calls the function that it gets, maybe compiled.
  """
  weights = g.trainable_variables
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weights)
    images = compute(lambda: g(batch.z, batch.labels, mode))
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
  batch = batch._replace(images=terms.augment_images(batch.images, "real"))
  images = terms.augment_images(tf.stop_gradient(fakes.images), "fake")
  fakes = fakes._replace(images=images)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weights)
    real, fake = _judge_both(d, batch, fakes, terms.one_pass)
    scores = Scores(real.logits, fake.logits)
    loss = loss_fn(scores).d
    loss += _penalty("d", terms, d, batch, fakes, real, fake)
  # A class head has no gradient while its penalty is not due.
  grads = tape.gradient(
    loss, weights, terms.loss_scale, unconnected_gradients="zero"
  )
  return Move(loss, list(grads), scores)


def g_move(
  fakes: Fakes,
  d: Net,
  batch: Batch,
  loss_fn: LossFn,
  terms: LossTerms = LossTerms(),  # noqa: B008
) -> Move:
  """Returns G's move; D does not change."""
  batch = batch._replace(images=terms.augment_images(batch.images, "real"))
  weights = terms.g.trainable_variables if terms.penalties and terms.g else []
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch([fakes.images, *weights])
    seen = fakes._replace(images=terms.augment_images(fakes.images, "fake"))
    # TensorFlow prunes this from the graph where no loss uses it.
    real = judge(d, batch.images, batch.labels, Mode.FROZEN)
    fake = judge(d, seen.images, seen.labels, Mode.FROZEN)
    loss = loss_fn(Scores(real.logits, fake.logits)).g
    loss += _penalty("g", terms, d, batch, seen, real, fake)
  through, *direct = tape.gradient(
    loss, [fakes.images, *weights], terms.loss_scale
  )
  grads = list(fakes.pull_back(through))
  for i, grad in enumerate(direct):
    if grad is not None:
      grads[i] += grad
  return Move(loss, grads)


def judge(d: Net, images, labels, mode: Mode) -> Verdict:
  """Returns all outputs of D: only logits if it has no `judge`."""
  d_judge = getattr(d, "judge", None)
  if d_judge is not None:
    return d_judge(images, labels, mode)
  return Verdict(d(images, labels, mode))


def _judge_both(
  d: Net, batch: Batch, fakes: Fakes, one_pass: bool
) -> Tuple[Verdict, Verdict]:
  """Returns D's outputs for real and for fake images.

  Takes two passes without `one_pass`, or if D has batch statistics: one pass
  would mix them.
  """
  if not one_pass or getattr(d, "uses_batch_statistics", False):
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

  def sample_again(z, labels):
    # Augmented as the fakes were, so that images differ only by G's input.
    assert g is not None
    return terms.augment_images(g(z, labels, Mode.FROZEN), "fake")

  view = View(
    who,
    lambda images, labels: judge(d, images, labels, Mode.FROZEN),
    None if g is None else sample_again,
    batch,
    fakes.images,
    fakes.labels,
    real,
    fake,
    terms.seed,
    terms.step,
  )
  return tf.add_n([penalty(view) for penalty in terms.penalties])
