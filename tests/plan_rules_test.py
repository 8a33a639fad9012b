"""The rules of a plan, by hand."""

import math

from absl.testing import absltest, parameterized

from paragan_tf.engine.scaling import rules
from paragan_tf.engine.scaling.rules import Prefetch, Split


class RulesTest(parameterized.TestCase):
  @parameterized.parameters(
    (2048, 128, math.inf, 1, Split(16, 1)),
    (2048, 128, 16, 1, Split(16, 1)),
    (2048, 128, 15.9, 1, Split(8, 2)),
    (48, 2, 20, 1, Split(12, 2)),
    (48, 2, 20, 8, Split(8, 3)),  # 12 fits, 8 fills tiles.
    (2048, 128, 4, 8, Split(4, 4)),  # Nothing that fits fills tiles.
    (7, 7, 1, 1, Split(1, 1)),
  )
  def test_a_share_is_split_into_the_fewest_parts_that_fit(
    self, bs, num_workers, fits, tile, expected
  ):
    found = rules.split_batch(bs, num_workers, fits, tile)
    self.assertEqual(found, expected)
    self.assertEqual(found.batch * found.accumulate * num_workers, bs)
    self.assertLessEqual(found.batch, fits)

  @parameterized.parameters(
    (10, 4, "multiple of `num_workers`, got 10 and 4: .* take 8 or 12"),
    (2, 4, "`bs` must be at least `num_workers`, got 2 and 4"),
    (8, 0, "`num_workers` must be an integer above 0, got 0"),
    (0, 1, "`bs` must be an integer above 0, got 0"),
    (8, 2.0, "`num_workers` must be an integer"),
  )
  def test_shares_that_are_none_are_refused(self, bs, num_workers, words):
    with self.assertRaisesRegex(ValueError, words):
      rules.split_batch(bs, num_workers)

  def test_a_batch_beyond_memory_is_refused(self):
    with self.assertRaisesRegex(ValueError, "memory takes 0.5 images"):
      rules.split_batch(8, 4, max_batch=0.5)

  @parameterized.parameters(
    (1e9, 1e6, 2e9, 800.0),  # (0.9 * 2e9 - 1e9) / 1e6
    (1e9, 0.0, 2e9, math.inf),
    (1e9, 1e6, 0, math.inf),
    (2e9, 1e6, 2e9, 0.0),
  )
  def test_a_tenth_of_the_memory_stays_free(
    self, fixed, per_image, limit, expected
  ):
    self.assertAlmostEqual(rules.max_batch(fixed, per_image, limit), expected)

  @parameterized.parameters(
    ("linear", 256, 64, 0.0, 4.0),
    ("sqrt", 256, 64, 0.0, 2.0),
    ("none", 256, 64, 0.0, 1.0),
    ("linear", 32, 64, 0.0, 0.5),
    # (1 + 64 / 64) / (1 + 64 / 192) = 1.5 and not 3.
    ("linear", 192, 64, 64.0, 1.5),
    ("sqrt", 192, 64, 64.0, math.sqrt(1.5)),
  )
  def test_rates_by_hand(self, rule, batch, base, noise, expected):
    found = rules.rate_factor(rule, batch, base, noise)
    self.assertAlmostEqual(found, expected)

  def test_the_noise_scale_bounds_the_rate(self):
    found = [rules.rate_factor("linear", 2**k, 64, 512.0) for k in range(6, 30)]
    self.assertEqual(found, sorted(found))
    self.assertLess(max(found), 1 + 512 / 64)
    self.assertAlmostEqual(
      rules.rate_factor("linear", 256, 64, 1e12), 4.0, places=6
    )

  @parameterized.parameters(
    ("cubic", 1, 1, 0.0, "`rate_rule` must be one of linear, sqrt, none"),
    ("linear", 0, 1, 0.0, "Batches must be above 0"),
    ("linear", 1, 1, -1.0, "`noise_scale` at least 0"),
  )
  def test_rates_that_are_none_are_refused(self, *args):
    with self.assertRaisesRegex(ValueError, args[-1]):
      rules.rate_factor(*args[:-1])

  @parameterized.parameters(
    (1.0, 10000, 0), (0.5, 10000, 0), (2.0, 10000, 500), (2.0, 10**6, 1000)
  )
  def test_a_raised_rate_warms_up(self, factor, num_updates, expected):
    self.assertEqual(rules.warm_up_steps(factor, num_updates), expected)

  @parameterized.parameters(
    ((1, 1), 8, 4, True),
    ((1, 1), 8, 3, False),  # No whole groups.
    ((2, 1), 12, 3, True),  # G 6 each, D 12 of 2 sources.
    ((2, 1), 9, 3, False),  # 2 of G do not share 9.
    ((2, 1), 10, 6, False),
    ((2, 2), 8, 4, True),
  )
  def test_roles_must_share_the_batch(self, roles, batch, num, expected):
    self.assertEqual(rules.fits_roles(roles, batch, num), expected)

  def test_a_slow_input_follows_the_steps(self):
    self.assertEqual(rules.plan_prefetch(100.0, 200.0, 4e9), Prefetch())
    self.assertEqual(rules.plan_prefetch(100.0, 0.0, 4e9), Prefetch())
    found = rules.plan_prefetch(100.0, 199.0, 4e9)
    self.assertEqual(found, Prefetch(True, 4, 10**9))
    self.assertEqual(rules.plan_prefetch(100.0, 199.0, None).max_bytes, 0)


if __name__ == "__main__":
  absltest.main()
