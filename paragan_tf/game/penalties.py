"""What a player pays in its move beside its loss: `View` -> scalar.

    if penalty.due(phase):         # A Python bool, known while tracing.
      loss += penalty(view)
    ...
    penalty.update(scores, step)   # Every turn of D; most have no state.

A lazy penalty is due in every `period`-th step, and is then multiplied by
`period` (arXiv 1912.04958), so that its weight means the same for any period.
"""

from typing import Callable, NamedTuple, Optional, Sequence

import gin
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.game import noise
from paragan_tf.game.augment import Draw
from paragan_tf.types import Batch, Scores, Verdict

Labels = Optional[tf.Tensor]


class View(NamedTuple):
  """What a player sees in its move.

  Attributes:
    who: Who moves, `d` or `g`.
    d: From images and labels to D's verdict; D's state stays.
    g: From latent codes and labels to images, or `None` where G is not at hand;
      G's state stays.
    batch: Real images, their labels, and the codes of `fakes`.
    fakes: G's images, `[b, h, w, c]`.
    fake_labels: The class ids that they were drawn for, `[b]`, or `None`.
    real: D's verdict on `batch.images`.
    fake: D's verdict on `fakes`.
    seed: The run's, for draws.
    step: Count of steps, an int64 scalar, for draws.
  """

  who: str
  d: Callable[[tf.Tensor, Labels], Verdict]
  g: Optional[Callable[[tf.Tensor, Labels], tf.Tensor]]
  batch: Batch
  fakes: tf.Tensor
  fake_labels: Labels
  real: Verdict
  fake: Verdict
  seed: int
  step: tf.Tensor


class Penalty(tf.Module):
  """A term of one player's loss.

  Attributes:
    who: The players that may pay it: `d`, `g` or `dg`.
    period: It is due in every `period`-th step.
  """

  who: str = "d"

  def __init__(self, period: int = 1, name: str = "penalty"):
    super().__init__(name=name)
    if period < 1:
      raise ValueError(f"`period` must be at least 1, got {period}.")
    self.period = period

  def due(self, phase: int) -> bool:
    """Says whether it is paid in a phase."""
    return phase % self.period == 0

  def __call__(self, view: View) -> tf.Tensor:
    """Returns what is to be added to the loss when it is due."""
    return self.period * self.term(view)

  def term(self, view: View) -> tf.Tensor:
    """Returns it with its weight, as if it were due in every step."""
    raise NotImplementedError

  def update(
    self,
    scores: Scores,
    step: tf.Tensor,
    weight: Optional[collectives.Weight] = None,
  ) -> None:
    """Moves its state on; replica context, after every move of D.

    Args:
      scores: What D said in its move.
      step: Count of steps.
      weight: What this replica counts, 1 by default; the weights of all have
        mean 1.
    """


def check(penalties: Sequence[Penalty], who: str) -> None:
  """Refuses penalties that the player `who` cannot pay."""
  for penalty in penalties:
    if who not in penalty.who:
      raise ValueError(
        f"`{type(penalty).__name__}` must be a penalty of `{penalty.who}`, got "
        f"it among those of `{who}`: move it to `{penalty.who}/`."
      )


def positive(name: str, value: float) -> float:
  """Returns a weight, if it is one."""
  if not value > 0:
    raise ValueError(
      f"`{name}` must be above 0, got {value}: leave the penalty out instead."
    )
  return value


def require_output(verdict: Verdict, what: str, penalty: Penalty) -> tf.Tensor:
  """Returns a part of D's verdict that a penalty cannot do without."""
  value = getattr(verdict, what)
  if value is None:
    raise ValueError(
      f"`{type(penalty).__name__}` needs the `{what}` of D's verdict, got "
      f"`None`: take a D whose `judge` gives them."
    )
  return value


def draw(view: View, purpose: str, count: int) -> Draw:
  """Returns the draws of one penalty, for `count` images."""
  return Draw(count, view.seed, view.step, purpose)


def normal(view: View, purpose: str, like: tf.Tensor) -> tf.Tensor:
  """Returns a standard normal draw of the shape of `like`."""
  x = noise.normal(like.shape.as_list(), view.seed, view.step, purpose)
  return tf.cast(x, like.dtype)


@gin.register
class GradientPenalty(Penalty):
  """WGAN-GP's (arXiv 1704.00028, eq. 3): slope 1 between real and fake.

  `weight * E(||grad D(x)|| - 1)^2`, `x` anywhere between a real image and a
  fake one.
  """

  def __init__(
    self, weight: float = 10.0, period: int = 1, name: str = "gradient_penalty"
  ):
    super().__init__(period, name)
    self.weight = positive("weight", weight)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    real, labels, _ = view.batch
    epsilon = draw(view, self.name, real.shape[0]).uniform("epsilon")
    epsilon = tf.cast(epsilon[:, None, None, None], real.dtype)
    x = epsilon * real + (1 - epsilon) * tf.stop_gradient(view.fakes)
    return self.weight * _off_slope_one(view, x, labels)


