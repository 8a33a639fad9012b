"""Every penalty: by hand, lazy, under XLA, and the reach of its gradient."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.game import class_losses, consistency, penalties
from paragan_tf.types import Scores, Verdict
from tests import testing

# The player, the penalty, and the variables that its gradient reaches.
PENALTIES = (
  ("gradient_penalty", "d", penalties.GradientPenalty, "wq"),
  ("dragan", "d", penalties.Dragan, "wq"),
  ("r1", "d", penalties.R1, "wq"),
  ("r2", "d", penalties.R2, "wq"),
  ("lecam", "d", lambda **k: penalties.LeCam(start_step=0, **k), "wq"),
  ("feature_matching", "g", penalties.FeatureMatching, "v"),
  ("consistency", "d", consistency.Consistency, "wq"),
  ("balanced", "d", consistency.BalancedConsistency, "wq"),
  ("latent_d", "d", consistency.LatentConsistency, "wq"),
  (
    "latent_g",
    "g",
    lambda **k: consistency.LatentConsistency(deviation=0.3, **k),
    "v",
  ),
  ("classes_d", "d", class_losses.AuxiliaryClassifier, ["classes"]),
  ("classes_g", "g", class_losses.AuxiliaryClassifier, "v"),
  ("contrastive_d", "d", class_losses.Contrastive, ["embed", "proxies"]),
  ("contrastive_g", "g", class_losses.Contrastive, "v"),
)

DRAWING = (
  penalties.GradientPenalty,
  penalties.Dragan,
  consistency.Consistency,
  consistency.BalancedConsistency,
  consistency.LatentConsistency,
)

# One of each kind: slopes, averages, features, augmented images, codes, classes
# and embeddings; a compiler takes long.
COMPILED = (
  "gradient_penalty",
  "lecam",
  "feature_matching",
  "balanced",
  "latent_g",
  "classes_g",
  "contrastive_d",
)

# Channels in and out of a small convolutional D.
SIZES = ((1, 3), (3, 2))


def pair(q=0.5):
  return testing.Judge(q), testing.Maker()


def weights_of(who, d, g):
  """Returns a player's weights, by name."""
  net = {"d": d, "g": g}[who]
  return {v.name[:-2]: v for v in net.trainable_variables}


def penalty_and_grads(penalty, who, d, g, step=3):
  """Returns a penalty and its gradients to its player's weights, by name."""
  weights = weights_of(who, d, g)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(list(weights.values()))
    value = penalty(testing.view(d, g, who, step))
  grads = tape.gradient(value, list(weights.values()))
  return value, dict(zip(weights, grads))


def flat(x):
  return np.reshape(x, [len(x), -1]).astype(np.float64)


class EveryPenaltyTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*PENALTIES)
  def test_gradient_reaches_its_player(self, who, make, reached):
    value, grads = penalty_and_grads(make(), who, *pair())
    self.assertEqual(value.shape, [])
    self.assertGreater(np.abs(value), 1e-4)
    for name, grad in grads.items():
      size = 0.0 if grad is None else np.abs(grad).max()
      self.assertEqual(size > 1e-4, name in reached, f"{name}: {size}")

  @parameterized.named_parameters(*(p for p in PENALTIES if p[0] in COMPILED))
  def test_xla_computes_the_same(self, who, make, reached):
    self.check_compiled(who, make, reached)

  @parameterized.named_parameters(
    *(p for p in PENALTIES if p[0] not in COMPILED)
  )
  @pytest.mark.soak
  def test_xla_computes_the_same_for_all(self, who, make, reached):
    self.check_compiled(who, make, reached)

  def check_compiled(self, who, make, reached):
    (d, g), penalty = pair(), make()
    value, grads = penalty_and_grads(penalty, who, d, g)
    compiled = tf.function(
      lambda: penalty_and_grads(penalty, who, d, g),
      jit_compile=True,
      autograph=False,
    )
    again, more = compiled()
    self.assertAllClose(again, value, rtol=1e-4)
    for name in reached:
      self.assertAllClose(more[name], grads[name], rtol=1e-3, atol=1e-4)

  @parameterized.named_parameters(*(p for p in PENALTIES if p[1] == "d"))
  def test_penalties_of_d_have_no_gradient_for_g(self, who, make, _):
    # D's own verdict on fakes is cut off from G by the move.
    d, g = pair()
    with tf.GradientTape() as tape:
      view = testing.view(d, g)
      verdict = tf.nest.map_structure(tf.stop_gradient, view.fake)
      value = make()(view._replace(fake=verdict))
    self.assertIsNone(tape.gradient(value, g.v))

  @parameterized.named_parameters(*PENALTIES)
  def test_a_small_step_against_the_gradient_lowers_it(
    self, who, make, reached
  ):
    d, g = pair()
    penalty = make()
    before, grads = penalty_and_grads(penalty, who, d, g)
    weights = weights_of(who, d, g)
    norm = tf.linalg.global_norm([grads[name] for name in reached])
    for name in reached:
      weights[name].assign_sub(1e-2 * grads[name] / norm)
    after, _ = penalty_and_grads(penalty, who, d, g)
    # As much as the gradient promised, but for the curvature.
    self.assertAllClose((before - after) / (1e-2 * norm), 1.0, atol=0.3)

  @parameterized.named_parameters(*PENALTIES)
  def test_a_lazy_penalty_is_multiplied_by_its_period(self, who, make, _):
    view = testing.view(*pair(), who)
    each, lazy = make(period=1), make(period=4)
    self.assertAllClose(lazy(view), 4 * each(view), rtol=1e-5)
    self.assertEqual([lazy.due(i) for i in range(6)], [1, 0, 0, 0, 1, 0])
    self.assertTrue(each.due(5))

  @parameterized.named_parameters(*PENALTIES)
  def test_wrong_players_and_periods_are_refused(self, who, make, _):
    penalties.check([make()], who)
    if len(make().who) == 1:
      other = {"d": "g", "g": "d"}[who]
      with self.assertRaisesRegex(ValueError, f"`{who}`, got it .* `{other}`"):
        penalties.check([make()], other)
    with self.assertRaisesRegex(ValueError, "`period` must be at least 1.*0"):
      make(period=0)

  @parameterized.named_parameters(*PENALTIES)
  def test_random_draws_depend_on_the_step(self, who, make, _):
    d, g = pair()
    penalty = make()
    values = [
      penalty_and_grads(penalty, who, d, g, step)[0] for step in (3, 3, 4)
    ]
    self.assertAllEqual(values[0], values[1])
    if type(penalty) in DRAWING:
      self.assertNotAllClose(values[0], values[2], rtol=1e-5)
    else:
      self.assertAllEqual(values[0], values[2])

  def test_only_r1_and_r2_are_lazy_by_default(self):
    lazy = {name for name, _, make, _ in PENALTIES if make().period > 1}
    self.assertEqual(lazy, {"r1", "r2"})
    self.assertEqual(penalties.R1().period, 16)


