"""One step: who trains against whom; replicas only divide the work."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.engine.placement import MOVES
from paragan_tf.engine.player import Player
from paragan_tf.engine.step import Step
from paragan_tf.game import (
  consistency,
  losses,
  noise,
  optimistic,
  optimizers,
  penalties,
  regularizers,
  schedule,
  turns,
)
from paragan_tf.game.augment import Ada
from paragan_tf.game.ema import Ema
from paragan_tf.nets import dcgan, linear, norms
from paragan_tf.sync import exchange
from paragan_tf.types import Batch, ImageSpec, Mode, Scores
from tests import testing

ONE = tf.distribute.get_strategy
SMALL = ImageSpec(resolution=32, channels=1, num_classes=3)


def make_step(
  strategy,
  make_exchange=exchange.AllReduce,
  nets=linear,
  spec=testing.SPEC,
  num_d_steps=1,
  num_g_steps=1,
  g_batch_size=None,
  reuse_fakes=True,
  optimizer=optimizers.SGD,
  loss=losses.hinge,
  clip_norm=None,
  regularizer=None,
  penalties=lambda: (),
  augment=lambda: None,
  turns=None,
  loss_scale=None,
  **sizes,
):
  """Builds a whole step from small parts."""
  with strategies.scope(strategy):
    g = nets.Generator(spec, 0, z_dim=4, **sizes, name="g")
    twin = nets.Generator(spec, 0, z_dim=4, **sizes, name="g_ema")
    d = nets.Discriminator(spec, 0, spectral=True, **sizes, name="d")
    return Step(
      Player(
        g,
        optimizer(name="g_optimizer"),
        make_exchange(),
        loss_scale=loss_scale and loss_scale("g_loss_scale"),
      ),
      Player(
        d,
        optimizer(name="d_optimizer"),
        make_exchange(),
        clip_norm,
        regularizer,
        tuple(penalties()),
        loss_scale=loss_scale and loss_scale("d_loss_scale"),
      ),
      loss,
      turns
      or schedule.Sequential(
        num_d_steps, num_g_steps, g_batch_size, reuse_fakes
      ),
      Ema(g, twin, decay=0.5, start_step=1),
      seed=3,
      augment=augment(),
    )


def run_whole(step, images, labels, num_steps):
  """Trains on one replica that takes the whole batch; traced."""
  run = tf.function(step, autograph=False)
  for t in range(num_steps):
    run(tf.constant(images[t]), tf.constant(labels[t]), t % step.cycle)


def run_shared(step, images, labels, num_steps):
  """Trains on four replicas that share the batch."""
  strategy = testing.strategy()
  run = tf.function(
    lambda x, y, phase: strategy.run(step, args=(x, y, phase)),
    autograph=False,
  )
  for t in range(num_steps):
    x, y = (
      testing.distribute(np.split(part[t], testing.NUM_REPLICAS))
      for part in (images, labels)
    )
    run(x, y, t % step.cycle)


def weights(step, strategy):
  """Returns replica 0's value of every variable, by name."""
  return {
    variable.name: strategies.copies(strategy, variable)[0].numpy()
    for variable in step.variables
  }


