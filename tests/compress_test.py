"""Compressors: promises of all, and the differences between them."""

import dataclasses
import functools
import math

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.nets import dcgan
from paragan_tf.sync import compress
from paragan_tf.types import ImageSpec, Mode
from tests import testing

COMPRESSORS = (
  ("identity", compress.Identity()),
  ("2_bits", compress.Stochastic(bits=2, bucket_size=8)),
  ("3_bits", compress.Stochastic(bits=3, bucket_size=28)),
  ("4_bits", compress.Stochastic(bits=4)),
  ("8_bits", compress.Stochastic()),
  ("16_bits", compress.Stochastic(bits=16, bucket_size=4096)),
  ("top_10_percent", compress.TopK(share=0.1)),
  ("top_all", compress.TopK(share=1.0)),
  ("rand_10_percent", compress.RandK(share=0.1)),
  ("rand_all", compress.RandK(share=1.0)),
  ("sign", compress.ScaledSign()),
  ("sign_in_buckets", compress.ScaledSign(bucket_size=64)),
)
SIZES = (1, 3, 5, 31, 32, 33, 127, 256, 257, 1001)
KINDS = ("gaussian", "uniform", "student", "one_hot")
N = 4000


def vector(kind, n=N, seed=0):
  """Returns a random vector of one kind."""
  random = np.random.RandomState(seed)
  if kind == "one_hot":
    return -3.0 * np.eye(n, dtype=np.float32)[random.randint(n)]
  draw = {
    "gaussian": random.randn,
    "uniform": lambda n: random.uniform(-1, 1, n),
    "student": lambda n: random.standard_t(3, n),
  }[kind]
  return draw(n).astype(np.float32)


