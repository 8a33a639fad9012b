"""Nets of every kind that a user may bring, and what each one is promised."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.engine.player import Player
from paragan_tf.engine.step import Step
from paragan_tf.game import losses, optimizers, schedule, turns
from paragan_tf.game.ema import Ema
from paragan_tf.nets import adapted
from paragan_tf.sync import exchange
from paragan_tf.types import ImageSpec, Mode
from tests import testing

SPEC = ImageSpec(resolution=4, channels=1, num_classes=3)
IMAGE = [4, 4, 1]
Z_DIM = 5
BATCH = 8


def one():
  return tf.distribute.OneDeviceStrategy("/cpu:0")


def norm(wanted):
  """Returns a batch norm, or nothing in its place."""
  keras = tf.keras.layers
  return keras.BatchNormalization() if wanted else keras.Activation("linear")


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


def functional(wanted):
  keras = tf.keras.layers
  z, ids = tf.keras.Input([Z_DIM]), tf.keras.Input([1], dtype="int32")
  h = keras.Dense(16)(z) + keras.Flatten()(keras.Embedding(3, 16)(ids))
  images = keras.Reshape(IMAGE)(keras.Activation("tanh")(norm(wanted)(h)))
  x, one_hot = tf.keras.Input(IMAGE), tf.keras.Input([3])
  h = keras.Dense(6)(keras.Concatenate()([keras.Flatten()(x), one_hot]))
  logits = keras.Dense(1)(keras.LeakyReLU()(norm(wanted)(h)))
  return tf.keras.Model([z, ids], images), tf.keras.Model([x, one_hot], logits)


def sequential(wanted):
  keras = tf.keras.layers
  g = [keras.Dense(16), norm(wanted), keras.Reshape(IMAGE)]
  d = [keras.Flatten(), keras.Dense(6), norm(wanted), keras.Dense(1)]
  return tf.keras.Sequential(g), tf.keras.Sequential(d)


def built_sequential(wanted):
  """Knows its inputs from a call only."""
  g, d = sequential(wanted)
  g(tf.zeros([1, Z_DIM]))
  d(tf.zeros([1, *IMAGE]))
  return g, d


class SubclassedG(tf.keras.Model):
  def __init__(self, wanted=False):
    super().__init__()
    self.z_dim = Z_DIM
    keras = tf.keras.layers
    self.table = keras.Dense(16, use_bias=False)
    body = [keras.Dense(16), norm(wanted), keras.Reshape(IMAGE)]
    self.body = tf.keras.Sequential(body)

  def call(self, z, labels=None, training=None):
    classes = tf.reshape(self.table(tf.one_hot(labels, 3)), [-1, *IMAGE])
    return tf.tanh(self.body(z, training=training) + classes)


class SubclassedD(tf.keras.Model):
  def __init__(self, wanted=False):
    super().__init__()
    self.first, self.norm = tf.keras.layers.Dense(6), norm(wanted)
    self.last = tf.keras.layers.Dense(1)

  def call(self, x):
    h = self.norm(self.first(tf.reshape(x, [-1, 16])))
    return self.last(tf.nn.leaky_relu(h))[:, 0]


def subclassed(wanted):
  return SubclassedG(wanted), SubclassedD(wanted)


def built_subclassed(wanted):
  g, d = subclassed(wanted)
  g(tf.zeros([1, Z_DIM]), tf.zeros([1], tf.int32))
  d(tf.zeros([1, *IMAGE]))
  g.compile("adam", "mse")
  return g, d


class Generator:
  """As on the poster; nothing hands `training` on."""

  def __init__(self, wanted=False):
    self.dense, self.norm = tf.keras.layers.Dense(16), norm(wanted)

  def model_fn(self, latent_var, y):
    h = tf.concat([latent_var, tf.one_hot(y, 3)], 1)
    output = tf.tanh(self.norm(self.dense(h)))
    return tf.reshape(output, [-1, *IMAGE])


class Discriminator:
  def __init__(self, wanted=False):
    self.layers = {"dense": tf.keras.layers.Dense(6), "norm": norm(wanted)}
    self.last = tf.keras.layers.Dense(1)

  def model_fn(self, x, y):
    h = tf.concat([tf.reshape(x, [-1, 16]), tf.one_hot(y, 3)], 1)
    h = self.layers["norm"](self.layers["dense"](h))
    out_logit = self.last(tf.nn.leaky_relu(h))
    return tf.sigmoid(out_logit), out_logit


def plain(wanted):
  return Generator(wanted), Discriminator(wanted)


def factories(wanted):
  if not wanted:
    return SubclassedG, Discriminator
  return functools.partial(SubclassedG, True), lambda: Discriminator(True)


class InCallG:
  """Makes its layers in the call, as TensorFlow 1 does."""

  def __init__(self, wanted):
    self.wanted = wanted

  def model_fn(self, z, y):
    v1 = tf.compat.v1
    with v1.variable_scope("g", reuse=v1.AUTO_REUSE):
      table = v1.get_variable("table", [3, 16])
    h = v1.layers.dense(z, 16) + tf.gather(table, y)
    return tf.reshape(norm(self.wanted)(h), [-1, *IMAGE])


class InCallD(InCallG):
  def model_fn(self, x, y):
    h = norm(self.wanted)(tf.keras.layers.Dense(6)(tf.reshape(x, [-1, 16])))
    return tf.keras.Sequential([tf.keras.layers.Dense(1)])(tf.nn.relu(h))


def in_call(wanted):
  return InCallG(wanted), InCallD(wanted)


KINDS = (
  ("module", module),
  ("functional", functional),
  ("sequential", sequential),
  ("subclassed", subclassed),
  ("built_subclassed", built_subclassed),
  ("plain", plain),
  ("factories", factories),
  ("in_call", in_call),
)
BUILT = (
  ("module", module),
  ("functional", functional),
  ("sequential", built_sequential),
  ("subclassed", built_subclassed),
)
# What is built, and what a class or function makes, is one of the others.
DISTINCT = tuple(
  kind for kind in KINDS if kind[1] not in (built_subclassed, factories)
)
# All but the kind that makes its variables in a call.
OTHERS = tuple(kind for kind in KINDS if kind[1] is not in_call)


def adapt(pair, strategy=None, spec=SPEC):
  """Returns G and D on all replicas of a strategy."""
  with strategies.scope(strategy or one()):
    g = adapted.adapt_g(pair[0], Z_DIM, spec, 0, "g")
    return g, adapted.adapt_d(pair[1], spec, 0, "d")


@functools.cache
def get_pair(make_pair):
  """Returns G and D for tests that change no weight."""
  return adapt(make_pair(True))


@functools.cache
def adapt_user_pair(make_pair):
  """Returns what a user has, its first values, and G and D out of it.

  G and D may be changed; they are made after those that are shared, and after
  another net: Keras counts its layers over a whole process.
  """
  get_pair(make_pair)
  tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[1])])
  pair = make_pair(True)
  before = [testing.values(list_variables(net)) for net in pair]
  return pair, before, adapt(pair)


def adapt_g(net, z_dim=Z_DIM, name="g", spec=SPEC):
  with strategies.scope(one()):
    return adapted.adapt_g(net, z_dim, spec, 0, name)


def adapt_d(net, spec=SPEC, strategy=None):
  with strategies.scope(strategy or one()):
    return adapted.adapt_d(net, spec, 0, "d")


def names(net):
  return [variable.name for variable in net.variables]


def state(net):
  return [variable for variable in net.variables if not variable.trainable]


def batch():
  return testing.batch(BATCH, SPEC, Z_DIM)


def list_variables(net):
  """Returns the variables that a user's net holds."""
  if isinstance(net, tf.Module):
    return tf.Module.variables.fget(net)
  return [
    v for part in vars(net).values() for v in getattr(part, "weights", ())
  ]


class AdaptedTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*KINDS)
  def test_g_makes_images_and_d_judges_them(self, make_pair):
    g, d = get_pair(make_pair)
    self.assertEqual(g.z_dim, Z_DIM)
    images, labels, z = batch()
    for mode in Mode:
      fakes = g(z, labels, mode)
      self.assertEqual(fakes.shape, images.shape)
      logits = d(fakes, labels, mode)
      self.assertEqual(logits.shape, [BATCH])
      self.assertEqual(logits.dtype, tf.float32)
      self.assertGreater(np.std(logits), 1e-6)

  @parameterized.named_parameters(*KINDS)
  def test_names_are_the_same_whatever_was_made_before(self, make_pair):
    for net, again, name in zip(
      get_pair(make_pair), adapt_user_pair(make_pair)[2], "gd"
    ):
      self.assertEqual(names(net), names(again))
      for i, variable in enumerate(names(net)):
        self.assertRegex(variable, f"^{name}/{i}_[a-zA-Z_]+:0$")

  def test_names_say_what_they_are(self):
    g, d = get_pair(functional)
    last = ["kernel", "bias", "embeddings", "gamma", "beta"]
    last += ["moving_mean", "moving_variance"]
    self.assertCountEqual([n.split("_", 1)[1][:-2] for n in names(g)], last)
    self.assertEqual(
      names(d)[:3], ["d/0_kernel:0", "d/1_bias:0", "d/2_gamma:0"]
    )

  @parameterized.named_parameters(*KINDS)
  def test_copies_are_independent(self, make_pair):
    (net, _), _, (g, _) = adapt_user_pair(make_pair)
    twin = adapt_g(net, name="g_ema")
    self.assertEqual([n.replace("g/", "g_ema/") for n in names(g)], names(twin))
    before = testing.values(twin.variables)
    for variable, other in zip(g.variables, twin.variables):
      self.assertEqual(variable.shape, other.shape)
      self.assertEqual(variable.trainable, other.trainable)
      variable.assign_add(tf.ones_like(variable))
    g(*batch()[2:], batch().labels, Mode.TRAIN)
    self.assertAllClose(before, testing.values(twin.variables), 0, 0)

  @parameterized.named_parameters(*BUILT)
  def test_values_are_copied(self, make_pair):
    for net, make in zip(make_pair(True), (adapt_g, adapt_d)):
      own = list_variables(net)
      for i, variable in enumerate(own):
        variable.assign(tf.cast(tf.zeros_like(variable), variable.dtype) + i)
      expected = sorted(i for i, v in enumerate(own) if v.dtype.is_floating)
      found = [np.unique(v) for v in make(net).variables]
      self.assertCountEqual(np.concatenate(found), expected)

  @parameterized.named_parameters(*BUILT)
  def test_a_copy_of_a_built_net_does_the_same(self, make_pair):
    net = make_pair(False)[0]
    _, labels, z = batch()
    given = {functional: ([z, labels[:, None]],), built_sequential: (z,)}
    expected = net(*given.get(make_pair, (z, labels)))
    self.assertAllClose(adapt_g(net)(z, labels, Mode.EVAL), expected)

  @parameterized.named_parameters(*KINDS)
  def test_the_users_net_stays_as_it_is(self, make_pair):
    if make_pair is factories:
      return
    pair, before, (g, d) = adapt_user_pair(make_pair)
    images, labels, z = batch()
    for net, x in ((g, z), (d, images)):
      for variable in net.variables:
        variable.assign_add(tf.ones_like(variable))
      net(x, labels, Mode.TRAIN)
    for net, values in zip(pair, before):
      self.assertLen(list_variables(net), len(values))
      for variable, value in zip(list_variables(net), values):
        self.assertAllEqual(variable, value)

  @parameterized.named_parameters(*KINDS)
  def test_state_moves_in_its_turn_only(self, make_pair):
    d = adapt_d(make_pair(True)[1])
    self.check_first(d)
    images, labels, _ = batch()
    call = functools.partial(d, images + 1.0, labels)
    # What is traced moves on replicas, below; a plain object has no `training`.
    traced = [tf.function(call, autograph=False)] * (make_pair is plain)
    for run in (call, *traced):
      for mode in (Mode.EVAL, Mode.TRAIN, Mode.FROZEN):
        self.check_moves(functools.partial(run, mode), mode, state(d))

  @parameterized.named_parameters(("module", module), ("in_call", in_call))
  def test_state_moves_on_each_replica(self, make_pair):
    d = adapt_d(make_pair(True)[1], strategy=testing.strategy())
    self.check_first(d)
    copies = [
      copy
      for variable in state(d)
      for copy in strategies.copies(testing.strategy(), variable)
    ]
    images, labels, _ = batch()
    for mode in (Mode.FROZEN, Mode.TRAIN):
      call = functools.partial(d, images + 1.0, labels, mode)
      run = functools.partial(testing.run_on_replicas, call)
      self.check_moves(run, mode, copies)

  @parameterized.named_parameters(
    ("one", one), ("four_replicas", testing.strategy)
  )
  def test_building_leaves_no_trace(self, strategy):
    class Counting(Linear):
      def __call__(self, x, y):
        self.mean.assign_add([1.0])
        return super().__call__(x, y)

    d = adapt_d(Counting(16, 1, True), strategy=strategy())
    for copy in strategies.copies(strategy(), state(d)[0]):
      self.assertAllEqual(copy, [0.0])

  def check_first(self, d):
    """Nothing has moved yet, but could."""
    self.assertTrue(d.uses_batch_statistics)
    self.assertNotEmpty(state(d))
    for variable in state(d):
      first = 1.0 if "variance" in variable.name else 0.0
      self.assertAllEqual(np.unique(variable), [first])

  def check_moves(self, run, mode, variables):
    before = testing.values(variables)
    run()
    for old, new in zip(before, testing.values(variables)):
      self.assertEqual(np.allclose(old, new), mode is not Mode.TRAIN, mode)

  @parameterized.named_parameters(*KINDS)
  def test_only_evaluation_judges_each_image_alone(self, make_pair):
    _, d = get_pair(make_pair)
    images, labels, _ = batch()
    alone = {
      mode: np.allclose(
        d(images, labels, mode)[:3], d(images[:3], labels[:3], mode), atol=1e-5
      )
      for mode in Mode
    }
    expected = {Mode.TRAIN: False, Mode.FROZEN: False, Mode.EVAL: True}
    self.assertEqual(alone, expected)

  @parameterized.named_parameters(*DISTINCT)
  def test_every_weight_learns(self, make_pair):
    g, d = adapt(make_pair(False))
    self.assertFalse(d.uses_batch_statistics)
    for net, move in ((g, turns.g_move), (d, turns.d_move)):
      fakes = turns.draw(g, batch(), Mode.TRAIN)
      grads = move(fakes, d, batch(), losses.non_saturating).grads
      self.assertLen(grads, len(net.variables))
      for variable, grad in zip(net.trainable_variables, grads):
        grad = tf.convert_to_tensor(grad)
        self.assertGreater(np.abs(grad).max(), 1e-6, variable.name)

  def test_four_replicas_equal_one_with_the_whole_batch(self):
    # The kind that has most to find again.
    self.check_replicas(in_call(False))

  @parameterized.named_parameters(*OTHERS)
  @pytest.mark.soak
  def test_four_replicas_equal_one_for_other_kinds_of_nets(self, make_pair):
    self.check_replicas(make_pair(False))

  def check_replicas(self, pair):
    whole, shared = make_step(pair, one()), make_step(pair, testing.strategy())
    start = {v.name: v.numpy() for v in whole.variables}
    for variable in shared.variables:
      for copy in strategies.copies(testing.strategy(), variable):
        copy.assign(start[variable.name])
    train(whole, one())
    train(shared, testing.strategy())
    self.assertLen(shared.variables, len(start))
    for ours, theirs in zip(whole.variables, shared.variables):
      self.assertEqual(ours.name, theirs.name)
      for copy in strategies.copies(testing.strategy(), theirs):
        self.assertAllClose(ours, copy, rtol=1e-5, atol=1e-5, msg=ours.name)
      self.assertNotAllClose(ours, start[ours.name], atol=1e-7, rtol=0)


