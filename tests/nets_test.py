"""One table of all pairs, and what every pair promises."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import losses, turns
from paragan_tf.nets import (
  biggan,
  biggan_deep,
  contragan,
  dcgan,
  linear,
  norms,
  sagan,
  sngan,
  wgan_gp,
)
from paragan_tf.types import ImageSpec, Mode
from tests import abstract, testing

Z_DIM = 20  # As many parts as BigGAN has layers at 32 px and at 64.
BATCH = 6
WIDTH = 4
WIDE = 8  # For attention.

Pair = collections.namedtuple("Pair", "g d batch")

GREY32 = ImageSpec(resolution=32, channels=1, num_classes=3)
GREY64 = ImageSpec(resolution=64, channels=1, num_classes=0)
COLOR64 = GREY64._replace(channels=3)


def linear_pair(spec, seed):
  g = linear.Generator(spec, seed, z_dim=Z_DIM)
  return g, linear.Discriminator(spec, seed)


def spectral_linear_pair(spec, seed):
  g = linear.Generator(spec, seed, z_dim=Z_DIM)
  return g, linear.Discriminator(spec, seed, spectral=True)


def dcgan_pair(spec, seed):
  g = dcgan.Generator(spec, seed, width=WIDTH, z_dim=Z_DIM)
  return g, dcgan.Discriminator(spec, seed, width=WIDTH)


def batch_norm_dcgan_pair(spec, seed):
  g = dcgan.Generator(spec, seed, width=WIDTH, z_dim=Z_DIM)
  return g, dcgan.Discriminator(spec, seed, width=WIDTH, spectral=False)


def sngan_pair(spec, seed):
  g = sngan.Generator(spec, seed, width=WIDTH, z_dim=Z_DIM)
  return g, sngan.Discriminator(spec, seed, width=WIDTH)


def self_modulated_sngan_pair(spec, seed):
  g = sngan.Generator(
    spec, seed, width=WIDTH, z_dim=Z_DIM, modulation="self", remat=True
  )
  return g, sngan.Discriminator(spec, seed, width=WIDTH, remat=True)


def sagan_pair(spec, seed):
  g = sagan.Generator(spec, seed, width=WIDE, z_dim=Z_DIM)
  return g, sagan.Discriminator(spec, seed, width=WIDE)


def wgan_gp_pair(spec, seed):
  g = wgan_gp.Generator(spec, seed, width=WIDTH, z_dim=Z_DIM)
  return g, wgan_gp.Discriminator(spec, seed, width=WIDTH)


def layer_norm_wgan_gp_pair(spec, seed):
  g = wgan_gp.Generator(
    spec, seed, width=WIDTH, z_dim=Z_DIM, norm=norms.InstanceNorm
  )
  return g, wgan_gp.Discriminator(spec, seed, width=WIDTH, norm=norms.LayerNorm)


def biggan_pair(spec, seed, nets=biggan, remat=False):
  width = {32: 2, 64: WIDE}[spec.resolution]
  if nets is biggan_deep:
    width = WIDE  # A quarter of it must not be all below zero.
  g = nets.Generator(
    spec, seed, width=width, z_dim=Z_DIM, shared_dim=6, remat=remat
  )
  return g, nets.Discriminator(spec, seed, width=width, remat=remat)


def remat_biggan_pair(spec, seed):
  return biggan_pair(spec, seed, remat=True)


def biggan_deep_pair(spec, seed):
  return biggan_pair(spec, seed, biggan_deep)


def contragan_pair(spec, seed):
  return biggan_pair(spec, seed, contragan)


# One case a backbone, and one for each option of it; `plans_test` has shapes
# at other resolutions. What depends on classes or channels is shared.
CASES = (
  ("linear", linear_pair, GREY32),
  ("linear_color_64", linear_pair, COLOR64),
  ("spectral_linear", spectral_linear_pair, GREY32),
  ("dcgan", dcgan_pair, GREY32),
  ("dcgan_color_64", dcgan_pair, COLOR64),
  ("batch_norm_dcgan", batch_norm_dcgan_pair, GREY32),
  ("sngan", sngan_pair, GREY32),
  ("sngan_color_64", sngan_pair, COLOR64),
  ("self_modulated_sngan", self_modulated_sngan_pair, GREY32),
  ("sagan", sagan_pair, GREY32),
  ("wgan_gp", wgan_gp_pair, GREY32),
  ("layer_norm_wgan_gp", layer_norm_wgan_gp_pair, GREY32),
  ("biggan_64", biggan_pair, GREY64),
  ("remat_biggan", remat_biggan_pair, GREY32),
  ("biggan_deep", biggan_deep_pair, GREY32),
  ("contragan", contragan_pair, GREY32),
)
# Without its own loss, ContraGAN's embeddings learn nothing.
LEARNING = tuple(case for case in CASES if case[1] is not contragan_pair)
SMALL = tuple(case for case in CASES if case[2] == GREY32)
# The others have their G, and their way to hand the seed on, from these.
OWN = tuple(
  case
  for case in SMALL
  if case[1]
  not in (
    spectral_linear_pair,
    batch_norm_dcgan_pair,
    layer_norm_wgan_gp_pair,
    contragan_pair,
  )
)
# One for each way to draw first values.
DRAWN = (linear_pair, sngan_pair, remat_biggan_pair)


def make(make_pair, spec, seed=1) -> Pair:
  return Pair(*make_pair(spec, seed), testing.batch(BATCH, spec, Z_DIM))


@functools.cache
def first(make_pair, spec, seed):
  """Returns a pair, which may be changed, and the first values of its nets."""
  pair = make(make_pair, spec, seed)
  return pair, [testing.values(net.variables) for net in (pair.g, pair.d)]


@functools.cache
def get_pair(make_pair, spec) -> Pair:
  """Returns a pair for tests that change nothing: building one takes long."""
  return perturb(first(make_pair, spec, seed=1)[0])


def perturb(pair) -> Pair:
  """Moves weights from their first values.

  Conditional norms start the same for all classes, and attention starts without
  effect.
  """
  random = np.random.RandomState(0)
  for net in (pair.g, pair.d):
    for variable in net.trainable_variables:
      variable.assign_add(0.1 * random.randn(*variable.shape))
    if getattr(net, "attention", None) is not None:
      net.attention.gamma.assign(2.0)
  return pair


@functools.cache
def read_variables(make_pair, spec):
  """Returns the variables of a shared pair, and their values."""
  g, d, _ = get_pair(make_pair, spec)
  variables = [*g.variables, *d.variables]
  return variables, testing.values(variables)


def restore(make_pair, spec):
  """Gives the variables of a shared pair those values back."""
  for variable, value in zip(*read_variables(make_pair, spec)):
    if not variable.trainable:
      variable.assign(value)


Called = collections.namedtuple("Called", "images verdict after")


@functools.cache
def call_pair(make_pair, spec, mode) -> Called:
  """Returns what a shared pair makes, and the values that it leaves."""
  g, d, batch = get_pair(make_pair, spec)
  variables, _ = read_variables(make_pair, spec)
  images = g(batch.z, batch.labels, mode)
  verdict = d.judge(batch.images, batch.labels, mode)
  after = testing.values(variables)
  restore(make_pair, spec)
  return Called(images, verdict, after)


def names(net):
  return [variable.name for variable in net.variables]


def list_silent_biases(make_pair, spec):
  """Returns the names of the biases that a batch norm takes away.

  Each adds a constant to a channel, and the next norm subtracts the channel's
  mean: the gradient is zero. In a residual G the constant passes the norms of
  later blocks by their shortcuts, which keep it one, up to the last norm, or
  up to attention, which feels it.
  """
  resizes = {32: range(3), 64: range(4)}[spec.resolution]
  g_dcgan = [f"g/deconv{i}/b:0" for i in resizes[:-1]]

  def residual(last_before=-1, num=0, inner=1, outer=2):
    """Returns those of blocks, of which some stand before attention."""
    return [
      f"g/block{i}/{layer}/b:0"
      for i in range(num or len(resizes))
      for j, layer in enumerate(
        [f"conv{k + 1}" for k in range(outer)] + ["shortcut"] * (outer == 2)
      )
      if j < inner or i > last_before
    ]

  before = len(resizes) - 2
  attentive = residual(before)
  deep = residual(2 * before + 1, 2 * len(resizes), inner=3, outer=4)
  return {
    dcgan_pair: g_dcgan,
    batch_norm_dcgan_pair: g_dcgan + [f"d/conv{i}/b:0" for i in resizes[1:]],
    sngan_pair: residual(),
    self_modulated_sngan_pair: residual(),
    wgan_gp_pair: residual(),
    layer_norm_wgan_gp_pair: residual(),
    sagan_pair: attentive,
    biggan_pair: attentive,
    remat_biggan_pair: attentive,
    contragan_pair: attentive,
    biggan_deep_pair: deep,
  }.get(make_pair, [])


def outputs_of(verdict):
  """Returns what a verdict says of images and labels, one row an image."""
  parts = (verdict.logits, verdict.classes, verdict.embedding, verdict.proxy)
  rows = [np.reshape(x, [BATCH, -1]) for x in parts if x is not None]
  return np.concatenate(rows, 1)


class NetsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*CASES)
  def test_g_makes_images_and_d_judges_them(self, make_pair, spec):
    g, d, batch = get_pair(make_pair, spec)
    self.assertEqual(g.z_dim, Z_DIM)
    shape = [BATCH, spec.resolution, spec.resolution, spec.channels]
    for mode in Mode:
      images, verdict = call_pair(make_pair, spec, mode)[:2]
      self.assertEqual(images.shape, shape)
      self.assertEqual(images.dtype, tf.float32)
      self.assertAllInRange(images, -1.0, 1.0)
      self.assertGreater(np.std(images), 1e-6)
      self.check_logits(verdict.logits)
    self.check_logits(d(images, batch.labels, Mode.FROZEN))

  def check_logits(self, logits):
    self.assertEqual(logits.shape, [BATCH])
    self.assertTrue(np.all(np.isfinite(logits)))
    self.assertLen(np.unique(logits), BATCH)

  @parameterized.named_parameters(*OWN)
  def test_range_holds_for_large_weights(self, make_pair, spec):
    (g, _, batch), values = first(make_pair, spec, seed=2)
    for variable, value in zip(g.variables, values[0]):
      if variable.trainable:
        variable.assign(10 * value + 1)
    images = g(batch.z, batch.labels, Mode.FROZEN)
    self.assertAllInRange(images, -1.0, 1.0)
    self.assertGreater(np.abs(images).max(), 0.9)

  @parameterized.named_parameters(*LEARNING)
  def test_every_weight_learns_from_its_own_loss(self, make_pair, spec):
    g, d, batch = get_pair(make_pair, spec)
    read_variables(make_pair, spec)  # As they are now.
    fakes = turns.draw(g, batch, Mode.TRAIN)
    found = [
      move(fakes, d, batch, losses.non_saturating).grads
      for move in (turns.g_move, turns.d_move)
    ]
    restore(make_pair, spec)
    for net, grads in zip((g, d), found):
      self.assertLen(grads, len(net.trainable_variables))
      largest = max(np.abs(grad).max() for grad in grads)
      self.assertTrue(np.isfinite(largest))
      for variable, grad in zip(net.trainable_variables, grads):
        self.assertEqual(grad.shape, variable.shape)
        size = np.abs(grad).max() / largest
        if variable.name in list_silent_biases(make_pair, spec):
          self.assertLess(size, 1e-5, variable.name)
        else:
          # Where all pixels look alike, it matters little which are seen.
          least = 1e-6 if "/attention/" in variable.name else 1e-4
          self.assertGreater(size, least, variable.name)

  @parameterized.named_parameters(*CASES)
  def test_silent_biases_are_there(self, make_pair, spec):
    g, d, _ = get_pair(make_pair, spec)
    self.assertContainsSubset(
      list_silent_biases(make_pair, spec), names(g) + names(d)
    )

  @parameterized.named_parameters(*CASES)
  def test_names_are_unique_and_say_whose_they_are(self, make_pair, spec):
    g, d, _ = get_pair(make_pair, spec)
    for net, player in ((g, "g/"), (d, "d/")):
      self.assertLen(set(names(net)), len(net.variables))
      for name in names(net):
        self.assertStartsWith(name, player)

  @parameterized.named_parameters(*CASES)
  def test_watching_repeats_and_changes_nothing(self, make_pair, spec):
    g, _, batch = get_pair(make_pair, spec)
    variables, before = read_variables(make_pair, spec)
    for mode in (Mode.FROZEN, Mode.EVAL):
      images, _, after = call_pair(make_pair, spec, mode)
      for variable, one, other in zip(variables, before, after):
        self.assertTrue(np.array_equal(one, other), variable.name)
      self.assertAllEqual(g(batch.z, batch.labels, mode), images)

  @parameterized.named_parameters(*CASES)
  def test_a_turn_moves_all_state_and_no_weight(self, make_pair, spec):
    after = call_pair(make_pair, spec, Mode.TRAIN).after
    for variable, old, new in zip(*read_variables(make_pair, spec), after):
      if not variable.trainable and variable.shape.num_elements() == 1:
        # A vector of one entry has length one before and after.
        self.assertAllClose(np.abs(new), np.abs(old))
        continue
      still = np.array_equal(new, old)
      self.assertEqual(still, variable.trainable, variable.name)

  @parameterized.named_parameters(*SMALL)
  def test_labels_matter_to_both_and_may_be_shares(self, make_pair, spec):
    g, d, batch = get_pair(make_pair, spec)
    images, verdict = call_pair(make_pair, spec, Mode.EVAL)[:2]
    others = (batch.labels + 1) % spec.num_classes
    their_images = g(batch.z, others, Mode.EVAL)
    self.check_role_split(images, their_images)
    theirs = outputs_of(d.judge(batch.images, others, Mode.EVAL))
    self.assertAllGreater(np.abs(outputs_of(verdict) - theirs).max(1), 1e-4)
    one, other = (
      tf.one_hot(y, spec.num_classes) for y in (batch.labels, others)
    )
    by_weights = outputs_of(d.judge(batch.images, one, Mode.EVAL))
    self.assertAllClose(by_weights, outputs_of(verdict), 1e-5, 1e-5)
    self.assertAllClose(g(batch.z, one, Mode.EVAL), images, 1e-5, 1e-5)
    between = g(batch.z, 0.5 * (one + other), Mode.EVAL)
    self.check_role_split(between, images)
    self.check_role_split(between, their_images)

  def check_role_split(self, images, others):
    difference = np.abs(images - others).max((1, 2, 3))
    self.assertAllGreater(difference, 1e-4)

  @parameterized.named_parameters(*CASES)
  def test_a_call_is_the_logits_of_the_verdict(self, make_pair, spec):
    _, d, batch = get_pair(make_pair, spec)
    verdict = call_pair(make_pair, spec, Mode.FROZEN).verdict
    logits = d(batch.images, batch.labels, Mode.FROZEN)
    self.assertAllEqual(verdict.logits, logits)
    self.assertEqual(verdict.features.shape[0], BATCH)
    self.assertEqual(verdict.features.shape.rank, 2)

  @parameterized.named_parameters(*CASES)
  def test_evaluation_judges_each_sample_alone(self, make_pair, spec):
    g, d, batch = get_pair(make_pair, spec)
    images, verdict = call_pair(make_pair, spec, Mode.EVAL)[:2]
    half = BATCH // 2
    labels = None if batch.labels is None else batch.labels[:half]
    for net, x, whole in (
      (g, batch.z, images),
      (d, batch.images, verdict.logits),
    ):
      part = net(x[:half], labels, Mode.EVAL)
      self.assertAllClose(part, whole[:half], rtol=1e-3, atol=1e-3)

  @parameterized.named_parameters(*OWN)
  def test_weights_depend_on_the_seed_only(self, make_pair, spec):
    tf.random.set_seed(2)
    pair, ours = first(make_pair, spec, seed=1)
    _, theirs = first(make_pair, spec, seed=2)
    for i in range(2):
      for variable, a, b in zip(pair[i].variables, ours[i], theirs[i]):
        if variable.name.endswith("/w:0"):
          self.assertFalse(np.any(np.equal(a, b)), variable.name)
    if make_pair in DRAWN:
      same = make(make_pair, spec)
      for i in range(2):
        for a, b in zip(ours[i], same[i].variables):
          self.assertTrue(np.array_equal(a, b), b.name)


class ContraganTest(tf.test.TestCase):
  """By the likeness of an image's embedding e to its label's proxy p."""

  def gradients(self):
    """Returns those of the squared likeness, and those of the logits."""
    _, d, batch = get_pair(contragan_pair, GREY32)
    with tf.GradientTape(persistent=True) as tape:
      verdict = d.judge(batch.images, batch.labels, Mode.FROZEN)
      likeness = tf.reduce_sum(verdict.embedding * verdict.proxy, 1)
      squares, logits = tf.reduce_sum(likeness**2), verdict.logits
    found = []
    for loss in (squares, logits):
      grads = tape.gradient(loss, d.trainable_variables)
      found.append({v.name: g for v, g in zip(d.trainable_variables, grads)})
    return verdict, *found

  def test_embeddings_have_the_gradients_of_the_formula(self):
    _, d, batch = get_pair(contragan_pair, GREY32)
    verdict, found, _ = self.gradients()
    e, p = verdict.embedding.numpy(), verdict.proxy.numpy()
    likeness = np.sum(e * p, 1, keepdims=True)
    # e = a / |a|: the part of p along e changes nothing. So it is with
    # p = w / |w|, where the spectral norm falls out.
    a = d.head.to_embedding(verdict.features, Mode.FROZEN).numpy()
    to_a = 2 * likeness * (p - likeness * e)
    to_a /= np.linalg.norm(a, axis=1, keepdims=True)
    table = d.head.embedding.weight.w
    to_p = 2 * likeness * (e - likeness * p)
    to_table = np.eye(GREY32.num_classes)[batch.labels].T @ to_p
    to_table /= np.linalg.norm(table, axis=1, keepdims=True)
    for weight, by_hand in (
      (d.head.to_embedding.bias, to_a.sum(0)),
      (table, to_table),
    ):
      largest = np.abs(by_hand).max()
      self.assertGreater(largest, 1e-3)
      self.assertAllClose(
        found[weight.name] / largest, by_hand / largest, 1e-3, 1e-3
      )

  def test_every_weight_learns_from_likeness_or_logits(self):
    _, d, _ = get_pair(contragan_pair, GREY32)
    _, by_likeness, by_logits = self.gradients()
    head = d.head
    for found, idle in (
      (by_likeness, head.linear),
      (by_logits, head.to_embedding),
      (by_logits, head.embedding),
    ):
      for weight in idle.trainable_variables:
        self.assertIsNone(found.pop(weight.name), weight.name)
    for found in (by_likeness, by_logits):
      largest = max(np.abs(grad).max() for grad in found.values())
      for name, grad in found.items():
        least = 1e-6 if "/attention/" in name else 1e-4
        self.assertGreater(np.abs(grad).max() / largest, least, name)


class CompiledTest(tf.test.TestCase, parameterized.TestCase):
  def check(self, make_pair):
    g, d, batch = make(make_pair, GREY32)
    twin = make(make_pair, GREY32)

    def play(g, d):
      images = g(batch.z, batch.labels, Mode.TRAIN)
      return images, d(images, batch.labels, Mode.TRAIN)

    compiled = tf.function(
      lambda: play(g, d), jit_compile=True, autograph=False
    )
    self.assertAllClose(compiled(), play(twin.g, twin.d), 1e-4, 1e-4)
    ours = [*g.variables, *d.variables]
    theirs = [*twin.g.variables, *twin.d.variables]
    for one, other in zip(ours, theirs):
      self.assertAllClose(one, other, 1e-4, 1e-4)

  # A compiler takes long; what it finds in the others is in these.
  @parameterized.named_parameters(
    ("linear", linear_pair), ("sngan", sngan_pair)
  )
  def test_compiled_is_the_same(self, make_pair):
    self.check(make_pair)

  @parameterized.named_parameters(
    ("dcgan", dcgan_pair), ("remat_biggan", remat_biggan_pair)
  )
  @pytest.mark.soak
  def test_larger_nets_compiled_are_the_same(self, make_pair):
    self.check(make_pair)


class ResolutionTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    *(
      (f"{nets.__name__[16:]}_{resolution}_{player}", nets, resolution, player)
      for nets, resolutions in (
        (dcgan, (0, 16, 24, 48, 2048)),
        (sngan, (16, 48, 2048)),
        (biggan, (16, 2048)),
        (biggan_deep, (16, 2048)),
      )
      for resolution in resolutions
      for player in ("Generator", "Discriminator")
    )
  )
  def test_a_wrong_resolution_is_refused(self, nets, resolution, player):
    spec = ImageSpec(resolution, channels=1, num_classes=0)
    with self.assertRaisesRegex(ValueError, f"`resolution`.*got {resolution}"):
      getattr(nets, player)(spec, 0, width=2)

  @parameterized.named_parameters(
    ("dcgan_32", dcgan_pair, 32, [16, 8, 4], [4, 8, 16]),
    ("dcgan_128", dcgan_pair, 128, [64, 32, 16, 8, 4], [4, 8, 16, 32, 64]),
  )
  def test_widths_double_towards_the_middle(self, make_pair, size, g_in, d_out):
    with abstract.sizes():
      g, d = make_pair(ImageSpec(size, 1, 0), 0)
    self.assertEqual([m.weight.w.shape[3] for m in g.deconvs], g_in)
    self.assertEqual([m.weight.w.shape[3] for m in d.convs], d_out)

  @parameterized.named_parameters(
    ("32", 32, [4, 4, 4], [4, 4, 4, 4], 2),
    ("64", 64, [32, 16, 8, 4], [4, 8, 16, 32, 64], 4),
    ("128", 128, [64, 32, 16, 8, 4], [4, 8, 16, 32, 64, 64], 5),
  )
  def test_sngan_has_the_blocks_of_the_paper(
    self, size, g_out, d_out, num_down
  ):
    with abstract.sizes():
      g, d = sngan_pair(ImageSpec(size, 1, 0), 0)
    self.assertEqual([b.conv2.weight.w.shape[3] for b in g.blocks], g_out)
    self.assertEqual([b.conv2.weight.w.shape[3] for b in d.blocks], d_out)
    downs = [True] * num_down + [False] * (len(d_out) - num_down)
    firsts = [True] + [False] * (len(d_out) - 1)
    self.assertEqual([b.conv2.resize == "down" for b in d.blocks], downs)
    self.assertEqual([b.first for b in d.blocks], firsts)


if __name__ == "__main__":
  tf.test.main()
