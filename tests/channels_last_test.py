"""Nets with channels first compute what nets with channels last do."""

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import hardware
from paragan_tf.nets import layout_pass
from paragan_tf.types import ImageSpec, Mode
from tests import testing, user_nets

SPEC = ImageSpec(resolution=8, channels=3, num_classes=0)
FORMATS = ("channels_first", "channels_last")
KINDS = tuple((k, k) for k in ("functional", "sequential", "subclassed"))


class Maker:
  """Makes the same layers in either format."""

  def __init__(self, nets, data_format):
    self.keras, self.layers = nets.keras, nets.keras.layers
    self.format = {"data_format": data_format}
    self.is_first = data_format == "channels_first"
    self.axis = 1 if self.is_first else -1
    self.image = [3, 8, 8] if self.is_first else [8, 8, 3]

  def reshape(self):
    """Returns layers to 2x2 pixels of 4 channels, the same of each format."""
    permute = [] if self.is_first else [self.layers.Permute((2, 3, 1))]
    return [self.layers.Reshape((4, 2, 2)), *permute]

  def g_layers(self):
    layers, how = self.layers, self.format
    return [
      layers.Dense(16),
      *self.reshape(),
      layers.UpSampling2D(**how),
      layers.Conv2D(5, 3, padding="same", activation="softsign", **how),
      layers.BatchNormalization(axis=self.axis),
      layers.ReLU(),
      layers.Conv2DTranspose(3, 4, 2, padding="same", **how),
      layers.Activation("tanh"),
    ]

  def d_layers(self):
    layers, how = self.layers, self.format
    return [
      layers.ZeroPadding2D(1, **how),
      layers.SeparableConv2D(6, 3, **how),
      layers.LeakyReLU(),
      layers.MaxPool2D(**how),
      layers.DepthwiseConv2D(3, padding="same", **how),
      layers.BatchNormalization(axis=self.axis),
      layers.AveragePooling2D(2, **how),
      layers.Flatten(**how),
      layers.Dense(1),
    ]

  def sequential(self):
    make = self.keras.Sequential
    return make(self.g_layers()), make(self.d_layers())

  def functional(self):
    """A D with branches, whose input says how its images are."""
    keras, layers, how = self.keras, self.layers, self.format
    z = h = keras.Input([user_nets.Z_DIM])
    for layer in self.g_layers():
      h = layer(h)
    x = keras.Input(self.image)
    one = layers.Conv2D(4, 3, padding="same", **how)(x)
    other = layers.Conv2D(4, 1, activation=lambda y: y * y, **how)(x)
    both = layers.Concatenate(axis=self.axis)([one, layers.Add()([one, other])])
    y = layers.GlobalAveragePooling2D(**how)(layers.ReLU()(both))
    return keras.Model(z, h), keras.Model(x, layers.Dense(1)(y))

  def subclassed(self):
    g, d = self.sequential()
    is_first = self.is_first

    class Wrapped(self.keras.Model):
      """Does something of its own with the channels."""

      def __init__(self, inner):
        super().__init__()
        self.inner = inner

      def call(self, x, training=None):
        if x.shape.rank == 4:
          scale = tf.constant([1.0, 2.0, 3.0])
          x *= scale[:, None, None] if is_first else scale
        return self.inner(x, training=training)

    return Wrapped(g), Wrapped(d)


def get(make, index):
  return make()[index]


def make_pairs(nets, kind):
  """Returns G and D with channels first and last, of equal values."""
  pairs = []
  for data_format in FORMATS:
    make = getattr(Maker(nets, data_format), kind)
    g = user_nets.adapt_g(functools.partial(get, make, 0), spec=SPEC)
    pairs.append((g, adapt_d(functools.partial(get, make, 1))))
  random = np.random.RandomState(0)
  for one, other in zip(*pairs):
    for v, w in zip(one.variables, other.variables):
      assert v.shape == w.shape, (v.name, w.name)
      value = 0.5 * random.randn(*v.shape) + v.numpy()
      value = np.abs(value) if "variance" in w.name else value
      v.assign(value)
      w.assign(value)
  return pairs


def adapt_d(net):
  return user_nets.adapt_d(net, spec=SPEC)


def compute(pair, mode):
  """Returns images, logits, gradients, and the state that is left."""
  g, d = pair
  z = testing.batch(4, SPEC, user_nets.Z_DIM).z

  @tf.function(autograph=False)
  def step():
    weights = [*g.trainable_variables, *d.trainable_variables]
    with tf.GradientTape() as tape:
      images = g(z, None, mode)
      logits = d(images, None, mode)
      loss = tf.reduce_sum(tf.sin(logits)) + tf.reduce_sum(images**2)
    grads = tape.gradient(loss, weights, unconnected_gradients="zero")
    return [images, logits, *grads]

  return [*step(), *g.variables, *d.variables]