class SlopeTest(tf.test.TestCase, parameterized.TestCase):
  """The slope of `w x + q x^2 / 2` is `w + q x`."""

  @parameterized.named_parameters(
    ("r1", penalties.R1, lambda view: view.batch.images),
    ("r2", penalties.R2, lambda view: view.fakes),
  )
  def test_r1_and_r2_are_half_the_squared_gradient_norm(self, make, images):
    d, g = pair()
    value, grads = penalty_and_grads(make(gamma=3.0, period=1), "d", d, g)
    x = flat(images(testing.view(d, g)))
    slopes = d.w.numpy() + 0.5 * x
    self.assertAllClose(value, 1.5 * (slopes**2).sum(1).mean(), rtol=1e-5)
    self.assertAllClose(grads["w"], 3.0 * slopes.mean(0), rtol=1e-4, atol=1e-5)
    to_q = 3.0 * (slopes * x).sum(1).mean()
    self.assertAllClose(grads["q"], to_q, rtol=1e-4)

  @parameterized.named_parameters(
    ("gradient_penalty", penalties.GradientPenalty),
    ("dragan", penalties.Dragan),
  )
  def test_penalty_is_the_squared_distance_of_the_norm_from_one(self, make):
    d, g = pair(q=0.0)
    w = d.w.numpy().astype(np.float64)
    for size in (0.25, 1.0, 3.0):
      unit = w / np.linalg.norm(w)
      d.w.assign(size * unit)
      value, grads = penalty_and_grads(make(weight=2.0), "d", d, g)
      self.assertAllClose(value, 2.0 * (size - 1) ** 2, atol=1e-5)
      self.assertAllClose(grads["w"], 4.0 * (size - 1) * unit, atol=1e-4)

  @parameterized.named_parameters(
    ("gradient_penalty", penalties.GradientPenalty),
    ("dragan", penalties.Dragan),
  )
  def test_gradient_equals_that_of_the_norm_at_the_same_points(self, make):
    d, g = pair()
    value, grads = penalty_and_grads(make(weight=2.0), "d", d, g)
    x = flat(d.seen[-1])
    slopes = d.w.numpy() + 0.5 * x
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    self.assertAllClose(value, 2.0 * ((norms - 1) ** 2).mean(), rtol=1e-5)
    to_slopes = 4.0 * (norms - 1) * slopes / norms
    self.assertAllClose(grads["w"], to_slopes.mean(0), rtol=1e-4, atol=1e-4)
    to_q = (to_slopes * x).sum(1).mean()
    self.assertAllClose(grads["q"], to_q, rtol=1e-4)

  @parameterized.named_parameters(
    ("gradient_penalty", penalties.GradientPenalty),
    ("dragan", penalties.Dragan),
  )
  def test_a_flat_d_has_finite_gradients(self, make):
    d, g = pair(q=0.0)
    d.w.assign(tf.zeros_like(d.w))
    value, grads = penalty_and_grads(make(weight=2.0), "d", d, g)
    self.assertAllClose(value, 2.0, atol=1e-4)
    self.assertAllEqual(np.isfinite(grads["w"]), np.ones([64]))

  def test_wgan_gp_interpolates_between_real_and_fake(self):
    d, g = pair()
    view = testing.view(d, g)
    penalties.GradientPenalty()(view)
    real, fake, x = flat(view.batch.images), flat(view.fakes), flat(d.seen[-1])
    shares = (x - fake) / (real - fake)
    share = np.median(shares, 1, keepdims=True)
    self.assertAllClose(x, share * real + (1 - share) * fake, atol=1e-5)
    self.assertAllInRange(share, 0.0, 1.0)
    self.assertGreater(np.ptp(share), 0.3)

  def test_dragan_perturbs_real_images(self):
    d, g = pair()
    view = testing.view(d, g)
    penalties.Dragan(deviation=0.1)(view)
    delta = flat(d.seen[-1]) - flat(view.batch.images)
    self.assertAllClose(delta.std(), 0.1, rtol=0.15)
    self.assertAllClose(delta.mean(), 0.0, atol=0.02)
    self.assertLen(np.unique(np.round(delta, 6)), delta.size)

  @parameterized.named_parameters(
    ("gradient_penalty", penalties.GradientPenalty),
    ("r1", penalties.R1),
  )
  def test_gradients_pass_through_convolutions_and_norms(self, make):
    # Smooth, unlike leaky ReLU, whose slopes jump between two weights.
    kernels = [
      tf.Variable(testing.z(9 * i, o).reshape([3, 3, i, o])) for i, o in SIZES
    ]

    def judge(x, labels):
      for kernel in kernels:
        kernel = 3 * kernel / tf.norm(kernel)
        x = tf.tanh(tf.nn.conv2d(x, kernel, 2, "SAME"))
      return Verdict(tf.reduce_sum(x, [1, 2, 3]))

    view = testing.view(*pair())._replace(d=judge)

    @tf.function(jit_compile=True, autograph=False)
    def value_and_grads():
      with tf.GradientTape() as tape:
        value = make(period=1)(view)
      return value, tape.gradient(value, kernels)

    _, grads = value_and_grads()
    norm = tf.linalg.global_norm(grads)
    values = []
    for size in (1e-2, -2e-2):
      for kernel, grad in zip(kernels, grads):
        kernel.assign_add(size * grad / norm)
      values.append(value_and_grads()[0])
    self.assertAllClose((values[0] - values[1]) / 2e-2, norm, rtol=0.01)

  def test_images_are_scored_with_their_labels(self):
    for make, of_fakes in (
      (penalties.GradientPenalty, False),
      (penalties.Dragan, False),
      (penalties.R1, False),
      (penalties.R2, True),
    ):
      d, g = pair()
      view = testing.view(d, g)
      make()(view)
      labels = view.fake_labels if of_fakes else view.batch.labels
      self.assertAllEqual(d.labels[-1], labels)

  def test_an_unconditional_d_is_accepted(self):
    d, g = pair()
    view = testing.view(d, g)
    view = view._replace(
      d=lambda x, labels: Verdict(tf.reduce_sum(x, [1, 2, 3])),
      batch=view.batch._replace(labels=None),
      fake_labels=None,
    )
    # The slope is 1 at each of 64 pixels.
    self.assertAllClose(penalties.R1(gamma=2.0, period=1)(view), 64.0)
    self.assertAllClose(penalties.GradientPenalty(weight=1.0)(view), 49.0)


def logits(real, fake, step=0):
  """Returns a view of logits only."""
  x = tf.zeros([])
  real, fake = Verdict(tf.constant(real)), Verdict(tf.constant(fake))
  step = tf.constant(step, tf.int64)
  return penalties.View("d", None, None, x, x, x, real, fake, 7, step)


