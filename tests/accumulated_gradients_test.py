"""Gradients of several moves make one update: that of a larger batch."""

import collections
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import collectives
from paragan_tf.engine import strategies
from paragan_tf.engine.placement import MOVES
from paragan_tf.engine.player import Player
from paragan_tf.engine.step import Step
from paragan_tf.game import (
  lookahead,
  losses,
  noise,
  optimistic,
  optimizers,
  penalties,
  rates,
  regularizers,
  schedule,
  turns,
)
from paragan_tf.game.augment import Ada
from paragan_tf.game.ema import Ema
from paragan_tf.game.loss_scale import LossScale
from paragan_tf.nets import linear
from paragan_tf.sync.exchange import AccumulatedGradients, AllReduce
from paragan_tf.types import Batch, Mode
from tests import role_split_test, testing

BATCH = 8
SEED = 3
# Clipped gradients hide their scale, so those of G are not.
CLIPS = {"d": 0.3, "g": None}
L2 = regularizers.l2(0.1)
LOSS = losses.non_saturating


def make_lookahead(name):
  return lookahead.Lookahead(optimizers.SGD, 2, name=name)


def make_decaying_adam(name):
  rate = rates.linear(0.05, num_steps=4, final_rate=0.01)
  return optimizers.Adam(rate, beta1=0.5, name=name)


OPTIMIZERS = (
  ("sgd", lambda name: optimizers.SGD(0.05, name)),
  ("adam", make_decaying_adam),
  ("optimistic_adam", lambda name: optimistic.OptimisticAdam(0.05, name=name)),
  ("lookahead", make_lookahead),
)


def make_step(
  strategy,
  make_exchange=AccumulatedGradients,
  make_optimizer=OPTIMIZERS[0][1],
  turns=None,
  make_penalties=lambda: (),
  augment=None,
  loss_scale=None,
):
  """Builds a step of linear nets without statistics."""
  with strategies.scope(strategy):
    g, twin = (
      linear.Generator(testing.SPEC, 0, name=name) for name in ("g", "g_ema")
    )
    d = linear.Discriminator(testing.SPEC, 0, name="d")
    players = [
      Player(
        net,
        make_optimizer(name=f"{name}_optimizer"),
        make_exchange(name=f"{name}_exchange"),
        clip_norm=CLIPS[name],
        regularizer=L2,
        penalties=tuple(make_penalties()) if name == "d" else (),
        loss_scale=loss_scale and LossScale(loss_scale, name=f"{name}_scale"),
      )
      for name, net in (("g", g), ("d", d))
    ]
    return Step(
      *players,
      LOSS,
      turns or schedule.Simultaneous(),
      Ema(g, twin, decay=0.5, start_step=2),
      SEED,
      augment=augment and augment(),
    )


class Runner:
  """Trains a step on the four replicas."""

  def __init__(self, step):
    self.step = step
    self._run = tf.function(
      lambda x, y, phase: testing.strategy().run(step, (x, y, phase)),
      autograph=False,
    )

  def __call__(self, t, spoiled=None):
    """Trains for one step; the images of one replica may be infinite."""
    images, labels = (np.concatenate(x) for x in zip(*self.batches(t)))
    shares = [self.split(images), self.split(labels)]
    if spoiled is not None:
      shares[0][spoiled] = shares[0][spoiled] * np.inf
    args = (testing.distribute(share) for share in shares)
    return self._run(*args, t % self.step.cycle)

  def batches(self, t):
    """Returns the whole batch of each round with D in a step."""
    num = self.step.schedule.num_batches
    return [
      (testing.images(BATCH, seed=10 * t + i), testing.labels(BATCH, seed=t))
      for i in range(num)
    ]

  def split(self, x):
    """Returns what each replica takes, one batch after the other."""
    num = self.step.schedule.num_batches
    x = x.reshape([num, testing.NUM_REPLICAS, -1, *x.shape[1:]])
    return [part.reshape([-1, *x.shape[3:]]) for part in x.swapaxes(0, 1)]

  def values(self, *names):
    """Returns the values of all replicas, of variables with such names."""
    return {
      v.name: np.stack(strategies.copies(testing.strategy(), v))
      for v in self.step.variables
      if not names or any(name in v.name for name in names)
    }


