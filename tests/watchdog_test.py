"""Numbers that went wrong: skipped, counted, reported, rolled back."""

import contextlib
import io
import math
import os
import pathlib
import tempfile
from unittest import mock

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, probe, watchdog
from paragan_tf import experiment as experiments
from paragan_tf.engine import finite
from paragan_tf.outputs import records
from paragan_tf.run import Run
from paragan_tf.watchdog import Signals, SkipCounter, Watchdog
from tests import testing, watchdog_sweep

NAN, INF = float("nan"), float("inf")
HEALTHY = Signals(0, 0.8, 0.1, 2.0, 5.0, 1.0)
FAST = (
  "run.Run.log_every = 20",
  "run.Run.sample_every = 1000",
  "run.Run.save_every = 40",
  "Experiment.extractor = None",
  "Experiment.batch_size = 16",
  "dcgan.Generator.width = 8",
  "dcgan.Discriminator.width = 8",
  "from paragan_tf import watchdog",
  "watchdog.Watchdog.every = 40",
)
# Learning rates that no run survives.
EXTREME = (1e6, 10.0)


def at_rate(rate):
  """Returns bindings that set the learning rate of both players."""
  return [f"{who}/optimizers.Adam.learning_rate = {rate}" for who in "gd"]


def looks(*changes, every=100):
  """Returns signals at growing steps; each change is of a healthy run."""
  return [
    HEALTHY._replace(step=every * (i + 1), **change)
    for i, change in enumerate(changes)
  ]


class JudgeTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("samples_alike", {"diversity": 0.01}, "samples differ 0.01 times"),
    ("black_or_white", {"saturation": 1.0}, "100.0% of their pixels"),
    ("logits", {"logit": 1e5}, "logits are 1e\\+05"),
    ("logits_not_finite", {"logit": NAN}, "logits are nan"),
    ("weights", {"top_singular_value": 1e4}, "value of a weight is 1e\\+04"),
    ("weights_not_finite", {"top_singular_value": INF}, "weight is inf"),
  )
  def test_evidence_is_named_once_it_lasts(self, change, words):
    judge = Watchdog().judge
    self.assertIsNone(judge(looks({}, {}, change)))
    self.assertRegex(judge(looks({}, {}, change, change)), words)
    self.assertIsNone(judge(looks({}, change, {}, change)))

  def test_weights_that_grow_fast_are_evidence_and_slow_ones_are_not(self):
    start = watchdog.at_start(0, 0.5)
    values = [{"top_singular_value": x} for x in (49.0, 51.0, 60.0)]
    judge = Watchdog().judge
    history = [start, *looks(*values)]
    self.assertIsNone(judge(history[:3]))
    self.assertRegex(judge(history), "grown from 0.5 to 60 in 300 steps")
    self.assertIsNone(judge([start, *looks(*values, every=1000)]))
    self.assertIsNone(judge([watchdog.at_start(0, 0.0), *looks(*values)]))

  @parameterized.parameters(
    ({"classes": 0.1}, "10% of the classes"),
    ({"diversity": 1.9}, "samples differ 1.9 times as much as real"),
  )
  def test_missing_classes_and_noise_count_after_a_while(self, change, words):
    self.assertIsNone(Watchdog().judge(looks(change, change)))
    found = Watchdog().judge(looks(change, change, every=600))
    self.assertIn(words, found)

  def test_samples_may_be_alike_at_first(self):
    alike = {"diversity": 0.01}
    self.assertIsNone(Watchdog().judge(looks(alike, alike, alike)))
    self.assertIsNotNone(Watchdog().judge(looks(*[alike] * 7)))

  def test_a_healthy_run_and_unknown_classes_are_no_evidence(self):
    unknown = {"classes": NAN}
    for history in (looks({}, {}, {}), looks(unknown, unknown, every=900)):
      self.assertIsNone(Watchdog().judge(history))

  def test_wrong_values_are_refused(self):
    for values, words in (
      ({"on_collapse": "explode"}, "`on_collapse` must be one of warn, stop"),
      ({"every": 0}, "`Watchdog.every` must be at least 1"),
      ({"grace": -1}, "`grace` must be at least 0"),
    ):
      with self.assertRaisesRegex(ValueError, words):
        Watchdog(**values)

  def test_signals_are_what_they_say(self):
    images = np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
    self.assertEqual(watchdog.diversity(images), 1.0)
    self.assertEqual(watchdog.diversity(images[:1].repeat(4, 0)), 0.0)
    self.assertEqual(watchdog.saturation(images * [1.0, 0.5]), 0.5)
    weight = np.random.RandomState(0).normal(size=[3, 3, 8, 16])
    expected = np.linalg.norm(weight.reshape([-1, 16]), 2)
    found = watchdog.top_singular_value(weight, 40)
    self.assertAllClose(found, expected, rtol=1e-3)
    self.assertTrue(math.isnan(watchdog.top_singular_value(weight * NAN)))

  def test_skipped_steps_are_counted_until_the_limit(self):
    count = SkipCounter(limit=30)
    self.assertFalse(count.add({"g": 0.0, "d": 0.0}, 20))
    self.assertFalse(count.add({"g": 1.0, "d": 0.0}, 20))
    self.assertTrue(count.add({"g": 0.0, "d": 0.9}, 20))
    self.assertEqual((count.in_a_row, count.total), (38, 38))
    self.assertFalse(count.add({"g": 0.1, "d": 0.1}, 20))
    self.assertEqual((count.in_a_row, count.total), (0, 40))


