"""Nets of every kind that a user may bring, in every Keras that is there."""

import functools
import importlib.util

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.nets import adapted
from paragan_tf.types import ImageSpec
from tests import testing

SPEC = ImageSpec(resolution=4, channels=1, num_classes=3)
BATCH = 8
IMAGE = [4, 4, 1]
Z_DIM = 5


class Linear(tf.Module):
  """A matrix and what a batch norm is about, by hand."""

  def __init__(self, num_in, num_out, wanted):
    super().__init__()
    random = np.random.RandomState(num_out)
    self.w = [tf.Variable(random.randn(num_in + 3, num_out) / 4, dtype="float")]
    self.mean = None
    if wanted:
      self.mean = tf.Variable(tf.zeros([num_out]), trainable=False)

  def __call__(self, x, y, training=False):
    x = tf.reshape(x, [x.shape[0], -1])
    x = tf.concat([x, tf.one_hot(y, 3)], 1) @ self.w[0]
    if self.mean is None:
      return x
    if not training:
      return x - self.mean
    mean = tf.reduce_mean(x, 0)
    self.mean.assign(0.9 * self.mean + 0.1 * mean)
    return x - mean


class ModuleG(Linear):
  def __call__(self, z, y, training=False):
    return tf.tanh(tf.reshape(super().__call__(z, y, training), [-1, *IMAGE]))


def module(wanted):
  return ModuleG(Z_DIM, 16, wanted), Linear(16, 1, wanted)


class KerasNets:
  """Makes pairs of G and D with one Keras, with or without a batch norm.

  Attributes:
    keras: Such as `tf.keras`.
    name: Of the package, and its version.
  """

  def __init__(self, keras):
    self.keras = keras
    package = keras.layers.Layer.__module__.split(".")[0]
    version = (getattr(keras, "__version__", "2") or "2").split(".")[0]
    self.name = f"{package}_{version}"
    self.is_keras_3 = not issubclass(keras.layers.Layer, tf.Module)
    self.SubclassedG, self.SubclassedD = _subclasses(self)
    self.Generator, self.Discriminator = _plain_classes(self)
    self.InCallG, self.InCallD = _in_call_classes(self)

  def norm(self, wanted):
    """Returns a batch norm, or nothing in its place."""
    layers = self.keras.layers
    return (
      layers.BatchNormalization() if wanted else layers.Activation("linear")
    )

  def functional(self, wanted):
    keras, layers = self.keras, self.keras.layers
    z, ids = keras.Input([Z_DIM]), keras.Input([1], dtype="int32")
    h = layers.Dense(16)(z) + layers.Flatten()(layers.Embedding(3, 16)(ids))
    h = layers.Activation("tanh")(self.norm(wanted)(h))
    g = keras.Model([z, ids], layers.Reshape(IMAGE)(h))
    x, one_hot = keras.Input(IMAGE), keras.Input([3])
    h = layers.Dense(6)(layers.Concatenate()([layers.Flatten()(x), one_hot]))
    logits = layers.Dense(1)(layers.LeakyReLU()(self.norm(wanted)(h)))
    return g, keras.Model([x, one_hot], logits)

  def sequential(self, wanted):
    layers, norm = self.keras.layers, self.norm
    g = [layers.Dense(16), norm(wanted), layers.Reshape(IMAGE)]
    d = [layers.Flatten(), layers.Dense(6), norm(wanted), layers.Dense(1)]
    return self.keras.Sequential(g), self.keras.Sequential(d)

  def built_sequential(self, wanted):
    """Knows its inputs from a call only."""
    g, d = self.sequential(wanted)
    g(tf.zeros([1, Z_DIM]))
    d(tf.zeros([1, *IMAGE]))
    return g, d

  def subclassed(self, wanted):
    return self.SubclassedG(wanted), self.SubclassedD(wanted)

  def built_subclassed(self, wanted):
    g, d = self.subclassed(wanted)
    g(tf.zeros([1, Z_DIM]), tf.zeros([1], tf.int32))
    d(tf.zeros([1, *IMAGE]))
    g.compile("adam", "mse")
    return g, d

  def plain(self, wanted):
    return self.Generator(wanted), self.Discriminator(wanted)

  def factories(self, wanted):
    if not wanted:
      return self.SubclassedG, self.Discriminator
    return (
      functools.partial(self.SubclassedG, True),
      lambda: self.Discriminator(True),
    )

  def in_call(self, wanted):
    return self.InCallG(wanted), self.InCallD(wanted)


