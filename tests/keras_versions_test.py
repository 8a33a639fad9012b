"""What differs between Keras 2 and Keras 3, and what must not."""

import sys
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.generator import Generator
from paragan_tf.nets import adapted
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.types import Mode
from tests import testing, user_nets
from tests.user_nets import (
  IMAGE,
  SPEC,
  Z_DIM,
  adapt_d,
  adapt_g,
  batch,
  in_every_keras,
)


def with_dropout(nets):
  """Returns nets that draw, held by a model, an object, and in a call."""
  keras, layers = nets.keras, nets.keras.layers
  body = [layers.Dropout(0.5, seed=3), layers.Dense(16), layers.Reshape(IMAGE)]

  class InCall:
    def model_fn(self, z, y):
      x = layers.Dense(16)(layers.Dropout(0.5)(z))
      return layers.Reshape(IMAGE)(x)

  return keras.Sequential([keras.Input([Z_DIM]), *body]), InCall()


class KerasVersionsTest(tf.test.TestCase, parameterized.TestCase):
  @in_every_keras()
  def test_replicas_and_steps_draw_different_numbers(self, nets):
    _, labels, z = batch()
    for net in with_dropout(nets):
      with strategies.scope(testing.strategy()):
        g = adapted.adapt_g(net, Z_DIM, SPEC, 0, "g")
      # No seed counts as statistics, and none is saved.
      self.assertFalse(g.uses_batch_statistics)
      self.assertLen(g.variables, 2)
      run = testing.on_replicas(lambda z, g=g: g(z, labels, Mode.TRAIN))
      drawn = [*run([z] * 4), *run([z] * 4)]
      for i, images in enumerate(drawn):
        for other in drawn[:i]:
          self.assertNotAllClose(images, other)

  @in_every_keras()
  def test_a_net_that_draws_is_exported(self, nets):
    keras = nets.keras

    class G(keras.Model):
      def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(16)
        self.noise = keras.layers.GaussianNoise(1.0)

      def call(self, z):
        x = self.noise(self.dense(z), training=True)
        return tf.reshape(x, [-1, *IMAGE])

    g = adapt_g(G())
    info = GInfo(4, 1, 0, g.z_dim, own_net=True)
    path = Generator(g, info).export(self.get_temp_dir())
    serve = tf.saved_model.load(path).signatures["floats"]
    first, second = (serve(z=batch().z)["images"] for _ in range(2))
    self.assertNotAllClose(first, second)

  @in_every_keras(
    ("functional", "functional"),
    ("sequential", "built_sequential"),
    ("subclassed", "built_subclassed"),
    ("plain", "plain"),
  )
  def test_copies_compute_in_the_precision_of_the_net(self, nets, kind):
    policies = nets.keras.mixed_precision
    policies.set_global_policy("mixed_float16")
    try:
      g = adapt_g(getattr(nets, kind)(True)[0])
    finally:
      policies.set_global_policy("float32")
    _, labels, z = batch()
    with tf.GradientTape() as tape:
      images = g(z, labels, Mode.TRAIN)
    # A sum of float16 numbers in float32.
    self.assertAllEqual(images, tf.cast(images, tf.float16))
    for grad in tape.gradient(images, g.trainable_variables):
      self.assertDTypeEqual(tf.convert_to_tensor(grad), np.float32)

  @in_every_keras(
    ("functional", "functional"),
    ("sequential", "built_sequential"),
    ("subclassed", "built_subclassed"),
  )
  def test_a_compiled_model_is_copied_without_its_optimizer(self, nets, kind):
    net = getattr(nets, kind)(True)[0]
    net.compile("adam", "mse", metrics=["mae"])
    net.optimizer.build(net.trainable_variables)
    optimizer = net.optimizer
    self.assertLen(adapt_g(net).variables, len(net.weights))
    self.assertIs(net.optimizer, optimizer)
    self.assertTrue(getattr(net, "compiled", True))  # Only Keras 3 says it.

  @in_every_keras()
  def test_variables_are_in_the_order_of_layers(self, nets):
    # The same for every Keras, so that each reads the others' checkpoints.
    g, d = nets.built_subclassed(True)
    g, d = adapt_g(g), adapt_d(d)
    norm = ["gamma", "beta", "moving_mean", "moving_variance"]
    self.assertEqual(
      [v.name.split("_", 1)[1][:-2] for v in g.variables],
      ["kernel", "bias", *norm, "kernel"],
    )
    self.assertEqual(
      [v.name.split("_", 1)[1][:-2] for v in d.variables],
      ["kernel", "bias", *norm, "kernel", "bias"],
    )

  def test_one_variable_can_be_frozen(self):
    for nets in user_nets.all_keras():
      if nets.is_keras_3:
        g = nets.built_subclassed(False)[0]
        g.table.kernel.trainable = False
        g = adapt_g(g)
        self.assertLen(g.variables, 3)
        self.assertLen(g.trainable_variables, 2)

  def test_one_net_may_have_layers_of_each_keras(self):
    all_nets = user_nets.all_keras()

    class D:
      def __init__(self):
        self.norms = [nets.norm(True) for nets in all_nets]

      def model_fn(self, x, y):
        for norm in self.norms:
          x = norm(x + 1.0)
        return tf.reduce_mean(x, [1, 2])

    d = adapt_d(D())
    self.assertLen(d.variables, 4 * len(all_nets))
    for mode, moves in ((Mode.EVAL, False), (Mode.TRAIN, True)):
      before = testing.values(d.variables)
      d(batch().images, batch().labels, mode)
      moved = [
        not np.allclose(value, variable)
        for value, variable in zip(before, d.variables)
        if not variable.trainable
      ]
      self.assertEqual(moved, [moves] * 2 * len(all_nets), mode)

  def test_an_error_in_a_net_is_its_own(self):
    class G:
      def model_fn(self, z, y):
        raise TypeError("too wide")

    with self.assertRaisesRegex(ValueError, "ends with TypeError: too wide$"):
      adapt_g(G())

  @in_every_keras()
  def test_another_backend_is_refused(self, nets):
    net = nets.sequential(False)[0]
    backend = sys.modules[nets.name.rsplit("_", 1)[0]].backend
    with mock.patch.object(backend, "backend", lambda: "jax"):
      with self.assertRaisesRegex(ValueError, "`g`.*'jax'.*KERAS_BACKEND"):
        adapt_g(net)
      with self.assertRaisesRegex(ValueError, "`g`.*'jax'.*KERAS_BACKEND"):
        adapt_g(lambda: net)


if __name__ == "__main__":
  testing.main()
