"""Layers against plainer ways to compute the same, and against NumPy."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.nets import layers, layout
from paragan_tf.types import Mode
from tests import testing

INIT = layers.normal_init(0.5, seed=3)
MODES = (("train", Mode.TRAIN), ("frozen", Mode.FROZEN), ("eval", Mode.EVAL))


def random(*shape):
  return np.random.RandomState(len(shape)).randn(*shape).astype(np.float32)


def repeat_pixels(x):
  """Each pixel four times."""
  return tf.repeat(tf.repeat(x, 2, 1), 2, 2)


def block_mean(x):
  """The mean of each 2x2 block."""
  b, h, w, c = x.shape
  return tf.reduce_mean(tf.reshape(x, [b, h // 2, 2, w // 2, 2, c]), [2, 4])


def same_conv(x, w, bias):
  """A convolution as a sum of shifted products."""
  size = w.shape[0]
  border = [size // 2, size // 2]
  padded = tf.pad(x, [[0, 0], border, border, [0, 0]])
  y = bias
  for i in range(size):
    for j in range(size):
      part = padded[:, i : i + x.shape[1], j : j + x.shape[2]]
      y = y + tf.einsum("bhwc,cd->bhwd", part, w[i, j])
  return y


PLAIN = {
  None: same_conv,
  "up": lambda x, w, bias: same_conv(repeat_pixels(x), w, bias),
  "down": lambda x, w, bias: block_mean(same_conv(x, w, bias)),
}


class ConvTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    *(
      (
        f"{resize}_{size}_from_{inputs}_to_{outputs}",
        size,
        resize,
        inputs,
        outputs,
      )
      for size in (1, 3)
      for resize in PLAIN
      for inputs, outputs in ((1, 1), (3, 5), (4, 2))
    )
  )
  def test_equals_the_plain_way(self, size, resize, inputs, outputs):
    conv = layers.Conv(inputs, outputs, INIT, size=size, resize=resize)
    w = conv.weight.w
    conv.bias.assign(random(outputs))
    x = tf.constant(random(2, 4, 6, inputs))

    def run(fn):
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = fn()
      # A weight for every output, so that each counts by itself.
      grads = tape.gradient(y, [x, w, conv.bias], random(*y.shape))
      return y, *grads

    plain = run(lambda: PLAIN[resize](x, w, conv.bias))
    ours = run(lambda: conv(x, Mode.FROZEN))
    for one, other in zip(ours, plain):
      self.assertAllClose(one, other, rtol=1e-4, atol=1e-4)
      self.assertGreater(np.abs(other).max(), 1e-2)

  @parameterized.named_parameters(
    ("up", "up"), ("down", "down"), ("keep", None)
  )
  def test_the_batch_size_may_be_unknown(self, resize):
    conv = layers.Conv(2, 3, INIT, resize=resize)
    signature = [tf.TensorSpec([None, 4, 4, 2])]
    traced = tf.function(lambda x: conv(x, Mode.FROZEN), signature)
    x = random(5, 4, 4, 2)
    self.assertAllClose(traced(x), conv(x, Mode.FROZEN), atol=1e-6)

  def test_spectral_norm_divides_the_kernel_and_not_the_bias(self):
    conv = layers.Conv(2, 3, INIT, resize="down", spectral=True)
    conv.bias.assign([1.0, 2.0, 3.0])
    x = random(2, 4, 4, 2)
    kernel = conv.weight(Mode.EVAL)
    expected = PLAIN["down"](tf.constant(x), kernel, conv.bias)
    self.assertAllClose(conv(x, Mode.EVAL), expected, rtol=1e-4, atol=1e-4)
    self.assertNotAllClose(kernel, conv.weight.w)

  @parameterized.named_parameters(
    ("even_size", {"size": 2}, "`size`.*2"),
    ("large_size", {"size": 5}, "`size`.*5"),
    ("unknown_resize", {"resize": "sideways"}, "`resize`.*sideways"),
  )
  def test_bad_values_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      layers.Conv(1, 1, INIT, **options)

  def test_upsample_and_pool(self):
    x = tf.constant([[1.0, 2.0], [3.0, 6.0]])[None, :, :, None]
    up = layout.upsample(x)[0, :, :, 0]
    self.assertAllEqual(
      up, [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 6, 6], [3, 3, 6, 6]]
    )
    self.assertAllEqual(layout.pool(x)[0, :, :, 0], [[3.0]])
    self.assertAllEqual(layout.pool(layout.upsample(x)), x)

  def test_the_gradient_of_upsampling_compiles(self):
    x, dy = tf.constant(random(2, 2, 3, 2)), random(2, 4, 6, 2)

    def grad(up):
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = up(x)
      return tape.gradient(y, x, dy)

    ours = tf.function(lambda: grad(layout.upsample), jit_compile=True)()
    self.assertAllClose(ours, grad(repeat_pixels), rtol=1e-5)


class LinearTest(tf.test.TestCase, parameterized.TestCase):
  def test_is_a_product_and_a_bias(self):
    linear = layers.Linear(2, 3, INIT)
    linear.weight.w.assign([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    linear.bias.assign([10.0, 20.0, 30.0])
    x = tf.constant([[1.0, 0.0], [0.0, 1.0], [2.0, -1.0]])
    self.assertAllEqual(
      linear(x, Mode.FROZEN), [[11, 22, 33], [14, 25, 36], [8, 19, 30]]
    )

  def test_the_bias_may_be_left_out(self):
    linear = layers.Linear(2, 3, INIT, bias=False)
    self.assertLen(linear.variables, 1)
    x = random(4, 2)
    expected = x @ linear.weight.w.numpy()
    self.assertAllClose(linear(x, Mode.FROZEN), expected)

  @parameterized.named_parameters(("plain", False), ("spectral", True))
  def test_embedding_is_a_look_up(self, spectral):
    embedding = layers.Embedding(4, 3, INIT, spectral)
    labels = tf.constant([2, 0, 2, 3])
    with tf.GradientTape() as tape:
      y = embedding(labels, Mode.FROZEN)
    table = embedding.weight(Mode.FROZEN).numpy()
    self.assertAllClose(y, table[[2, 0, 2, 3]])
    self.assertEqual(np.array_equal(table, embedding.weight.w), not spectral)
    if not spectral:
      grad = tape.gradient(y, embedding.weight.w)
      expected = np.outer([1, 0, 2, 1], [1, 1, 1])
      self.assertAllClose(tf.convert_to_tensor(grad), expected)


def power_iteration(w, u):
  """Returns `(u, v)` of SNGAN's Algorithm 1 for a matrix and a vector."""
  v = w @ u
  v /= np.linalg.norm(v)
  u = w.T @ v
  return u / np.linalg.norm(u), v