def make_step(pair, strategy):
  g, d = adapt(pair, strategy)
  with strategies.scope(strategy):
    twin = adapted.adapt_g(pair[0], Z_DIM, SPEC, 0, "g_ema")
    sides = [
      Player(net, optimizers.SGD(0.1, name=name), exchange.AllReduce())
      for net, name in ((g, "g_optimizer"), (d, "d_optimizer"))
    ]
    ema = Ema(g, twin, decay=0.5, start_step=1)
    loss = losses.non_saturating
    return Step(*sides, loss, schedule.Sequential(), ema, seed=3)


def train(step, strategy):
  num = strategy.num_replicas_in_sync

  def run(x, y):
    strategy.run(step, args=(x, y, 0))

  if num > 1:
    run = tf.function(run, autograph=False)
  for t in range(2):
    images, labels = testing.images(BATCH, SPEC, t), testing.labels(BATCH, SPEC)
    parts = [np.split(part, num) for part in (images, labels)]
    run(*(testing.distribute(x) if num > 1 else x[0] for x in parts))


class CallTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("ids", [], "int32", lambda y: y),
    ("column", [1], "int64", lambda y: y[:, 0]),
    ("float_column", [None], "float32", lambda y: y[:, 0]),
    ("one_hot", [3], "float32", lambda y: tf.reduce_sum(y * [0.0, 1, 2], 1)),
  )
  def test_labels_come_as_a_keras_input_wants_them(self, shape, dtype, ids):
    x, y = tf.keras.Input(IMAGE), tf.keras.Input(shape, dtype=dtype)
    logits = tf.keras.layers.Lambda(lambda xy: ids(xy[1]))([x, y])
    d = adapt_d(tf.keras.Model([x, y], logits))
    images, labels, _ = batch()
    self.assertAllEqual(d(images, labels, Mode.TRAIN), labels)

  def test_the_last_of_a_tuple_are_the_logits(self):
    d = adapt_d(lambda x, y: (x[:, 0, 0, 0], tf.cast(y, tf.float16)[:, None]))
    images, labels, _ = batch()
    self.assertAllEqual(d(images, labels, Mode.TRAIN), labels)

  def test_labels_are_none_without_classes(self):
    class D(Discriminator):
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

  def test_a_layer_may_call_it_otherwise(self):
    class D(tf.keras.layers.Layer):
      def call(self, x, is_training=None):
        return tf.fill([x.shape[0]], 1.0 if is_training else 0.0)

    d = adapt_d(D())
    for mode in Mode:
      logits = d(batch().images, batch().labels, mode)
      self.assertAllEqual(logits, [float(mode is not Mode.EVAL)] * BATCH)

  @parameterized.named_parameters(
    ("given", lambda: ModuleG(7, 16, False), 7, 7),
    ("of_the_net", SubclassedG, None, Z_DIM),
    ("of_the_input", lambda: functional(False)[0], None, Z_DIM),
    ("unknown", lambda: sequential(False)[0], None, 128),
  )
  def test_z_dim_is_given_or_asked_or_128(self, make_g, given, expected):
    self.assertEqual(adapt_g(make_g(), given).z_dim, expected)

  def test_frozen_layers_do_not_learn(self):
    _, net = functional(False)
    net.get_layer(index=4).trainable = False
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


