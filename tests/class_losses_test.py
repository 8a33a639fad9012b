"""Class losses by hand; penalties_test has the tests of all penalties."""

from math import cos, exp, log

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import class_losses, penalties
from paragan_tf.types import Batch, Verdict
from tests import testing


def view(who, real, fake, real_labels, fake_labels):
  """Returns a view of D's outputs and labels only."""
  batch = Batch(None, real_labels, None)
  return penalties.View(
    who, None, None, batch, None, fake_labels, real, fake, 7, None
  )


def cross_entropy(logits, label):
  return log(sum(exp(x) for x in logits)) - logits[label]


REAL, REAL_LABELS = [[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], [0, 2]
FAKE, FAKE_LABELS = [[0.0, 0.0, 3.0], [1.0, -1.0, 0.0]], [1, 0]
REAL_LOSS = np.mean([cross_entropy(*p) for p in zip(REAL, REAL_LABELS)])
FAKE_LOSS = np.mean([cross_entropy(*p) for p in zip(FAKE, FAKE_LABELS)])


class AuxiliaryClassifierTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("d", "d", True, REAL_LOSS + FAKE_LOSS),
    ("d_on_real", "d", False, REAL_LOSS),
    ("g", "g", True, FAKE_LOSS),
    ("g_either_way", "g", False, FAKE_LOSS),
  )
  def test_each_player_has_the_loss_of_its_images(
    self, who, with_fakes, expected
  ):
    made = class_losses.AuxiliaryClassifier(2.0, with_fakes)
    verdicts = [Verdict(None, classes=tf.constant(x)) for x in (REAL, FAKE)]
    labels = [tf.constant(y) for y in (REAL_LABELS, FAKE_LABELS)]
    value = made(view(who, *verdicts, *labels))
    self.assertAllClose(value, 2.0 * expected, rtol=1e-5)


def make_verdict(angles, proxy_angles):
  """Returns embeddings and proxies on the unit circle."""

  def circle(angles):
    return tf.constant([[np.cos(a), np.sin(a)] for a in angles], tf.float32)

  return Verdict(None, embedding=circle(angles), proxy=circle(proxy_angles))


class ContrastiveTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(("warm", 1.0), ("cold", 0.1))
  def test_value_equals_the_formula(self, t):
    # Images 0 and 2 are of one class, image 1 is alone with its proxy.
    verdict = make_verdict([0.0, 1.0, 2.5], [0.3, 1.2, 0.3])
    near = {  # Each to its proxy, then to the others by angle.
      0: (exp(cos(0.3) / t), {1: exp(cos(1.0) / t), 2: exp(cos(2.5) / t)}),
      1: (exp(cos(0.2) / t), {0: exp(cos(1.0) / t), 2: exp(cos(1.5) / t)}),
      2: (exp(cos(2.2) / t), {0: exp(cos(2.5) / t), 1: exp(cos(1.5) / t)}),
    }
    friends = {0: [2], 1: [], 2: [0]}
    terms = [
      -log(
        (proxy + sum(others[k] for k in friends[i]))
        / (proxy + sum(others.values()))
      )
      for i, (proxy, others) in near.items()
    ]
    made = class_losses.Contrastive(weight=2.0, temperature=t)
    labels = tf.constant([4, 7, 4])
    value = made(view("d", verdict, None, labels, None))
    self.assertAllClose(value, 2.0 * np.mean(terms), rtol=1e-5)
    # G has the same loss on its fakes.
    value = made(view("g", None, verdict, None, labels))
    self.assertAllClose(value, 2.0 * np.mean(terms), rtol=1e-5)

  def test_loss_of_one_class_is_zero(self):
    verdict = make_verdict([0.0, 1.0, 2.5], [0.3] * 3)
    labels = tf.constant([1, 1, 1])
    value = class_losses.Contrastive()(view("d", verdict, None, labels, None))
    self.assertAllClose(value, 0.0, atol=1e-6)

  def test_loss_of_one_image_is_zero(self):
    verdict = make_verdict([0.0], [0.3])
    labels = tf.constant([1])
    value = class_losses.Contrastive()(view("d", verdict, None, labels, None))
    self.assertAllClose(value, 0.0, atol=1e-6)

  def test_a_low_temperature_stays_finite(self):
    x = tf.Variable([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    with tf.GradientTape() as tape:
      loss = class_losses.contrastive_loss(x, -x, tf.constant([0, 1, 0]), 1e-3)
    # Image 0: its proxy at -1 and its friend at 0 against image 1 at -1.
    # Image 1: its proxy at -1 against others at -1 and 0, 1 / t apart.
    # Image 2: its proxy at -1, friend at 0 against image 1 at 0: log 2.
    self.assertAllClose(loss, (0 + 1000 + log(2)) / 3, rtol=1e-5)
    self.assertTrue(np.all(np.isfinite(tape.gradient(loss, x))))


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("classifier", class_losses.AuxiliaryClassifier, {"weight": -1.0}),
    ("contrastive", class_losses.Contrastive, {"weight": -1.0}),
    ("temperature", class_losses.Contrastive, {"temperature": 0.0}),
    ("cold", class_losses.Contrastive, {"temperature": -1.0}),
  )
  def test_bad_values_are_refused(self, make, options):
    ((name, value),) = options.items()
    message = f"`{name}` must be above 0, got {value}"
    with self.assertRaisesRegex(ValueError, message):
      make(**options)

  @parameterized.named_parameters(
    ("classifier", class_losses.AuxiliaryClassifier, "classes"),
    ("contrastive", class_losses.Contrastive, "embedding"),
  )
  def test_a_d_without_a_head_is_refused(self, make, what):
    labels = tf.constant([1])
    with self.assertRaisesRegex(ValueError, f"needs D's output `{what}`"):
      make()(view("d", Verdict(None), Verdict(None), labels, labels))

  @parameterized.named_parameters(
    ("classifier", class_losses.AuxiliaryClassifier),
    ("contrastive", class_losses.Contrastive),
  )
  def test_data_without_labels_is_refused(self, make):
    for who in "dg":
      with self.assertRaisesRegex(
        ValueError, f"`{make.__name__}` needs labels"
      ):
        make()(view(who, Verdict(None), Verdict(None), None, None))


if __name__ == "__main__":
  testing.main()
