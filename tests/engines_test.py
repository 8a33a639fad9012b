"""Every engine runs the one step, and comes to the same values."""

import os
import pathlib
from unittest import mock

import gin
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.engine.entries import StepState
from paragan_tf.engine.step import Step
from paragan_tf.game import optimizers
from paragan_tf.nets import dcgan
from paragan_tf.sync import exchange
from tests import run_test, step_test, testing

NUM_STEPS = 20
PACKAGE = pathlib.Path(experiment.__file__).parent


def one_device():
  return tf.distribute.OneDeviceStrategy("/cpu:0")


def mirrored():
  return tf.distribute.MirroredStrategy(["/cpu:0"])


def by_hand(call):
  """Returns an engine that calls the step on one batch after the other."""

  def train(built, folder):
    del folder
    step = call(built.step)
    params = dict(batch_size=built.images_per_step)
    for t, element in enumerate(built.input_fn(params).take(NUM_STEPS)):
      step(*element, t % built.step.cycle)

  return train


def inner_loop(built, folder):
  """Trains in the strategy's inner loop."""
  del folder
  built.inner_loop(0)(NUM_STEPS)


def estimator(built, folder):
  """Trains by TPUEstimator; the experiment gets its values."""
  made = built.estimator(folder, saves=False)
  entries = StepState(built.step, built.strategy, built.processes).entries
  built.estimator_loop(made, entries, []).train(0, NUM_STEPS, [7], [])


eager = by_hand(lambda step: step)
function = by_hand(lambda step: tf.function(step, autograph=False))
ENGINES = {
  "eager": (tf.distribute.get_strategy, eager),
  "function": (tf.distribute.get_strategy, function),
  "one_device": (one_device, inner_loop),
  "mirrored": (mirrored, inner_loop),
}
GRAPHS = ["one_device"]
if testing.HAS_ESTIMATOR:
  ENGINES["tpu_estimator"] = one_device, estimator
  GRAPHS.append("tpu_estimator")


class EnginesTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def train(self, engine, more=run_test.LINEAR):
    """Returns all that a run has learned, by name."""
    make_strategy, train = ENGINES[engine]
    config.load(["gin/runs/fashion.gin"], [*run_test.TINY, *more])
    built = experiment.Experiment(make_strategy())
    train(built, os.path.join(self.get_temp_dir(), engine, self.id()))
    learned = step_test.weights(built.step, built.strategy)
    self.assertEqual(learned["global_step:0"], NUM_STEPS)
    return learned

  def assert_equal(self, got, expected):
    """To 1e-6, absolute, for every variable."""
    self.assertEqual(got.keys(), expected.keys())
    for name, value in expected.items():
      self.assertAllClose(got[name], value, rtol=0, atol=1e-6, msg=name)

  def assert_engines_agree(self, more, engines):
    first, *others = (self.train(engine, more) for engine in engines)
    for other in others:
      self.assert_equal(other, first)

  def test_all_engines_come_to_the_same_values(self):
    self.assert_engines_agree(run_test.LINEAR, ENGINES)

  @pytest.mark.soak
  def test_they_do_so_with_a_penalty_that_is_rarely_due(self):
    rare = (
      "from paragan_tf.game import augment",
      "from paragan_tf.game import penalties",
      "d/experiment.player.penalties = [@penalties.LeCam()]",
      "penalties.LeCam.start_step = 0",
      "penalties.LeCam.period = 5",
      "experiment.Experiment.augment = @augment.Ada",
      "augment.Ada.speed = 100",
    )
    self.assert_engines_agree((*rare, *run_test.LINEAR), ("function", *GRAPHS))

  @parameterized.named_parameters(
    ("real_net", ()),
    ("every_other_step", run_test.EVERY_OTHER_STEP),
    ("gradients_every_other_step", run_test.ACCUMULATED),
    ("role_split", run_test.ASYNC),
  )
  @pytest.mark.soak
  def test_engines_come_to_the_same_values(self, more):
    self.assert_engines_agree(more, ("function", *GRAPHS))

  @pytest.mark.soak
  def test_a_real_net_comes_to_the_same_values_line_by_line(self):
    # TensorFlow rewrites graphs, which changes the last bit of a sum. Before a
    # batch norm a bias has no gradient but such bits: Adam would make them big.
    rewriting = "disable_meta_optimizer"
    tf.config.optimizer.set_experimental_options({rewriting: True})
    self.addCleanup(
      tf.config.optimizer.set_experimental_options, {rewriting: False}
    )
    momentum = (
      "experiment.player.optimizer = @optimizers.Momentum",
      "optimizers.Momentum.learning_rate = 0.001",
    )
    eager, graph = (self.train(x, momentum) for x in ("eager", "function"))
    self.assert_equal(eager, graph)

  def test_twenty_steps_move_all_that_is_learned(self):
    config.load(["gin/runs/fashion.gin"], [*run_test.TINY, *run_test.LINEAR])
    built = experiment.Experiment(one_device())
    before = step_test.weights(built.step, built.strategy)
    inner_loop(built, "")
    after = step_test.weights(built.step, built.strategy)
    # The only row of D's matrix has a direction, but no other to turn to.
    still = {"d/linear/weight/u:0"}
    for name in before.keys() - still:
      self.assertNotAllClose(before[name], after[name], atol=1e-4, msg=name)

  def test_all_engines_call_the_one_step_in_its_phases(self):
    phases = [t % 2 for t in range(NUM_STEPS)]

    def call(step, images, labels, phase, is_logged=True):
      del images, labels, is_logged
      # All that it does is to write its phases down, as the digits of a number.
      digits = step.players["d"].optimizer.t
      digits.assign(2 * digits + phase)
      step.count.assign_add(1)
      return {name: tf.zeros([]) for name in step.log_names}

    for engine in ("function", *GRAPHS):
      with mock.patch.object(Step, "__call__", call):
        values = self.train(engine, run_test.EVERY_OTHER_STEP)
      written = f"{int(values['d_optimizer/t:0']):0{NUM_STEPS}b}"
      self.assertEqual([int(digit) for digit in written], phases, engine)
      # Nothing but the step trains: what it would have moved stands still.
      self.assertEqual(values["g_optimizer/t:0"], 0, engine)

  def test_the_turns_are_played_in_one_place(self):
    for word in ("before_update(", "optimizer.updates(", "ema.update("):
      files = [
        path.name
        for path in (PACKAGE / "engine").glob("*.py")
        if word in path.read_text().partition('"""\n\n')[2]
      ]
      self.assertEqual(files, ["step.py"], word)