class SpectralTest(tf.test.TestCase, parameterized.TestCase):
  def weight(self, shape=(3, 3, 2, 5)):
    """Returns a weight, its matrix and its vector, in double precision."""
    weight = layers.Weight(shape, INIT, spectral=True)
    matrix = weight.w.numpy().astype(np.float64).reshape([-1, shape[-1]])
    return weight, matrix, weight.u.numpy().astype(np.float64)[0]

  def test_the_vector_starts_at_length_one(self):
    _, _, u = self.weight()
    self.assertAllClose(np.linalg.norm(u), 1.0)

  @parameterized.named_parameters(
    ("kernel", (3, 3, 2, 5)),
    ("more_outputs", (1, 1, 2, 9)),
    ("matrix", (6, 4)),
    ("one_output", (7, 1)),
    ("one_input", (1, 6)),
  )
  def test_turns_converge_to_the_largest_singular_value(self, shape):
    weight, matrix, _ = self.weight(shape)
    turn = tf.function(lambda: weight(Mode.TRAIN))
    for _ in range(200):
      turn()
    largest = np.linalg.svd(matrix, compute_uv=False)[0]
    expected = weight.w / largest
    self.assertAllClose(weight(Mode.TRAIN), expected, rtol=1e-4)
    self.assertAllClose(weight(Mode.EVAL), expected, rtol=1e-4)

  def test_a_turn_makes_one_power_iteration(self):
    weight, matrix, u = self.weight()
    for _ in range(3):
      kernel = weight(Mode.TRAIN)
      before = u
      u, v = power_iteration(matrix, u)
      self.assertAllClose(weight.u[0], u, rtol=1e-5, atol=1e-5)
      self.assertAllClose(kernel, weight.w / (v @ matrix @ u), rtol=1e-5)
      # The next one is further away than what the comparison lets pass.
      self.assertGreater(np.abs(u - before).max(), 1e-3)
      self.assertGreater(np.abs(power_iteration(matrix, u)[0] - u).max(), 1e-3)

  @parameterized.named_parameters(("frozen", Mode.FROZEN), ("eval", Mode.EVAL))
  def test_other_modes_keep_the_vector(self, mode):
    weight, matrix, u = self.weight()
    first, second = weight(mode), weight(mode)
    self.assertAllEqual(first, second)
    self.assertAllEqual(weight.u[0], u)
    _, v = power_iteration(matrix, u)
    self.assertAllClose(first, weight.w / (v @ matrix @ u), rtol=1e-5)

  @parameterized.named_parameters(*MODES)
  def test_gradient_holds_the_vectors_constant(self, mode):
    weight, matrix, u = self.weight()
    new_u, v = power_iteration(matrix, u)
    u = new_u if mode is Mode.TRAIN else u
    a = random(*weight.w.shape)
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(a * weight(mode))
    sigma = v @ matrix @ u
    inner = np.sum(a.reshape(matrix.shape) * matrix) / sigma
    expected = (a.reshape(matrix.shape) - inner * np.outer(v, u)) / sigma
    grad = tape.gradient(loss, weight.w)
    self.assertAllClose(
      np.reshape(grad, matrix.shape), expected, rtol=1e-4, atol=1e-5
    )
    # Both terms are felt.
    self.assertGreater(np.abs(inner * np.outer(v, u)).max(), 0.1)

  def test_without_it_the_kernel_is_the_variable(self):
    weight = layers.Weight([3, 2], INIT, spectral=False)
    for _, mode in MODES:
      self.assertAllEqual(weight(mode), weight.w)
    self.assertLen(weight.variables, 1)

  def test_the_vector_is_not_trained(self):
    weight, _, _ = self.weight()
    self.assertLen(weight.variables, 2)
    self.assertLen(weight.trainable_variables, 1)
    self.assertIs(weight.trainable_variables[0], weight.w)