class ByHand:
  """The same nets on one replica, which a loop written by hand trains."""

  def __init__(self, make_optimizer):
    self.g, self.twin = (
      linear.Generator(testing.SPEC, 0, name=name) for name in ("g", "g_ema")
    )
    self.d = linear.Discriminator(testing.SPEC, 0, name="d")
    self.optimizers = {w: make_optimizer(name=f"{w}_optimizer") for w in "gd"}
    for who, optimizer in self.optimizers.items():
      optimizer.init(getattr(self, who).trainable_variables)

  def move(self, who, images, labels, z):
    """Returns a player's gradients on whole batches."""
    batch = Batch(*map(tf.constant, (images, labels)), tf.constant(z))
    fakes = turns.draw(self.g, batch, Mode.TRAIN)
    return MOVES[who](fakes, self.d, batch, LOSS).grads

  def update(self, who, grads):
    """Adds the regularizer, clips, and applies."""
    weights = getattr(self, who).trainable_variables
    with tf.GradientTape() as tape:
      paid = L2(weights)
    more = tape.gradient(paid, weights, unconnected_gradients="zero")
    grads = [a + b for a, b in zip(grads, more)]
    if CLIPS[who]:
      grads = tf.clip_by_global_norm(grads, CLIPS[who])[0]
    self.optimizers[who].apply(grads, weights)

  def follow(self, is_first):
    """Lets the average follow G's base weights."""
    weights = self.g.trainable_variables
    base = self.optimizers["g"].base(weights)
    for shadow, x in zip(self.twin.trainable_variables, base):
      shadow.assign(x if is_first else 0.5 * (shadow + x))

  def values(self):
    modules = (self.g, self.d, self.twin, *self.optimizers.values())
    return {v.name: v.numpy() for m in modules for v in m.variables}


def draw_z(t, index=0, purpose="z"):
  """Returns the latent codes of all replicas in one round of a step."""
  count = tf.constant(t, tf.int64)
  return noise.normal([BATCH, 4], SEED, count, f"{purpose}{index}", 0).numpy()


