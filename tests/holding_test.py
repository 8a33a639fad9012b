"""A run and its plan: the file that realizes it, and changes while it runs."""

import contextlib
import io
import os
from unittest import mock

import gin
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, holding, run, start
from paragan_tf.engine import loop, strategies
from paragan_tf.engine.scaling import bindings, hold
from paragan_tf.engine.scaling.hold import Finding, Levels
from paragan_tf.experiment import Experiment
from paragan_tf.holding import Changes
from paragan_tf.outputs import records
from paragan_tf.sync import exchange, gossip, quantize
from tests import testing
from tests.plan_test import make_plan
from tests.run_test import LINEAR, ONE, TINY, values

HELD = [
  *TINY,
  *LINEAR,
  "from paragan_tf import holding",
  "run.Run.num_steps = 16",
  "run.Run.hold = @holding.Hold()",
  "holding.Hold.step_seconds = 100.0",
  "holding.Hold.acts = True",
]
PERIODIC = [
  *HELD,
  "experiment.player.exchange = @exchange.Periodic",
  "run.Run.save_every = 8",
  "run.Run.log_every = 2",
]


def prepare(folder, rows, strategy):
  """Prepares a run as `tools.train` does."""
  choice = strategies.Choice(strategy, "a test")
  with mock.patch.object(strategies, "choose", return_value=choice):
    return start.prepare(["gin/runs/fashion.gin"], rows, folder)


def say(names_by_step):
  """Lets runs find something at some steps, by the name of the finding."""

  def findings(self, experiment, logs):
    del self, logs
    step = int(strategies.copies(experiment.strategy, experiment.step.count)[0])
    return [
      Finding(x, 1, 2, f"{x} is off.") for x in names_by_step.get(step, ())
    ]

  return mock.patch.object(holding.Hold, "findings", findings)


def run_out_of_memory(at):
  """Lets TensorFlow run out of memory, once, as a run trains beyond a step."""
  advance, failed = loop.InnerLoop.advance, []

  def fail_once(self, num_steps, is_logged):
    if self._num_done + num_steps >= at and not failed:
      failed.append(True)
      tf.fill(tf.constant([1 << 45], tf.int64), 0.0)
    return advance(self, num_steps, is_logged)

  return mock.patch.object(loop.InnerLoop, "advance", fail_once)


class HoldingTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def train(self, rows, strategy, found, folder=None, until=None):
    """Trains; returns the run and what it printed."""
    folder = folder or self.folder
    words = io.StringIO()
    with contextlib.ExitStack() as stack:
      stack.enter_context(contextlib.redirect_stdout(words))
      stack.enter_context(contextlib.redirect_stderr(words))
      stack.enter_context(say(found))
      made = prepare(folder, rows, strategy)
      made.open()
      made(lambda: until is not None and made.done >= until)
    return made, words.getvalue()

  @parameterized.named_parameters(
    ("memory", HELD, {4: ["memory"]}, (2, 1, 1, 12), 28),
    ("input", HELD, {4: ["input"]}, (1, 2, 1, 0), 16),
    ("exchange", PERIODIC, {2: ["exchange"]}, (1, 1, 2, 0), 16),
  )
  def test_a_run_that_changes_resumes_bit_for_bit(self, *args):
    self.check_resume(ONE("/cpu:0"), *args)

  @parameterized.named_parameters(
    ("memory", HELD, {4: ["memory"]}, (2, 1, 1, 12), 28),
    ("both", HELD, {4: ["memory", "input"]}, (2, 2, 1, 12), 28),
    ("exchange", PERIODIC, {2: ["exchange"]}, (1, 1, 2, 0), 16),
  )
  @pytest.mark.soak
  def test_four_replicas_that_change_resume_bit_for_bit(self, *args):
    self.check_resume(testing.strategy(), *args)

  def check_resume(self, strategy, rows, found, numbers, num_steps):
    whole, words = self.train(rows, strategy, found)
    expected = values(whole)
    self.assertEqual(whole.done, num_steps)
    self.assertEqual(whole._held.changes.to_list(), list(numbers))
    self.assertIn("From step 4 on, ", words)
    notes = [x["note"] for x in records.read(self.folder) if "note" in x]
    self.assertLen(notes, 1 + len(next(iter(found.values()))))
    self.assertIn("is off.", notes[0])
    with open(f"{self.folder}/report.html") as f:
      self.assertIn(notes[-1], f.read())
    saved = tf.train.load_checkpoint(whole.folder.checkpoints.latest())
    self.assertAllEqual(saved.get_tensor("hold/changes"), numbers)
    # Stopped before the change, at it, and after it.
    other = f"{self.folder}_parts"
    for until in (4, 8, None):
      parts, _ = self.train(rows, strategy, found, other, until)
    got = values(parts)
    self.assertEqual(parts.done, num_steps)
    for name, value in expected.items():
      self.assertAllEqual(got[name], value, name)

  def test_memory_halves_the_batch_and_keeps_the_update(self):
    whole, _ = self.train(HELD, ONE("/cpu:0"), {4: ["memory"], 8: ["memory"]})
    self.assertEqual(whole.experiment.batch_size, 2)
    for player in whole.experiment.step.players.values():
      self.assertIsInstance(player.exchange, exchange.AccumulatedGradients)
      self.assertEqual(player.exchange.period, 4)
      # 4 alone, 2 of two parts, and the rest of four parts: as many as planned.
      self.assertEqual(
        strategies.copies(ONE("/cpu:0"), player.optimizer.t)[0], 16
      )

  def test_where_memory_runs_out_half_the_batch_trains_on(self):
    changed, _ = self.train(HELD, ONE("/cpu:0"), {4: ["memory"]})
    folder = f"{self.folder}_out"
    with run_out_of_memory(at=6):  # The last checkpoint is of step 4.
      whole, words = self.train(HELD, ONE("/cpu:0"), {}, folder)
    self.assertEqual(whole._held.changes.to_list(), [2, 1, 1, 12])
    self.assertEqual((whole.done, whole.experiment.batch_size), (28, 4))
    self.assertIn("Memory ran out. From step 4 on, gradients add up", words)
    notes = [x["note"] for x in records.read(folder) if "note" in x]
    self.assertLen(notes, 1)
    expected = values(changed)
    for name, value in values(whole).items():
      self.assertAllEqual(value, expected[name], name)

  def test_without_a_checkpoint_it_starts_over(self):
    with run_out_of_memory(at=2):
      whole, words = self.train(HELD, ONE("/cpu:0"), {})
    self.assertEqual(whole._held.changes.to_list(), [2, 1, 1, 16])
    self.assertEqual(whole.done, 32)
    self.assertIn("From step 0 on, ", words)
    for player in whole.experiment.step.players.values():
      self.assertEqual(
        strategies.copies(ONE("/cpu:0"), player.optimizer.t)[0], 16
      )

  @parameterized.named_parameters(
    ("not_held", ["run.Run.hold = None"]),
    ("odd", ["experiment.Experiment.batch_size = 5"]),
  )
  def test_a_run_that_cannot_act_ends_with_a_sentence(self, rows):
    words = "ran out at step 4, with a batch of .*: lower .* checkpoint is .*-4"
    out = run_out_of_memory(at=6)
    with out, self.assertRaisesRegex(start.ERRORS, words):
      self.train([*HELD, *rows], ONE("/cpu:0"), {})

  def test_without_leave_to_act_it_only_says_what_broke(self):
    rows = [*HELD, "holding.Hold.acts = False"]
    whole, words = self.train(rows, ONE("/cpu:0"), {4: ["memory"]})
    self.assertEqual((whole.done, whole._held.changes), (16, Changes()))
    self.assertIn("memory is off.", records.read(self.folder)[1]["note"])
    self.assertNotIn("From step", words)

  def test_the_plan_of_more_workers_is_not_compared(self):
    rows = [*HELD, "holding.Hold.num_workers = 8"]
    whole, words = self.train(rows, ONE("/cpu:0"), {4: ["memory"]})
    self.assertEqual((whole.done, whole._held.changes), (16, Changes()))
    notes = [x["note"] for x in records.read(self.folder) if "note" in x]
    self.assertLen(notes, 1)
    self.assertIn("is for 8 workers and 1 train here", notes[0])
    self.assertNotIn("is off", words)

  def test_another_config_is_refused_beside_changes(self):
    self.train(HELD, ONE("/cpu:0"), {4: ["memory"]})
    with self.assertRaisesRegex(ValueError, "another config: .*beta1"):
      prepare(
        self.folder, [*HELD, "optimizers.Adam.beta1 = 0.9"], ONE("/cpu:0")
      )

  def test_a_run_that_cannot_be_built_anew_may_not_act(self):
    config.load(["gin/runs/fashion.gin"], HELD)
    with self.assertRaisesRegex(ValueError, "set `holding.Hold.acts = False`"):
      run.Run(Experiment(ONE("/cpu:0")), self.folder)

  def test_a_step_is_measured(self):
    config.load(["gin/runs/fashion.gin"], [*HELD, "Hold.acts = False"])
    held = holding.Hold(0.1, memory_bytes=1 << 20)
    made = Experiment(ONE("/cpu:0"))
    logs = {"images_per_second": 20.0, "input_wait": 0.5}
    found = held.measure(made, logs)  # 8 images in 0.4 s, of which it waited.
    self.assertAllClose(found[:2], (0.4, 0.2))
    self.assertGreater(found.memory_bytes, 1 << 26)
    self.assertEmpty(held.findings(made, logs))  # The first loop is traced.
    names = [x.name for x in held.findings(made, logs)]
    self.assertEqual(names, ["memory", "input", "compute"])
    self.assertLen(held.unsaid(held.findings(made, logs)), 3)
    self.assertEmpty(held.unsaid(held.findings(made, logs)))

  def test_a_slow_exchange_is_told_from_slow_computation(self):
    config.load(["gin/runs/fashion.gin"], [*HELD, "Hold.acts = False"])
    held = holding.Hold(0.1, exchange_seconds=0.01)
    made = Experiment(testing.strategy())
    logs = {"images_per_second": 8 / 0.5, "input_wait": 0.0}
    held.findings(made, logs)
    with mock.patch.object(holding.Hold, "_time_exchange", return_value=0.4):
      names = [x.name for x in held.findings(made, logs)]
    self.assertEqual(names, ["exchange"])
    self.assertGreater(held._time_exchange(made), 0.0)

  @parameterized.parameters((0.0, 0.2), (0.1, 0.0))
  def test_a_hold_without_figures_is_refused(self, seconds, tolerance):
    with self.assertRaisesRegex(ValueError, "must be above 0"):
      holding.Hold(seconds, tolerance=tolerance)


