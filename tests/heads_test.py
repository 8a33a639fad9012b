"""What each kind of head says of features."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.nets import heads, layers
from paragan_tf.types import ImageSpec, Mode
from tests import testing

INIT = layers.normal_init(0.5, seed=3)
CLASSES, FEATURES = 3, 4
SPEC = ImageSpec(32, 1, CLASSES)
X = np.random.RandomState(0).randn(5, FEATURES).astype(np.float32)
LABELS = np.array([0, 2, 1, 2, 0], np.int32)


def make(conditioning, spec=SPEC, **options):
  return heads.Head(FEATURES, spec, INIT, False, conditioning, **options)


class HeadTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.one_logit = lambda head: (X @ head.linear.weight.w.numpy())[:, 0]

  def test_none_asks_for_no_label(self):
    head = make("none")
    verdict = head(X, None, Mode.FROZEN)
    self.assertAllClose(verdict.logits, self.one_logit(head))
    self.assertAllEqual(verdict.features, X)
    self.assertEqual(verdict[2:], (None, None, None))

  def test_projection_adds_the_product_with_the_label(self):
    head = make("projection")
    verdict = head(X, LABELS, Mode.FROZEN)
    rows = head.embedding.weight.w.numpy()[LABELS]
    expected = self.one_logit(head) + np.sum(X * rows, 1)
    self.assertAllClose(verdict.logits, expected)
    self.assertGreater(np.abs(expected - self.one_logit(head)).min(), 1e-3)
    self.assertEqual(verdict[2:], (None, None, None))

  def test_ac_names_the_classes(self):
    head = make("ac")
    verdict = head(X, LABELS, Mode.FROZEN)
    self.assertAllClose(verdict.logits, self.one_logit(head))
    self.assertAllClose(verdict.classes, X @ head.classes.weight.w.numpy())
    self.assertEqual(verdict.classes.shape, [5, CLASSES])
    self.assertEqual(verdict[3:], (None, None))

  @parameterized.named_parameters(("features", None, 4), ("given", 7, 7))
  def test_2c_puts_images_and_labels_on_a_sphere(self, embedding_dim, size):
    head = make("2c", embedding_dim=embedding_dim)
    verdict = head(X, LABELS, Mode.FROZEN)
    self.assertAllClose(verdict.logits, self.one_logit(head))

    def unit(x):
      return x / np.linalg.norm(x, axis=1, keepdims=True)

    vectors = X @ head.to_embedding.weight.w.numpy()
    proxy = head.embedding.weight.w.numpy()[LABELS]
    self.assertEqual(verdict.embedding.shape, [5, size])
    self.assertAllClose(verdict.embedding, unit(vectors))
    self.assertAllClose(verdict.proxy, unit(proxy))

  @parameterized.named_parameters(
    ("classes", 3, "projection"), ("none", 0, "none")
  )
  def test_by_default_classes_decide(self, num_classes, conditioning):
    head = make(None, SPEC._replace(num_classes=num_classes))
    self.assertEqual(head.conditioning, conditioning)

  @parameterized.named_parameters(*((c, c) for c in heads.CONDITIONINGS[1:]))
  def test_missing_classes_are_refused(self, conditioning):
    with self.assertRaisesRegex(
      ValueError, f"`num_classes`.*{conditioning}.*got 0"
    ):
      make(conditioning, SPEC._replace(num_classes=0))

  @parameterized.parameters(-3, 0)
  def test_an_embedding_without_entries_is_refused(self, size):
    with self.assertRaisesRegex(ValueError, f"`embedding_dim`.*got {size}"):
      make("2c", embedding_dim=size)

  def test_an_unknown_conditioning_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`conditioning`.*got 'magic'"):
      make("magic")


if __name__ == "__main__":
  testing.main()