class LeCamTest(tf.test.TestCase):
  def test_lecam_pulls_logits_to_the_average_of_the_other_kind(self):
    penalty = penalties.LeCam(weight=2.0, start_step=0)
    penalty.real.assign(0.5)
    penalty.fake.assign(-1.0)
    # (1 + 1)^2, (3 + 1)^2; (-2 - .5)^2, (0 - .5)^2.
    value = penalty(logits([1.0, 3.0], [-2.0, 0.0]))
    self.assertAllClose(value, 2.0 * ((4 + 16) / 2 + (6.25 + 0.25) / 2))

  def test_averages_are_moving_averages_of_the_logits(self):
    penalty = penalties.LeCam(decay=0.9, start_step=2)
    update = tf.function(
      lambda real, fake, step: penalty.update(Scores(real, fake), step),
      autograph=False,
    )
    real = fake = 0.0
    for step in range(5):
      update(
        tf.constant([1.0, 2.0 * step]),
        tf.constant([-1.0, -3.0 * step]),
        tf.constant(step, tf.int64),
      )
      memory = 0.9 if step >= 2 else 0.0
      real = memory * real + (1 - memory) * (1 + 2 * step) / 2
      fake = memory * fake + (1 - memory) * (-1 - 3 * step) / 2
      self.assertAllClose([penalty.real, penalty.fake], [real, fake], rtol=1e-5)

  def test_penalty_is_zero_before_start_step(self):
    penalty = penalties.LeCam(weight=1.0, start_step=5)
    self.assertAllEqual(penalty(logits([1.0], [1.0], step=4)), 0.0)
    self.assertAllClose(penalty(logits([1.0], [1.0], step=5)), 2.0)

  def test_its_variables_have_names_and_are_not_trained(self):
    penalty = penalties.LeCam()
    names = [v.name for v in penalty.variables]
    self.assertCountEqual(names, ["lecam/real:0", "lecam/fake:0"])
    self.assertEmpty(penalty.trainable_variables)

  def averages(self, weights):
    strategy = testing.strategy()
    with strategies.scope(strategy):
      penalty = penalties.LeCam(weight=1.0, start_step=9)

    def replica(real, fake, weight):
      view = logits([0.0], [0.0])
      view = view._replace(real=Verdict(real), fake=Verdict(fake))
      penalty.update(Scores(real, fake), view.step, weight)
      # Of its own logits and everyone's averages.
      return penalty(view._replace(step=tf.constant(9, tf.int64)))

    reals = [np.float32([i, i + 1]) for i in range(4)]
    fakes = [np.float32([-10 * i, 0]) for i in range(4)]
    costs = testing.run_on_replicas(replica, reals, fakes, np.float32(weights))
    real, fake = (
      np.array(strategies.copies(strategy, v))
      for v in (penalty.real, penalty.fake)
    )
    for i, cost in enumerate(costs):
      expected = ((reals[i] - fake[i]) ** 2).mean()
      expected += ((fakes[i] - real[i]) ** 2).mean()
      self.assertAllClose(cost, expected, rtol=1e-5)
    return real, fake

  def test_replicas_agree_on_the_means_of_all(self):
    # The means of replicas are i + 1/2 and -5 i.
    real, fake = self.averages([1, 1, 1, 1])
    self.assertAllEqual(real, [2.0] * 4)
    self.assertAllEqual(fake, [-7.5] * 4)

  def test_replicas_count_by_their_weights(self):
    real, fake = self.averages([0, 2, 0, 2])
    self.assertAllEqual(real, [2.5] * 4)
    self.assertAllEqual(fake, [-10.0] * 4)


class FeatureMatchingTest(tf.test.TestCase):
  def test_means_of_features_are_compared(self):
    real = Verdict(None, features=tf.constant([[1.0, 0.0], [3.0, 4.0]]))
    fake = Verdict(None, features=tf.constant([[0.0, 0.0], [2.0, 1.0]]))
    view = logits([0.0], [0.0])._replace(who="g", real=real, fake=fake)
    # The means are (2, 2) and (1, .5).
    value = penalties.FeatureMatching(weight=3.0)(view)
    self.assertAllClose(value, 3.0 * (1 + 1.5**2))

  def test_a_d_without_features_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`FeatureMatching`.*`features`"):
      penalties.FeatureMatching()(logits([0.0], [0.0]))


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("gp", penalties.GradientPenalty, {"weight": -1.0}, "`weight`.*-1.0"),
    ("dragan", penalties.Dragan, {"weight": -1.0}, "`weight`.*-1.0"),
    ("noise", penalties.Dragan, {"deviation": 0.0}, "`deviation`.*0.0"),
    ("r1", penalties.R1, {"gamma": -1.0}, "`gamma` must be above 0.*-1.0"),
    ("r2", penalties.R2, {"gamma": 0.0}, "`gamma`.*0.0: remove"),
    ("lecam", penalties.LeCam, {"weight": -1.0}, "`weight`.*-1.0"),
    ("decay", penalties.LeCam, {"decay": 1.0}, "`decay`.*1.0"),
    ("start", penalties.LeCam, {"start_step": -1}, "`start_step`.*-1"),
    ("features", penalties.FeatureMatching, {"weight": -1.0}, "`weight`.*-1"),
  )
  def test_bad_values_are_refused(self, make, options, message):
    with self.assertRaisesRegex(ValueError, message):
      make(**options)


if __name__ == "__main__":
  testing.main()