class EquivalenceTest(tf.test.TestCase, parameterized.TestCase):
  """Against loops that are written by hand, with the whole batch."""

  def assert_equal(self, got, expected):
    for name, value in expected.items():
      for replica in got[name]:
        self.assertAllClose(replica, value, rtol=1e-4, atol=2e-6, msg=name)

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_an_update_is_that_of_twice_the_batch(self, make_optimizer):
    runner = Runner(
      make_step(testing.strategy(), make_optimizer=make_optimizer)
    )
    by_hand = ByHand(make_optimizer)
    before = runner.values("/linear", "/t:")
    for cycle in range(4):
      steps = (2 * cycle, 2 * cycle + 1)
      runner(steps[0])
      for name, value in runner.values("/linear", "/t:").items():
        if not name.endswith("/sum:0"):
          self.assertAllEqual(value, before[name], name)
      runner(steps[1])
      parts = zip(*(runner.batches(t)[0] for t in steps))
      batch = [np.concatenate(part) for part in parts]
      batch.append(np.concatenate([draw_z(t) for t in steps]))
      grads = {who: by_hand.move(who, *batch) for who in "dg"}
      for who in "dg":
        by_hand.update(who, grads[who])
      by_hand.follow(is_first=cycle == 0)
      self.assert_equal(runner.values(), by_hand.values())
      before = runner.values("/linear", "/t:")
    self.assertEqual(by_hand.values()["g_optimizer/t:0"], 4)

  @parameterized.parameters(1, 3)
  def test_a_player_has_an_update_after_two_of_its_moves(self, num_d_steps):
    turns_of = schedule.Sequential(num_d_steps, reuse_fakes=False)
    runner = Runner(make_step(testing.strategy(), turns=turns_of))
    by_hand = ByHand(OPTIMIZERS[0][1])
    kept = {"g": [], "d": []}
    counts = collections.Counter()
    for t in range(4):
      runner(t)
      batches = runner.batches(t)
      moves = [("d", *batch) for batch in batches] + [("g", *batches[-1])]
      for index, (who, images, labels) in enumerate(moves):
        kept[who].append(by_hand.move(who, images, labels, draw_z(t, index)))
        if len(kept[who]) == 2:
          by_hand.update(who, [(a + b) / 2 for a, b in zip(*kept[who])])
          kept[who] = []
          counts[who] += 1
      if t % 2:
        by_hand.follow(is_first=t == 1)
    self.assert_equal(runner.values(), by_hand.values())
    # As many updates of D for one of G as without.
    self.assertEqual(counts, {"g": 2, "d": 2 * num_d_steps})

  @parameterized.named_parameters(
    ("one", role_split_test.one), ("four", testing.strategy)
  )
  def test_on_separate_replicas_it_is_twice_the_batch(self, strategy):
    step = role_split_test.make_step(
      strategy(), AccumulatedGradients, cache_depth=2
    )
    runner = role_split_test.Runner(step, strategy())
    by_hand = ByHand(lambda name: optimizers.SGD(role_split_test.RATE, name))
    last = None
    for cycle in range(3):
      steps = (2 * cycle, 2 * cycle + 1)
      for t in steps:
        runner(t)
      images, labels = (
        np.concatenate(x) for x in zip(*map(role_split_test.data, steps))
      )
      z, own = (
        np.concatenate([draw_z(t, *purpose) for t in steps])
        for purpose in ((0, "z"), ("", "own"))
      )
      batch = Batch(tf.constant(images), tf.constant(labels), tf.constant(z))
      fakes = turns.draw(by_hand.g, batch, Mode.TRAIN)
      if last is None:
        last = by_hand.g(tf.constant(own), batch.labels, Mode.FROZEN), labels
      seen = turns.Fakes(*last, lambda grad: [])
      last = tf.identity(fakes.images), labels
      grads = {
        "g": turns.g_move(fakes, by_hand.d, batch, LOSS).grads,
        "d": turns.d_move(seen, by_hand.d, batch, LOSS).grads,
      }
      for who in "gd":
        weights = getattr(by_hand, who).trainable_variables
        by_hand.optimizers[who].apply(grads[who], weights)
      expected = [w.numpy() for n in "gd" for w in self.weights(by_hand, n)]
      for got, value in zip(runner.weights(), expected):
        for replica in got:
          self.assertAllClose(replica, value, rtol=1e-5, atol=1e-6)

  def weights(self, by_hand, who):
    return getattr(by_hand, who).trainable_variables


