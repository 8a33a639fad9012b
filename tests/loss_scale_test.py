"""Loss scaling: exact, decided by all together, and what float16 needs."""

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment, tf_private
from paragan_tf.engine import strategies
from paragan_tf.engine.entries import StepState
from paragan_tf.game import (
  lookahead,
  losses,
  optimistic,
  optimizers,
  penalties,
  regularizers,
  turns,
)
from paragan_tf.game.loss_scale import LossScale, next_scale
from paragan_tf.nets import linear, precision
from paragan_tf.sync import exchange
from paragan_tf.types import Losses, Mode
from tests import run_test, step_test, testing

M = testing.NUM_REPLICAS
FLOAT16 = "experiment.player.precision = 'float16'"
# The first gradients in float16 are infinite with this one.
TOO_LARGE = (
  "from paragan_tf.game import loss_scale",
  "loss_scale.LossScale.initial = 1048576",
)


def copies(variable):
  """Returns the value on each of the four replicas."""
  found = strategies.copies(testing.strategy(), variable)
  return [copy.numpy() for copy in found]


def learned(player):
  """Returns weights, slots and `t` of a player, `[M]` each, by name."""
  optimizer = player.optimizer
  found = [*player.weights, *optimizer.variables]
  return {v.name: np.stack(copies(v)) for v in found}


def lookahead_adam(name):
  return lookahead.Lookahead(optimizers.Adam, sync_period=1, name=name)


class ScaleTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    # scale, good steps, finite -> scale, good steps
    (8.0, 0, True, 8.0, 1),
    (8.0, 1, True, 8.0, 2),
    (8.0, 2, True, 16.0, 0),
    (8.0, 2, False, 4.0, 0),
    (1.0, 0, False, 1.0, 0),
    (2.0**127, 2, True, 2.0**127, 0),
  )
  def test_it_halves_at_once_and_doubles_after_three_good_steps(
    self, scale, good_steps, finite, *expected
  ):
    got = next_scale(
      tf.constant(scale),
      tf.constant(good_steps, tf.int64),
      tf.constant(finite),
      growth_steps=3,
    )
    self.assertAllEqual(got, expected)

  def test_a_scale_that_stays_skips_all_the_same(self):
    made = LossScale(initial=4.0, dynamic=False)
    made.init()
    grads = [tf.constant([4.0, 8.0]), tf.constant([2.0])]
    (a, b), finite = made.unscale(grads)
    self.assertTrue(finite)
    self.assertAllEqual(a, [1.0, 2.0])
    self.assertAllEqual(b, [0.5])
    for bad in (np.inf, np.nan):
      got, finite = made.unscale([grads[0], tf.constant([bad])])
      made.update(finite)
      self.assertFalse(finite)
      # What is logged of a step that is skipped is finite.
      self.assertAllEqual(got[0], [0.0, 0.0])
      self.assertAllEqual(got[1], [0.0])
    self.assertEqual(float(made.scale), 4.0)

  def test_its_variables_have_names(self):
    made = LossScale(name="g_loss_scale")
    made.init()
    names = {variable.name for variable in made.variables}
    expected = {"g_loss_scale/scale:0", "g_loss_scale/good_steps:0"}
    self.assertEqual(names, expected)
    self.assertEqual(float(made.scale), 2.0**15)

  @parameterized.parameters(
    (dict(initial=3.0), "`initial` .* power of 2, got 3.0: take 4."),
    (dict(initial=0.5), "`initial` .* got 0.5: take 1."),
    (dict(growth_steps=0), "`growth_steps` .* got 0.*`dynamic`"),
  )
  def test_bad_values_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      LossScale(**options)


