"""Precision, recall, density and coverage equal their definitions."""

import tracemalloc

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import neighbors


def draw(seed, n, d=8, scale=1.0):
  return scale * np.random.RandomState(seed).normal(size=(n, d))


def brute_force(real, fake):
  """The four numbers, point by point, in float64."""

  def distance(a, b):
    return np.sqrt(np.sum((a - b) ** 2))

  def radius(points, i, k):
    others = [distance(points[i], p) for j, p in enumerate(points) if j != i]
    return sorted(others)[k - 1]

  def inside(balls, k, point):
    return [
      distance(point, b) <= radius(balls, i, k) for i, b in enumerate(balls)
    ]

  near = np.array([inside(real, 5, f) for f in fake])  # `[fake, real]`.
  return neighbors.Neighbors(
    precision=np.mean([any(inside(real, 3, f)) for f in fake]),
    recall=np.mean([any(inside(fake, 3, r)) for r in real]),
    density=near.sum() / (5 * len(fake)),
    coverage=near.any(axis=0).mean(),
  )


class NeighborsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("alike", 1.0, 0.0), ("narrow", 0.5, 0.0), ("wide", 2.0, 0.0), ("off", 1, 1)
  )
  def test_equals_the_definitions(self, scale, shift):
    real, fake = draw(0, 23), draw(1, 17, scale=scale) + shift
    found = neighbors.compare(real, fake)
    self.assertAllClose(found, brute_force(real, fake), rtol=1e-12)
    self.assertNotIn(found.density, (0, 1))

  def test_blocks_do_not_matter(self):
    real, fake = draw(0, 53), draw(1, 47, scale=0.9)
    whole = neighbors.compare(real, fake)
    size = neighbors._BLOCK
    self.addCleanup(setattr, neighbors, "_BLOCK", size)
    neighbors._BLOCK = 10
    self.assertEqual(neighbors.compare(real, fake), whole)

  def test_the_same_set_has_all(self):
    x = draw(0, 50)
    found = neighbors.compare(x, x)
    self.assertEqual(found[:2], (1, 1))
    self.assertEqual(found.coverage, 1)
    # Each ball has its center and five neighbors.
    self.assertNear(found.density, 6 / 5, 1e-9)

  def test_sets_far_apart_have_nothing(self):
    self.assertAllEqual(
      neighbors.compare(draw(0, 50), draw(1, 50) + 100), [0] * 4
    )

  def test_a_single_mode_has_precision_and_no_recall(self):
    real = np.concatenate([draw(0, 100), draw(1, 100) + 50])
    found = neighbors.compare(real, draw(2, 100))
    self.assertGreater(found.precision, 0.8)
    self.assertBetween(found.recall, 0.3, 0.5)
    self.assertBetween(found.coverage, 0.3, 0.5)

  def test_a_far_offset_loses_no_digits(self):
    real, fake = draw(0, 60), draw(1, 60, scale=0.8)
    self.assertEqual(
      neighbors.compare(real + 1e4, fake + 1e4), neighbors.compare(real, fake)
    )

  def test_memory_is_that_of_blocks(self):
    n, d = 3000, 16
    real, fake = (draw(i, n, d).astype(np.float32) for i in (0, 1))
    tracemalloc.start()
    neighbors.compare(real, fake)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # One matrix of all distances in float64 would be 72 MB; a block has 12 MB.
    self.assertBetween(peak, 12e6, 48e6)

  def test_too_few_points_are_refused(self):
    with self.assertRaisesRegex(ValueError, "At least 6 .* got 9 and 5"):
      neighbors.compare(draw(0, 9), draw(1, 5))

  def test_nan_is_refused(self):
    fake = draw(1, 9)
    fake[3, 2] = np.nan
    with self.assertRaisesRegex(ValueError, "`fake` must be finite, 1 of 9"):
      neighbors.compare(draw(0, 9), fake)


if __name__ == "__main__":
  tf.test.main()
