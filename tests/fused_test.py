"""What is computed together is what was computed one by one."""

import functools

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.nets import biggan, fused, layers, sagan, sngan
from paragan_tf.types import ImageSpec, Mode
from tests import testing

SPEC = ImageSpec(32, 3, 4)
NETS = {"biggan": biggan, "sagan": sagan, "sngan": sngan}
WIDTHS = {"biggan": 2, "sagan": 8, "sngan": 4}


@functools.cache
def make_net(backbone, side, num_classes=4, joined=None):
  """Returns a net, each weight of which is a number of its own.

  `joined` is what it joins: "projections" or "power_iterations".
  """
  spec = SPEC._replace(num_classes=num_classes)
  with gin.unlock_config():
    for part in ("projections", "power_iterations"):
      gin.bind_parameter(f"hardware.Layout.join_{part}", joined == part)
  width = WIDTHS[backbone]
  net = getattr(NETS[backbone], side)(spec, seed=0, width=width, name="net")
  draw = np.random.RandomState(0)
  for v in net.trainable_variables:
    v.assign_add(0.1 * draw.randn(*v.shape))
  return net


def call_net(net, side, mode):
  """Returns what a net computes, its gradients, and where its state goes.

  The state is given back.
  """
  draw = np.random.RandomState(1)
  state = [v for v in net.variables if not v.trainable]
  before = testing.values(state)
  x = [4, net.z_dim] if side == "Generator" else [4, 32, 32, 3]
  x = tf.constant(draw.randn(*x), tf.float32)
  with tf.GradientTape() as tape:
    y = net(x, tf.constant([0, 1, 2, 3]), mode)
    loss = tf.reduce_sum(y * tf.constant(draw.randn(*y.shape), tf.float32))
  grads = tape.gradient(loss, net.trainable_variables)
  after = testing.values(state)
  for variable, value in zip(state, before):
    variable.assign(value)
  return [y, *(tf.convert_to_tensor(g) for g in grads), *after]


class FusedTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()  # Somebody may have left it locked.

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def check(self, net, other, side, mode):
    expected, found = (call_net(one, side, mode) for one in (net, other))
    for one, other in zip(found, expected):
      self.assertAllClose(one, other, rtol=2e-4, atol=2e-4)

  @parameterized.parameters(
    ("biggan", "Generator", Mode.TRAIN),
    ("biggan", "Generator", Mode.FROZEN),
    ("biggan", "Discriminator", Mode.TRAIN),
    ("sagan", "Generator", Mode.TRAIN),
    ("sagan", "Discriminator", Mode.TRAIN),
    ("sagan", "Discriminator", Mode.FROZEN),
  )
  def test_power_iterations(self, backbone, side, mode):
    plain, joined = (
      make_net(backbone, side, joined=joined)
      for joined in (None, "power_iterations")
    )
    self.assertEmpty(fused.begin(plain, mode).precomputed)
    self.assertNotEmpty(fused.begin(joined, Mode.FROZEN).precomputed)
    self.check(plain, joined, side, mode)

  @parameterized.product(backbone=["biggan", "sngan"], num_classes=[4, 0])
  def test_projections(self, backbone, num_classes):
    plain, joined = (
      make_net(backbone, "Generator", num_classes, joined)
      for joined in (None, "projections")
    )
    self.check(plain, joined, "Generator", Mode.TRAIN)

  def num_products(self, net, side):
    def call(x):
      return net(x, tf.constant([0, 1]), Mode.FROZEN)

    size = [2, net.z_dim] if side == "Generator" else [2, 32, 32, 3]
    traced = tf.function(call, autograph=False)
    traced = traced.get_concrete_function(tf.TensorSpec(size))
    kinds = [op.type for op in traced.graph.get_operations()]
    return kinds.count("MatMul")

  def test_there_are_fewer_of_them(self):
    before, after = (
      self.num_products(
        make_net("biggan", "Generator", joined=joined), "Generator"
      )
      for joined in (None, "power_iterations")
    )
    self.assertLess(after, before / 2)

  # Three blocks with two norms have a scale and a shift each; in BigGAN, the
  # vectors of all blocks have a part in common.
  @parameterized.parameters("sngan", "biggan")
  def test_projections_are_one_product(self, backbone):
    before, after = (
      self.num_products(make_net(backbone, "Generator", 4, joined), "Generator")
      for joined in (None, "projections")
    )
    self.assertEqual(before - after, 11)

  def test_a_net_of_ones_own_is_called_with_the_plain_mode(self):
    modes = []

    class Own(tf.Module):
      """A D with two kernels of one shape, which it does not join."""

      def __init__(self, spec, seed, name):
        super().__init__(name=name)
        init = layers.normal_init(1.0, seed)
        with self.name_scope:
          self.layers = [layers.Linear(3, 3, init, True) for _ in range(2)]

      def __call__(self, images, labels, mode):
        modes.append(mode)
        x = tf.reduce_mean(images, [1, 2])
        for layer in self.layers:
          x = layer(x, mode)
        return x[:, 0]

    config.load(
      [],
      [
        "from paragan_tf import experiment",
        "from paragan_tf import hardware",
        "hardware.Layout.hardware = 'tpu_v3'",
        "experiment.player.precision = 'auto'",
      ],
    )
    d = experiment.player(SPEC, 0, "d", net=Own).net
    logits = d(tf.ones([2, 32, 32, 3]), None, Mode.TRAIN)
    self.assertEqual(modes, [Mode.TRAIN])
    self.assertEqual(logits.shape, [2])


if __name__ == "__main__":
  tf.test.main()
