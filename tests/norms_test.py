"""Batch norm against NumPy, and many replicas against one."""

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.nets import affines, layers, norms, sngan, standing
from paragan_tf.types import ImageSpec, Mode
from tests import testing

CHANNELS, CLASSES = 3, 4
SHAPE = [8, 4, 4, CHANNELS]
LABELS = np.array([0, 1, 2, 3, 3, 1, 0, 0], np.int32)


def random(*shape, seed=0):
  return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def inputs(mean=0.7, std=1.5, seed=1):
  """Returns images whose samples have means of their own."""
  offsets = random(SHAPE[0], 1, 1, CHANNELS, seed=9)
  return std * random(*SHAPE, seed=seed) + mean + offsets


def moments(x):
  x = x.astype(np.float64)
  return x.mean((0, 1, 2)), x.var((0, 1, 2))


def normalize(x, mean, variance, epsilon=1e-5):
  return (x.astype(np.float64) - mean) / np.sqrt(np.add(variance, epsilon))


def make(num_classes=0, shaken=True, **options):
  """Returns a norm, with `gamma` and `beta` away from zero if shaken."""
  norm = norms.BatchNorm(CHANNELS, num_classes, **options)
  if shaken:
    norm.gamma.assign(0.5 * random(*norm.gamma.shape, seed=2))
    norm.beta.assign(0.5 * random(*norm.beta.shape, seed=3))
  return norm


class BatchNormTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("train", Mode.TRAIN), ("frozen", Mode.FROZEN)
  )
  def test_scales_by_one_plus_gamma_and_adds_beta(self, mode):
    x, norm = inputs(), make()
    expected = normalize(x, *moments(x)) * (1 + norm.gamma.numpy())
    expected += norm.beta.numpy()
    y = norm(x, None, mode)
    self.assertAllClose(y, expected, rtol=1e-4, atol=1e-4)

  @parameterized.named_parameters(("plain", 0), ("conditional", CLASSES))
  def test_starts_as_the_plain_norm(self, num_classes):
    x, norm = inputs(), make(num_classes, shaken=False)
    self.assertAllEqual(norm.gamma, tf.zeros_like(norm.gamma))
    self.assertAllEqual(norm.beta, tf.zeros_like(norm.beta))
    y = norm(x, LABELS, Mode.FROZEN).numpy()
    self.assertAllClose(y, normalize(x, *moments(x)), rtol=1e-4, atol=1e-4)
    self.assertAllClose(y.mean((0, 1, 2)), np.zeros([CHANNELS]), atol=1e-5)
    self.assertAllClose(y.var((0, 1, 2)), np.ones([CHANNELS]), atol=1e-4)

  @parameterized.named_parameters(
    ("train", Mode.TRAIN), ("frozen", Mode.FROZEN), ("eval", Mode.EVAL)
  )
  def test_each_sample_has_the_scale_of_its_class(self, mode):
    x, norm = inputs(), make(CLASSES)
    y = norm(x, LABELS, mode)
    for i, label in enumerate(LABELS):
      one = make(shaken=False)
      one.gamma.assign(norm.gamma[label])
      one.beta.assign(norm.beta[label])
      # The class is one sample's, the statistics are the batch's.
      self.assertAllClose(y[i], one(x, None, mode)[i], rtol=1e-5, atol=1e-5)

  def test_training_moves_the_statistics_by_one_minus_momentum(self):
    norm = make(momentum=0.8)
    mean, variance = np.zeros([CHANNELS]), np.ones([CHANNELS])
    for seed in range(3):
      x = inputs(seed=seed)
      norm(x, None, Mode.TRAIN)
      batch_mean, batch_variance = moments(x)
      mean = 0.8 * mean + 0.2 * batch_mean
      variance = 0.8 * variance + 0.2 * batch_variance
      self.assertAllClose(norm.mean, mean, rtol=1e-5)
      self.assertAllClose(norm.variance, variance, rtol=1e-5)

  @parameterized.named_parameters(("frozen", Mode.FROZEN), ("eval", Mode.EVAL))
  def test_other_modes_keep_the_statistics(self, mode):
    norm = make()
    before = testing.values(norm.variables)
    norm(inputs(), None, mode)
    self.assertAllEqual(testing.values(norm.variables), before)

  def test_evaluation_uses_the_stored_statistics(self):
    x, norm = inputs(), make()
    norm.mean.assign([1.0, -2.0, 0.5])
    norm.variance.assign([4.0, 0.25, 9.0])
    expected = normalize(x, [1.0, -2.0, 0.5], [4.0, 0.25, 9.0])
    expected = expected * (1 + norm.gamma.numpy()) + norm.beta.numpy()
    self.assertAllClose(
      norm(x, None, Mode.EVAL), expected, rtol=1e-4, atol=1e-4
    )
    # A sample does not feel its batch.
    self.assertAllClose(
      norm(x[:1], None, Mode.EVAL), norm(x, None, Mode.EVAL)[:1]
    )

  def test_statistics_are_not_trained(self):
    names = [variable.name for variable in make().trainable_variables]
    self.assertCountEqual(names, ["norm/gamma:0", "norm/beta:0"])
    names = [variable.name for variable in make().non_trainable_variables]
    self.assertCountEqual(names, ["norm/mean:0", "norm/variance:0"])

  @parameterized.named_parameters(("one", 1.0), ("negative", -0.1))
  def test_bad_momentum_is_refused(self, momentum):
    with self.assertRaisesRegex(ValueError, f"`momentum`.*{momentum}"):
      make(momentum=momentum)


