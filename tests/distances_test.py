"""Distances have their known values, also where covariances are singular."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import distances
from paragan_tf.outputs.distances import Moments


def gaussian(mean, deviations):
  """A set with exactly this mean and these deviations, uncorrelated.

  Two points on each axis: they add `x^2 + x^2` to its sum of squares, which
  the covariance divides by `n - 1`.
  """
  d = len(deviations)
  x = np.diag(np.asarray(deviations) * np.sqrt((2 * d - 1) / 2))
  return np.concatenate([x, -x]) + mean


def random_features(seed, n=300, d=6, rank=None):
  rng = np.random.RandomState(seed)
  mix = rng.normal(size=(rank or d, d))
  return rng.normal(size=(n, rank or d)) @ mix + rng.normal(size=d)


class FrechetDistanceTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("same", (0, 0), (1, 2), (0, 0), (1, 2), 0.0),
    ("mean", (0, 0), (1, 2), (3, 4), (1, 2), 25.0),
    ("deviation", (0, 0), (1, 2), (0, 0), (4, 2), 9.0),
    ("both", (1, 1), (1, 5), (1, 3), (3, 2), 4 + 4 + 9.0),
    ("flat", (0, 0), (1, 0), (0, 0), (0, 2), 1 + 4.0),
  )
  def test_diagonal_gaussians(self, mean_a, dev_a, mean_b, dev_b, expected):
    """Without correlation it is |mean_a - mean_b|^2 + |dev_a - dev_b|^2."""
    a, b = gaussian(mean_a, dev_a), gaussian(mean_b, dev_b)
    self.assertAllClose(np.cov(a.T), np.diag(np.square(dev_a)))
    self.assertNear(distances.frechet_distance(a, b), expected, 1e-9)

  def test_correlation_counts(self):
    """The same axes' lengths, turned by 45 degrees.

    For A = diag(9, 1) and B = [[5, 4], [4, 5]], (tr (AB)^1/2)^2 is
    tr AB + 2 sqrt(det AB) = 50 + 2 * 9.
    """
    turn = np.array([[1, 1], [-1, 1]]) / np.sqrt(2)
    a = gaussian((0, 0), (3, 1))
    self.assertNear(
      distances.frechet_distance(a, a @ turn), 20 - 2 * np.sqrt(68), 1e-9
    )

  @parameterized.named_parameters(
    ("full_rank", None, 1.0),
    ("dead_features", 3, 1.0),
    ("dead_and_large", 3, 100.0),
  )
  def test_distance_of_a_set_to_itself_is_zero(self, rank, scale):
    a = random_features(0, d=40, rank=rank) * scale
    for other in (a, a[::-1]):
      distance = distances.frechet_distance(a, other)
      self.assertBetween(distance, 0, 1e-6)

  def test_rounding_never_makes_it_negative(self):
    for seed in range(20):
      a = random_features(seed, n=50)
      self.assertBetween(distances.frechet_distance(a, a[::-1]), 0, 1e-9)

  def test_different_null_spaces_lose_no_digits(self):
    axes = np.linalg.qr(random_features(0, n=40, d=40))[0]
    a = random_features(1, d=20) @ axes[:20]
    b = random_features(2, d=20) @ axes[20:]
    apart = np.sum(np.square(a.mean(0) - b.mean(0)))
    apart += np.trace(np.cov(a.T)) + np.trace(np.cov(b.T))
    self.assertNear(distances.frechet_distance(a, b) / apart, 1, 1e-12)

  def test_order_of_the_sets_does_not_matter(self):
    a, b = random_features(1), random_features(2, n=200)
    ab, ba = distances.frechet_distance(a, b), distances.frechet_distance(b, a)
    self.assertNear(ab, ba, 1e-9)
    self.assertGreater(ab, 0.1)

  def test_translation_adds_its_square(self):
    a = random_features(1)
    v = np.array([1.0, -2, 0, 3, 0, 0.5])
    self.assertNear(distances.frechet_distance(a, a + v), 14.25, 1e-9)

  def test_scale_counts_squared(self):
    a, b = random_features(1), random_features(2)
    self.assertNear(
      distances.frechet_distance(3 * a, 3 * b),
      9 * distances.frechet_distance(a, b),
      1e-8,
    )

  @parameterized.named_parameters(
    ("one_row", np.zeros((1, 3)), "shape"),
    ("one_axis", np.zeros(3), "shape"),
    ("other_width", np.zeros((4, 2)), "got 3 and 2"),
    ("nan", np.full((4, 3), np.nan), "4 of 4 rows"),
  )
  def test_refuses(self, b, message):
    with self.assertRaisesRegex(ValueError, message):
      distances.frechet_distance(np.ones((4, 3)), b)


def moments(x):
  return Moments(x.mean(axis=0), np.cov(x.T))


class MomentsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("full_rank", 300, 6, None),
    ("dead_features", 300, 40, 3),
    ("fewer_images_than_features", 20, 60, None),
  )
  def test_moments_and_features_give_the_same(self, n, d, rank):
    a, b = (random_features(seed, n, d, rank) for seed in (1, 2))
    expected = distances.frechet_distance(a, b)
    got = distances.frechet_from_moments(moments(a), moments(b))
    self.assertGreater(expected, 1.0)
    self.assertNear(got / expected, 1, 1e-9)

  def test_different_null_spaces_lose_no_digits(self):
    """Rounding gives each of them variance where the other has all of its."""
    axes = np.linalg.qr(random_features(0, n=80, d=80))[0]
    a = moments(random_features(1, d=40) @ axes[:40])
    b = moments(random_features(2, d=40) @ axes[40:])
    apart = np.sum(np.square(a.mean - b.mean))
    apart += np.trace(a.covariance) + np.trace(b.covariance)
    self.assertNear(distances.frechet_from_moments(a, b) / apart, 1, 1e-12)

  def test_distance_of_moments_to_themselves_is_zero(self):
    for n, d, rank in ((300, 6, None), (300, 40, 3), (20, 60, None)):
      a = moments(100 * random_features(0, n, d, rank))
      self.assertBetween(distances.frechet_from_moments(a, a), 0, 1e-6)

  def test_equals_the_formula_with_a_matrix_root(self):
    from scipy import linalg

    a, b = (moments(random_features(seed, 500, 30)) for seed in (1, 2))
    root = linalg.sqrtm(a.covariance @ b.covariance).real
    expected = np.sum((a.mean - b.mean) ** 2) + np.trace(
      a.covariance + b.covariance - 2 * root
    )
    got = distances.frechet_from_moments(a, b)
    self.assertNear(got / expected, 1, 1e-9)

  def test_other_widths_are_refused(self):
    a, b = moments(random_features(0, d=3)), moments(random_features(0, d=4))
    with self.assertRaisesRegex(ValueError, "got 3 and 4"):
      distances.frechet_from_moments(a, b)


def squared_mmd(x, y):
  """KID's estimate, pair by pair."""

  def kernel(u, v):
    return (sum(p * q for p, q in zip(u, v)) / len(u) + 1) ** 3

  n = len(x)
  pairs = [(i, j) for i in range(n) for j in range(n)]
  within = sum(
    kernel(x[i], x[j]) + kernel(y[i], y[j]) for i, j in pairs if i != j
  )
  across = sum(kernel(x[i], y[j]) for i, j in pairs)
  return within / (n * (n - 1)) - 2 * across / n**2


