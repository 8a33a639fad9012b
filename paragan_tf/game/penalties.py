"""Penalties: terms that are added to a player's loss, `View` -> scalar.

    if penalty.due(phase):         # A Python bool, known while tracing.
      loss += penalty(view)
    ...
    penalty.update(scores, step)   # After each update of D; most have no state.

A lazy penalty (arXiv 1912.04958) is due in every `period`-th step, and is then
multiplied by `period`, so that its weight does not depend on the period.
"""

from typing import Callable, NamedTuple, Optional, Sequence, Union

import gin
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.game import noise
from paragan_tf.game.augment import Draw
from paragan_tf.game.number_checks import (
  check_fraction,
  check_not_negative,
  check_positive,
)
from paragan_tf.types import Batch, Scores, Verdict

Labels = Optional[tf.Tensor]


class View(NamedTuple):
  """The inputs of a penalty.

  Attributes:
    who: The player that trains, `d` or `g`.
    d: Maps images and labels to D's outputs; keeps D's state.
    g: Maps latent codes and labels to images, or `None` if G is not available;
      keeps G's state.
    batch: Real images, their labels, and the latent codes of `fakes`.
    fakes: G's images, `[b, h, w, c]`.
    fake_labels: The class ids that they were sampled for, `[b]`, or `None`.
    real: D's outputs for `batch.images`.
    fake: D's outputs for `fakes`.
    seed: Of the run, for random numbers.
    step: Count of steps, an int64 scalar, for random numbers.
  """

  who: str
  d: Callable[[tf.Tensor, Labels], Verdict]
  g: Optional[Callable[[tf.Tensor, Labels], tf.Tensor]]
  batch: Batch
  fakes: tf.Tensor
  fake_labels: Labels
  real: Verdict
  fake: Verdict
  seed: Union[int, tf.Tensor]
  step: tf.Tensor


class Penalty(tf.Module):
  """A term of one player's loss.

  Attributes:
    who: The players that may have it: `d`, `g` or `dg`.
    period: It is due in every `period`-th step.
  """

  who: str = "d"

  def __init__(self, period: int = 1, name: str = "penalty"):
    super().__init__(name=name)
    if period < 1:
      raise ValueError(f"`period` must be at least 1, got {period}.")
    self.period = period

  def due(self, phase: int) -> bool:
    """Returns whether it is added in a phase."""
    return phase % self.period == 0

  def __call__(self, view: View) -> tf.Tensor:
    """Returns the term to add to the loss in a phase where it is due."""
    return self.period * self.term(view)

  def term(self, view: View) -> tf.Tensor:
    """Returns the weighted term for `period` 1."""
    raise NotImplementedError

  def update(
    self,
    scores: Scores,
    step: tf.Tensor,
    weight: Optional[collectives.Weight] = None,
  ) -> None:
    """Updates its state after each update of D; replica context.

    Args:
      scores: D's scores.
      step: Count of steps.
      weight: Of this replica in means, 1 by default; the mean of all weights
        is 1.
    """


def check(penalties: Sequence[Penalty], who: str) -> None:
  """Refuses penalties that are not for the player `who`."""
  for penalty in penalties:
    if who not in penalty.who:
      raise ValueError(
        f"`{type(penalty).__name__}` must be a penalty of `{penalty.who}`, got "
        f"it for `{who}`: move it to `{penalty.who}/`."
      )


def check_weight(name: str, value: float) -> float:
  """Refuses the weight of a penalty unless it is above 0."""
  return check_positive(name, value, "remove the penalty instead")


def require_output(verdict: Verdict, what: str, penalty: Penalty) -> tf.Tensor:
  """Returns one of D's outputs; refuses a D without it."""
  value = getattr(verdict, what)
  if value is None:
    raise ValueError(
      f"`{type(penalty).__name__}` needs D's output `{what}`, got `None`: "
      "use a D whose `judge` returns it."
    )
  return value


def draw(view: View, purpose: str, count: int) -> Draw:
  """Returns the random draws of a penalty, for `count` images."""
  return Draw(count, view.seed, view.step, purpose)


def normal(view: View, purpose: str, like: tf.Tensor) -> tf.Tensor:
  """Returns standard normal numbers of the shape of `like`."""
  x = noise.normal(like.shape.as_list(), view.seed, view.step, purpose)
  return tf.cast(x, like.dtype)


@gin.register
class GradientPenalty(Penalty):
  """WGAN-GP's (arXiv 1704.00028, eq. 3): `weight * E(||grad D(x)|| - 1)^2`.

  `x` is drawn uniformly between a real image and a fake one.
  """

  def __init__(
    self, weight: float = 10.0, period: int = 1, name: str = "gradient_penalty"
  ):
    super().__init__(period, name)
    self.weight = check_weight("weight", weight)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    real, labels, _ = view.batch
    epsilon = draw(view, self.name, real.shape[0]).uniform("epsilon")
    epsilon = tf.cast(epsilon[:, None, None, None], real.dtype)
    x = epsilon * real + (1 - epsilon) * tf.stop_gradient(view.fakes)
    return self.weight * _gradient_penalty(view, x, labels)