def run_on_four(norm, x, weights, labels):
  """Cuts the batch in four; returns outputs and gradients of each replica."""

  def replica(x, weights, labels):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = norm(x, labels, Mode.TRAIN)
      loss = tf.reduce_sum(weights * y**3)
    return y, *tape.gradient(loss, [x, norm.gamma, norm.beta])

  cut = [np.split(part, testing.NUM_REPLICAS) for part in (x, weights, labels)]
  return [list(part) for part in zip(*testing.run_on_replicas(replica, *cut))]


def run_on_one(norm, x, weights, labels):
  x = tf.constant(x)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = norm(x, labels, Mode.TRAIN)
    loss = tf.reduce_sum(weights * y**3)
  grads = tape.gradient(loss, [x, norm.gamma, norm.beta])
  return [y, *(tf.convert_to_tensor(grad) for grad in grads)]


class ModulationTest(tf.test.TestCase, parameterized.TestCase):
  """Scale and shift out of a vector."""

  def setUp(self):
    super().setUp()
    self.init = layers.normal_init(0.5, seed=3)
    self.vectors = random(SHAPE[0], 5, seed=7)

  def check(self, affine, gamma, beta):
    x = inputs()
    norm = norms.BatchNorm(CHANNELS, affine=lambda channels: affine)
    y = norm(x, self.vectors, Mode.FROZEN)
    expected = normalize(x, *moments(x)) * (1 + gamma)[:, None, None]
    expected += beta[:, None, None]
    self.assertAllClose(y, expected, rtol=1e-3, atol=1e-3)
    self.assertGreater(np.abs(gamma).min(1).max(), 0.1)

  def test_a_vector_by_two_linear_maps(self):
    affine = affines.ByVector(CHANNELS, 5, self.init, spectral=False)
    gamma, beta = (
      self.vectors @ part.weight.w.numpy()
      for part in (affine.gamma, affine.beta)
    )
    self.check(affine, gamma, beta)

  def test_self_modulation_has_a_hidden_layer(self):
    affine = affines.SelfModulation(CHANNELS, 5, self.init, hidden=4)

    def linear(x, layer):
      layer.bias.assign(random(*layer.bias.shape, seed=8))
      return x @ layer.weight.w.numpy() + layer.bias.numpy()

    gamma, beta = (
      linear(np.maximum(linear(self.vectors, hidden), 0), out)
      for hidden, out in zip(affine.hidden, affine.out)
    )
    self.check(affine, gamma, beta)

  def test_shares_of_classes_mix_the_tables(self):
    x, norm = inputs(), make(CLASSES)
    shares = np.random.RandomState(1).dirichlet(np.ones(CLASSES), SHAPE[0])
    y = norm(x, shares.astype(np.float32), Mode.FROZEN)
    gamma, beta = shares @ norm.gamma.numpy(), shares @ norm.beta.numpy()
    expected = normalize(x, *moments(x)) * (1 + gamma)[:, None, None]
    self.assertAllClose(y, expected + beta[:, None, None], 1e-3, 1e-3)


