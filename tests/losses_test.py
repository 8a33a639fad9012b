"""Values and signs of gradients of every loss, by hand."""

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
  """Returns minus the log of the sigmoid: cross-entropy of real logits."""
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
  def test_value_equals_the_formula(self, loss_fn, d, g):
    result = loss_fn(scores(REAL, FAKE))
    self.assertAllClose(result.d, d, rtol=1e-6)
    self.assertAllClose(result.g, g, rtol=1e-6)
    self.assertEqual(result.d.shape, [])
    self.assertEqual(result.g.shape, [])

  @parameterized.named_parameters(*LOSSES)
  def test_gradients_have_the_sign_of_each_player(self, loss_fn):
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


# G's mean over the best two of FAKE, 3 and 0, and over the best one.
BEST = (
  ("hinge", losses.hinge, -(3 + 0) / 2, -3),
  ("non_saturating", losses.non_saturating, (ce(3) + ce(0)) / 2, ce(3)),
  ("wasserstein", losses.wasserstein, -(3 + 0) / 2, -3),
  ("least_squares", losses.least_squares, (4 + 1) / 4, 4 / 2),
)


class TopKTest(tf.test.TestCase, parameterized.TestCase):
  def at_step(self, step, **options):
    return losses.TopK(**options).at(tf.constant(step, tf.int64))

  @parameterized.named_parameters(*BEST)
  def test_g_uses_the_top_k_and_d_uses_all(self, loss_fn, two, one):
    for nu, g in ((0.67, two), (0.34, one), (0.01, one)):
      best = self.at_step(1, loss_fn=loss_fn, nu=nu, gamma=1e-3, every=1)
      result = best(scores(REAL, FAKE))
      self.assertAllClose(result.g, g, rtol=1e-5)
      self.assertAllEqual(result.d, loss_fn(scores(REAL, FAKE)).d)

  @parameterized.named_parameters(*BEST)
  def test_all_fakes_count_at_step_0(self, loss_fn, *_):
    ours = self.at_step(0, loss_fn=loss_fn)(scores(REAL, FAKE))
    self.assertAllClose(ours, loss_fn(scores(REAL, FAKE)), rtol=1e-6)

  @parameterized.named_parameters(("traced", False), ("compiled", True))
  def test_gradients_reach_the_top_k_only(self, jit_compile):
    @tf.function(jit_compile=jit_compile, autograph=False)
    def gradient(fake, step):
      top = losses.TopK(losses.non_saturating, nu=0.5, gamma=0.1, every=1)
      with tf.GradientTape() as tape:
        tape.watch(fake)
        loss = losses.at(top, step)(Scores(fake, fake)).g
      return tape.gradient(loss, fake)

    ours = gradient(tf.constant([0.0, 2.0, -1.0, 1.0]), tf.constant(1))
    slopes = [-1 / (1 + exp(2)) / 2, -1 / (1 + exp(1)) / 2]
    self.assertAllClose(ours, [0, slopes[0], 0, slopes[1]], atol=1e-6)

  def test_exactly_k_of_equal_scores_count(self):
    x = tf.constant([1.0, 1.0, 1.0, -5.0])
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = self.at_step(9, gamma=0.1, every=1)(Scores(x, x)).g
    self.assertAllClose(loss, -1.0)
    self.assertAllClose(sorted(tape.gradient(loss, x)), [-0.5, -0.5, 0, 0])

  def test_k_falls_from_the_batch_size_to_nu_times_it(self):
    top = losses.TopK(nu=0.3, gamma=0.5, every=10)
    steps = (0, 9, 10, 19, 20, 99, 10**6)
    # 20, 20 / 2, 20 / 4 is below .3 * 20 = 6.
    ks = [int(top.k(tf.constant(step, tf.int64), 20)) for step in steps]
    self.assertEqual(ks, [20, 20, 10, 10, 6, 6, 6])
    self.assertEqual(top.k(tf.constant(99, tf.int64), 2), 1)

  def test_other_losses_do_not_depend_on_the_step(self):
    self.assertIs(losses.at(losses.hinge, tf.constant(3)), losses.hinge)

  @parameterized.named_parameters(
    ("nu_of_zero", {"nu": 0.0}, "`nu` must be in .0, 1., got 0.0"),
    ("nu_above_one", {"nu": 1.1}, "`nu`.*1.1"),
    ("gamma_above_one", {"gamma": 1.5}, "`gamma`.*1.5"),
    ("every_zero", {"every": 0}, "`every`.*0"),
    ("no_mean", {"loss_fn": losses.relativistic}, "`loss_fn`.*`relativistic`"),
  )
  def test_bad_values_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      losses.TopK(**options)


if __name__ == "__main__":
  tf.test.main()