@gin.register
class Dragan(Penalty):
  """DRAGAN's (arXiv 1705.07215): slope 1 around real images.

  `weight * E(||grad D(x + delta)|| - 1)^2`, `delta` normal with `deviation` in
  the units of images, which lie in [-1, 1]. A fixed deviation is ours: the
  authors' code takes half that of the pixels of the batch, times a number in
  [0, 1] for each.
  """

  def __init__(
    self,
    weight: float = 10.0,
    deviation: float = 0.25,
    period: int = 1,
    name: str = "dragan",
  ):
    super().__init__(period, name)
    self.weight = positive("weight", weight)
    self.deviation = positive("deviation", deviation)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    real, labels, _ = view.batch
    delta = self.deviation * normal(view, self.name, real)
    return self.weight * _off_slope_one(view, real + delta, labels)


@gin.register
class R1(Penalty):
  """`gamma / 2 * E||grad D(real)||^2` (arXiv 1801.04406, eq. 9)."""

  def __init__(self, gamma: float = 10.0, period: int = 16, name: str = "r1"):
    super().__init__(period, name)
    self.gamma = positive("gamma", gamma)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    return self.gamma / 2 * self._mean(view)

  def _mean(self, view: View) -> tf.Tensor:
    slopes = _squared_slopes(view, view.batch.images, view.batch.labels)
    return tf.reduce_mean(slopes)


@gin.register
class R2(R1):
  """The same on fakes."""

  def __init__(self, gamma: float = 10.0, period: int = 16, name: str = "r2"):
    super().__init__(gamma, period, name)

  def _mean(self, view):
    return tf.reduce_mean(_squared_slopes(view, view.fakes, view.fake_labels))


@gin.register
class LeCam(Penalty):
  """LeCam's (arXiv 2104.03310): logits near those of the other kind.

  `weight * (E(D(real) - fake)^2 + E(D(fake) - real)^2)`, where `real` and
  `fake` are moving averages of the logits. Until `start_step` nothing is paid,
  and the averages are the last logits' means. The weight of 0.3 is the
  authors' for CIFAR.
  """

  def __init__(
    self,
    weight: float = 0.3,
    decay: float = 0.99,
    start_step: int = 1000,
    period: int = 1,
    name: str = "lecam",
  ):
    super().__init__(period, name)
    if not 0.0 <= decay < 1.0:
      raise ValueError(f"`decay` must be in [0, 1), got {decay}.")
    if start_step < 0:
      raise ValueError(f"`start_step` must be at least 0, got {start_step}.")
    self.weight = positive("weight", weight)
    self.decay = decay
    self.start_step = start_step
    self.real = tf.Variable(0.0, trainable=False, name=f"{name}/real")
    self.fake = tf.Variable(0.0, trainable=False, name=f"{name}/fake")

  def term(self, view):
    """Returns the weighted distances to the averages of earlier steps."""
    real = _squares(view.real.logits - tf.stop_gradient(self.fake))
    fake = _squares(view.fake.logits - tf.stop_gradient(self.real))
    begun = tf.cast(view.step >= self.start_step, real.dtype)
    return self.weight * begun * (real + fake)

  def update(self, scores, step, weight=None):
    """Lets the averages follow the logits of all replicas."""
    means = tf.stack([tf.reduce_mean(logits) for logits in scores])
    weights = None if weight is None else [weight]
    (means,) = collectives.mean([means], weights)
    for average, mean in zip((self.real, self.fake), tf.unstack(means)):
      moved = self.decay * average + (1.0 - self.decay) * mean
      average.assign(tf.where(step < self.start_step, mean, moved))


@gin.register
class FeatureMatching(Penalty):
  """`weight * ||E f(real) - E f(fake)||^2` for G (arXiv 1606.03498, sec. 3.1).

  `f` are the features of D's verdict, and means are of one replica.
  """

  who = "g"

  def __init__(
    self, weight: float = 1.0, period: int = 1, name: str = "feature_matching"
  ):
    super().__init__(period, name)
    self.weight = positive("weight", weight)

  def term(self, view):
    """Returns the weighted square of the distance."""
    real = tf.stop_gradient(require_output(view.real, "features", self))
    fake = require_output(view.fake, "features", self)
    apart = tf.reduce_mean(real, 0) - tf.reduce_mean(fake, 0)
    return self.weight * tf.reduce_sum(apart**2)


def _squared_slopes(view: View, x: tf.Tensor, labels: Labels) -> tf.Tensor:
  """Returns `||grad D(x)||^2`, `[b]`; gradients pass on to D's weights."""
  x = tf.stop_gradient(x)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(x)
    logits = view.d(x, labels).logits
  grads = tape.gradient(logits, x, unconnected_gradients="zero")
  return tf.reduce_sum(grads**2, [1, 2, 3])


def _off_slope_one(view: View, x: tf.Tensor, labels: Labels) -> tf.Tensor:
  # At 0 the root has no slope of its own.
  slopes = tf.sqrt(_squared_slopes(view, x, labels) + 1e-12)
  return _squares(slopes - 1.0)


def _squares(x: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(x**2)