class SampleNormTest(tf.test.TestCase, parameterized.TestCase):
  """Norms that see one sample at a time."""

  CASES = (
    ("layer", norms.LayerNorm, 1),
    ("instance", norms.InstanceNorm, 4),
    ("group", lambda *args: norms.GroupNorm(*args, groups=2), 2),
  )

  @parameterized.named_parameters(*CASES)
  def test_equals_the_plain_way(self, make_norm, groups):
    x = 2.0 + random(3, 4, 4, 4)
    for labels, num_classes in ((None, 0), (np.array([2, 0, 1]), 3)):
      norm = make_norm(4, num_classes)
      for variable in norm.trainable_variables:
        variable.assign(random(*variable.shape, seed=2))
      gamma, beta = norm.gamma.numpy(), norm.beta.numpy()
      if num_classes:
        gamma, beta = gamma[labels][:, None, None], beta[labels][:, None, None]
      expected = np.zeros(x.shape)
      for i in range(3):
        for part in np.split(np.arange(4), groups):
          group = x[i][..., part].astype(np.float64)
          scale = np.sqrt(group.var() + 1e-5)
          expected[i][..., part] = (group - group.mean()) / scale
      expected = expected * (1 + gamma) + beta
      for mode in Mode:
        self.assertAllClose(norm(x, labels, mode), expected, 1e-4, 1e-4)
      self.assertEmpty(norm.non_trainable_variables)

  @parameterized.named_parameters(("three", 3), ("none", 0), ("more", 8))
  def test_groups_must_divide_the_channels(self, groups):
    with self.assertRaisesRegex(ValueError, f"`groups`.*4.*got {groups}"):
      norms.GroupNorm(4, groups=groups)


