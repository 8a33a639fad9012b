"""Attention against NumPy."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.nets import attention, layers
from paragan_tf.types import Mode
from tests import reference, testing

INIT = layers.normal_init(0.7, seed=3)


def random(*shape):
  return np.random.RandomState(len(shape)).randn(*shape)


class AttentionTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(("plain", False), ("spectral", True))
  def test_equals_the_dense_way(self, spectral):
    layer = attention.SelfAttention(16, INIT, spectral)
    layer.gamma.assign(0.8)
    x = random(2, 4, 6, 16)
    turn = tf.function(lambda x: layer(x, None, Mode.TRAIN), autograph=False)
    for _ in range(200 if spectral else 1):  # The norms come to their end.
      turn(tf.cast(x, tf.float32))
    expected = reference.attention(x, layer)
    y = layer(tf.cast(x, tf.float32), None, Mode.FROZEN)
    self.assertAllClose(y, expected, rtol=1e-3, atol=1e-3)
    self.assertGreater(np.abs(expected - x).max(), 0.1)

  @parameterized.named_parameters(
    ("eager", False, 4), ("compiled", True, 4), ("anew", False, 1)
  )
  def test_in_chunks_it_is_the_same(self, compiled, num):
    whole = attention.SelfAttention(8, INIT, True)
    chunked = attention.SelfAttention(8, INIT, True, num_chunks=num)
    chunked.recomputes = True
    self.assertFalse(whole.recomputes)
    x = tf.constant(random(2, 4, 4, 8), tf.float32)

    def run(layer):
      with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
          tape.watch(x)
          y = layer(x, None, Mode.FROZEN)
          loss = tf.reduce_sum(y**3)
        grads = tape.gradient(loss, [x, *layer.trainable_variables])
        slope = tf.reduce_sum(grads[0] ** 2)
      return [y, *grads, outer.gradient(slope, layer.value.weight.w)]

    for layer in (whole, chunked):
      layer.gamma.assign(0.7)
    ours = tf.function(
      lambda: run(chunked), jit_compile=compiled, autograph=False
    )()
    for one, other in zip(ours, run(whole)):
      self.assertAllClose(one, other, rtol=1e-3, atol=1e-3)
      self.assertGreater(np.abs(other).max(), 1e-3)

  @parameterized.named_parameters(
    ("float32", tf.float32, 200.0, 1e-3), ("bfloat16", tf.bfloat16, 0.0, 0.03)
  )
  def test_the_sum_may_follow_the_product(self, dtype, shift, tolerance):
    # Large logits, so that a softmax without its maximum would overflow.
    shapes = ((2, 24, 3), (2, 6, 3), (2, 6, 5), (2, 24, 5))
    draw = np.random.RandomState(0)
    *inputs, dy = (tf.constant(draw.randn(*s), dtype) for s in shapes)
    ones = tf.ones([2, 24, 1], dtype)
    inputs[0] = tf.concat([inputs[0], shift * ones], -1)
    inputs[1] = tf.concat([inputs[1], ones[:, :6]], -1)
    exact = [tf.cast(x, tf.float32) for x in inputs]

    def run(attend, inputs):
      with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as tape:
          tape.watch(inputs)
          y = attend(*inputs)
        grads = tape.gradient(y, inputs, tf.cast(dy, y.dtype))
        slope = tf.add_n([tf.reduce_sum(g**2) for g in grads])
      return [y, *grads], outer.gradient(slope, inputs)

    found, found_seconds = run(attention._attend_once, inputs)
    expected, seconds = run(attention._attend, exact)
    pairs = list(zip(found, expected))
    if dtype is not tf.bfloat16:  # Squares of rounded gradients say little.
      pairs += zip(found_seconds, seconds)
    for one, other in pairs:
      self.assertEqual(one.dtype, dtype)
      size = np.abs(other).max()
      self.assertGreater(size, 1e-2)
      self.assertAllClose(one, other, rtol=0, atol=tolerance * size)

  @parameterized.parameters("joins", "attends_once")
  def test_projections_may_be_products_of_another_form(self, option):
    x, found = tf.constant(random(2, 4, 4, 16), tf.float32), []
    for is_asked in (False, True):
      layer = attention.SelfAttention(16, INIT, True)
      layer.gamma.assign(0.7)
      layer.joins = layer.attends_once = False
      setattr(layer, option, is_asked)
      with tf.GradientTape() as tape:
        y = layer(x, None, Mode.TRAIN)
        loss = tf.reduce_sum(y**3)
      weights = layer.trainable_variables
      states = [m.u for m in (layer.key.weight, layer.out.weight)]
      found.append([y, *states, *tape.gradient(loss, weights)])
    for one, other in zip(*found):
      self.assertAllClose(one, other, rtol=1e-4, atol=1e-4)

  def test_starts_as_the_identity_and_learns_to_look(self):
    layer = attention.SelfAttention(8, INIT, False)
    x = tf.constant(random(2, 4, 4, 8), tf.float32)
    with tf.GradientTape() as tape:
      y = layer(x, None, Mode.FROZEN)
      loss = tf.reduce_sum(y**2)
    self.assertAllEqual(y, x)
    self.assertGreater(abs(float(tape.gradient(loss, layer.gamma))), 1e-3)

  def test_a_pixel_looks_everywhere(self):
    layer = attention.SelfAttention(8, INIT, False)
    layer.gamma.assign(1.0)
    x = tf.constant(random(1, 4, 4, 8), tf.float32)
    with tf.GradientTape() as tape:
      tape.watch(x)
      corner = tf.reduce_sum(layer(x, None, Mode.FROZEN)[0, 0, 0])
    felt = np.abs(tape.gradient(corner, x)).max(-1).reshape([2, 2, 2, 2])
    # In every block of four the largest of some channel is felt.
    self.assertAllGreater(felt.max((1, 3)), 1e-6)

  @parameterized.named_parameters(("4", 4), ("12", 12))
  def test_channels_must_be_divisible(self, channels):
    with self.assertRaisesRegex(
      ValueError, f"`width`.*8 divides, got {channels}"
    ):
      attention.SelfAttention(channels, INIT, False)

  def test_large_numbers_stay_finite(self):
    layer = attention.SelfAttention(8, INIT, False)
    layer.gamma.assign(1.0)
    x = tf.constant(100 * random(1, 4, 4, 8), tf.float32)
    self.assertAllInRange(layer(x, None, Mode.FROZEN), -1e4, 1e4)


if __name__ == "__main__":
  testing.main()