class Locked(Generator):
  def __init__(self):
    super().__init__()
    self.lock = threading.Lock()


class Keeper(Generator):
  def model_fn(self, latent_var, y):
    self.dense = tf.keras.layers.Dense(16)
    return super().model_fn(latent_var, y)


class Trainer(tf.keras.Model):
  def __init__(self):
    super().__init__()
    self.first, self.second = (tf.keras.layers.Dense(16) for _ in range(2))

  def call(self, z, training=None):
    return tf.reshape(
      (self.second if training else self.first)(z), [-1, *IMAGE]
    )


class ThreeArguments(tf.Module):
  def __call__(self, z, labels, mode):
    return z


class ErrorsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("flat", lambda: tf.keras.layers.Dense(16), r"\[2, 4, 4, 1\].*\(2, 16\)"),
    ("uncopyable", Locked, "cannot pickle.*pass its class, or a function"),
    ("new_in_each_call", Keeper, "creates new variables on every call.*kernel"),
    ("new_when_it_trains", Trainer, "others when it trains.*kernel"),
    ("mode", ThreeArguments, r"`\(x, labels\)`.*got \(z, labels, mode\)"),
    ("no_net", lambda: 3, "must be a `tf.Module`.*got 3"),
    ("other_z_dim", lambda: ModuleG(9, 16, False), r"shape \[2, 5\].*Matrix"),
  )
  def test_a_wrong_g_is_refused(self, make_g, message):
    with self.assertRaisesRegex(ValueError, f"(?s)^`g` .*{message}"):
      adapt_g(make_g())

  @parameterized.named_parameters(
    ("two_units", lambda: Linear(16, 2, False), r"\[2, 1\].*\(2, 2\)"),
    ("no_logits", lambda: lambda x, y: {"logits": x}, "logits.*'logits'"),
    ("three_inputs", lambda: three_inputs(), "one input beside x"),
  )
  def test_a_wrong_d_is_refused(self, make_d, message):
    with self.assertRaisesRegex(ValueError, f"(?s)^`d` .*{message}"):
      adapt_d(make_d())

  @parameterized.parameters(0, -1, "3")
  def test_a_wrong_z_dim_is_refused(self, z_dim):
    with self.assertRaisesRegex(ValueError, f"`z_dim`.*got {z_dim}"):
      adapt_g(sequential(False)[0], z_dim)

  def test_labels_must_be_there_for_an_input(self):
    with self.assertRaisesRegex(ValueError, "`g`.*0 classes"):
      adapt_g(functional(False)[0], spec=SPEC._replace(num_classes=0))

  def test_variables_that_are_not_held_are_refused(self):
    dense = tf.keras.layers.Dense(16)
    dense.build([None, Z_DIM])

    def g(z, labels):
      return tf.reshape(dense(z), [-1, *IMAGE])

    with self.assertRaisesRegex(ValueError, "`g` must own.*kernel"):
      adapt_g(g)
    net = tf.keras.Sequential([dense, tf.keras.layers.Reshape(IMAGE)])
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

  def test_a_copy_must_be_of_the_same_class(self):
    class Mine(tf.keras.Sequential):
      pass

    net = Mine([tf.keras.layers.Dense(16, input_shape=[Z_DIM])])
    with self.assertRaisesRegex(ValueError, "`g`.*Mine is more.*its class"):
      adapt_g(net)


def three_inputs():
  inputs = [tf.keras.Input(IMAGE), tf.keras.Input([1]), tf.keras.Input([1])]
  return tf.keras.Model(inputs, inputs[1])


if __name__ == "__main__":
  testing.main()
