"""Bit packing is lossless, and random numbers are uniform."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.sync import bitpack

SIZES = (1, 3, 5, 31, 32, 33, 127, 1001)


class PackingTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(*range(1, 17))
  def test_codes_are_unpacked_from_the_fewest_words(self, bits):
    for count in SIZES:
      codes = np.random.RandomState(count).randint(2**bits, size=[count])
      codes[0] = 2**bits - 1
      packed = bitpack.pack(tf.constant(codes, tf.int32), bits)
      self.assertEqual(packed.dtype, tf.int32)
      self.assertEqual(packed.shape, [-(-count // (32 // bits))])
      self.assertEqual(packed.shape[0], bitpack.num_words(count, bits))
      self.assertAllEqual(bitpack.unpack(packed, bits, count), codes)

  def test_words_equal_those_computed_by_hand(self):
    codes = tf.constant([0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0xFF], tf.int32)
    words = bitpack.pack(codes, 8).numpy().view(np.uint32)
    self.assertAllEqual(words, [0xFF553311, 0x00664422])
    signs = tf.constant([1] + 30 * [0] + [1], tf.int32)
    words = bitpack.pack(signs, 1).numpy().view(np.uint32)
    self.assertAllEqual(words, [0x80000001])

  @parameterized.parameters(1, 3, 4, 8, 16)
  def test_compiled_words_equal_the_eager_ones(self, bits):
    codes = np.random.RandomState(0).randint(2**bits, size=[1001])
    codes = tf.constant(codes, tf.int32)
    pack = tf.function(lambda c: bitpack.pack(c, bits), jit_compile=True)
    unpack = tf.function(
      lambda w: bitpack.unpack(w, bits, 1001), jit_compile=True
    )
    self.assertAllEqual(pack(codes), bitpack.pack(codes, bits))
    self.assertAllEqual(unpack(pack(codes)), codes)


class RandomTest(tf.test.TestCase, parameterized.TestCase):
  def test_numbers_are_uniform(self):
    u = bitpack.uniform(20000, [3, 4]).numpy()
    self.assertAllInRange(u, 2.0**-25, 1.0)
    for moment in (1, 2, 3):
      self.assertAllClose((u**moment).mean(), 1 / (moment + 1), atol=0.01)
    counts = np.histogram(u, 20, [0, 1])[0]
    self.assertAllClose(
      counts, np.full([20], 1000), atol=140
    )  # 4.5 deviations.

  def test_each_of_31_bits_of_integers_is_set_half_the_time(self):
    x = bitpack.integers(20000, [3, 4]).numpy()
    self.assertGreaterEqual(x.min(), 0)
    for bit in range(31):
      self.assertAllClose((x >> bit & 1).mean(), 0.5, atol=0.016)

  @parameterized.parameters(((0, 1),), ((1, 0),), ((4, 3),), ((-3, 4),))
  def test_numbers_of_different_seeds_are_uncorrelated(self, seed):
    for other in ((0, 0), (3, 4)):
      x, y = bitpack.uniform(4000, other), bitpack.uniform(4000, seed)
      self.assertLess(abs(np.corrcoef(x, y)[0, 1]), 0.07)
      self.assertLess(np.equal(x, y).mean(), 0.01)

  def test_numbers_of_consecutive_seeds_are_uncorrelated(self):
    for seeds in ([[s, 5] for s in range(40)], [[5, s] for s in range(40)]):
      x = np.array([bitpack.uniform(500, seed) for seed in seeds])
      first, second = x[:-1].reshape([-1]), x[1:].reshape([-1])
      correlation = np.corrcoef(first, second)[0, 1]
      self.assertLess(abs(correlation), 5 / len(first) ** 0.5)

  def test_consecutive_numbers_are_uncorrelated(self):
    x = bitpack.uniform(20000, [0, 0]).numpy()
    correlation = np.corrcoef(x[:-1], x[1:])[0, 1]
    self.assertLess(abs(correlation), 5 / len(x) ** 0.5)

  @parameterized.named_parameters(("traced", False), ("compiled", True))
  def test_graphs_return_the_same_numbers(self, jit_compile):
    seed = tf.constant([7, -11], tf.int32)
    for fn in (bitpack.uniform, bitpack.integers):
      graph = tf.function(lambda s, fn=fn: fn(999, s), jit_compile=jit_compile)
      self.assertAllEqual(graph(seed), fn(999, [7, -11]))


if __name__ == "__main__":
  tf.test.main()