class StepTest(tf.test.TestCase, parameterized.TestCase):
  def data(self, num_steps, size, spec=testing.SPEC):
    """Returns one batch a step, of images and of labels."""
    images = [testing.images(size, spec, seed=t) for t in range(num_steps)]
    labels = [testing.labels(size, spec, seed=t) for t in range(num_steps)]
    return images, labels

  @parameterized.parameters((True, None), (False, None), (False, 8))
  def test_g_moves_often_on_a_batch_of_its_own(self, reuse_fakes, g_batch_size):
    parts = dict(
      num_g_steps=3, g_batch_size=g_batch_size, reuse_fakes=reuse_fakes
    )
    step, by_hand = make_step(ONE(), **parts), make_step(ONE(), **parts)
    images, labels = self.data(1, 4)
    run_whole(step, images, labels, 1)
    g, d = (by_hand.players[name].net for name in ("g", "d"))
    size = g_batch_size or 4
    batch = Batch(tf.constant(images[0]), tf.constant(labels[0]), None)
    asked = Batch(
      tf.tile(batch.images, [size // 4, 1, 1, 1]),
      tf.tile(batch.labels, [size // 4]),
      None,
    )
    fakes = None
    for turn in range(4):
      draws = turn - (turn > 0 and reuse_fakes)  # G reuses D's fakes once.
      one = batch if turn == 0 else asked
      z = [one.labels.shape[0], 4]
      if fakes is None or turn != reuse_fakes:
        zero = tf.zeros([], tf.int64)
        z = noise.normal(z, by_hand.game.seed, zero, f"z{draws}")
        mode = Mode.TRAIN if turn or reuse_fakes else Mode.FROZEN
        fakes = turns.draw(g, one._replace(z=z), mode)
      who = "g" if turn else "d"
      move = MOVES[who](fakes, d, one, by_hand.game.loss_fn)
      player = by_hand.players[who]
      player.optimizer.apply(move.grads, player.net.trainable_variables)
    for net, made in ((g, "g"), (d, "d")):
      for a, b in zip(net.variables, step.players[made].net.variables):
        self.assertAllClose(a, b, atol=1e-6)

  @parameterized.product(num_d_steps=(1, 2), reuse_fakes=(False, True))
  def test_d_moves_first_and_g_answers_the_new_d(
    self, num_d_steps, reuse_fakes
  ):
    parts = dict(num_d_steps=num_d_steps, reuse_fakes=reuse_fakes)
    step, by_hand = make_step(ONE(), **parts), make_step(ONE(), **parts)
    images, labels = self.data(3, 4 * num_d_steps)
    run_whole(step, images, labels, 3)
    g, d = (by_hand.players[name].net for name in ("g", "d"))
    for t in range(3):
      parts = zip(
        np.split(images[t], num_d_steps), np.split(labels[t], num_d_steps)
      )
      for turn, (x, y) in enumerate(parts):
        z = noise.normal([4, 4], 3, tf.constant(t), f"z{turn}")
        fake = g(z, y, Mode.FROZEN)
        with tf.GradientTape() as tape:
          both = tf.concat([x, fake], 0)
          real, fake = tf.split(d(both, np.tile(y, 2), Mode.TRAIN), 2)
          loss = tf.reduce_mean(tf.nn.relu(1 - real)) + tf.reduce_mean(
            tf.nn.relu(1 + fake)
          )
        for w, dw in zip(
          d.trainable_variables, tape.gradient(loss, d.trainable_variables)
        ):
          w.assign_sub(0.01 * dw)
      last = num_d_steps - reuse_fakes
      z = noise.normal([4, 4], 3, tf.constant(t), f"z{last}")
      with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(d(g(z, y, Mode.TRAIN), y, Mode.FROZEN))
      for w, dw in zip(
        g.trainable_variables, tape.gradient(loss, g.trainable_variables)
      ):
        w.assign_sub(0.01 * dw)
    for who in ("g", "d"):
      for ours, theirs in zip(
        step.players[who].net.variables, by_hand.players[who].net.variables
      ):
        self.assertAllClose(ours, theirs, atol=1e-6)
        self.assertNotAllClose(ours, tf.zeros_like(ours), atol=1e-7)

  def test_each_player_descends_its_own_loss(self):
    parts = dict(loss=losses.non_saturating)
    step, before = make_step(ONE(), **parts), make_step(ONE(), **parts)
    images, labels = (tf.constant(x[0]) for x in self.data(1, 64))
    logs = step(images, labels, 0)
    d = step.players["d"].net
    # D against the G that it saw, G against the D that it saw.
    for who, g in (("d", before), ("g", step)):
      z = noise.normal([64, 4], 3, tf.constant(0), "z0")
      fake = g.players["g"].net(z, labels, Mode.EVAL)
      scores = (d(x, labels, Mode.EVAL) for x in (images, fake))
      loss = getattr(losses.non_saturating(Scores(*scores)), who)
      self.assertLess(float(loss), float(logs[f"{who}/loss"]))

  @parameterized.named_parameters(
    ("linear", dict(), testing.SPEC, 8, False),
    ("dcgan", dict(nets=dcgan, width=2), SMALL, 8, True),
    ("two_d_steps", dict(num_d_steps=2), testing.SPEC, 16, False),
  )
  def test_four_replicas_equal_one_with_the_whole_batch(
    self, parts, spec, size, has_norms
  ):
    parts = dict(parts, spec=spec, optimizer=optimizers.Momentum)
    shared = make_step(testing.strategy(), **parts)
    whole = make_step(ONE(), **parts)
    for step in (shared, whole):
      for module in step.submodules:
        if isinstance(module, norms.BatchNorm):
          module.group_size = 0  # All.
          self.assertTrue(has_norms)
    images, labels = self.data(4, size, spec)
    run_whole(whole, images, labels, 4)
    run_shared(shared, *self._in_turns(images, labels, parts), 4)
    expected, got = weights(whole, ONE()), weights(shared, testing.strategy())
    self.assertEqual(expected.keys(), got.keys())
    for name, value in expected.items():
      self.assertAllClose(got[name], value, atol=1e-5, msg=name)

  def _in_turns(self, images, labels, parts):
    """Orders a global batch so that each replica gets its share of each turn.

    A step's batch holds one after the other what each of D's turns takes.
    """
    num = parts.get("num_d_steps", 1)
    replicas = testing.NUM_REPLICAS

    def order(x):
      x = x.reshape([num, replicas, -1, *x.shape[1:]])
      return x.swapaxes(0, 1).reshape([-1, *x.shape[3:]])

    return [order(x) for x in images], [order(x) for x in labels]

  def test_the_cycle_is_what_all_periods_share(self):
    step = make_step(ONE(), lambda: exchange.Periodic(period=3))
    self.assertEqual(step.cycle, 3)

  def test_every_scalar_it_names_is_returned(self):
    step = make_step(ONE())
    images, labels = self.data(1, 4)
    logs = step(tf.constant(images[0]), tf.constant(labels[0]), 0)
    self.assertCountEqual(logs, step.log_names)

  def test_the_average_follows_g_after_its_start(self):
    step = make_step(ONE())
    images, labels = self.data(3, 4)
    g, twin = step.players["g"].net, step.ema.twin
    expected = None
    for t in range(3):
      step(tf.constant(images[t]), tf.constant(labels[t]), 0)
      now = testing.values(g.variables)
      if t == 0:
        expected = now
      else:
        expected = [0.5 * (a + b) for a, b in zip(expected, now)]
      self.assertAllClose(testing.values(twin.variables), expected)
    self.assertEqual(int(step.count), 3)

  def test_compiles_with_xla_to_the_same_values(self):
    plain, compiled = make_step(ONE()), make_step(ONE())
    images, labels = self.data(3, 4)
    run_whole(plain, images, labels, 3)
    run = tf.function(compiled, autograph=False, jit_compile=True)
    for t in range(3):
      run(tf.constant(images[t]), tf.constant(labels[t]), 0)
    expected, got = weights(plain, ONE()), weights(compiled, ONE())
    for name, value in expected.items():
      self.assertAllClose(got[name], value, atol=1e-4, msg=name)


class PolicyTest(tf.test.TestCase):
  """What each player may have for itself."""

  def measure_update(self, strategy, **options):
    """Returns how D's weights move in one step, and its logs."""
    step = make_step(strategy, **options)
    d = step.players["d"].net.trainable_variables
    before = testing.values(d)
    logs = step(
      tf.constant(testing.images(8)), tf.constant(testing.labels(8)), 0
    )
    return before, [b - a for a, b in zip(before, testing.values(d))], logs

  def test_clipping_bounds_the_norm_of_the_whole_gradient(self):
    _, free, logs = self.measure_update(ONE())
    _, clipped, _ = self.measure_update(ONE(), clip_norm=0.1)
    norm = np.sqrt(sum(np.sum(x**2) for x in free)) / 0.01
    self.assertAllClose(logs["d/grad_norm"], norm, rtol=1e-4)
    self.assertGreater(norm, 0.2)
    for a, b in zip(free, clipped):
      self.assertAllClose(b, a * 0.1 / norm, atol=1e-6)

  def test_a_regularizer_adds_its_gradient(self):
    before, free, _ = self.measure_update(ONE())
    _, paid, _ = self.measure_update(ONE(), regularizer=regularizers.l2(0.5))
    for w, a, b in zip(before, free, paid):
      expected = a - 0.01 * 0.5 * w if w.ndim > 1 else a
      self.assertAllClose(b, expected, atol=1e-6)

  def test_the_log_says_how_far_and_how_fast(self):
    before, moved, logs = self.measure_update(ONE())
    size = np.sqrt(sum(np.sum((w + x) ** 2) for w, x in zip(before, moved)))
    step = np.sqrt(sum(np.sum(x**2) for x in moved))
    self.assertAllClose(logs["d/update_ratio"], step / size, rtol=1e-4)
    self.assertAllClose(logs["d/rate"], 0.01)
    self.assertAllClose(logs["exchange/bytes"], 0.0)


class SimultaneousTest(tf.test.TestCase):
  def test_both_update_from_the_same_point_and_communicate_once(self):
    step = make_step(testing.strategy(), turns=schedule.Simultaneous())
    by_hand = make_step(ONE())
    images, labels = testing.images(8), testing.labels(8)
    run_shared(step, [images], [labels], 1)
    g, d = (by_hand.players[who].net for who in "gd")
    z = noise.normal([8, 4], by_hand.game.seed, tf.zeros([], tf.int64), "z0")
    batch = Batch(tf.constant(images), tf.constant(labels), z)
    fakes = turns.draw(g, batch, Mode.TRAIN)
    moves = {w: MOVES[w](fakes, d, batch, by_hand.game.loss_fn) for w in "dg"}
    for who, move in moves.items():
      player = by_hand.players[who]
      player.optimizer.apply(move.grads, player.net.trainable_variables)
    got, expected = weights(step, testing.strategy()), weights(by_hand, ONE())
    for name in ("g/linear/weight/w:0", "d/linear/weight/w:0"):
      self.assertAllClose(got[name], expected[name], atol=1e-6)

  def test_an_optimistic_step_updates_the_base_and_looks_ahead(self):
    both = schedule.Simultaneous()
    step = make_step(ONE(), optimizer=optimistic.OptimisticSGD, turns=both)
    plain = make_step(ONE(), turns=both)
    images, labels = [testing.images(4)], [testing.labels(4)]
    g, w = step.players["g"], step.players["g"].net.trainable_variables
    before = testing.values(w)
    for one in (step, plain):
      run_whole(one, images, labels, 1)
    moved = testing.values(plain.players["g"].net.trainable_variables)
    for z, x, old, new in zip(w, g.optimizer.base(w), before, moved):
      self.assertAllClose(x, new, atol=1e-6)
      self.assertAllClose(z, 2 * new - old, atol=1e-6)
    twin = step.ema.twin.trainable_variables
    for shadow, x in zip(twin, g.optimizer.base(w)):
      self.assertAllEqual(shadow, x)


class TermsTest(tf.test.TestCase, parameterized.TestCase):
  """What is paid beside the game's loss."""

  def run_steps(self, step, num_steps, size=4):
    """Returns D's first kernel after each step."""
    kernels = []
    for t in range(num_steps):
      images, labels = (
        testing.images(size, seed=t),
        testing.labels(size, seed=t),
      )
      step(tf.constant(images), tf.constant(labels), t % step.cycle)
      kernels.append(step.players["d"].net.trainable_variables[0].numpy())
    return kernels

  def test_a_lazy_penalty_is_paid_in_its_phase_only(self):
    def lazy():
      return [penalties.LeCam(start_step=0, period=3)]

    step = make_step(ONE(), penalties=lazy)
    self.assertEqual(step.cycle, 3)
    self.assertEqual([step.first_like(p) for p in range(3)], [0, 1, 1])
    for phase, is_due in ((0, True), (1, False), (2, False)):
      kernels = []
      for made in (lazy, lambda: ()):
        step = make_step(ONE(), penalties=made)
        step(
          tf.constant(testing.images(4)), tf.constant(testing.labels(4)), phase
        )
        kernels.append(step.players["d"].net.trainable_variables[0].numpy())
      moved = np.abs(kernels[0] - kernels[1]).max()
      self.assertEqual(bool(moved > 1e-7), is_due, phase)

  def test_a_cycle_holds_all_periods(self):
    step = make_step(
      ONE(),
      make_exchange=exchange.Periodic,
      penalties=lambda: [penalties.R1(period=3)],
    )
    self.assertEqual(step.cycle, 6)
    kinds = [step.first_like(phase) for phase in range(6)]
    self.assertEqual(kinds, [0, 1, 2, 3, 2, 1])

  def test_penalties_are_averaged_over_replicas_as_losses_are(self):
    def make_penalties():
      return [
        penalties.R1(gamma=1.0, period=1),
        penalties.LeCam(weight=0.5, start_step=1, decay=0.5),
      ]

    def augment():
      return Ada(policy=("flip", "translation"), target=0.0, speed=8)

    options = dict(penalties=make_penalties, augment=augment)
    images = [testing.images(8, seed=t) for t in range(3)]
    labels = [testing.labels(8, seed=t) for t in range(3)]
    alone = make_step(ONE(), **options)
    shared = make_step(testing.strategy(), **options)
    run_whole(alone, images, labels, 3)
    run_shared(shared, images, labels, 3)
    expected = weights(alone, ONE())
    got = weights(shared, testing.strategy())
    self.assertIn("lecam/real:0", got)
    self.assertNotAllClose(got["augment/p:0"], 0.0)
    for name, value in expected.items():
      self.assertAllClose(got[name], value, atol=1e-5, msg=name)

  def test_g_may_pay_for_its_weights_directly(self):
    step = make_step(ONE())
    player = step.players["g"]
    step.players["g"] = player._replace(
      penalties=(consistency.LatentConsistency(g_weight=50.0, deviation=1.0),)
    )
    plain = make_step(ONE())
    self.run_steps(step, 1)
    self.run_steps(plain, 1)
    names = ("d", "g")
    moved = {
      who: np.abs(
        step.players[who].net.trainable_variables[0]
        - plain.players[who].net.trainable_variables[0]
      ).max()
      for who in names
    }
    self.assertEqual(moved["d"], 0.0)
    self.assertGreater(moved["g"], 1e-5)

  def test_top_k_follows_the_count_of_steps(self):
    loss = losses.TopK(losses.hinge, nu=0.25, gamma=0.25, every=1)
    step, plain = make_step(ONE(), loss=loss), make_step(ONE())
    differ = []
    for a, b in zip(*(self.run_g(one) for one in (step, plain))):
      differ.append(bool(np.abs(a - b).max() > 1e-6))
    self.assertEqual(differ, [False, True])

  def run_g(self, step):
    kernels = []
    for t in range(2):
      images, labels = testing.images(4, seed=t), testing.labels(4, seed=t)
      step(tf.constant(images), tf.constant(labels), 0)
      kernels.append(step.players["g"].net.trainable_variables[0].numpy())
    return kernels


if __name__ == "__main__":
  tf.test.main()
