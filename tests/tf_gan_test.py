"""TF-GAN's losses and distance are ours; collected where TF-GAN imports."""

import numpy as np
import tensorflow as tf
import tensorflow_gan as tfgan
from absl.testing import parameterized

from paragan_tf.game import losses
from paragan_tf.outputs import distances, streaming
from paragan_tf.types import Scores
from tests.distances_test import random_features

NAMES = {
  "hinge": "wasserstein_hinge",
  "non_saturating": "modified",
  "wasserstein": "wasserstein",
  "least_squares": "least_squares",
}


def their_losses(name, real, fake):
  """Returns TF-GAN's losses of D and G, without its label smoothing."""
  wargs = tfgan.losses.wargs
  if name == "relativistic":
    return (
      wargs.relativistic_discriminator_loss(real, fake),
      wargs.relativistic_generator_loss(real, fake),
    )
  options = {"label_smoothing": 0.0} if name == "non_saturating" else {}
  d_loss_fn = getattr(wargs, f"{NAMES[name]}_discriminator_loss")
  g_loss_fn = getattr(wargs, f"{NAMES[name]}_generator_loss")
  return d_loss_fn(real, fake, **options), g_loss_fn(fake, **options)


def our_losses(name, real, fake):
  return tuple(getattr(losses, name)(Scores(real, fake)))


def value_and_gradients(losses_fn, name, player, real, fake):
  """Returns one player's loss and its gradients, zeros where there are none."""
  with tf.GradientTape() as tape:
    tape.watch((real, fake))
    loss = losses_fn(name, real, fake)[player]
  zeros = tf.UnconnectedGradients.ZERO
  return loss, *tape.gradient(loss, (real, fake), unconnected_gradients=zeros)


class LossesTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.product(
    name=[*NAMES, "relativistic"], player=[0, 1], traced=[False, True]
  )
  def test_values_and_gradients_are_equal_bit_for_bit(
    self, name, player, traced
  ):
    fn = value_and_gradients
    if traced:
      fn = tf.function(fn, autograph=False)
    for b in (1, 3, 8, 31, 64):
      rng = np.random.default_rng(b)
      for scale in (1e-2, 1.0, 1e2):
        pair = tf.constant(rng.normal(0, scale, [2, b]), tf.float32)
        ours = fn(our_losses, name, player, pair[0], pair[1])
        theirs = fn(their_losses, name, player, pair[0], pair[1])
        self.assertAllEqual(
          tf.concat([tf.reshape(x, [-1]) for x in ours], 0),
          tf.concat([tf.reshape(x, [-1]) for x in theirs], 0),
        )


class FrechetDistanceTest(tf.test.TestCase):
  def test_agrees_as_far_as_float32_goes(self):
    a, b = random_features(1), random_features(2, n=250)
    theirs = tfgan.eval.frechet_classifier_distance_from_activations(
      tf.constant(a, tf.float32), tf.constant(b, tf.float32)
    )
    self.assertAllClose(distances.frechet_distance(a, b), theirs, rtol=1e-3)


class OtherMetricsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters((250, 64), (1000, 96))
  def test_kernel_distance_of_one_block_is_equal(self, n, d):
    a, b = random_features(1, n, d), random_features(2, n, d)
    theirs = tfgan.eval.kernel_classifier_distance_from_activations(
      tf.constant(a), tf.constant(b)
    )
    ours, deviation = distances.kernel_distance(a, b, n, num_subsets=1)
    self.assertAllClose(ours, theirs, rtol=1e-10, atol=0)
    self.assertEqual(deviation, 0.0)

  def test_kernel_distance_is_theirs_up_to_the_choice_of_subsets(self):
    a, b = (
      np.random.default_rng(i).normal(i / 5, 1.0, [4000, 8]) for i in (0, 1)
    )
    theirs, error = (
      tfgan.eval.kernel_classifier_distance_and_std_from_activations(
        tf.constant(a), tf.constant(b), max_block_size=500
      )
    )
    ours, _ = distances.kernel_distance(a, b, 500, num_subsets=30)
    self.assertNear(ours, float(theirs), 4 * float(error))
    self.assertGreater(ours, 10 * float(error))  # Far from 0.

  @parameterized.parameters(0.1, 1.0, 5.0)
  def test_inception_score_of_one_split_is_equal(self, scale):
    logits = np.random.default_rng(3).normal(0, scale, [500, 30])
    theirs = tfgan.eval.classifier_score_from_logits(tf.constant(logits))
    ours, deviation = streaming.inception_score(logits, num_splits=1)
    self.assertAllClose(ours, theirs, rtol=1e-10, atol=0)
    self.assertEqual(deviation, 0.0)


if __name__ == "__main__":
  tf.test.main()