class StepTest(tf.test.TestCase, parameterized.TestCase):
  """Four replicas, linear nets in float32."""

  def make(self, loss_scale, **parts):
    """Returns a step of players with a loss scale, and a way to call it.

    The call takes the index of a batch, and of the replica whose images are
    infinite, if any.
    """
    parts = {"optimizer": optimizers.Adam, **parts}
    strategy = testing.strategy()
    step = step_test.make_step(strategy, loss_scale=loss_scale, **parts)
    traced = tf.function(
      lambda x, y, phase: strategy.run(step, args=(x, y, phase)),
      autograph=False,
    )

    def call(t, spoiled=None):
      images = testing.images(2 * M, seed=t)
      if spoiled is not None:
        images[2 * spoiled] = np.inf
      labels = testing.labels(2 * M, seed=t)
      x, y = (testing.distribute(np.split(v, M)) for v in (images, labels))
      traced(x, y, t % step.cycle)

    return step, call

  def test_a_power_of_two_changes_no_bit(self):
    parts = dict(
      regularizer=regularizers.l2(0.1),
      clip_norm=0.5,
      penalties=lambda: (penalties.R1(period=1),),
    )
    found = []
    for loss_scale in (None, lambda name: LossScale(1024, name=name)):
      step, call = self.make(loss_scale, **parts)
      for t in range(3):
        call(t)
      found.append({v.name: copies(v) for v in step.variables})
    plain, scaled = found
    self.assertLen(scaled, len(plain) + 4)
    for name, value in plain.items():
      self.assertAllEqual(scaled[name], value, name)

  def test_the_loss_is_scaled_before_its_gradient(self):
    g = linear.Generator(testing.SPEC, 0, z_dim=4, name="g")
    d = linear.Discriminator(testing.SPEC, 0, name="d")
    batch = testing.batch(4)
    scaled = turns.LossTerms(loss_scale=tf.constant(1024.0))
    for move in (turns.d_move, turns.g_move):
      one, other = (
        move(turns.draw(g, batch, Mode.FROZEN), d, batch, losses.hinge, terms)
        for terms in (turns.LossTerms(), scaled)
      )
      self.assertEqual(float(one.loss), float(other.loss))
      for a, b in zip(one.grads, other.grads):
        self.assertAllEqual(1024.0 * a, b)
      self.assertGreater(max(np.abs(grad).max() for grad in other.grads), 1.0)

  @parameterized.parameters(
    optimizers.Adam, optimistic.OptimisticAdam, lookahead_adam
  )
  def test_one_replica_that_overflows_lets_all_skip(self, optimizer):
    step, call = self.make(
      lambda name: LossScale(64, name=name), optimizer=optimizer
    )
    g, d = step.players["g"], step.players["d"]
    for t, expected in ((0, 32.0), (2, 16.0)):  # The first one of all, too.
      before = [learned(player) for player in (g, d)]
      call(t, spoiled=2)
      for name, value in learned(d).items():
        if t or not name.endswith("/base:0"):  # At first it is not set.
          self.assertAllEqual(value, before[1][name], name)
      # G saw none of these images.
      moved = [v for k, v in learned(g).items() if (v != before[0][k]).any()]
      self.assertGreater(len(moved), 2)
      self.assertEqual(copies(d.loss_scale.scale), [expected] * M)
      self.assertEqual(copies(g.loss_scale.scale), [64.0] * M)
      self.assertEqual(copies(d.loss_scale.good_steps), [0] * M)
      call(t + 1)
      self.assertEqual(copies(d.optimizer.t), [1 + t // 2] * M)

  def test_replicas_that_train_alone_skip_alone(self):
    step, call = self.make(
      lambda name: LossScale(64, name=name),
      make_exchange=lambda: exchange.Periodic(period=2),
    )
    call(0, spoiled=2)
    d = step.players["d"]
    self.assertEqual(copies(d.loss_scale.scale), [64.0, 64.0, 32.0, 64.0])
    self.assertEqual(copies(d.optimizer.t), [1, 1, 0, 1])

  def test_it_grows_on_all_replicas(self):
    step, call = self.make(
      lambda name: LossScale(64, growth_steps=2, name=name)
    )
    for t in range(5):
      call(t)
    for player in step.players.values():
      self.assertEqual(copies(player.loss_scale.scale), [256.0] * M)
      self.assertEqual(copies(player.loss_scale.good_steps), [1] * M)


class Float16Test(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def folder(self, name):
    return f"{self.get_temp_dir()}/{self.id()}/{name}"

  def test_small_gradients_vanish_without_a_scale(self):
    d = linear.Discriminator(testing.SPEC, 0, name="d")
    low = precision.in_precision(d, "float16")
    batch = testing.batch(4)
    fakes = turns.Fakes(-batch.images, batch.labels, lambda grad: [])

    def loss_fn(scores):
      loss = 2.0**-30 * tf.reduce_mean(scores.fake - scores.real)
      return Losses(loss, loss)

    def grads(net, scale):
      terms = turns.LossTerms(loss_scale=tf.constant(scale), one_pass=False)
      move = turns.d_move(fakes, net, batch, loss_fn, terms)
      return [grad / scale for grad in move.grads]

    names = [variable.name for variable in d.trainable_variables]
    index = next(i for i, name in enumerate(names) if name.endswith("w:0"))
    exact = grads(d, 1.0)[index]
    self.assertGreater(np.abs(exact).max(), 0.0)
    self.assertAllEqual(grads(low, 1.0)[index], np.zeros_like(exact))
    scaled = grads(low, 2.0**20)[index]
    self.assertAllClose(scaled, exact, rtol=0, atol=2e-3 * np.abs(exact).max())

  def test_a_run_trains_after_it_has_found_its_scale(self):
    made = run_test.prepare(
      run_test.ONE("/cpu:0"), self.folder("run"), 12, FLOAT16, *TOO_LARGE
    )
    before = run_test.values(made)
    run_test.train(made)
    after = run_test.values(made)
    for who, variable in (("g", "g/"), ("d", "d/")):
      t = after[f"{who}_optimizer/t/0"]
      scale = after[f"{who}_loss_scale/scale/0"]
      self.assertBetween(t, 1, 12, who)
      # One halving for each update that was skipped.
      self.assertEqual(scale, 2.0 ** (20 - (12 - t)), who)
      moved = [
        name
        for name, value in before.items()
        if name.startswith(variable) and np.any(value != after[name])
      ]
      self.assertNotEmpty(moved)
    self.assertLess(after["g_optimizer/t/0"], 12)
    for value in after.values():
      self.assertAllInRange(value, -1e9, 1e9)

  def test_it_resumes_bit_for_bit(self):
    more = (FLOAT16, *TOO_LARGE, *run_test.LINEAR)
    one = run_test.ONE("/cpu:0")
    whole = run_test.run(one, self.folder("whole"), 8, *more)
    run_test.run(one, self.folder("parts"), 4, *more)
    parts = run_test.run(one, self.folder("parts"), 8, *more)
    expected, got = run_test.values(whole), run_test.values(parts)
    self.assertEqual(expected.keys(), got.keys())
    for name, value in expected.items():
      self.assertAllEqual(got[name], value, name)
    self.assertEqual(got["d_loss_scale/good_steps/0"] > 0, True)

  def test_only_runs_in_float16_have_a_scale_to_save(self):
    names = {}
    for kind in ("float32", "bfloat16", "float16"):
      line = f"experiment.player.precision = '{kind}'"
      made = self.make(*run_test.LINEAR, line)
      state = StepState(made.step, made.strategy, made.processes)
      names[kind] = {entry.name for entry in state.entries}
    self.assertEqual(names["float32"], names["bfloat16"])
    self.assertEqual(
      names["float16"] - names["float32"],
      {
        f"{who}_loss_scale/{what}"
        for who in "gd"
        for what in ("scale", "good_steps")
      },
    )

  def test_scales_that_differ_are_saved_for_each_replica(self):
    more = (*run_test.EVERY_OTHER_STEP, FLOAT16)
    config.load(["gin/runs/fashion.gin"], [*run_test.TINY, *more])
    made = experiment.Experiment(testing.strategy())
    state = StepState(made.step, made.strategy, made.processes)
    scales = [entry for entry in state.entries if "loss_scale" in entry.name]
    self.assertLen(scales, 4)
    for entry in scales:
      self.assertFalse(entry.agrees)

  def test_a_scale_adapts_on_the_replicas_of_its_role(self):
    more = (*run_test.ASYNC, FLOAT16, *TOO_LARGE)
    config.load(["gin/runs/fashion.gin"], [*run_test.TINY, *more])
    made = experiment.Experiment(testing.strategy())
    logs = made.inner_loop(0)(2)
    g, d = (made.step.players[who] for who in "gd")
    scales = [copies(player.loss_scale.scale) for player in (g, d)]
    self.assertEqual([x == 2.0**20 for x in scales[0]], [False, True] * 2)
    self.assertEqual([x == 2.0**20 for x in scales[1]], [True, False] * 2)
    # Replicas of the other role do not even count.
    for player in (g, d):
      self.assertEqual(copies(player.loss_scale.good_steps), [0] * M)
    # What is logged is what the players use: 2^20 in the first of two steps.
    for who in "gd":
      self.assertEqual(logs[f"{who}/loss_scale"], 0.75 * 2**20)

  def make(self, *more):
    config.load(["gin/runs/fashion.gin"], [*run_test.TINY, *more])
    return experiment.Experiment(tf.distribute.OneDeviceStrategy("/cpu:0"))

  def test_g_has_a_scale_if_only_d_is_in_float16(self):
    made = self.make(
      *run_test.LINEAR,
      *TOO_LARGE,
      "d/experiment.player.precision = 'float16'",
      "g/loss_scale.LossScale.initial = 8",
    )
    scales = {w: p.loss_scale.scale for w, p in made.step.players.items()}
    self.assertEqual(
      {w: float(s) for w, s in scales.items()}, {"g": 8, "d": 2**20}
    )
    self.assertIn("g/loss_scale", made.step.log_names)

  def test_d_has_none_if_only_g_is_in_float16(self):
    line = "g/experiment.player.precision = 'float16'"
    made = self.make(*run_test.LINEAR, line)
    self.assertIsNone(made.step.players["d"].loss_scale)
    self.assertNotIn("d/loss_scale", made.step.log_names)

  def test_averaged_updates_cannot_be_skipped(self):
    with self.assertRaisesRegex(ValueError, "`precision` .*`Quantized` of `g`"):
      self.make(*run_test.QUANTIZED, FLOAT16)

  def test_a_tpu_has_no_float16(self):
    with (
      tf_private.trace_for_tpu_shards(8),
      self.assertRaisesRegex(ValueError, "`precision` .* on a TPU"),
    ):
      experiment.player(None, 0, "g", lambda **_: None, precision="float16")


if __name__ == "__main__":
  testing.main()