class KernelDistanceTest(tf.test.TestCase):
  def test_equals_a_sum_over_pairs(self):
    a, b = random_features(1, n=12), random_features(2, n=12)
    value, deviation = distances.kernel_distance(a, b, num_subsets=3)
    self.assertNear(value / squared_mmd(a, b), 1, 1e-10)
    self.assertNear(deviation, 0, 1e-9)  # Each subset is the whole set.

  def test_mean_and_deviation_are_over_subsets(self):
    a, b = random_features(1, n=40), random_features(2, n=30)
    rng = np.random.RandomState(5)
    parts = [
      squared_mmd(
        a[rng.choice(40, 7, replace=False)], b[rng.choice(30, 7, replace=False)]
      )
      for _ in range(4)
    ]
    found = distances.kernel_distance(a, b, 7, 4, seed=5)
    self.assertAllClose(found, (np.mean(parts), np.std(parts)))

  def test_is_without_bias(self):
    """Two halves of one distribution: the mean is 0, some are below it."""
    values = [
      distances.kernel_distance(
        *np.random.RandomState(seed).normal(size=(2, 50, 4)), num_subsets=1
      )[0]
      for seed in range(100)
    ]
    error = np.std(values) / 10
    self.assertBetween(np.mean(values), -3 * error, 3 * error)
    self.assertLess(min(values), 0)

  def test_the_same_seed_gives_the_same(self):
    a, b = random_features(1), random_features(2)
    first, again, other = (
      distances.kernel_distance(a, b, 50, 5, seed) for seed in (1, 1, 2)
    )
    self.assertEqual(first, again)
    self.assertNotEqual(first, other)