# With one replica none of them sends anything.
EXCHANGES = (
  ("none", exchange.Exchange),
  ("all_reduce", exchange.AllReduce),
  ("every_other_step", lambda: exchange.Periodic(period=2)),
  ("gradients_every_other_step", exchange.AccumulatedGradients),
)


class CompiledTest(tf.test.TestCase, parameterized.TestCase):
  def train(self, parts, spec, jit_compile):
    """Returns all that three steps have learned, by name."""
    one = tf.distribute.get_strategy()
    step = step_test.make_step(one, spec=spec, **parts)
    call = tf.function(step, autograph=False, jit_compile=jit_compile)
    size = 4 * step.schedule.num_batches
    for t in range(3):
      images, labels, _ = testing.batch(size, spec, seed=t)
      call(images, labels, t % step.cycle)
    return step_test.weights(step, one)

  def assert_compiles(self, parts, spec=testing.SPEC):
    """To the values that the same has without XLA."""
    plain, compiled = (self.train(parts, spec, jit) for jit in (False, True))
    self.assertEqual(plain.keys(), compiled.keys())
    for name, value in plain.items():
      self.assertAllClose(compiled[name], value, rtol=0, atol=1e-4, msg=name)

  @parameterized.named_parameters(*EXCHANGES)
  def test_every_exchange_compiles(self, make_exchange):
    self.assert_compiles(dict(make_exchange=make_exchange))

  @parameterized.parameters((2, True), (1, False), (2, False))
  def test_every_schedule_compiles(self, num_d_steps, reuse_fakes):
    schedule = dict(num_d_steps=num_d_steps, reuse_fakes=reuse_fakes)
    self.assert_compiles(schedule)

  @parameterized.parameters((2, True), (1, False), (2, False))
  @pytest.mark.soak
  def test_every_schedule_compiles_with_every_exchange(
    self, num_d_steps, reuse_fakes
  ):
    schedule = dict(num_d_steps=num_d_steps, reuse_fakes=reuse_fakes)
    for _, make_exchange in EXCHANGES:
      self.assert_compiles(dict(schedule, make_exchange=make_exchange))

  @pytest.mark.soak
  def test_a_real_net_compiles(self):
    parts = dict(nets=dcgan, width=2, optimizer=optimizers.Momentum)
    self.assert_compiles(parts, step_test.SMALL)


if __name__ == "__main__":
  testing.main()
