"""How users' nets are called, and which ones are refused."""

import threading

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.types import Mode
from tests import testing
from tests.user_nets import (
  BATCH,
  IMAGE,
  SPEC,
  Z_DIM,
  Linear,
  ModuleG,
  adapt_d,
  adapt_g,
  batch,
  in_every_keras,
)


class CallTest(tf.test.TestCase, parameterized.TestCase):
  @in_every_keras(
    ("ids", [], "int32", lambda y: y),
    ("column", [1], "int64", lambda y: y[:, 0]),
    ("float_column", [None], "float32", lambda y: y[:, 0]),
    ("one_hot", [3], "float32", lambda y: tf.reduce_sum(y * [0.0, 1, 2], 1)),
  )
  def test_labels_come_as_an_input_wants_them(self, nets, shape, dtype, ids):
    keras = nets.keras
    x, y = keras.Input(IMAGE), keras.Input(shape, dtype=dtype)
    logits = keras.layers.Lambda(lambda xy: ids(xy[1]))([x, y])
    d = adapt_d(keras.Model([x, y], logits))
    images, labels, _ = batch()
    self.assertAllEqual(d(images, labels, Mode.TRAIN), labels)

  def test_the_last_of_a_tuple_are_the_logits(self):
    d = adapt_d(lambda x, y: (x[:, 0, 0, 0], tf.cast(y, tf.float16)[:, None]))
    images, labels, _ = batch()
    self.assertAllEqual(d(images, labels, Mode.TRAIN), labels)

  def test_a_model_fn_may_have_no_self(self):
    class D:
      def model_fn(x, y):  # noqa: N805
        return x[:, 0, 0, 0] + tf.cast(y, tf.float32)

    class Unlabeled:
      def model_fn(x):  # noqa: N805
        return x[:, 0, 0, 0]

    class Named:
      def model_fn(this, x, y):  # noqa: N805
        return x[:, 0, 0, 0] + tf.cast(y, tf.float32)

    images, labels, _ = batch()
    pixels = images[:, 0, 0, 0]
    for net, expected in (
      (D, pixels + tf.cast(labels, tf.float32)),
      (Named, pixels + tf.cast(labels, tf.float32)),
      (Unlabeled, pixels),
    ):
      for given in (net, net()):
        found = adapt_d(given)(images, labels, Mode.TRAIN)
        self.assertAllEqual(found, expected)

  @in_every_keras()
  def test_labels_are_none_without_classes(self, nets):
    class D(nets.Discriminator):
      def model_fn(self, x, y):
        assert y is None
        return super().model_fn(x, tf.zeros([x.shape[0]], tf.int32))

    d = adapt_d(D, SPEC._replace(num_classes=0))
    self.assertEqual(d(batch().images, None, Mode.TRAIN).shape, [BATCH])

  @parameterized.parameters("training", "is_training")
  def test_training_is_passed_to_nets_that_take_it(self, word):
    seen = []
    if word == "training":

      def net(x, training, scale=1.0):
        seen.append((training, scale))
        return x[:, 0, 0, 0]
    else:

      def net(x, is_training=None, scale=1.0):
        seen.append((is_training, scale))
        return x[:, 0, 0, 0]

    d = adapt_d(net)
    del seen[:]
    for mode in (Mode.TRAIN, Mode.FROZEN, Mode.EVAL):
      d(batch().images, batch().labels, mode)
    self.assertEqual(seen, [(True, 1.0), (True, 1.0), (False, 1.0)])

  @in_every_keras()
  def test_a_layer_may_call_it_otherwise(self, nets):
    class D(nets.keras.layers.Layer):
      def call(self, x, is_training=None):
        return tf.fill([x.shape[0]], 1.0 if is_training else 0.0)

    d = adapt_d(D())
    for mode in Mode:
      logits = d(batch().images, batch().labels, mode)
      self.assertAllEqual(logits, [float(mode is not Mode.EVAL)] * BATCH)

  @in_every_keras(
    ("given", lambda nets: ModuleG(7, 16, False), 7, 7),
    ("of_the_net", lambda nets: nets.SubclassedG(), None, Z_DIM),
    ("of_the_input", lambda nets: nets.functional(False)[0], None, Z_DIM),
    ("unknown", lambda nets: nets.sequential(False)[0], None, 128),
  )
  def test_z_dim_is_given_or_asked_or_128(self, nets, make_g, given, expected):
    self.assertEqual(adapt_g(make_g(nets), given).z_dim, expected)

  @in_every_keras()
  def test_frozen_layers_do_not_learn(self, nets):
    _, net = nets.functional(False)
    next(layer for layer in net.layers if layer.weights).trainable = False
    frozen = net.non_trainable_weights
    self.assertNotEmpty(frozen)
    d = adapt_d(net)
    self.assertLen(d.variables, len(net.weights))
    self.assertLen(d.trainable_variables, len(net.weights) - len(frozen))

  def test_a_write_to_a_weight_is_taken_back_too(self):
    class D(Linear):
      def __call__(self, x, y, training):
        if training:
          self.w[0].assign(self.w[0] / 2)
        return super().__call__(x, y)

    d = adapt_d(D(16, 1, False))
    before = testing.values(d.variables)
    d(batch().images, batch().labels, Mode.FROZEN)
    self.assertAllClose(testing.values(d.variables), before, 0, 0)
    d(batch().images, batch().labels, Mode.TRAIN)
    self.assertAllClose(testing.values(d.variables), np.divide(before, 2))