def worst_vector(bits, n):
  """Returns the vector with the largest relative error of rounding."""
  s = 2 ** (bits - 1) - 1
  v = np.full([n], 1 / s / (1 + math.sqrt(1 + (n - 1) / s**2)), np.float32)
  v[n // 2] = -1.0
  return v


@functools.cache
def gradients():
  """Returns gradients of a small DCGAN as vectors.

  They are those of each player's largest weight, and of all weights of D.
  """
  spec = ImageSpec(resolution=32, channels=1, num_classes=10)
  g = dcgan.Generator(spec, 0, width=2, z_dim=8, name="g")
  d = dcgan.Discriminator(spec, 0, width=2, name="d")
  batch = testing.batch(8, spec, z_dim=8)
  with tf.GradientTape(persistent=True) as tape:
    fakes = g(batch.z, batch.labels, Mode.TRAIN)
    real, fake = (
      d(images, batch.labels, Mode.TRAIN) for images in (batch.images, fakes)
    )
    d_loss = tf.reduce_mean(tf.nn.relu(1.0 - real) + tf.nn.relu(1.0 + fake))
    g_loss = -tf.reduce_mean(fake)
  g_grads, d_grads = (
    [np.reshape(x, [-1]) for x in tape.gradient(loss, net.trainable_variables)]
    for loss, net in ((g_loss, g), (d_loss, d))
  )
  return {
    "g": max(g_grads, key=len),
    "d": max(d_grads, key=len),
    "joined": np.concatenate(d_grads),
  }


def round_trip(compressor, v, seed=(1, 2)):
  """Encodes and decodes a tensor."""
  v = tf.convert_to_tensor(v)
  return compressor.decode(compressor.encode(v, seed), v.shape)


def relative_errors(compressor, v, num_seeds=20):
  """Returns `|q - v|^2 / |v|^2` for a few seeds."""
  return _make_errors_fn(compressor)(
    tf.constant(v), tf.range(num_seeds)
  ).numpy()


def eager_relative_errors(compressor, v, num_seeds=20):
  """Returns the same eagerly, which is faster for one vector of a length."""
  v = v.astype(np.float64)
  decoded = [
    round_trip(compressor, v, [i, 0]).numpy() for i in range(num_seeds)
  ]
  return ((np.stack(decoded) - v) ** 2).sum(1) / (v**2).sum()


@functools.cache
def _make_errors_fn(compressor):
  @tf.function
  def errors(v, seeds):
    def error(i):
      q = compressor.decode(compressor.encode(v, tf.stack([i, 0])), v.shape)
      q, x = tf.cast(q, tf.float64), tf.cast(v, tf.float64)
      return tf.reduce_sum((q - x) ** 2) / tf.reduce_sum(x**2)

    return tf.map_fn(error, seeds, fn_output_signature=tf.float64)

  return errors


def expected_error(v, bits, bucket_size):
  """Returns the expected relative error of rounding, by its formula."""
  s, error = 2 ** (bits - 1) - 1, 0.0
  for first in range(0, len(v), bucket_size):
    bucket = np.abs(v[first : first + bucket_size]).astype(np.float64)
    step = max(bucket.max(), 1e-300) / s
    f = bucket / step % 1.0
    error += (f * (1.0 - f)).sum() * step**2
  return error / (v.astype(np.float64) ** 2).sum()


class PromisesTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*COMPRESSORS)
  def test_message_has_the_stated_number_of_bytes(self, compressor):
    for n in SIZES:
      message = compressor.encode(tf.constant(vector("gaussian", n)), [1, 2])
      self.assertEqual(message.words.dtype, tf.int32)
      self.assertEqual(message.values.dtype, tf.float32)
      num_bytes = sum(part.numpy().nbytes for part in message)
      self.assertEqual(num_bytes, compressor.num_bytes(n), f"{n} entries")

  @parameterized.named_parameters(*COMPRESSORS)
  def test_decoded_tensor_has_the_shape_in_float32(self, compressor):
    for shape in ([], [7], [2, 3], [3, 3, 4, 5]):
      for dtype in (tf.float32, tf.float64, tf.bfloat16):
        v = tf.cast(vector("gaussian", math.prod(shape)), dtype)
        q = round_trip(compressor, tf.reshape(v, shape))
        self.assertEqual(
          (q.shape, q.dtype), (tf.TensorShape(shape), tf.float32)
        )

  @parameterized.named_parameters(*COMPRESSORS)
  def test_shapes_are_static(self, compressor):
    @tf.function
    def traced(v, seed):
      message = compressor.encode(v, seed)
      sizes = [part.shape.num_elements() for part in message]
      self.assertEqual(4 * sum(sizes), compressor.num_bytes(1001))
      q = compressor.decode(message, [7, 143])
      self.assertEqual(q.shape, [7, 143])
      return q

    traced(tf.constant(vector("gaussian", 1001)), tf.constant([1, 2]))

  @parameterized.named_parameters(*COMPRESSORS)
  def test_compiled_results_equal_eager_ones(self, compressor):
    @tf.function(jit_compile=True)
    def compiled(v, seed):
      message = compressor.encode(v, seed)
      return message, compressor.decode(message, v.shape)

    for kind in ("gaussian", "one_hot"):
      v = tf.constant(vector(kind, 1001))
      message = compressor.encode(v, [1, 2])
      compiled_message, q = compiled(v, tf.constant([1, 2]))
      self.assertAllEqual(compiled_message.words, message.words)
      # Sums may differ in their last bits.
      self.assertAllClose(
        compiled_message.values, message.values, rtol=1e-6, atol=0.0
      )
      eager = compressor.decode(message, [1001])
      self.assertAllClose(q, eager, rtol=1e-6, atol=0.0)

  @parameterized.named_parameters(*COMPRESSORS)
  def test_message_is_a_function_of_the_seed(self, compressor):
    v = vector("gaussian", 1001)
    first, again = (round_trip(compressor, v, (3, 4)) for _ in range(2))
    self.assertAllEqual(first, again)
    is_random = (
      isinstance(compressor, (compress.Stochastic, compress.RandK))
      and compressor.num_bytes(1001) < 4 * 1001
    )
    for seed in ((4, 3), (3, 5), (4, 4)):
      other = round_trip(compressor, v, seed)
      self.assertEqual(bool(np.any(first != other)), is_random)

  @parameterized.named_parameters(*COMPRESSORS)
  def test_zeros_decode_to_zeros(self, compressor):
    for n in (1, 5, 1001):
      self.assertAllEqual(round_trip(compressor, tf.zeros([n])), [0.0] * n)

  @parameterized.named_parameters(*COMPRESSORS)
  def test_entries_that_are_not_finite_are_never_hidden(self, compressor):
    compiled = tf.function(
      lambda v: round_trip(compressor, v), jit_compile=True
    )
    for bad, index in ((np.nan, 0), (np.nan, 77), (np.nan, 300), (-np.inf, 1)):
      v = vector("gaussian", 301)
      v[index] = bad
      for q in (round_trip(compressor, v), compiled(tf.constant(v))):
        self.assertFalse(np.isfinite(q).all(), f"{bad} at {index}")
    all_nan = round_trip(compressor, tf.fill([301], np.float32(np.nan)))
    self.assertTrue(np.isnan(all_nan).any())

  @parameterized.named_parameters(*COMPRESSORS)
  def test_delta_bounds_the_error(self, compressor):
    for n in (1, 5, 127, N):
      self.assertBetween(compressor.delta(n), 1e-9, 1.0)
    for kind in KINDS:
      errors = relative_errors(compressor, vector(kind))
      std_error = errors.std() / len(errors) ** 0.5
      bound = 1.0 - compressor.delta(N)
      self.assertLessEqual(errors.mean(), bound + 4 * std_error + 1e-6, kind)

  @parameterized.named_parameters(*COMPRESSORS)
  def test_delta_bounds_the_error_on_gradients(self, compressor):
    for name, v in gradients().items():
      self.assertGreater(np.count_nonzero(v), 0.5 * len(v), name)
      errors = eager_relative_errors(compressor, v)
      std_error = errors.std() / len(errors) ** 0.5
      bound = 1.0 - compressor.delta(len(v))
      self.assertLessEqual(errors.mean(), bound + 4 * std_error + 1e-6, name)

  # Extremes over 30 vectors of each kind and 20 seeds each, with a margin.
  @parameterized.named_parameters(
    (
      "2_bits",
      compress.Stochastic(2, 8),
      (0.47, 0.53),
      (0.32, 0.37),
      (0.2, 0.7),
    ),
    (
      "3_bits",
      compress.Stochastic(3, 28),
      (0.09, 0.11),
      (0.047, 0.053),
      (0.1, 0.25),
    ),
    (
      "4_bits",
      compress.Stochastic(4),
      (0.027, 0.039),
      (0.0093, 0.0107),
      (0.08, 0.3),
    ),
    (
      "8_bits",
      compress.Stochastic(),
      (8.5e-5, 1.2e-4),
      (2.8e-5, 3.3e-5),
      (2e-4, 3e-3),
    ),
    (
      "top_1_percent",
      compress.TopK(),
      (0.9, 0.93),
      (0.967, 0.973),
      (0.25, 0.85),
    ),
    (
      "top_10_percent",
      compress.TopK(0.1),
      (0.54, 0.59),
      (0.71, 0.745),
      (0.1, 0.4),
    ),
    (
      "rand_10_percent",
      compress.RandK(0.1),
      (0.89, 0.91),
      (0.893, 0.907),
      (0.87, 0.94),
    ),
    ("sign", compress.ScaledSign(), (0.35, 0.38), (0.235, 0.265), (0.48, 0.85)),
  )
  def test_error_is_in_the_measured_range(self, compressor, *ranges):
    for kind, (low, high) in zip(KINDS, ranges):
      self.assertBetween(
        relative_errors(compressor, vector(kind)).mean(), low, high, kind
      )

  @parameterized.named_parameters(*COMPRESSORS)
  def test_gin_builds_it_and_it_is_immutable(self, compressor):
    kind = type(compressor)
    for field in dataclasses.fields(compressor):
      value = getattr(compressor, field.name)
      gin.parse_config(f"x/compress.{kind.__name__}.{field.name} = {value}")
    self.addCleanup(gin.clear_config)
    with gin.config_scope("x"):
      made = gin.get_configurable(kind)()
    self.assertEqual(dataclasses.asdict(made), dataclasses.asdict(compressor))
    with self.assertRaises(dataclasses.FrozenInstanceError):
      compressor.bits = 3


