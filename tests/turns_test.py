"""Each player receives the gradient of its own loss only."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import consistency, losses, turns
from paragan_tf.game.augment import DiffAugment
from paragan_tf.nets import dcgan, linear
from paragan_tf.types import ImageSpec, Mode
from tests import testing

SPECS = (("conditional", testing.SPEC), ("plain", ImageSpec(8, 1, 0)))
SPEC32 = ImageSpec(resolution=32, channels=1, num_classes=3)
BATCH = 6


def d_move(g, d, batch, loss_fn):
  """Returns D's move on frozen fakes of G."""
  return turns.d_move(turns.draw(g, batch, Mode.FROZEN), d, batch, loss_fn)


def g_move(g, d, batch, loss_fn):
  """Returns G's move on its own fakes."""
  return turns.g_move(turns.draw(g, batch, Mode.TRAIN), d, batch, loss_fn)


MOVES = {"d": d_move, "g": g_move}


def mean(x):
  return tf.reduce_mean(x)


# The losses of each player, from the papers.


def hinge_d(real, fake):
  return mean(tf.maximum(0.0, 1.0 - real)) + mean(tf.maximum(0.0, 1.0 + fake))


def hinge_g(real, fake):
  return -mean(fake)


def relativistic_d(real, fake):
  return -mean(tf.math.log(tf.sigmoid(real - mean(fake)))) - mean(
    tf.math.log(1.0 - tf.sigmoid(fake - mean(real)))
  )


def relativistic_g(real, fake):
  return relativistic_d(fake, real)


GAMES = (
  ("hinge_d", losses.hinge, "d", hinge_d),
  ("hinge_g", losses.hinge, "g", hinge_g),
  ("relativistic_d", losses.relativistic, "d", relativistic_d),
  ("relativistic_g", losses.relativistic, "g", relativistic_g),
)


def linear_pair(spec, spectral=False):
  g = linear.Generator(spec, seed=1)
  d = linear.Discriminator(spec, seed=2, spectral=spectral)
  # Large enough for scores on both sides of the hinge.
  d.linear.weight.w.assign(3 * d.linear.weight.w)
  d.linear.bias.assign([0.2])
  return g, d


def dcgan_pair(spectral):
  g = dcgan.Generator(SPEC32, 1, width=2, z_dim=4)
  d = dcgan.Discriminator(SPEC32, 2, width=2, spectral=spectral)
  # Large enough for the statistics of real and fake to differ by much.
  for conv in d.convs:
    conv.weight.w.assign(20 * conv.weight.w)
  return g, d


def by_hand(weights, batch):
  """Returns `(real, fake)` scores of linear nets, as two products each."""
  g_w, g_b, d_w, d_b = weights
  images, labels, z = batch
  flat = tf.reshape(images, [BATCH, -1])
  classes = tf.zeros([BATCH, 0])
  if labels is not None:
    classes = tf.gather(tf.eye(3), labels)
  made = tf.tanh(tf.concat([z, classes], 1) @ g_w + g_b)
  real = tf.concat([flat, classes], 1) @ d_w + d_b
  fake = tf.concat([made, classes], 1) @ d_w + d_b
  return real[:, 0], fake[:, 0]


def name_grads(net, grads):
  """Returns gradients by the names of their variables."""
  return {v.name: grad for v, grad in zip(net.trainable_variables, grads)}


class GradientTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    *(
      (f"{game}_{kind}", loss_fn, player, own_loss, spec)
      for game, loss_fn, player, own_loss in GAMES
      for kind, spec in SPECS
    )
  )
  def test_each_player_receives_the_gradient_of_its_loss(
    self, loss_fn, player, own_loss, spec
  ):
    g, d = linear_pair(spec)
    batch = testing.batch(BATCH, spec)
    move = MOVES[player](g, d, batch, loss_fn)

    weights = [g.linear.weight.w, g.linear.bias, d.linear.weight.w]
    weights = [tf.constant(w) for w in (*weights, d.linear.bias)]
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = own_loss(*by_hand(weights, batch))
    grads = tape.gradient(loss, weights)
    w_grad, b_grad = grads[:2] if player == "g" else grads[2:]
    if b_grad is None:  # A relativistic D does not feel its bias.
      b_grad = [0.0]
    self.assertAllClose(move.loss, loss, rtol=1e-5)
    ours = name_grads({"g": g, "d": d}[player], move.grads)
    expected = {
      f"{player}/linear/weight/w:0": w_grad,
      f"{player}/linear/b:0": b_grad,
    }
    self.assertCountEqual(ours, expected)
    for name, grad in expected.items():
      self.assertAllClose(ours[name], grad, rtol=1e-4, atol=1e-6)
    self.assertGreater(np.abs(w_grad).max(), 1e-3)

  @parameterized.named_parameters(("classes", "ac"), ("contrast", "2c"))
  def test_heads_without_a_due_penalty_have_zero_gradient(self, conditioning):
    g = dcgan.Generator(SPEC32, 1, width=2, z_dim=4)
    d = dcgan.Discriminator(SPEC32, 2, width=2, conditioning=conditioning)
    batch = testing.batch(BATCH, SPEC32)
    grads = name_grads(d, d_move(g, d, batch, losses.hinge).grads)
    for variable in d.trainable_variables:
      self.assertEqual(grads[variable.name].shape, variable.shape)
    zero = [name for name, x in grads.items() if not np.any(x)]
    head = ("classes", "place", "embedding")
    expected = [name for name in grads if name.split("/")[1] in head]
    self.assertNotEmpty(expected)
    self.assertContainsSubset(expected, zero)
    self.assertTrue(np.any(grads["d/linear/weight/w:0"]))

  @parameterized.named_parameters(("d", "d"), ("g", "g"))
  def test_a_small_step_against_the_gradient_lowers_the_loss(self, player):
    g, d = dcgan_pair(spectral=True)
    batch = testing.batch(BATCH, SPEC32)
    net = {"g": g, "d": d}[player]
    move = MOVES[player](g, d, batch, losses.non_saturating)
    norm = tf.linalg.global_norm(move.grads)
    for variable, grad in zip(net.trainable_variables, move.grads):
      variable.assign_sub(1e-2 * grad / norm)
    after = MOVES[player](g, d, batch, losses.non_saturating)
    self.assertLess(after.loss, move.loss)


class StateTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("d_spectral", "d", True),
    ("d_batch_norm", "d", False),
    ("g_spectral", "g", True),
    ("g_batch_norm", "g", False),
  )
  def test_only_the_state_of_the_training_player_changes(
    self, player, spectral
  ):
    nets = dict(zip("gd", dcgan_pair(spectral)))
    before = {who: testing.values(net.variables) for who, net in nets.items()}
    batch = testing.batch(BATCH, SPEC32)
    MOVES[player](nets["g"], nets["d"], batch, losses.hinge)
    for who, net in nets.items():
      for variable, old in zip(net.variables, before[who]):
        still = who != player or variable.trainable
        # A vector of one entry has length one before and after.
        still = still or variable.shape.num_elements() == 1
        self.assertEqual(np.array_equal(variable, old), still, variable.name)

  def test_a_turn_of_d_runs_one_power_iteration(self):
    g, d = dcgan_pair(spectral=True)
    _, twin = dcgan_pair(spectral=True)
    batch = testing.batch(BATCH, SPEC32)
    d_move(g, d, batch, losses.hinge)
    twin(batch.images, batch.labels, Mode.TRAIN)
    for ours, theirs in zip(d.variables, twin.variables):
      self.assertAllClose(ours, theirs, rtol=1e-5, atol=1e-6)


def two_passes(g, d, batch, loss_fn, modes):
  """Returns D's move with separate passes for real and fake images."""
  fake = g(batch.z, batch.labels, Mode.FROZEN)
  with tf.GradientTape() as tape:
    real_scores = d(batch.images, batch.labels, modes[0])
    fake_scores = d(fake, batch.labels, modes[1])
    loss = loss_fn(turns.Scores(real_scores, fake_scores)).d
  return turns.Move(loss, tape.gradient(loss, d.trainable_variables))


class ReuseTest(tf.test.TestCase):
  def test_g_can_reuse_the_fakes_of_d(self):
    g, d = dcgan_pair(spectral=True)
    batch = testing.batch(BATCH, SPEC32)
    fakes = turns.draw(g, batch, Mode.FROZEN)
    d_grads = turns.d_move(fakes, d, batch, losses.hinge).grads
    for variable, grad in zip(d.trainable_variables, d_grads):
      variable.assign_sub(1e-2 * grad)
    reused = turns.g_move(fakes, d, batch, losses.hinge)
    fresh = g_move(g, d, batch, losses.hinge)
    self.assertAllClose(reused.loss, fresh.loss, rtol=1e-5)
    for ours, theirs in zip(reused.grads, fresh.grads):
      self.assertAllClose(ours, theirs, rtol=1e-4, atol=1e-6)