def _subclasses(nets):
  keras, layers = nets.keras, nets.keras.layers

  class SubclassedG(keras.Model):
    def __init__(self, wanted=False):
      super().__init__()
      self.z_dim = Z_DIM
      self.table = layers.Dense(16, use_bias=False)
      body = [layers.Dense(16), nets.norm(wanted), layers.Reshape(IMAGE)]
      self.body = keras.Sequential(body)

    def call(self, z, labels=None, training=None):
      classes = tf.reshape(self.table(tf.one_hot(labels, 3)), [-1, *IMAGE])
      return tf.tanh(self.body(z, training=training) + classes)

  class SubclassedD(keras.Model):
    def __init__(self, wanted=False):
      super().__init__()
      self.first, self.norm = layers.Dense(6), nets.norm(wanted)
      self.last = layers.Dense(1)

    def call(self, x):
      h = self.norm(self.first(tf.reshape(x, [-1, 16])))
      return self.last(tf.nn.leaky_relu(h))[:, 0]

  return SubclassedG, SubclassedD


def _plain_classes(nets):
  layers = nets.keras.layers

  class Generator:
    """As on the poster; nothing hands `training` on."""

    def __init__(self, wanted=False):
      self.dense, self.norm = layers.Dense(16), nets.norm(wanted)

    def model_fn(self, latent_var, y):
      h = tf.concat([latent_var, tf.one_hot(y, 3)], 1)
      output = tf.tanh(self.norm(self.dense(h)))
      return tf.reshape(output, [-1, *IMAGE])

  class Discriminator:
    def __init__(self, wanted=False):
      self.layers = {"dense": layers.Dense(6), "norm": nets.norm(wanted)}
      self.last = layers.Dense(1)

    def model_fn(self, x, y):
      h = tf.concat([tf.reshape(x, [-1, 16]), tf.one_hot(y, 3)], 1)
      h = self.layers["norm"](self.layers["dense"](h))
      out_logit = self.last(tf.nn.leaky_relu(h))
      return tf.sigmoid(out_logit), out_logit

  return Generator, Discriminator


def _in_call_classes(nets):
  keras, layers = nets.keras, nets.keras.layers
  v1 = tf.compat.v1

  def dense(x, units):
    # TensorFlow 1 has its layers from `tf.keras`, if that is Keras 2.
    if keras is tf.keras and not nets.is_keras_3:
      return v1.layers.dense(x, units)
    return layers.Dense(units)(x)

  class InCallG:
    """Makes its layers in the call, as TensorFlow 1 does."""

    def __init__(self, wanted):
      self.wanted = wanted

    def model_fn(self, z, y):
      with v1.variable_scope("g", reuse=v1.AUTO_REUSE):
        table = v1.get_variable("table", [3, 16])
      h = dense(z, 16) + tf.gather(table, y)
      return tf.reshape(nets.norm(self.wanted)(h), [-1, *IMAGE])

  class InCallD(InCallG):
    def model_fn(self, x, y):
      h = nets.norm(self.wanted)(layers.Dense(6)(tf.reshape(x, [-1, 16])))
      return keras.Sequential([layers.Dense(1)])(tf.nn.relu(h))

  return InCallG, InCallD


@functools.cache
def all_keras():
  """Returns the nets of `tf.keras`, and of tf_keras if that is another one."""
  found = [tf.keras]
  if importlib.util.find_spec("tf_keras"):
    import tf_keras

    if tf_keras.layers.Layer is not tf.keras.layers.Layer:
      found.append(tf_keras)
  return tuple(map(KerasNets, found))


def kinds(*names):
  """Returns pairs of a name and what makes G and D, in every Keras."""
  return tuple(
    (f"{name}_{nets.name}", getattr(nets, name))
    for nets in all_keras()
    for name in names
  )


def in_every_keras(*cases):
  """Parameterizes a test with the nets of each Keras, and a case of a table."""
  return parameterized.named_parameters(
    *(
      ("_".join([*case[:1], nets.name]), nets, *case[1:])
      for nets in all_keras()
      for case in cases or [()]
    )
  )


def list_variables(net):
  """Returns the variables that a user's net holds."""
  if isinstance(net, tf.Module):
    return tf.Module.variables.fget(net)
  if hasattr(net, "weights"):
    return [variable.value for variable in net.weights]
  parts = (part for part in vars(net).values() if hasattr(part, "weights"))
  return [variable for part in parts for variable in list_variables(part)]


def one():
  return tf.distribute.OneDeviceStrategy("/cpu:0")


def adapt_g(net, z_dim=Z_DIM, name="g", spec=SPEC):
  with strategies.scope(one()):
    return adapted.adapt_g(net, z_dim, spec, 0, name)


def adapt_d(net, spec=SPEC, strategy=None):
  with strategies.scope(strategy or one()):
    return adapted.adapt_d(net, spec, 0, "d")


def batch():
  return testing.batch(BATCH, SPEC, Z_DIM)