class InitTest(tf.test.TestCase, parameterized.TestCase):
  INITS = (
    ("normal", lambda seed: layers.normal_init(0.02, seed)),
    ("glorot", layers.glorot_init),
    ("orthogonal", layers.orthogonal_init),
  )

  @parameterized.named_parameters(*INITS)
  def test_values_depend_on_seed_and_name_only(self, make_init):
    tf.random.set_seed(1)
    w = layers.Linear(3, 4, make_init(5), name="a").weight.w
    tf.random.set_seed(2)
    layers.Linear(3, 4, make_init(5), name="between")
    again = layers.Linear(3, 4, make_init(5), name="a").weight.w
    self.assertAllEqual(w, again)
    for seed, name in ((5, "b"), (6, "a")):
      other = layers.Linear(3, 4, make_init(seed), name=name).weight.w
      self.assertFalse(np.any(np.equal(w, other)))

  def test_every_replica_starts_alike(self):
    expected = layers.Linear(3, 4, INIT, spectral=True)
    with strategies.scope(testing.strategy()):
      linear = layers.Linear(3, 4, INIT, spectral=True)
    for one, other in zip(linear.variables, expected.variables):
      copies = strategies.copies(testing.strategy(), one)
      self.assertLen(copies, testing.NUM_REPLICAS)
      for copy in copies:
        self.assertAllEqual(copy, other)

  def test_normal_has_its_deviation(self):
    x = layers.normal_init(0.02, 0)("w", [100, 100]).numpy()
    self.assertAllClose(x.mean(), 0.0, atol=1e-3)
    self.assertAllClose(x.std(), 0.02, rtol=0.05)

  @parameterized.named_parameters(
    ("matrix", [40, 60], 1.0, (6 / (40 + 60)) ** 0.5),
    ("kernel", [3, 3, 40, 60], 1.0, (6 / (9 * 40 + 9 * 60)) ** 0.5),
    ("gain", [40, 60], 2.0, 2 * (6 / (40 + 60)) ** 0.5),
  )
  def test_glorot_fills_its_range(self, shape, gain, limit):
    x = layers.glorot_init(0, gain)("w", shape).numpy()
    self.assertAllInRange(x, -limit, limit)
    self.assertAllClose([x.min(), x.max()], [-limit, limit], rtol=0.02)
    self.assertAllClose(x.std(), limit / 3**0.5, rtol=0.05)

  @parameterized.named_parameters(
    ("matrix", [6, 4], 1.0),
    ("wide", [4, 6], 1.0),
    ("kernel", [3, 3, 2, 5], 1.0),
    ("gain", [3, 3, 2, 5], 2.0),
  )
  def test_orthogonal_has_equal_singular_values(self, shape, gain):
    w = layers.orthogonal_init(0, gain)("w", shape).numpy()
    self.assertEqual(w.shape, tuple(shape))
    values = np.linalg.svd(w.reshape([-1, shape[-1]]), compute_uv=False)
    self.assertAllClose(values, gain * np.ones_like(values), rtol=1e-5)