class PassTest(tf.test.TestCase, parameterized.TestCase):
  def assert_same_move(self, one, other):
    self.assertAllClose(one.loss, other.loss, rtol=1e-5)
    for ours, theirs in zip(one.grads, other.grads):
      self.assertAllClose(ours, theirs, rtol=1e-4, atol=1e-6)

  @parameterized.named_parameters(
    *(
      (f"{kind}_{norm}", spec, norm == "spectral")
      for kind, spec in SPECS
      for norm in ("spectral", "free")
    )
  )
  def test_one_pass_over_both_equals_two(self, spec, spectral):
    # For one output the power iteration is exact: a second one changes nothing.
    g, d = linear_pair(spec, spectral)
    batch = testing.batch(BATCH, spec)
    modes = (Mode.FROZEN, Mode.FROZEN)
    for loss_fn in (losses.hinge, losses.relativistic):
      expected = two_passes(g, d, batch, loss_fn, modes)
      self.assert_same_move(d_move(g, d, batch, loss_fn), expected)

  @parameterized.parameters(
    (True, [Mode.TRAIN]), (False, [Mode.TRAIN, Mode.FROZEN])
  )
  def test_one_pass_sets_the_number_of_passes(self, one_pass, expected):
    g, d = linear_pair(SPECS[0][1], spectral=True)
    batch = testing.batch(BATCH, SPECS[0][1])
    fakes = turns.draw(g, batch, Mode.FROZEN)
    terms = turns.LossTerms(one_pass=one_pass)
    with mock.patch.object(d, "judge", wraps=d.judge) as judge:
      turns.d_move(fakes, d, batch, losses.hinge, terms)
    self.assertEqual([call.args[2] for call in judge.mock_calls], expected)

  def test_real_and_fake_images_have_separate_batch_statistics(self):
    g, d = dcgan_pair(spectral=False)
    _, twin = dcgan_pair(spectral=False)
    batch = testing.batch(BATCH, SPEC32)
    modes = (Mode.TRAIN, Mode.FROZEN)
    expected = two_passes(g, twin, batch, losses.hinge, modes)
    move = d_move(g, d, batch, losses.hinge)
    self.assert_same_move(move, expected)

    fake = g(batch.z, batch.labels, Mode.FROZEN)
    both = tf.concat([batch.images, fake], 0)
    labels = tf.concat([batch.labels, batch.labels], 0)
    scores = turns.Scores(*tf.split(d(both, labels, Mode.FROZEN), 2))
    self.assertNotAllClose(losses.hinge(scores).d, move.loss, rtol=1e-3)

  def test_stored_statistics_are_those_of_real_images(self):
    g, d = dcgan_pair(spectral=False)
    _, twin = dcgan_pair(spectral=False)
    _, misled = dcgan_pair(spectral=False)
    batch = testing.batch(BATCH, SPEC32)
    d_move(g, d, batch, losses.hinge)
    twin(batch.images, batch.labels, Mode.TRAIN)
    misled(g(batch.z, batch.labels, Mode.FROZEN), batch.labels, Mode.TRAIN)
    nets = (d, twin, misled)
    for state in zip(*(net.non_trainable_variables for net in nets)):
      self.assertAllClose(state[0], state[1], rtol=1e-5, atol=1e-7)
      self.assertNotAllClose(state[0], state[2], rtol=1e-3, atol=1e-7)


class TermsTest(tf.test.TestCase):
  def test_new_samples_are_augmented_as_the_fakes(self):
    g = linear.Generator(testing.SPEC, 0)
    d = linear.Discriminator(testing.SPEC, 0)
    batch = testing.batch(4)
    close = consistency.LatentConsistency(
      d_weight=1e3, g_weight=1e3, deviation=1e-4
    )
    for move in (turns.d_move, turns.g_move):
      costs = []
      for terms in ((close,), ()):
        terms = turns.LossTerms(
          terms, DiffAugment(), g, 3, tf.constant(5, tf.int64)
        )
        fakes = turns.draw(g, batch, Mode.FROZEN)
        costs.append(move(fakes, d, batch, losses.hinge, terms).loss)
      self.assertAllClose(costs[0], costs[1], atol=1e-2)


if __name__ == "__main__":
  tf.test.main()