class IdentityTest(tf.test.TestCase):
  def test_round_trip_is_exact(self):
    for kind in KINDS:
      v = vector(kind)
      self.assertAllEqual(round_trip(compress.Identity(), v), v)


class StochasticTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters((2, 8), (3, 64), (4, 64), (8, 64), (16, 64))
  def test_rounding_has_no_bias(self, bits, size):
    v = vector("gaussian", size, seed=5)
    compressor = compress.Stochastic(bits, size)
    copies, seeds = 500, 20  # Buckets are independent.
    draws = np.concatenate(
      [
        round_trip(compressor, np.tile(v, copies), (7, seed))
        for seed in range(seeds)
      ]
    ).reshape([-1, size])
    step = np.abs(v).max() / (2.0 ** (bits - 1) - 1.0)
    f = v / step - np.floor(v / step)
    error = step * np.sqrt(f * (1.0 - f) / len(draws))
    between = np.minimum(f, 1.0 - f) > 0.01
    self.assertGreaterEqual(between.sum(), size // 2)
    z = (draws.mean(0, dtype=np.float64) - v)[between] / error[between]
    self.assertLess(np.abs(z).max(), 4.5)
    # The deviations from the mean are also as large as expected.
    self.assertBetween(np.sqrt((z**2).mean()), 0.4, 1.6)

  @parameterized.parameters(
    (2, 8), (3, 28), (4, 256), (5, 256), (8, 256), (16, 256)
  )
  def test_entries_are_rounded_to_an_adjacent_level(self, bits, size):
    v = vector("student", 1001)
    q = round_trip(compress.Stochastic(bits, size), v).numpy()
    s = 2 ** (bits - 1) - 1
    for first in range(0, 1001, size):
      exact, rounded = v[first : first + size], q[first : first + size]
      step = np.abs(exact).max() / s
      self.assertLess(np.abs(exact - rounded).max(), step * (1 + 1e-5 * s))
      levels = rounded / step
      self.assertAllClose(levels, np.round(levels), atol=2e-7 * s)
      # The largest entry is exact.
      largest = np.abs(exact).argmax()
      self.assertAllClose(rounded[largest], exact[largest], rtol=1e-6)

  @parameterized.parameters(*range(2, 17))
  def test_entries_on_a_level_are_exact(self, bits):
    s = 2 ** (bits - 1) - 1
    random = np.random.RandomState(bits)
    codes = random.randint(-s, s + 1, size=[1000])
    codes[::8] = s * random.choice([-1, 1], size=[125])
    units = np.repeat(2.0 ** random.randint(-60, 60, size=[125]), 8)
    v = (codes * units).astype(np.float32)
    for seed in range(3):
      q = round_trip(compress.Stochastic(bits, 8), v, (seed, 1))
      self.assertAllEqual(q, v)

  @parameterized.parameters(1.0, -0.3, 1e-30, 3e38)
  def test_equal_entries_are_exact(self, value):
    v = np.full([300], value, np.float32)
    for bits in (4, 8, 16):
      q = round_trip(compress.Stochastic(bits), v)
      self.assertAllClose(q, v, rtol=1e-6, atol=0.0)

  def test_each_bucket_has_its_own_scale(self):
    v = np.concatenate([np.full([4], 1e-3), [1e3, 0, 0, 0], [5.0]])
    q = round_trip(compress.Stochastic(4, 4), v)
    self.assertAllClose(q, v, rtol=1e-6, atol=0.0)
    v = vector("gaussian", 8)
    v[2] = np.nan
    q = round_trip(compress.Stochastic(8, 4), v).numpy()
    self.assertAllEqual(np.isnan(q), [True] * 4 + [False] * 4)
    self.assertAllClose(q[4:], v[4:], atol=0.02)

  @parameterized.parameters((2, 8), (3, 28), (3, 72), (4, 256), (4, 392))
  def test_delta_is_attained_by_the_worst_vector(self, bits, size):
    compressor = compress.Stochastic(bits, size)
    v = worst_vector(bits, size)
    bound = 1.0 - compressor.delta(size)
    self.assertAllClose(expected_error(v, bits, size), bound, rtol=1e-5)
    errors = relative_errors(compressor, np.tile(v, 20), num_seeds=40)
    std_error = errors.std() / len(errors) ** 0.5
    self.assertLess(abs(errors.mean() - bound), 4 * std_error)
    self.assertLess(std_error, 0.02)

  @parameterized.parameters((2, 8), (3, 28), (3, 72), (4, 392), (8, 1000))
  def test_no_vector_has_a_larger_error(self, bits, size):
    random = np.random.RandomState(bits)
    bound = 1.0 - compress.Stochastic(bits, size).delta(size)
    most = 0.0
    for trial in range(400):
      v = np.abs(random.standard_t(3, size)) ** random.uniform(0.0, 2.0)
      if trial % 2:  # Near the worst vector.
        v = worst_vector(bits, size) * random.uniform(0.8, 1.2, size)
      most = max(most, expected_error(v, bits, size))
    self.assertBetween(most, 0.8 * bound, bound)

  @parameterized.parameters(2, 3, 4, 8)
  def test_delta_of_a_larger_bucket_than_allowed_is_not_positive(self, bits):
    most = 8 * (2 ** (bits - 1) - 1) ** 2
    self.assertGreater(compress.Stochastic(bits, most).delta(most), 0.0)
    v = worst_vector(bits, most + 1)
    self.assertAllClose(expected_error(v, bits, most + 1), 1.0, rtol=1e-4)
    with self.assertRaisesRegex(
      ValueError, f"`bucket_size` must be in 1 to {most} .* got {most + 1}: .*"
    ):
      compress.Stochastic(bits, most + 1)

  def test_too_large_a_bucket_is_refused_with_the_reason(self):
    with self.assertRaisesRegex(
      ValueError, "1 to 8 for `bits` of 2, got 256: .*diverges; take smaller"
    ):
      compress.Stochastic(bits=2)

  @parameterized.parameters(-1, 0, 1, 17, 32)
  def test_other_bits_are_refused(self, bits):
    with self.assertRaisesRegex(ValueError, f"`bits` .* 2 to 16, got {bits}: "):
      compress.Stochastic(bits)

  def test_an_empty_bucket_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`bucket_size` .* got 0"):
      compress.Stochastic(8, 0)

  def test_bytes_equal_those_computed_by_hand(self):
    # Four codes per word of 4 bytes, and a scale per 256 entries.
    self.assertEqual(compress.Stochastic(8).num_bytes(1001), 4 * (251 + 4))
    self.assertEqual(compress.Stochastic(4).num_bytes(1001), 4 * (126 + 4))
    self.assertEqual(compress.Stochastic(3, 64).num_bytes(64), 4 * (7 + 1))


class SparseTest(tf.test.TestCase, parameterized.TestCase):
  def test_top_k_equals_the_result_by_hand(self):
    q = round_trip(compress.TopK(0.4), [1.0, -5.0, 0.5, 2.0, -1.5])
    self.assertAllEqual(q, [0.0, -5.0, 0.0, 2.0, 0.0])

  def test_top_k_keeps_the_largest_entries(self):
    v = vector("student", 1001)
    q = round_trip(compress.TopK(0.1), v).numpy()
    kept = q != 0.0
    self.assertEqual(kept.sum(), 101)
    self.assertAllEqual(q[kept], v[kept])
    self.assertGreater(np.abs(v[kept]).min(), np.abs(v[~kept]).max())

  def test_top_k_keeps_k_of_equal_entries(self):
    q = round_trip(compress.TopK(0.1), tf.fill([50], -2.0)).numpy()
    self.assertAllEqual(np.unique(q, return_counts=True), [[-2, 0], [5, 45]])

  def test_top_k_prefers_nan_to_large_entries(self):
    v = np.array([np.inf, np.nan, 9.0, np.nan, np.nan], np.float32)
    q = round_trip(compress.TopK(0.8), v)
    self.assertAllEqual(q, [np.inf, np.nan, 0.0, np.nan, np.nan])

  @parameterized.parameters((10, 0.3), (7, 0.5), (12, 0.25), (5, 0.2), (9, 1.0))
  def test_rand_k_draws_each_entry_equally_often(self, n, share):
    compressor, num = compress.RandK(share), 1000
    v = tf.range(1.0, n + 1.0)

    @tf.function
    def draw(seeds):
      return tf.map_fn(
        lambda i: round_trip(compressor, v, [i, 0]),
        seeds,
        fn_output_signature=tf.float32,
      )

    draws = draw(tf.range(num)).numpy()
    kept = draws != 0.0
    k = math.ceil(share * n)
    self.assertAllEqual(kept.sum(1), [k] * num)
    self.assertAllEqual(draws, kept * v)  # Not scaled up.
    chance = k / n
    error = math.sqrt(chance * (1.0 - chance) / num)
    self.assertLessEqual(np.abs(kept.mean(0) - chance).max(), 4.0 * error)
    # Entries are not drawn in fixed blocks or at fixed distances.
    if 1 < k < n:
      self.assertGreater(len(np.unique(kept, axis=0)), n)

  def test_rand_k_decodes_with_the_seed_of_the_message(self):
    v = vector("gaussian", 1001)
    message = compress.RandK(0.1).encode(v, [-5, 6])
    self.assertAllEqual(message.words, [-5, 6])
    q = compress.RandK(0.1).decode(message, [7, 143]).numpy().reshape([-1])
    self.assertAllEqual(q[q != 0.0], v[q != 0.0])

  @parameterized.parameters(compress.TopK, compress.RandK)
  def test_k_is_the_share_of_entries_rounded_up(self, kind):
    for share, n, k in ((0.01, 10, 1), (0.07, 100, 7), (0.1, 11, 2), (1, 9, 9)):
      self.assertAlmostEqual(kind(share).delta(n), k / n)

  @parameterized.product(
    kind=[compress.TopK, compress.RandK],
    share=[0, 0.0, -0.1, 1.01, float("nan")],
  )
  def test_a_share_outside_of_0_to_1_is_refused(self, kind, share):
    with self.assertRaisesRegex(ValueError, f"`share` .*, got {share}: take"):
      kind(share)


class ScaledSignTest(tf.test.TestCase):
  def test_equals_the_result_by_hand(self):
    v = [3.0, -1.0, 0.0, -4.0, 7.0]
    self.assertAllEqual(
      round_trip(compress.ScaledSign(), v), [3.0, -3.0, 3.0, -3.0, 3.0]
    )
    self.assertAllEqual(
      round_trip(compress.ScaledSign(2), v), [2.0, -2.0, 2.0, -2.0, 7.0]
    )

  def test_error_follows_from_the_norms(self):
    for kind in KINDS:
      v = vector(kind)
      share = np.abs(v).sum() ** 2 / (v**2).sum() / N
      errors = relative_errors(compress.ScaledSign(), v, 1)
      self.assertAllClose(errors, [1.0 - share], rtol=1e-4)

  def test_entries_of_equal_size_are_exact(self):
    v = np.tile([0.3, -0.3], 500).astype(np.float32)
    self.assertAllClose(round_trip(compress.ScaledSign(), v), v, rtol=1e-6)

  def test_bytes_equal_those_computed_by_hand(self):
    self.assertEqual(compress.ScaledSign().num_bytes(1001), 4 * (32 + 1))
    self.assertEqual(compress.ScaledSign(64).num_bytes(1001), 4 * (32 + 16))

  def test_an_empty_bucket_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`bucket_size` .* got 0"):
      compress.ScaledSign(0)


if __name__ == "__main__":
  tf.test.main()