class IdleTest(tf.test.TestCase, parameterized.TestCase):
  """A move without an update leaves all but sums and statistics alone."""

  def count_messages(self, step, phase):
    """Returns the messages of all four replicas in one phase."""

    def one_step(x, y):
      testing.strategy().run(step, (x, y, phase))

    runner = Runner(step)
    batch = (np.concatenate(x) for x in zip(*runner.batches(0)))
    args = [testing.distribute(runner.split(x)) for x in batch]
    traced = tf.function(one_step, autograph=False)
    ops = role_split_test.ops(traced.get_concrete_function(*args).graph)
    return len([op for op in ops if "Collective" in op])

  @parameterized.named_parameters(
    ("fused", schedule.Simultaneous, [0, 1]),
    ("in_turns", schedule.Sequential, [0, 2]),
    ("two_d_steps", lambda: schedule.Sequential(2), [1, 2]),
    ("three_d_steps", lambda: schedule.Sequential(3), [1, 3]),
  )
  def test_replicas_communicate_for_updates_only(self, make_turns, expected):
    step = make_step(testing.strategy(), turns=make_turns())
    found = [self.count_messages(step, phase) for phase in range(step.cycle)]
    self.assertEqual(found, [testing.NUM_REPLICAS * num for num in expected])

  def test_bytes_are_halved(self):
    made = {}
    for make in (AllReduce, AccumulatedGradients):
      for num in (1, 3):
        turns_of = schedule.Sequential(num)
        step = make_step(testing.strategy(), make, turns=turns_of)
        with testing.strategy().scope():
          sent = [step.traffic(phase).sent for phase in range(step.cycle)]
        made[make, num] = sent
    self.assertEqual(made[AccumulatedGradients, 1], [0, *made[AllReduce, 1]])
    for num in (1, 3):
      (every,) = made[AllReduce, num]
      self.assertEqual(sum(made[AccumulatedGradients, num]), every)

  def test_all_scalars_are_returned_in_every_phase(self):
    step = make_step(testing.strategy(), loss_scale=64.0)
    runner = Runner(step)
    local = testing.strategy().experimental_local_results
    for t in range(2):
      logs = runner(t)
      self.assertCountEqual(logs, step.log_names)
      norms = [local(logs[f"{w}/update_ratio"])[0] > 0 for w in "gd"]
      self.assertAllEqual(norms, [t == 1] * 2)

  def test_what_follows_d_does_so_at_its_updates(self):
    step = make_step(
      testing.strategy(),
      make_penalties=lambda: [penalties.LeCam(start_step=0, decay=0.5)],
      augment=lambda: Ada(policy=("flip",), target=0.99, speed=100),
    )
    step.game.augment.p.assign(0.9)
    runner = Runner(step)
    before = runner.values("lecam", "augment")
    runner(0)
    for name, value in runner.values("lecam", "augment").items():
      self.assertAllEqual(value, before[name], name)
    runner(1)
    found = runner.values("lecam", "augment")
    # By all images since the last update.
    self.assertAllClose(found["augment/p:0"], [0.9 - 2 * BATCH / 100] * 4)
    for name in ("lecam/real:0", "lecam/fake:0"):
      self.assertNotAllEqual(found[name], before[name])

  def test_an_overflow_of_one_move_lets_all_skip_the_update(self):
    step = make_step(testing.strategy(), loss_scale=64.0)
    runner = Runner(step)
    runner(0, spoiled=2)
    self.assertAllEqual(
      runner.values("d_scale/scale")["d_scale/scale:0"], [64.0] * 4
    )
    before = runner.values("d/linear")
    runner(1)
    found = runner.values("d_scale/scale", "d_optimizer/t", "d/linear")
    self.assertAllEqual(found["d_scale/scale:0"], [32.0] * 4)
    self.assertAllEqual(found["d_optimizer/t:0"], [0] * 4)
    name = "d/linear/weight/w:0"
    self.assertAllEqual(found[name], before[name])
    runner(2)
    runner(3)
    found = runner.values("d_optimizer/t", "d/linear")
    self.assertAllEqual(found["d_optimizer/t:0"], [1] * 4)
    self.assertAllEqual(np.isfinite(found[name]), np.ones_like(found[name]))

  def test_a_loss_scale_changes_nothing(self):
    found = []
    for scale in (None, 64.0):
      runner = Runner(make_step(testing.strategy(), loss_scale=scale))
      for t in range(4):
        runner(t)
      found.append(runner.values("g/linear", "d/linear"))
    for name, value in found[0].items():
      if not name.endswith("/sum:0"):
        self.assertAllClose(found[1][name], value, 1e-5, 1e-8, msg=name)

  def test_both_players_of_a_role_split_send_one_message(self):
    step = role_split_test.make_step(
      testing.strategy(), AccumulatedGradients, cache_depth=2
    )

    def one_phase(phase):
      def run(x, y):
        testing.strategy().run(step, (x, y, phase))

      shares = [role_split_test.data(0, r // 2, 2) for r in range(4)]
      args = [testing.distribute(part) for part in zip(*shares)]
      traced = tf.function(run, autograph=False).get_concrete_function(*args)
      ops = role_split_test.ops(traced.graph)
      return [op for op in ops if "Collective" in op]

    with mock.patch.object(
      collectives, "_replicas_share_memory", lambda: False
    ):
      self.assertEmpty(one_phase(0))
      self.assertEqual(one_phase(1), ["CollectiveReduceV2"] * 4)


if __name__ == "__main__":
  testing.main()