def make_locked(nets):
  g = nets.Generator()
  g.lock = threading.Lock()
  return g


def make_keeper(nets):
  class Keeper(nets.Generator):
    def model_fn(self, latent_var, y):
      self.dense = nets.keras.layers.Dense(16)
      return super().model_fn(latent_var, y)

  return Keeper()


def make_trainer(nets):
  layers = nets.keras.layers

  class Trainer(nets.keras.Model):
    def __init__(self):
      super().__init__()
      self.first, self.second = (layers.Dense(16) for _ in range(2))

    def call(self, z, training=None):
      return tf.reshape(
        (self.second if training else self.first)(z), [-1, *IMAGE]
      )

  return Trainer()


def make_three_inputs(nets):
  keras = nets.keras
  inputs = [keras.Input(IMAGE), keras.Input([1]), keras.Input([1])]
  return keras.Model(inputs, keras.layers.Flatten()(inputs[1]))


class ThreeArguments(tf.Module):
  def __call__(self, z, labels, mode):
    return z


class ErrorsTest(tf.test.TestCase, parameterized.TestCase):
  @in_every_keras(
    ("flat", lambda nets: nets.keras.layers.Dense(16), r"4, 1\].*\(2, 16\)"),
    ("uncopyable", make_locked, "cannot pickle.*pass its class, or a function"),
    ("new_in_each_call", make_keeper, "new variables on every call.*kernel"),
    ("new_when_it_trains", make_trainer, "others when it trains.*kernel"),
  )
  def test_a_wrong_g_is_refused(self, nets, make_g, message):
    with self.assertRaisesRegex(ValueError, f"(?s)^`g` .*{message}"):
      adapt_g(make_g(nets))

  @parameterized.named_parameters(
    ("mode", ThreeArguments, r"`\(x, labels\)`.*got \(z, labels, mode\)"),
    ("no_net", lambda: 3, "must be a `tf.Module`.*got 3"),
    ("other_z_dim", lambda: ModuleG(9, 16, False), r"shape \[2, 5\].*Matrix"),
  )
  def test_a_wrong_module_is_refused(self, make_g, message):
    with self.assertRaisesRegex(ValueError, f"(?s)^`g` .*{message}"):
      adapt_g(make_g())

  @parameterized.named_parameters(
    ("two_units", lambda: Linear(16, 2, False), r"\[2, 1\].*\(2, 2\)"),
    ("no_logits", lambda: lambda x, y: {"logits": x}, "logits.*'logits'"),
  )
  def test_a_wrong_d_is_refused(self, make_d, message):
    with self.assertRaisesRegex(ValueError, f"(?s)^`d` .*{message}"):
      adapt_d(make_d())

  @in_every_keras()
  def test_a_third_input_is_refused(self, nets):
    with self.assertRaisesRegex(ValueError, "(?s)^`d` .*one input beside x"):
      adapt_d(make_three_inputs(nets))

  @parameterized.parameters(0, -1, "3")
  def test_a_wrong_z_dim_is_refused(self, z_dim):
    with self.assertRaisesRegex(ValueError, f"`z_dim`.*got {z_dim}"):
      adapt_g(ModuleG(Z_DIM, 16, False), z_dim)

  @in_every_keras()
  def test_labels_must_be_there_for_an_input(self, nets):
    with self.assertRaisesRegex(ValueError, "`g`.*0 classes"):
      adapt_g(nets.functional(False)[0], spec=SPEC._replace(num_classes=0))

  @in_every_keras()
  def test_variables_that_are_not_held_are_refused(self, nets):
    keras = nets.keras
    dense = keras.layers.Dense(16)
    dense.build([None, Z_DIM])

    def g(z, labels):
      return tf.reshape(dense(z), [-1, *IMAGE])

    with self.assertRaisesRegex(ValueError, "`g` must own.*kernel"):
      adapt_g(g)
    net = keras.Sequential([dense, keras.layers.Reshape(IMAGE)])
    with self.assertRaisesRegex(ValueError, "`g` must own.*kernel"):
      adapt_g(lambda: net)

  def test_state_that_is_shared_is_refused(self):
    mean = tf.Variable(tf.zeros([1]), trainable=False, name="mean")

    def make_d():
      d = Linear(16, 1, False)
      d.mean = mean
      return d

    with self.assertRaisesRegex(ValueError, "`d` must own.*mean"):
      adapt_d(make_d)

  @in_every_keras()
  def test_a_copy_must_be_of_the_same_class(self, nets):
    class Mine(nets.keras.Sequential):
      pass

    net = Mine([nets.keras.Input([Z_DIM]), nets.keras.layers.Dense(16)])
    with self.assertRaisesRegex(ValueError, "`g`.*Mine is more.*its class"):
      adapt_g(net)


if __name__ == "__main__":
  testing.main()
