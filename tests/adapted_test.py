"""Nets of every kind that a user may bring, and what each one is promised."""

import functools

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
from paragan_tf.types import Mode
from tests import testing, user_nets
from tests.user_nets import (
  BATCH,
  SPEC,
  Z_DIM,
  Linear,
  adapt_d,
  adapt_g,
  batch,
  list_variables,
  one,
)

MODULE = ("module", user_nets.module)
KINDS = (
  MODULE,
  *user_nets.kinds(
    *("functional", "sequential", "subclassed", "built_subclassed"),
    *("plain", "factories", "in_call"),
  ),
)
BUILT = (
  MODULE,
  *user_nets.kinds("functional", "built_sequential", "built_subclassed"),
)
# What is built, and what a class or function makes, is one of the others.
DISTINCT = (
  MODULE,
  *user_nets.kinds(
    "functional", "sequential", "subclassed", "plain", "in_call"
  ),
)
# All but the kind that makes its variables in a call.
OTHERS = tuple(kind for kind in KINDS if kind[1].__name__ != "in_call")


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
  for nets in user_nets.all_keras():
    keras = nets.keras
    keras.Sequential([keras.Input([1]), keras.layers.Dense(2)])
  pair = make_pair(True)
  before = [testing.values(list_variables(net)) for net in pair]
  return pair, before, adapt(pair)


def names(net):
  return [variable.name for variable in net.variables]


def state(net):
  return [variable for variable in net.variables if not variable.trainable]


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

  @parameterized.named_parameters(*user_nets.kinds("functional"))
  def test_names_say_what_they_are(self, make_pair):
    g, d = get_pair(make_pair)
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
    given = {
      "functional": ([z, labels[:, None]],),
      "built_sequential": (z,),
    }
    expected = net(*given.get(make_pair.__name__, (z, labels)))
    self.assertAllClose(adapt_g(net)(z, labels, Mode.EVAL), expected)

  @parameterized.named_parameters(*KINDS)
  def test_the_users_net_stays_as_it_is(self, make_pair):
    if make_pair.__name__ == "factories":
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
    traced = [tf.function(call, autograph=False)] * (
      make_pair.__name__ == "plain"
    )
    for run in (call, *traced):
      for mode in (Mode.EVAL, Mode.TRAIN, Mode.FROZEN):
        self.check_moves(functools.partial(run, mode), mode, state(d))

  @parameterized.named_parameters(MODULE, *user_nets.kinds("in_call"))
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

  @parameterized.named_parameters(*user_nets.kinds("in_call"))
  def test_four_replicas_equal_one_with_the_whole_batch(self, make_pair):
    # The kind that has most to find again.
    self.check_replicas(make_pair(False))

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


if __name__ == "__main__":
  testing.main()