def list_ancestors(tensor):
  """Returns the operations that a tensor of a graph depends on."""
  seen, waiting = {}, [tensor.op]
  while waiting:
    op = waiting.pop()
    if op.name not in seen:
      seen[op.name] = op
      waiting += [x.op for x in op.inputs]
  return list(seen.values())


class ChannelsLastTest(tf.test.TestCase, parameterized.TestCase):
  @user_nets.in_every_keras(*KINDS)
  def test_values_and_gradients_are_those_of_channels_last(self, nets, kind):
    first, last = make_pairs(nets, kind)
    self.assertNotEmpty(first[0].converted)
    self.assertEmpty(last[0].converted)
    for mode in (Mode.TRAIN, Mode.EVAL):
      self.assertAllClose(compute(first, mode), compute(last, mode), 1e-4, 1e-5)

  @user_nets.in_every_keras(("functional", "functional"))
  def test_nothing_is_transposed_between_the_layers(self, nets, kind):
    make = getattr(Maker(nets, "channels_first"), kind)
    d = adapt_d(functools.partial(get, make, 1))

    @tf.function(autograph=False)
    def call(images):
      return d(images, None, Mode.FROZEN)

    images = tf.TensorSpec([2, 8, 8, 3])
    (logits,) = call.get_concrete_function(images).outputs
    ops = list_ancestors(logits)
    formats = [op.get_attr("data_format") for op in ops if op.type == "Conv2D"]
    self.assertEqual(formats, [b"NHWC"] * 2)
    # Of a function of the user's that acts on channels first: there and back.
    self.assertLen([op for op in ops if op.type == "Transpose"], 2)

  @user_nets.in_every_keras(("", "sequential"))
  def test_the_plan_shows_what_is_converted(self, nets, kind):
    g, _ = getattr(Maker(nets, "channels_first"), kind)()
    g = user_nets.adapt_g(g, spec=SPEC)
    inputs = tf.TensorSpec([16, user_nets.Z_DIM])
    rows = layout_pass.plan_net(g, inputs, None, hardware.PROFILES["tpu_v3"])
    shown = [row for row in rows if row.form == "channels last"]
    shapes = [row.shape for row in shown if "conv2d" in row.name]
    self.assertEqual(shapes, [(16, 4, 4, 5), (16, 8, 8, 3)])
    self.assertLen(rows, len(shown) + len(g.trainable_variables))

  def test_a_net_of_any_kind_may_ask_for_channels_first(self):
    seen = []

    class Net(tf.Module):
      data_format = "channels_first"

      def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones([3]))

      def __call__(self, x):
        seen.append(x.shape)
        return tf.reduce_sum(x * self.w[:, None, None], [1, 2, 3])

    images = tf.reshape(tf.range(192.0), [1, 8, 8, 3])
    logits = adapt_d(Net())(images, None, Mode.TRAIN)
    self.assertAllClose(logits, [tf.reduce_sum(images)])
    self.assertEqual(seen[-1], [1, 3, 8, 8])

  @user_nets.in_every_keras()
  def test_layers_may_have_channels_first_inside_only(self, nets):
    keras = nets.keras

    class Net(keras.Model):
      data_format = "channels_last"

      def __init__(self):
        super().__init__()
        self.conv = keras.layers.Conv2D(1, 8, data_format="channels_first")

      def call(self, x):
        return tf.reshape(self.conv(tf.transpose(x, [0, 3, 1, 2])), [-1])

    logits = adapt_d(Net())(tf.ones([2, 8, 8, 3]), None, Mode.TRAIN)
    self.assertEqual(logits.shape, [2])

  def test_an_operation_with_channels_first_is_named(self):
    class Net(tf.Module):
      data_format = "channels_first"

      def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones([3]))

      def __call__(self, x):
        if x.shape[1] == 3:  # What TensorFlow says on some hardware.
          raise ValueError("Only supports NHWC, got NCHW.")
        return tf.reduce_sum(x * self.w, [1, 2, 3])

    with self.assertRaisesRegex(
      ValueError, r"line \d+ of '.*channels_last_test.py' .*; use such layers"
    ):
      adapt_d(Net())


if __name__ == "__main__":
  testing.main()