class FileTest(tf.test.TestCase, parameterized.TestCase):
  """What a plan writes trains exactly as planned."""

  @parameterized.named_parameters(
    ("sync", "sync", exchange.AllReduce, dict(rate_rule="linear")),
    ("every_other_step", "every_other_step", exchange.Periodic, {}),
    (
      "added_up",
      "gradients_every_other_step",
      exchange.AccumulatedGradients,
      dict(rate_rule="sqrt"),
    ),
    ("paragan", "paragan", exchange.Periodic, {}),
    ("async", "async", exchange.AllReduce, {}),
    ("gossip", "gossip", gossip.Gossip, {}),
    ("quantized", "quantized", quantize.Quantized, {}),
    ("two_phase", "quantized_two_phase", quantize.Quantized, {}),
  )
  def test_a_plan_is_built_as_it_is(self, scheme, kind, goal):
    found = make_plan(scheme, base_batch=32, num_updates=50, **goal)
    folder = os.path.join(self.get_temp_dir(), scheme)
    path = f"{folder}.gin"
    with open(path, "w") as f:
      f.write(bindings.to_gin(found, {"save_every": 25}))
    config.load(["gin/runs/fashion.gin", path], LINEAR)
    made = run.Run(Experiment(testing.strategy()), folder)
    one = made.experiment
    self.assertEqual(one.batch_size, found.batch_per_worker * 4)
    self.assertEqual(made.num_steps, found.num_steps)
    self.assertEqual(made._save_every % found.period, 0)
    expected = made._held._hold.expected
    self.assertEqual(expected.step_seconds, found.prediction.step_seconds)
    self.assertEqual(expected.memory_bytes, found.memory_bytes)
    for who, player in one.step.players.items():
      self.assertIs(type(player.exchange), kind)
      if kind in (exchange.Periodic, exchange.AccumulatedGradients):
        self.assertEqual(player.exchange.period, found.period)
      if scheme in ("sync", "gradients_every_other_step"):
        self.assertAllClose(
          player.optimizer.learning_rate(tf.constant(10**6)).numpy(),
          1e-3 * found.rate_factors[who],
        )
        self.assertGreater(found.rate_factors[who], 1.0)
    if found.roles:
      self.assertEqual(tuple(one.step.schedule.roles), found.roles)
    if kind is quantize.Quantized:
      form = "two_phase" if scheme == "quantized_two_phase" else "gather"
      self.assertEqual(one.step.players["g"].exchange.form, form)


class BindingsTest(parameterized.TestCase):
  def test_changes_by_hand(self):
    known = {
      "experiment.Experiment.batch_size": 64,
      "exchange.Periodic.period": 3,
      "input_fn.InputFn.prefetch": 2,
    }
    rows = holding.bindings(
      Levels(4, 2, 2), lambda name, default: known.get(name, default)
    )
    self.assertContainsSubset(
      [
        "experiment.Experiment.batch_size = 16",
        "exchange.AccumulatedGradients.period = 4",
        "exchange.Periodic.period = 6",
        "input_fn.InputFn.prefetch = 4",
      ],
      rows,
    )
    self.assertEmpty(holding.bindings(Levels(), None))

  def test_an_input_that_follows_steps_is_read_further_ahead(self):
    known = {"input_fn.InputFn.prefetch": "step_timing"}
    rows = holding.bindings(Levels(reads=4), lambda n, d: known.get(n, d))
    self.assertIn("step_timing.StepTiming.min_depth = 8", rows)

  def test_changes_are_numbers_in_a_checkpoint(self):
    changes = Changes(Levels(2, 1, 4), 7)
    self.assertEqual(Changes.from_list(changes.to_list()), changes)
    self.assertIn("7 steps more", changes.describe(Changes()))
    self.assertIn(
      hold.describe(Levels(), Levels(2, 1, 4)), changes.describe(Changes())
    )


if __name__ == "__main__":
  testing.main()
