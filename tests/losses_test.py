"""Every loss against arithmetic, and which way it pulls."""

from math import exp, log

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import losses
from paragan_tf.types import Scores

REAL = [2.0, 0.5, -1.0]
FAKE = [-2.0, 0.0, 3.0]

LOSSES = (
  ("hinge", losses.hinge),
  ("non_saturating", losses.non_saturating),
  ("wasserstein", losses.wasserstein),
  ("least_squares", losses.least_squares),
  ("relativistic", losses.relativistic),
)


def ce(x):
  """Minus the log of the sigmoid: the cross-entropy of `x` called real."""
  return log(1 + exp(-x))


# The means of both are mean(real) = 1/2 and mean(fake) = 1/3.
VALUES = (
  (
    "hinge",
    losses.hinge,
    # max(0, 1 - real) and max(0, 1 + fake).
    (0 + 0.5 + 2) / 3 + (0 + 1 + 4) / 3,
    -(-2 + 0 + 3) / 3,
  ),
  (
    "non_saturating",
    losses.non_saturating,
    (ce(2) + ce(0.5) + ce(-1)) / 3 + (ce(2) + ce(0) + ce(-3)) / 3,
    (ce(-2) + ce(0) + ce(3)) / 3,
  ),
  (
    "wasserstein",
    losses.wasserstein,
    (-2 + 0 + 3) / 3 - (2 + 0.5 - 1) / 3,
    -(-2 + 0 + 3) / 3,
  ),
  (
    "least_squares",
    losses.least_squares,
    # (real - 1)^2 and fake^2, halved; G's is (fake - 1)^2, halved.
    (1 + 0.25 + 4) / 6 + (4 + 0 + 9) / 6,
    (9 + 1 + 4) / 6,
  ),
  (
    "relativistic",
    losses.relativistic,
    # D calls real - mean(fake) real and fake - mean(real) fake.
    (ce(2 - 1 / 3) + ce(0.5 - 1 / 3) + ce(-1 - 1 / 3)) / 3
    + (ce(2 + 0.5) + ce(0 + 0.5) + ce(-3 + 0.5)) / 3,
    # G calls them the other way round.
    (ce(-2 + 1 / 3) + ce(-0.5 + 1 / 3) + ce(1 + 1 / 3)) / 3
    + (ce(-2 - 0.5) + ce(0 - 0.5) + ce(3 - 0.5)) / 3,
  ),
)


def scores(real, fake):
  return Scores(tf.constant(real), tf.constant(fake))


class LossesTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*VALUES)
  def test_value_is_the_arithmetic(self, loss_fn, d, g):
    result = loss_fn(scores(REAL, FAKE))
    self.assertAllClose(result.d, d, rtol=1e-6)
    self.assertAllClose(result.g, g, rtol=1e-6)
    self.assertEqual(result.d.shape, [])
    self.assertEqual(result.g.shape, [])

  @parameterized.named_parameters(*LOSSES)
  def test_each_player_pulls_its_way(self, loss_fn):
    # Between 0 and 1, where least squares pulls the same way as the rest.
    x = scores([0.3, 0.2], [0.1, 0.4])
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(x)
      result = loss_fn(x)
    d = tape.gradient(result.d, x)
    self.assertAllLess(d.real, 0.0)
    self.assertAllGreater(d.fake, 0.0)
    g = tape.gradient(result.g, x)
    self.assertAllLess(g.fake, 0.0)
    if loss_fn is losses.relativistic:
      self.assertAllGreater(g.real, 0.0)
    else:
      self.assertIsNone(g.real)

  @parameterized.named_parameters(*LOSSES)
  def test_order_and_repetition_of_scores_do_not_matter(self, loss_fn):
    once = loss_fn(scores(REAL, FAKE))
    twice = loss_fn(scores(REAL[::-1] * 2, FAKE[1:] + FAKE + FAKE[:1]))
    self.assertAllClose(once, twice, rtol=1e-6)

  def test_hinge_is_flat_beyond_the_margin_for_d_only(self):
    x = scores([1.5, 7.0], [-1.5, -7.0])
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(x)
      result = losses.hinge(x)
    d = tape.gradient(result.d, x)
    self.assertAllEqual(d.real, [0.0, 0.0])
    self.assertAllEqual(d.fake, [0.0, 0.0])
    self.assertAllEqual(tape.gradient(result.g, x).fake, [-0.5, -0.5])

  def test_labels_are_not_smoothed(self):
    # With smoothing, D's loss of sure and right scores would stay at 25.
    result = losses.non_saturating(scores([100.0], [-100.0]))
    self.assertAllClose(result.d, 0.0)
    self.assertAllClose(result.g, 100.0)

  @parameterized.named_parameters(*LOSSES)
  def test_large_scores_stay_finite(self, loss_fn):
    x = scores([1e4, -1e4], [-1e4, 1e4])
    self.assertTrue(np.all(np.isfinite(loss_fn(x))))


if __name__ == "__main__":
  tf.test.main()