@gin.register
class Dragan(Penalty):
  """DRAGAN's (arXiv 1705.07215): `weight * E(||grad D(x + d)|| - 1)^2`.

  `x` are real images, in [-1, 1], and `d` is normal with `deviation`. The fixed
  deviation is ours: the authors' code uses half the deviation of the batch's
  pixels, times a number in [0, 1] for each pixel.
  """

  def __init__(
    self,
    weight: float = 10.0,
    deviation: float = 0.25,
    period: int = 1,
    name: str = "dragan",
  ):
    super().__init__(period, name)
    self.weight = check_weight("weight", weight)
    self.deviation = check_positive("deviation", deviation)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    real, labels, _ = view.batch
    delta = self.deviation * normal(view, self.name, real)
    return self.weight * _gradient_penalty(view, real + delta, labels)


@gin.register
class R1(Penalty):
  """`gamma / 2 * E||grad D(real)||^2` (arXiv 1801.04406, eq. 9)."""

  def __init__(self, gamma: float = 10.0, period: int = 16, name: str = "r1"):
    super().__init__(period, name)
    self.gamma = check_weight("gamma", gamma)

  def term(self, view):
    """Returns the weighted mean over the batch."""
    return self.gamma / 2 * self._mean(view)

  def _mean(self, view: View) -> tf.Tensor:
    norms = _squared_grad_norms(view, view.batch.images, view.batch.labels)
    return tf.reduce_mean(norms)


@gin.register
class R2(R1):
  """`gamma / 2 * E||grad D(fake)||^2` (arXiv 1801.04406)."""

  def __init__(self, gamma: float = 10.0, period: int = 16, name: str = "r2"):
    super().__init__(gamma, period, name)

  def _mean(self, view):
    norms = _squared_grad_norms(view, view.fakes, view.fake_labels)
    return tf.reduce_mean(norms)


@gin.register
class LeCam(Penalty):
  """LeCam's: `weight * (E(D(real) - fake)^2 + E(D(fake) - real)^2)`.

  `real` and `fake` are moving averages of the logits (arXiv 2104.03310). Before
  `start_step` the penalty is 0, and the averages are the means of the last
  logits. The default weight is the authors' for CIFAR.
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
    check_not_negative("start_step", start_step)
    self.weight = check_weight("weight", weight)
    self.decay = check_fraction("decay", decay)
    self.start_step = start_step
    self.real = tf.Variable(0.0, trainable=False, name=f"{name}/real")
    self.fake = tf.Variable(0.0, trainable=False, name=f"{name}/fake")

  def term(self, view):
    """Returns the weighted distances to the averages of earlier steps."""
    real = _mean_square(view.real.logits - tf.stop_gradient(self.fake))
    fake = _mean_square(view.fake.logits - tf.stop_gradient(self.real))
    is_on = tf.cast(view.step >= self.start_step, real.dtype)
    return self.weight * is_on * (real + fake)

  def update(self, scores, step, weight=None):
    """Updates the moving averages with the logits of all replicas."""
    means = tf.stack([tf.reduce_mean(logits) for logits in scores])
    weights = None if weight is None else [weight]
    (means,) = collectives.mean([means], weights)
    for average, mean in zip((self.real, self.fake), tf.unstack(means)):
      updated = self.decay * average + (1.0 - self.decay) * mean
      updated = tf.where(step < self.start_step, mean, updated)
      # Of a step with numbers that are not finite, nothing is kept.
      average.assign(tf.where(tf.math.is_finite(updated), updated, average))


@gin.register
class FeatureMatching(Penalty):
  """`weight * ||E f(real) - E f(fake)||^2` for G (arXiv 1606.03498, sec. 3.1).

  `f` are D's features; means are over the images of one replica.
  """

  who = "g"

  def __init__(
    self, weight: float = 1.0, period: int = 1, name: str = "feature_matching"
  ):
    super().__init__(period, name)
    self.weight = check_weight("weight", weight)

  def term(self, view):
    """Returns the weighted squared distance."""
    real = tf.stop_gradient(require_output(view.real, "features", self))
    fake = require_output(view.fake, "features", self)
    difference = tf.reduce_mean(real, 0) - tf.reduce_mean(fake, 0)
    return self.weight * tf.reduce_sum(difference**2)


def _squared_grad_norms(view: View, x: tf.Tensor, labels: Labels) -> tf.Tensor:
  """Returns `||grad D(x)||^2`, `[b]`, differentiable in D's weights."""
  x = tf.stop_gradient(x)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(x)
    logits = view.d(x, labels).logits
  grads = tape.gradient(logits, x, unconnected_gradients="zero")
  return tf.reduce_sum(grads**2, [1, 2, 3])


def _gradient_penalty(view: View, x: tf.Tensor, labels: Labels) -> tf.Tensor:
  """Returns `E(||grad D(x)|| - 1)^2`."""
  # The square root has no gradient at 0.
  norms = tf.sqrt(_squared_grad_norms(view, x, labels) + 1e-12)
  return _mean_square(norms - 1.0)


def _mean_square(x: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(x**2)