class MongeDistanceTest(tf.test.TestCase):
  def test_of_a_set_to_itself_is_zero(self):
    a = random_features(1)
    self.assertNear(distances.monge_distance(a, a[::-1]), 0, 1e-12)

  def test_a_shift_counts_three_times_its_square(self):
    """The mean of (u v)^2 over directions u is |v|^2 / d."""
    a, v = random_features(1), np.array([1.0, -2, 0, 3, 0, 0.5])
    found = distances.monge_distance(a, a + v, num_directions=20000)
    self.assertNear(found / (3 * 14.25), 1, 0.02)

  def test_one_dimension_is_a_sort(self):
    a, b = np.array([[3.0], [1], [2]]), np.array([[0.0], [5], [1]])
    # Sorted: 1, 2, 3 and 0, 1, 5.
    self.assertNear(distances.monge_distance(a, b), 3 * (1 + 1 + 4) / 3, 1e-9)

  def test_the_larger_set_is_reduced(self):
    a = random_features(1, n=200)
    self.assertGreater(distances.monge_distance(a, a[:50]), 0)
    shifted = distances.monge_distance(a, a[:50] + 100.0)
    self.assertNear(shifted / (3 * 6 * 100.0**2), 1, 0.1)


class LabelAgreementTest(tf.test.TestCase):
  def test_returns_the_fraction_that_matches(self):
    logits = np.array([[2, 1, 0], [0, 1, 9], [5, 6, 0], [-1, -3, -2]])
    self.assertEqual(distances.label_agreement(logits, [0, 2, 0, 1]), 0.5)
    self.assertEqual(distances.label_agreement(logits, [0, 2, 1, 0]), 1.0)

  def test_refuses_other_counts(self):
    with self.assertRaisesRegex(ValueError, r"\(4, 3\) and \(1,\)"):
      distances.label_agreement(np.zeros((4, 3)), [0])


class RecognizedTest(tf.test.TestCase):
  def test_a_class_counts_if_it_is_better_than_chance(self):
    # Ten classes of 100: chance is 10, two standard errors are 6.
    hits = [0, 5, 10, 15, 16, 17, 18, 50, 99, 100]
    labels = np.repeat(np.arange(10), 100)
    guesses = np.concatenate(
      [
        np.where(np.arange(100) < n, c, (c + 1) % 10)
        for c, n in enumerate(hits)
      ]
    )
    self.assertEqual(distances.count_recognized(np.eye(10)[guesses], labels), 5)

  def test_one_prediction_for_all_recognizes_one_class(self):
    labels = np.repeat(np.arange(10), 100)
    same = np.eye(10)[np.zeros(1000, int)]
    self.assertEqual(distances.count_recognized(same, labels), 1)


if __name__ == "__main__":
  tf.test.main()