class GinTest(tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_a_line_chooses_the_norm_of_a_net(self):
    gin.parse_config(
      [
        "from __gin__ import dynamic_registration",
        "from paragan_tf.nets import norms",
        "from paragan_tf.nets import sngan",
        "sngan.Generator.norm = @norms.GroupNorm",
        "norms.GroupNorm.groups = 2",
      ]
    )
    make_g = gin.get_configurable(sngan.Generator)
    g = make_g(ImageSpec(32, 1, 3), 0, width=4)
    for norm in (g.norm, g.blocks[0].norm1):
      self.assertIsInstance(norm, norms.GroupNorm)
      self.assertEqual(norm.groups, 2)
    self.assertEqual(g.blocks[0].norm1.gamma.shape, [3, 4])


class Two(tf.Module):
  """A G of two norms."""

  def __init__(self):
    super().__init__(name="g")
    with self.name_scope:
      self.norm1 = norms.BatchNorm(CHANNELS, name="norm1")
      self.norm2 = norms.BatchNorm(CHANNELS, name="norm2")

  def __call__(self, z, labels, mode):
    return self.norm2(tf.nn.relu(self.norm1(z, None, mode)), None, mode)


class StandingStatisticsTest(tf.test.TestCase):
  def test_are_the_mean_over_batches_inside_and_gone_outside(self):
    g = Two()
    g(inputs(seed=5), None, Mode.TRAIN)
    before = testing.values(g.variables)
    batches = [inputs(seed=seed) for seed in range(3)]
    with standing.standing_statistics(g, [(z, None) for z in batches]):
      for stored, i in ((g.norm1.mean, 0), (g.norm1.variance, 1)):
        expected = np.mean([moments(z)[i] for z in batches], 0)
        self.assertAllClose(stored, expected, rtol=1e-4)
      hidden = [np.maximum(normalize(z, *moments(z)), 0) for z in batches]
      expected = np.mean([moments(h)[1] for h in hidden], 0)
      self.assertAllClose(g.norm2.variance, expected, rtol=1e-3)
      during = g(inputs(), None, Mode.EVAL)
    self.assertAllEqual(testing.values(g.variables), before)
    self.assertGreater(np.abs(during - g(inputs(), None, Mode.EVAL)).max(), 0.1)
    g(inputs(), None, Mode.FROZEN)
    self.assertAllEqual(testing.values(g.variables), before)


class OnePassTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def run_both(self, x):
    """Returns output, gradient and variance, in one pass and in two."""
    found = []
    for in_one_pass in (True, False):
      gin.bind_parameter("hardware.Layout.moments_in_one_pass", in_one_pass)
      norm = make(momentum=0.0)
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = norm(x, None, Mode.TRAIN)
        loss = tf.reduce_sum(tf.cast(y, tf.float32) * random(*SHAPE, seed=5))
      found.append([y, tape.gradient(loss, x), norm.variance])
    return found

  @parameterized.parameters(0.0, 1.0, 16.0)
  def test_it_equals_two_for_numbers_in_half_precision(self, mean):
    x = tf.cast(mean + random(*SHAPE, seed=6), tf.bfloat16)
    one, two = self.run_both(x)
    self.assertAllClose(one[2], two[2], rtol=3e-4)
    for ours, theirs in zip(one[:2], two[:2]):
      ours, theirs = (tf.cast(v, tf.float32) for v in (ours, theirs))
      self.assertAllClose(ours, theirs, rtol=2e-2, atol=2e-2)

  def test_it_is_not_taken_in_float32(self):
    # The squares of such numbers would leave nothing of the variance.
    x = tf.constant(3e4 + random(*SHAPE, seed=6))
    for ours, theirs in zip(*self.run_both(x)):
      self.assertAllEqual(ours, theirs)

  def test_a_constant_channel_stays_finite(self):
    x = tf.fill(SHAPE, tf.constant(100.0, tf.bfloat16))
    y, dx, variance = self.run_both(x)[0]
    self.assertAllInRange(variance, 0.0, 1e-2)
    for part in (y, dx):
      self.assertAllEqual(tf.math.is_finite(part), tf.ones(SHAPE, tf.bool))


class CrossReplicaTest(tf.test.TestCase, parameterized.TestCase):
  def make(self, *args, **options):
    with strategies.scope(testing.strategy()):
      return make(*args, **options)

  def setUp(self):
    super().setUp()
    self.x, self.weights = inputs(), random(*SHAPE, seed=5)

  def test_four_replicas_equal_one_with_the_whole_batch(self):
    four, one = self.make(CLASSES, cross_replica=True), make(CLASSES)
    for size in ("all", 0):  # Other words for it.
      self.assertEqual(make(group_size=size).group_size, four.group_size)
    args = self.x, self.weights, LABELS
    y, dx, dgamma, dbeta = run_on_four(four, *args)
    whole = run_on_one(one, *args)
    close = {"rtol": 1e-3, "atol": 1e-3}
    self.assertAllClose(np.concatenate(y), whole[0], **close)
    self.assertAllClose(np.concatenate(dx), whole[1], **close)
    # Each replica has the gradient of its own loss; the whole is their sum.
    self.assertAllClose(sum(dgamma), whole[2], **close)
    self.assertAllClose(sum(dbeta), whole[3], **close)
    for ours, theirs in ((four.mean, one.mean), (four.variance, one.variance)):
      for copy in strategies.copies(testing.strategy(), ours):
        self.assertAllClose(copy, theirs, rtol=1e-4)

  def test_a_group_equals_one_replica_with_its_batch(self):
    args, num = (self.x, self.weights, LABELS), 2
    groups = self.make(CLASSES, group_size=num)
    y, dx, dgamma, _ = run_on_four(groups, *args)
    for first in range(0, testing.NUM_REPLICAS, num):
      rows = slice(2 * first, 2 * (first + num))
      one = make(CLASSES)
      own = run_on_one(one, *(part[rows] for part in args))
      members = slice(first, first + num)
      close = {"rtol": 1e-3, "atol": 1e-3}
      self.assertAllClose(np.concatenate(y[members]), own[0], **close)
      self.assertAllClose(np.concatenate(dx[members]), own[1], **close)
      self.assertAllClose(sum(dgamma[members]), own[2], **close)
      for ours, theirs in (
        (groups.mean, one.mean),
        (groups.variance, one.variance),
      ):
        copies = strategies.copies(testing.strategy(), ours)
        for copy in copies[members]:
          self.assertAllClose(copy, theirs, rtol=1e-4)

  @parameterized.named_parameters(
    ("uneven", {"group_size": 3}, "`group_size` must divide.*4, got 3"),
    ("negative", {"group_size": -1}, "`group_size`.*-1"),
    ("word", {"group_size": "most"}, "`group_size`.*'most'"),
    ("both", {"group_size": 2, "cross_replica": True}, "`cross_replica`.*2"),
  )
  def test_bad_groups_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.make(**options)

  def test_without_it_each_replica_is_alone(self):
    args = self.x, self.weights, LABELS
    alone = self.make(CLASSES, cross_replica=False)
    y, dx, _, _ = run_on_four(alone, *args)
    for i in range(testing.NUM_REPLICAS):
      rows = slice(2 * i, 2 * i + 2)
      one = make(CLASSES)
      own = run_on_one(one, *(part[rows] for part in args))
      self.assertAllClose(y[i], own[0], rtol=1e-3, atol=1e-3)
      self.assertAllClose(dx[i], own[1], rtol=1e-3, atol=1e-3)
      copy = strategies.copies(testing.strategy(), alone.mean)[i]
      self.assertAllClose(copy, one.mean, rtol=1e-4)
    whole = run_on_one(make(CLASSES), *args)
    self.assertGreater(np.abs(np.concatenate(y) - whole[0]).max(), 0.1)

  @parameterized.named_parameters(("local", False), ("cross_replica", True))
  def test_a_large_mean_leaves_the_variance_accurate(self, cross_replica):
    x = 100 + random(*SHAPE, seed=6)
    norm = self.make(cross_replica=cross_replica, momentum=0.0)
    y = np.concatenate(run_on_four(norm, x, self.weights, LABELS)[0])
    parts = [x] if cross_replica else np.split(x, testing.NUM_REPLICAS)
    expected = np.concatenate([normalize(p, *moments(p)) for p in parts])
    expected = expected * (1 + norm.gamma.numpy()) + norm.beta.numpy()
    error = np.abs(y - expected).max() / np.abs(expected).max()
    self.assertLess(error, 1e-3)
    variances = strategies.copies(testing.strategy(), norm.variance)
    for i, variance in enumerate(variances):
      exact = moments(parts[i % len(parts)])[1]
      self.assertAllClose(variance, exact, rtol=1e-3)

  @parameterized.named_parameters(("local", False), ("cross_replica", True))
  def test_a_nearly_constant_channel_stays_finite(self, cross_replica):
    x = 100 + 1e-3 * random(*SHAPE, seed=4)
    norm = self.make(shaken=False, cross_replica=cross_replica)
    y, dx, _, _ = run_on_four(norm, x, self.weights, LABELS)
    self.assertAllInRange(y, -5.0, 5.0)
    self.assertTrue(np.all(np.isfinite(dx)))
    self.assertGreater(np.abs(y).max(), 0.1)


if __name__ == "__main__":
  testing.main()