class ClassWeightsTest(tf.test.TestCase):
  def test_ids_and_class_weights(self):
    expected = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    ours = layers.class_weights(np.array([2, 0], np.int32), 3)
    self.assertAllEqual(ours, expected)
    weights = tf.constant([[0.5, 0.5, 0.0], [0.0, 0.1, 0.9]])
    self.assertAllEqual(layers.class_weights(weights, 3), weights)

  def test_the_number_of_classes_is_checked(self):
    with self.assertRaises((ValueError, tf.errors.InvalidArgumentError)):
      layers.class_weights(tf.zeros([2, 4]), 3)


class Nest(tf.Module):
  """Two layers of one kind inside a module."""

  def __init__(self):
    super().__init__(name="d")
    with self.name_scope:
      self.conv1 = layers.Conv(1, 2, INIT, spectral=True, name="conv1")
      self.conv2 = layers.Conv(2, 2, INIT, name="conv2")
      self.linear = layers.Linear(2, 1, INIT, bias=False)
      self.embedding = layers.Embedding(3, 2, INIT, spectral=True)


class NameTest(tf.test.TestCase):
  def test_a_name_is_the_path_of_modules(self):
    names = [variable.name for variable in Nest().variables]
    self.assertCountEqual(
      names,
      [
        "d/conv1/b:0",
        "d/conv1/weight/u:0",
        "d/conv1/weight/w:0",
        "d/conv2/b:0",
        "d/conv2/weight/w:0",
        "d/linear/weight/w:0",
        "d/embedding/weight/u:0",
        "d/embedding/weight/w:0",
      ],
    )

  def test_equal_shapes_at_different_paths_start_differently(self):
    nest = Nest()
    one = layers.Conv(2, 2, INIT, name="conv2").weight.w
    self.assertFalse(np.any(np.equal(one, nest.conv2.weight.w)))


if __name__ == "__main__":
  testing.main()
