"""Random numbers depend on seed, step and purpose, not on replicas."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import noise
from tests import testing

KEY = {"seed": 7, "step": 11, "purpose": "z0"}


def draw(shape, **changes):
  key = {**KEY, **changes}
  key["step"] = tf.constant(key["step"], tf.int64)
  return noise.normal(shape, **key)


class NoiseTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("codes", [3, 5]), ("one_row", [1, 4]), ("images", [2, 4, 4, 3])
  )
  def test_shards_together_equal_one_draw(self, shape):
    parts = testing.run_on_replicas(lambda: draw(shape))
    for part in parts:
      self.assertEqual(part.shape, tuple(shape))
    whole = draw([testing.NUM_REPLICAS * shape[0], *shape[1:]])
    # The bits are the same; a logarithm's last one may depend on its place
    # among those computed together.
    self.assertAllClose(np.concatenate(parts), whole, rtol=1e-6, atol=1e-6)

  def test_rows_are_unique(self):
    parts = testing.run_on_replicas(lambda: draw([3, 5]))
    rows = np.concatenate(parts)
    self.assertLen(np.unique(rows, axis=0), 3 * testing.NUM_REPLICAS)

  def test_the_same_key_draws_the_same(self):
    tf.random.set_seed(1)
    first = draw([4, 3])
    tf.random.set_seed(2)
    self.assertAllEqual(draw([4, 3]), first)

  @parameterized.named_parameters(("traced", False), ("compiled", True))
  def test_a_graph_draws_the_same(self, jit_compile):
    graph = tf.function(
      lambda step: noise.normal([40, 3], 7, step, "z0"), jit_compile=jit_compile
    )
    ours = graph(tf.constant(11, tf.int64))
    self.assertAllClose(ours, draw([40, 3]), rtol=1e-5, atol=1e-5)

  @parameterized.named_parameters(
    ("step", {"step": 12}),
    ("first_step", {"step": 0}),
    ("purpose", {"purpose": "z1"}),
    ("seed", {"seed": 8}),
    ("seed_of_zero", {"seed": 0}),
    ("step_and_seed_swapped", {"step": 7, "seed": 11}),
  )
  def test_other_keys_are_uncorrelated(self, changes):
    ours, theirs = draw([4000]), draw([4000], **changes)
    self.assertLess(abs(np.corrcoef(ours, theirs)[0, 1]), 0.06)
    self.assertFalse(np.any(np.equal(ours, theirs)))

  def test_draws_are_standard_normal(self):
    x = draw([20000]).numpy()
    self.assertAllClose(x.mean(), 0.0, atol=0.03)
    self.assertAllClose(x.std(), 1.0, atol=0.03)
    self.assertAllClose((x**3).mean(), 0.0, atol=0.1)
    self.assertAllClose((x**4).mean(), 3.0, atol=0.2)
    # Of a normal variable 68.3 % lie within one deviation, 95.4 % within two.
    self.assertAllClose((np.abs(x) < 1).mean(), 0.683, atol=0.015)
    self.assertAllClose((np.abs(x) < 2).mean(), 0.954, atol=0.008)

  @parameterized.named_parameters(
    ("neighbors", 1), ("codes", 128), ("batches", 8192)
  )
  def test_positions_are_uncorrelated(self, lag):
    x = draw([20000]).numpy()
    for y in (x, x**2):
      correlation = np.corrcoef(y[:-lag], y[lag:])[0, 1]
      self.assertLess(abs(correlation), 5 / (len(x) - lag) ** 0.5)

  def test_steps_are_uncorrelated(self):
    x = np.array([draw([500], step=step) for step in range(40)])
    for y in (x, x**2):
      now, then = y[:-1].reshape([-1]), y[1:].reshape([-1])
      correlation = np.corrcoef(now, then)[0, 1]
      self.assertLess(abs(correlation), 5 / len(now) ** 0.5)

  def test_integers_are_uniform_over_their_range(self):
    x = noise.integers(20000, -2, 3, 7, tf.constant(1, tf.int64), "shift")
    values, counts = np.unique(x, return_counts=True)
    self.assertAllEqual(values, range(-2, 4))
    self.assertAllClose(counts / 20000, np.full([6], 1 / 6), atol=0.01)

  def test_a_number_rounded_up_to_one_is_the_last_integer(self):
    with mock.patch.object(noise, "uniform", return_value=tf.ones([2])):
      x = noise.integers(2, -2, 3, 7, tf.constant(1, tf.int64), "shift")
    self.assertAllEqual(x, [3, 3])

  def test_integers_of_shards_together_equal_one_draw(self):
    step = tf.constant(1, tf.int64)
    parts = testing.run_on_replicas(
      lambda: noise.integers(5, 0, 99, 7, step, "shift")
    )
    whole = noise.integers(20, 0, 99, 7, step, "shift", shard=0)
    self.assertAllEqual(np.concatenate(parts), whole)


if __name__ == "__main__":
  testing.main()