class FiniteTest(tf.test.TestCase, parameterized.TestCase):
  def test_finite_numbers_are_not_changed(self):
    grads = [tf.constant([1.0, -0.0]), tf.constant([3e-45])]
    marked = finite.mark(grads, tf.constant(1e38))
    for a, b in zip(marked, grads):
      self.assertEqual(a.numpy().tobytes(), b.numpy().tobytes())
    self.assertTrue(finite.are_finite(marked))

  @parameterized.parameters(NAN, INF, -INF)
  def test_what_is_not_finite_is_found(self, bad):
    good = [tf.ones([2]), tf.ones([1])]
    self.assertFalse(finite.are_finite(finite.mark(good, tf.constant(bad))))
    self.assertFalse(finite.are_finite([tf.ones([2]), tf.constant([bad])]))

  @parameterized.parameters(False, True)
  def test_gradients_are_stored_before_updates(self, jit_compile):
    grads = [tf.constant([1.0]), tf.constant([[2.0, NAN], [-0.0, 3.0]])]
    fn = tf.function(lambda: finite.store(grads), jit_compile=jit_compile)
    for stored, grad in zip(fn(), grads):
      self.assertEqual(stored.numpy().tobytes(), grad.numpy().tobytes())
    kinds = [
      op.type for op in fn.get_concrete_function().graph.get_operations()
    ]
    self.assertEqual(kinds.count("XlaOptimizationBarrier"), 1)

  def test_losses_are_means_of_what_was_not_skipped(self):
    logs = {"d/loss": 1.0, "d/skipped": 0.5, "g/loss": 0.0, "g/skipped": 1.0}
    found = finite.correct(logs)
    self.assertEqual(found["d/loss"], 2.0)
    self.assertTrue(math.isnan(found["g/loss"]))


class RunTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory(dir=self.get_temp_dir())
    self.addCleanup(folder.cleanup)
    self.addCleanup(gin.clear_config)
    self.folder = os.path.join(folder.name, "run")

  def prepare(self, num_steps, *bindings, strategy=None):
    """Returns a run that is restored and open."""
    more = [f"run.Run.num_steps = {num_steps}", *FAST, *bindings]
    config.load(["gin/runs/smoke.gin"], more)
    strategy = strategy or tf.distribute.OneDeviceStrategy("/cpu:0")
    made = Run(experiments.Experiment(strategy), self.folder)
    made.restore()
    made.open()
    # Before the folder goes, in the order from last to first.
    self.addCleanup(made.folder.close)
    self.addCleanup(made.control.saver.join)
    return made

  def train(self, made):
    """Trains; returns what was printed."""
    with contextlib.redirect_stdout(io.StringIO()) as words:
      made()
    return words.getvalue()

  def enlarge_g(self, made):
    """Makes weights of G so large that its pixels are black or white."""
    for weight in made.experiment.step.players["g"].net.trainable_variables:
      if weight.shape.rank > 1:
        weight.assign(weight * 1e4)

  def test_a_bad_image_changes_d_on_no_replica(self):
    by_branch, by_select = (
      self.check_bad_image(f"hardware.Layout.select_updates = {value}")
      for value in (False, True)
    )
    for name, value in by_branch.items():
      self.assertAllEqual(by_select[name], value, name)

  def check_bad_image(self, form):
    """Trains with a bad image; returns all values after a good one."""
    made = self.prepare(4, form, strategy=testing.strategy())
    step, strategy = made.experiment.step, made.experiment.strategy
    values = {
      # On one replica of four.
      "bad": tf.constant([0.0, NAN, 0.0, 0.0]),
      "good": tf.zeros([4]),
    }
    images = np.random.RandomState(0).uniform(-1, 1, [4, 32, 32, 1])
    images = tf.constant(images, tf.float32)
    labels = tf.range(4)

    @tf.function(autograph=False)
    def run(noise):
      def replica():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        return step(images + noise[index], labels, 0)

      return strategy.run(replica)

    def read():
      found = {}
      for variable in step.variables:
        for i, copy in enumerate(strategy.experimental_local_results(variable)):
          found[f"{variable.name}/{i}"] = copy.numpy().copy()
      return found

    run(values["good"])
    before = read()
    logs = run(values["bad"])
    for name, value in read().items():
      self.assertTrue(np.all(np.isfinite(value)), name)
      # Only D sees real images; its power iterations see weights only.
      if name.startswith("d") and "/u:" not in name:
        self.assertAllEqual(value, before[name], name)
    self.assertTrue([name for name in before if name.startswith("d_opt")])
    for value in strategy.experimental_local_results(logs["d/skipped"]):
      self.assertEqual(value, 1.0)
    for value in strategy.experimental_local_results(logs["d/loss"]):
      self.assertEqual(value, 0.0)
    logs = run(values["good"])
    for who in "dg":
      for x in strategy.experimental_local_results(logs[f"{who}/skipped"]):
        self.assertEqual(x, 0.0)
    return read()

  def test_after_the_limit_the_run_stops_at_the_last_good_checkpoint(self):
    self.train(self.prepare(40))
    made = self.prepare(200, "watchdog.Watchdog.max_skipped = 40")
    weight = made.experiment.step.players["g"].net.trainable_variables[0]
    weight.assign(weight * NAN)
    words = "40 steps in a row were skipped by step 80.*model.ckpt-40"
    with self.assertRaisesRegex(FloatingPointError, words):
      made()
    lines = [x for x in records.read(self.folder) if "g/skipped" in x]
    self.assertEqual([x["g/skipped"] for x in lines], [0.0, 0.0, 1.0])
    self.assertEndsWith(made.folder.checkpoints.latest(), "ckpt-40")

  @parameterized.parameters(*EXTREME)
  def test_a_run_driven_into_collapse_is_stopped_with_evidence(self, rate):
    stop = "watchdog.Watchdog.on_collapse = 'stop'"
    made = self.prepare(400, *at_rate(rate), stop)
    words = "collapsed or diverged by step (80|120|160|200): .*[Tt]he last good"
    with self.assertRaisesRegex(FloatingPointError, words):
      self.train(made)

  def test_a_roll_back_halves_the_rates_and_goes_on(self):
    self.train(self.prepare(40))
    rolls = "watchdog.Watchdog.on_collapse = 'roll_back'"
    made = self.prepare(160, rolls)
    self.enlarge_g(made)
    words = self.train(made)
    self.assertRegex(words, "good/model.ckpt-40. Training goes on from there")
    self.assertEqual(made.done, 160)
    self.assertEqual(made.experiment.step.rate_scale, 0.5)
    lines = [x for x in records.read(self.folder) if "g/rate" in x]
    self.assertEqual([x["step"] for x in lines], list(range(20, 161, 20)))
    rates = {x["step"]: x["g/rate"] for x in lines}
    self.assertAllClose(rates[60], rates[40] / 2)
    self.assertTrue(pathlib.Path(self.folder, "good").is_dir())
    # The rates stay halved when the run is resumed.
    again = self.prepare(180, rolls)
    self.train(again)
    self.assertEqual(again.experiment.step.rate_scale, 0.5)

  def test_a_look_at_a_run_without_classes_on_several_replicas(self):
    more = ["InputFn.conditional = False", "norms.BatchNorm.group_size = 'all'"]
    made = self.prepare(4, *more, strategy=testing.strategy())
    found = probe.Probe(made.experiment)(0)
    self.assertBetween(found.diversity, 0.0, 1.0)
    self.assertBetween(found.top_singular_value, 0.1, 100.0)
    self.assertLess(found.logit, 100.0)
    self.assertTrue(math.isnan(found.classes))

  def test_steps_in_single_calls_are_followed_too(self):
    made = self.prepare(200)
    looks = mock.Mock(side_effect=lambda step: HEALTHY._replace(step=step))
    looks.top_singular_value.return_value = 5.0
    made._health._probe = looks
    for step in range(20, 121, 20):
      made.train(step)
    made.close_progress()
    self.assertEqual([x.args[0] for x in looks.call_args_list], [40, 80, 120])

  def test_a_warning_comes_once_and_the_run_goes_on(self):
    self.train(self.prepare(40))
    made = self.prepare(240)
    self.enlarge_g(made)
    words = self.train(made)
    self.assertEqual(words.count("Warning: The run has collapsed"), 1, words)
    self.assertIn("good/model.ckpt-40", words)
    self.assertEqual(made.done, 240)

  @parameterized.product(
    seed=[0, 1, 2, 3, 4], name=list(watchdog_sweep.HEALTHY)
  )
  @pytest.mark.soak
  def test_healthy_runs_are_left_alone(self, seed, name):
    kind = watchdog_sweep.HEALTHY[name]
    stop = watchdog_sweep.find_stop(self.folder, 1000, kind, seed)
    self.assertIsNone(stop)

  @parameterized.product(seed=[0, 1, 2, 3, 4], name=list(watchdog_sweep.DRIVEN))
  @pytest.mark.soak
  def test_collapse_is_caught_with_every_seed(self, seed, name):
    kind = watchdog_sweep.DRIVEN[name]
    stop = watchdog_sweep.find_stop(self.folder, 600, kind, seed)
    self.assertIsNotNone(stop)


if __name__ == "__main__":
  tf.test.main()
