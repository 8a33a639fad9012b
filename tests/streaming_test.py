"""Sums over batches do not depend on the batches, nor grow with them."""

import tracemalloc

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import streaming


def draw(n=101, d=5, offset=0.0):
  rng = np.random.RandomState(0)
  return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + offset


def add_all(sums, x, size):
  for i in range(0, len(x), size):
    sums.add(x[i : i + size])
  return sums.result()


class MomentSumsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(1, 7, 100, 101)
  def test_equals_the_moments_of_all(self, size):
    x = draw()
    mean, covariance = add_all(streaming.MomentSums(), x, size)
    self.assertAllClose(mean, x.mean(axis=0), rtol=1e-12, atol=1e-12)
    self.assertAllClose(covariance, np.cov(x.T), rtol=1e-12, atol=1e-12)

  def test_order_does_not_matter(self):
    x = draw()
    first = add_all(streaming.MomentSums(), x, 10)
    again = add_all(streaming.MomentSums(), x[::-1], 13)
    for a, b in zip(first, again):
      self.assertAllClose(a, b, rtol=1e-12, atol=1e-12)

  def test_a_far_offset_loses_no_digits(self):
    """The mean of squares would: 1e14 has two digits below 1."""
    near = add_all(streaming.MomentSums(), draw(), 10)
    far = add_all(streaming.MomentSums(), draw(offset=1e7), 10)
    self.assertAllClose(near.covariance, far.covariance, rtol=1e-6, atol=1e-6)

  def test_float32_features_are_summed_in_float64(self):
    x = draw(offset=100.0).astype(np.float32)
    _, covariance = add_all(streaming.MomentSums(), x, 10)
    expected = np.cov(x.T.astype(np.float64))
    self.assertAllClose(covariance, expected, rtol=1e-10, atol=1e-10)

  def test_memory_does_not_grow_with_images(self):
    def peak(num_batches):
      sums, batch = streaming.MomentSums(), np.ones((50, 100))
      tracemalloc.start()
      for _ in range(num_batches):
        sums.add(batch)
      found = tracemalloc.get_traced_memory()[1]
      tracemalloc.stop()
      return found

    self.assertBetween(peak(200) / peak(4), 0.9, 1.1)

  def test_one_image_has_no_covariance(self):
    sums = streaming.MomentSums()
    sums.add(np.zeros((1, 3)))
    with self.assertRaisesRegex(ValueError, "At least 2 images .* got 1"):
      sums.result()


class ScoreTest(tf.test.TestCase, parameterized.TestCase):
  def test_sure_and_even_classes_score_their_number(self):
    logits = 50.0 * np.eye(4)[np.arange(80) % 4]
    self.assertAllClose(streaming.inception_score(logits), (4.0, 0.0))

  def test_no_knowledge_and_one_class_score_one(self):
    for logits in (np.zeros((40, 5)), np.tile([9.0, 0, 0, 0, 0], (40, 1))):
      self.assertAllClose(streaming.inception_score(logits), (1.0, 0.0))

  def test_equals_the_definition(self):
    logits = np.random.RandomState(0).normal(size=(60, 7))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    scores = []
    for part in np.split(p, 3):
      mean = part.mean(axis=0)
      scores.append(np.exp(np.mean(np.sum(part * np.log(part / mean), 1))))
    found = streaming.inception_score(logits, num_splits=3)
    self.assertAllClose(found, (np.mean(scores), np.std(scores)), rtol=1e-12)

  @parameterized.parameters(1, 9, 64)
  def test_batches_do_not_matter(self, size):
    logits = np.random.RandomState(1).normal(size=(64, 3))
    found = add_all(streaming.ScoreSums(64, 5), logits, size)
    whole = add_all(streaming.ScoreSums(64, 5), logits, 64)
    self.assertAllClose(found, whole, rtol=1e-12)
    self.assertLen(found, 5)

  def test_large_logits_do_not_overflow(self):
    logits = 1e4 * np.eye(3)[np.arange(30) % 3]
    self.assertAllClose(streaming.inception_score(logits, 1)[0], 3.0)


class KeptRowsTest(tf.test.TestCase):
  def keep(self, count, most, size):
    kept = streaming.KeptRows(count, most)
    return kept.rows, add_all(kept, np.arange(count)[:, None], size)[:, 0]

  def test_keeps_all_if_they_are_few(self):
    rows, found = self.keep(20, 20, 7)
    self.assertAllEqual(rows, np.arange(20))
    self.assertAllEqual(found, np.arange(20))

  def test_keeps_the_same_rows_for_all_batches(self):
    rows, found = self.keep(100, 30, 9)
    self.assertAllEqual(rows, found)
    self.assertAllEqual(self.keep(100, 30, 100)[1], found)
    self.assertLen(set(found), 30)

  def test_rows_are_from_the_whole_set(self):
    rows, _ = self.keep(1000, 100, 100)
    counts = np.histogram(rows, 4, (0, 1000))[0]
    self.assertGreater(counts.min(), 10)


if __name__ == "__main__":
  tf.test.main()
