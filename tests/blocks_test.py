"""Blocks against NumPy, for fixed weights."""

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.nets import affines, blocks, layers, norms
from paragan_tf.types import Mode
from tests import reference, testing

INIT = layers.normal_init(0.5, seed=3)
LABELS = np.array([2, 0, 2], np.int32)
CLASSES, VECTOR = 3, 5


def random(*shape, seed=0):
  return np.random.RandomState(seed).randn(*shape)


def perturb(module):
  """Moves all weights, and brings spectral norms to their end."""
  for i, variable in enumerate(module.trainable_variables):
    variable.assign_add(0.3 * random(*variable.shape, seed=i))
  weights = [m for m in module.submodules if isinstance(m, layers.Weight)]
  turn = tf.function(lambda: [weight(Mode.TRAIN) for weight in weights])
  for _ in range(300):
    turn()
  return module


def by_class(norm, labels):
  """Returns `gamma` and `beta` of each sample."""
  return norm.gamma.numpy()[labels], norm.beta.numpy()[labels]


def by_vector(norm, vectors):
  return tuple(
    vectors @ reference.kernel(part.weight) for part in (norm.gamma, norm.beta)
  )


def g_block(x, block, pairs):
  """Returns what SNGAN's and BigGAN's G block is, given gamma and beta."""
  h = reference.relu(reference.batch_norm(x, *pairs[0]))
  h = reference.conv(reference.up(h), block.conv1)
  h = reference.relu(reference.batch_norm(h, *pairs[1]))
  h = reference.conv(h, block.conv2)
  return h + reference.conv(reference.up(x), block.shortcut)


def d_block(x, block, down, first):
  h = x if first else reference.relu(x)
  h = reference.relu(reference.conv(h, block.conv1))
  h = reference.conv(h, block.conv2)
  h = reference.down(h) if down else h
  if block.shortcut is None:
    return h + x
  x = reference.conv(x, block.shortcut)
  return h + (reference.down(x) if down else x)


class BlockTest(tf.test.TestCase, parameterized.TestCase):
  def check(self, ours, expected):
    self.assertEqual(ours.shape, expected.shape)
    self.assertAllClose(ours, expected, rtol=1e-3, atol=1e-3)
    self.assertGreater(expected.std(), 0.1)

  def test_sngan_g_block(self):
    norm = functools.partial(norms.BatchNorm, num_classes=CLASSES)
    block = perturb(blocks.GeneratorBlock(4, 3, INIT, norm, False, "block"))
    x = random(3, 4, 4, 4)
    pairs = [by_class(n, LABELS) for n in (block.norm1, block.norm2)]
    y = block(tf.cast(x, tf.float32), LABELS, Mode.FROZEN)
    self.check(y, g_block(x, block, pairs))

  def test_biggan_g_block(self):
    affine = functools.partial(
      affines.ByVector, inputs=VECTOR, init=INIT, spectral=True
    )
    norm = functools.partial(norms.BatchNorm, affine=affine)
    block = perturb(blocks.GeneratorBlock(4, 3, INIT, norm, True, "block"))
    x, cond = random(3, 4, 4, 4), random(3, VECTOR)
    pairs = [by_vector(n, cond) for n in (block.norm1, block.norm2)]
    y = block(*(tf.cast(v, tf.float32) for v in (x, cond)), Mode.FROZEN)
    self.check(y, g_block(x, block, pairs))

  @parameterized.named_parameters(
    ("at_the_image", 2, 4, True, True),
    ("down", 4, 4, True, False),
    ("wider", 2, 4, False, False),
    ("keep", 4, 4, False, False),
  )
  def test_sngan_and_biggan_d_block(self, inputs, outputs, down, first):
    block = perturb(
      blocks.DiscriminatorBlock(
        inputs, outputs, INIT, None, True, down, first, "block"
      )
    )
    x = random(3, 4, 4, inputs)
    y = block(tf.cast(x, tf.float32), None, Mode.FROZEN)
    self.check(y, d_block(x, block, down, first))

  @parameterized.named_parameters(("up", 4, True), ("keep", 8, False))
  def test_biggan_deep_g_block(self, outputs, up):
    norm = functools.partial(norms.BatchNorm, num_classes=CLASSES)
    block = perturb(
      blocks.DeepGeneratorBlock(8, outputs, INIT, norm, True, up, "block")
    )
    x = random(3, 4, 4, 8)
    h = x
    for i, (norm, conv) in enumerate(zip(block.norms, block.convs)):
      h = reference.relu(reference.batch_norm(h, *by_class(norm, LABELS)))
      h = reference.conv(reference.up(h) if up and i == 1 else h, conv)
    shortcut = x[..., :outputs]
    expected = h + (reference.up(shortcut) if up else shortcut)
    y = block(tf.cast(x, tf.float32), LABELS, Mode.FROZEN)
    self.check(y, expected)

  @parameterized.named_parameters(("down", 8, True), ("keep", 4, False))
  def test_biggan_deep_d_block(self, outputs, down):
    block = perturb(
      blocks.DeepDiscriminatorBlock(4, outputs, INIT, True, down, "block")
    )
    x = random(3, 4, 4, 4)
    h = x
    for i, conv in enumerate(block.convs):
      h = reference.relu(h)
      h = reference.conv(reference.down(h) if down and i == 3 else h, conv)
    x_there = reference.down(x) if down else x
    if block.more is not None:
      more = reference.conv(x_there, block.more)
      x_there = np.concatenate([x_there, more], -1)
    y = block(tf.cast(x, tf.float32), None, Mode.FROZEN)
    self.check(y, h + x_there)

  def test_a_deep_width_is_a_multiple_of_four(self):
    norm = norms.BatchNorm
    with self.assertRaisesRegex(ValueError, "`width`.*4 divides, got 6"):
      blocks.DeepGeneratorBlock(6, 4, INIT, norm, True, True, "block")
    with self.assertRaisesRegex(ValueError, "`width`.*4 divides, got 6"):
      blocks.DeepDiscriminatorBlock(4, 6, INIT, True, True, "block")

  def test_a_norm_in_d_stands_before_every_relu(self):
    block = perturb(
      blocks.DiscriminatorBlock(
        2, 2, INIT, norms.LayerNorm, False, False, False, "block"
      )
    )
    x = random(3, 4, 4, 2)

    def normalize(x, norm):
      mean, variance = (
        m(x, (1, 2, 3), keepdims=True) for m in (np.mean, np.var)
      )
      y = (x - mean) / np.sqrt(variance + 1e-5)
      return y * (1 + norm.gamma.numpy()) + norm.beta.numpy()

    h = reference.conv(reference.relu(normalize(x, block.norm1)), block.conv1)
    h = reference.conv(reference.relu(normalize(h, block.norm2)), block.conv2)
    y = block(tf.cast(x, tf.float32), None, Mode.FROZEN)
    self.check(y, x + h)


if __name__ == "__main__":
  testing.main()
