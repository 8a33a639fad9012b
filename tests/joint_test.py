"""What is computed together is what was computed one by one."""

from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.nets import biggan, joint, sagan, sngan
from paragan_tf.types import ImageSpec, Mode

SPEC = ImageSpec(32, 3, 4)
NETS = {"biggan": biggan, "sagan": sagan, "sngan": sngan}


def made(backbone, side):
  """Returns a net, each weight of which is a number of its own."""
  net = getattr(NETS[backbone], side)(SPEC, seed=0, width=8, name="net")
  draw = np.random.RandomState(0)
  for v in net.trainable_variables:
    v.assign_add(0.1 * draw.randn(*v.shape))
  return net


def called(net, side, mode):
  """Returns what a net computes, its gradients, and where its state goes."""
  draw = np.random.RandomState(1)
  x = [4, net.z_dim] if side == "Generator" else [4, 32, 32, 3]
  x = tf.constant(draw.randn(*x), tf.float32)
  with tf.GradientTape() as tape:
    y = net(x, tf.constant([0, 1, 2, 3]), mode)
    loss = tf.reduce_sum(y * tf.constant(draw.randn(*y.shape), tf.float32))
  grads = tape.gradient(loss, net.trainable_variables)
  state = [v for v in net.variables if not v.trainable]
  return [y, *(tf.convert_to_tensor(g) for g in grads), *state]


class JointTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()  # Somebody may have left it locked.

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def check(self, make, side, mode):
    expected = called(make[0](), side, mode)
    found = called(make[1](), side, mode)
    for one, other in zip(found, expected):
      self.assertAllClose(one, other, rtol=2e-4, atol=2e-4)

  @parameterized.product(
    backbone=["biggan", "sagan"],
    side=["Generator", "Discriminator"],
    mode=[Mode.TURN, Mode.WATCH],
  )
  def test_power_iterations(self, backbone, side, mode):
    plain = lambda: made(backbone, side)  # noqa: E731
    self.assertNotEmpty(joint._alike(plain()))
    self.check([plain, lambda: joint.Joined(plain())], side, mode)

  @parameterized.product(backbone=["biggan", "sngan"], num_classes=[4, 0])
  def test_projections(self, backbone, num_classes):
    self.enter_context(
      mock.patch.dict(globals(), SPEC=SPEC._replace(num_classes=num_classes))
    )
    plain = made(backbone, "Generator")
    gin.bind_parameter("hardware.Layout.join_projections", True)
    joined = made(backbone, "Generator")
    self.check([lambda: plain, lambda: joined], "Generator", Mode.TURN)

  def num_products(self, net, side):
    def call(x):
      return net(x, tf.constant([0, 1]), Mode.WATCH)

    size = [2, net.z_dim] if side == "Generator" else [2, 32, 32, 3]
    traced = tf.function(call).get_concrete_function(tf.TensorSpec(size))
    kinds = [op.type for op in traced.graph.get_operations()]
    return kinds.count("MatMul")

  def test_there_are_fewer_of_them(self):
    g = made("biggan", "Generator")
    before = self.num_products(g, "Generator")
    self.assertLess(self.num_products(joint.Joined(g), "Generator"), before / 2)
    g = made("sngan", "Generator")
    before = self.num_products(g, "Generator")
    gin.bind_parameter("hardware.Layout.join_projections", True)
    joined = made("sngan", "Generator")
    # Three blocks with two norms have a scale and a shift each.
    self.assertEqual(before - self.num_products(joined, "Generator"), 11)

  def test_vectors_that_have_a_part_in_common_are_one_product(self):
    before = self.num_products(made("biggan", "Generator"), "Generator")
    gin.bind_parameter("hardware.Layout.join_projections", True)
    joined = made("biggan", "Generator")
    self.assertEqual(before - self.num_products(joined, "Generator"), 11)

  def test_nothing_lies_ready_afterwards(self):
    g = made("biggan", "Generator")
    called(joint.Joined(g), "Generator", Mode.TURN)
    for module in g.submodules:
      self.assertIsNone(joint.ready(module))


if __name__ == "__main__":
  tf.test.main()
