"""The loop of TPUEstimator: one build, and all that happens at stops."""

import contextlib
import functools
import gc
import io
import math
import os
from unittest import mock

import gin
import tensorflow as tf

from paragan_tf.engine import estimator, estimator_loop, loop
from paragan_tf.outputs import checkpoints, records
from paragan_tf.outputs.saving import Saver
from paragan_tf.run import Run
from paragan_tf.run_results import Results
from paragan_tf.types import Losses
from tests import estimator_test, run_test
from tools.suites.rehearsal import estimator_builds

ONE = run_test.ONE
# Stops at 3, 4, 5, 6, 8, 9, 10, 12, 15.
STOPS = (
  "run.Run.num_steps = 15",
  "run.Run.log_every = 3",
  "run.Run.sample_every = 4",
  "run.Run.save_every = 5",
)


def make(folder, by_estimator, *more):
  """Returns a run of linear nets, ready to train."""
  built = estimator_test.build(*STOPS, *more)
  other = built.estimator(folder, saves=False) if by_estimator else None
  made = Run(built, folder, other)
  made.restore()
  made.open()
  return made


class Recorder:
  """Notes what a run does at which step, and whether it does so eagerly."""

  def __init__(self, made):
    self.seen = []
    self._made = made
    self._wrap(made, "_log", lambda step, logs: step)
    self._wrap(made._results, "sample", lambda step: step)
    self._wrap(made, "save", lambda: made.done)

  def _wrap(self, owner, name, step_of):
    method = getattr(owner, name)

    def noted(*args):
      eager = tf.executing_eagerly()
      self.seen.append((name, step_of(*args), self._made.done, eager))
      return method(*args)

    setattr(owner, name, noted)


class StopsTest(tf.test.TestCase):
  """A run with many stops, with TPUEstimator and with a strategy."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.made, cls.seen = {}, {}
    for name in ("strategy", "estimator"):
      folder = os.path.join(cls.get_temp_dir(cls()), name)
      made = make(folder, name == "estimator")
      recorder = Recorder(made)
      with contextlib.redirect_stdout(io.StringIO()):
        made()
      cls.made[name], cls.seen[name] = made, recorder.seen

  @classmethod
  def tearDownClass(cls):
    cls.made.clear()
    gin.clear_config()
    gc.collect()
    super().tearDownClass()

  def folders(self):
    return [self.made[n].folder.path for n in ("strategy", "estimator")]

  def test_both_engines_come_to_the_same_values(self):
    expected, got = (run_test.values(x) for x in self.made.values())
    self.assertEqual(expected.keys(), got.keys())
    for name, value in expected.items():
      self.assertAllClose(got[name], value, rtol=0, atol=1e-6, msg=name)

  def test_actions_have_the_same_order(self):
    expected, got = (
      [(name, step) for name, step, _, _ in self.seen[engine]]
      for engine in ("strategy", "estimator")
    )
    self.assertEqual(got, expected)
    self.assertContainsSubset(
      [("_log", 12), ("sample", 12), ("_log", 15), ("save", 15)], got
    )

  def test_actions_are_eager_and_have_the_values_of_their_step(self):
    for name, step, done, eager in self.seen["estimator"]:
      self.assertTrue(eager, name)
      if name != "_log":
        self.assertEqual(done, step, name)

  def test_logs_are_means_since_the_last_stop(self):
    expected, got = (records.read(folder) for folder in self.folders())
    self.assertEqual([x["step"] for x in got], [3, 6, 9, 12, 15])
    for line, other in zip(expected, got):
      self.assertEqual(line.keys(), other.keys())
      for name in ("d/loss", "g/loss", "d/grad_norm", "exchange/bytes"):
        self.assertAllClose(other[name], line[name], rtol=1e-4, msg=name)
      self.assertGreater(other["images_per_second"], 0.0)
      self.assertBetween(other["input_wait"], 0.0, 1.0)

  def test_checkpoints_and_samples_are_the_same(self):
    expected, got = (checkpoints.Checkpoints(f) for f in self.folders())
    names = [os.path.basename(path) for path in got.paths()]
    self.assertEqual(names, [f"model.ckpt-{step}" for step in (5, 10, 15)])
    for one, other in zip(expected.paths(), got.paths()):
      maps = [
        tf.train.load_checkpoint(path).get_variable_to_shape_map()
        for path in (one, other)
      ]
      self.assertEqual(*maps)
    pictures = [sorted(os.listdir(f"{f}/samples")) for f in self.folders()]
    self.assertEqual(*pictures)
    self.assertContainsSubset(["00000008.png"], pictures[0])


class ResumeTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def tearDown(self):
    gin.clear_config()
    gc.collect()
    super().tearDown()

  def train_whole(self):
    """Returns what 15 steps in one go learn."""
    made = make(f"{self.folder}_whole", True)
    made.train(15)
    made.close_progress()
    return run_test.values(made)

  def test_it_stops_where_nothing_else_is_due_and_resumes_bit_for_bit(self):
    made = make(self.folder, True)
    asked = iter([False, False, False, False, True])  # At 0, 3, 4, 5, 6.
    # However slow the machine is, it is asked at stops only.
    with (
      mock.patch.object(estimator_loop, "SECONDS", math.inf),
      contextlib.redirect_stdout(io.StringIO()) as words,
    ):
      made(lambda: next(asked))
    self.assertIn("Stopped at step 6", words.getvalue())
    self.assertEndsWith(run_test.latest(self.folder), "model.ckpt-6")
    made = make(self.folder, True)
    self.assertEqual(made.done, 6)
    with contextlib.redirect_stdout(io.StringIO()):
      made()
    whole = self.train_whole()
    for name, value in run_test.values(made).items():
      self.assertAllEqual(value, whole[name], name)

  def test_a_run_that_is_asked_to_stop_before_it_starts_builds_nothing(self):
    made = make(self.folder, True)
    with mock.patch.object(made._estimator, "train") as train:
      made.train(15, lambda: True)
    train.assert_not_called()
    self.assertEqual(made.done, 0)

  def test_train_can_be_called_again_where_nothing_was_saved(self):
    made = make(self.folder, True)
    self.assertAllClose(made.train(7)["d/loss"], made._logs["d/loss"])
    self.assertEqual(made.done, 7)
    made.train(15)
    made.close_progress()
    whole = self.train_whole()
    for name, value in run_test.values(made).items():
      self.assertAllEqual(value, whole[name], name)

  def test_errors_of_actions_end_the_run(self):
    made = make(self.folder, True)
    made._health.follow = mock.Mock(side_effect=FloatingPointError("at 3"))
    with self.assertRaisesRegex(FloatingPointError, "at 3"):
      made.train(15)
    made.close_progress()

  def test_a_loss_that_is_nan_between_stops_is_one_sentence(self):
    made = make(self.folder, True, "watchdog.Watchdog.max_skipped = 3")
    step = made.experiment.make_step

    def diverge(count=None):
      made_step = step(count)
      made_step.game = made_step.game._replace(
        loss_fn=lambda scores: Losses(
          *(tf.reduce_mean(x) * float("nan") for x in scores)
        )
      )
      return made_step

    made.experiment.make_step = diverge
    made._estimator = made.experiment.estimator(self.folder, saves=False)
    with self.assertRaisesRegex(
      FloatingPointError, "not finite.*diverged; lower"
    ):
      made.train(15)
    made.close_progress()

  def test_an_estimator_that_saves_is_refused(self):
    built = estimator_test.build(*STOPS)
    made = Run(built, self.folder, built.estimator(self.folder))
    made.restore()
    made.open()
    with self.assertRaisesRegex(ValueError, "make it with `saves=False`"):
      made.train(15)
    made.close_progress()


class BuildsTest(tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_a_run_with_saves_and_samples_builds_once(self):
    counted = {
      name: mock.patch.object(
        owner, name, autospec=True, side_effect=getattr(owner, name)
      )
      for owner, name in ((Saver, "start"), (Results, "sample"))
    }
    with counted["start"] as save, counted["sample"] as sample:
      self.assertEqual(estimator_builds.count_builds(), 1)
    self.assertEqual(save.call_count, 3)
    self.assertEqual(sample.call_count, 3)


class CountingGraph:
  """A graph whose steps only count, on a TPU many in one call."""

  def __init__(self, on_tpu, begin_at):
    self.count = tf.compat.v1.train.get_or_create_global_step()
    w = tf.compat.v1.get_variable("w", initializer=0, use_resource=True)
    sums = self.make_local(estimator.LOG_SUMS, 0.0)
    self.make_local(estimator.LOG_STEP, 0)
    steps = tf.constant(1)
    if on_tpu:
      steps = self.make_local(estimator_loop._ITERATIONS, 1)
    self.train_op = tf.group(
      self.count.assign_add(tf.cast(steps, self.count.dtype)),
      w.assign_add(steps),
      sums.assign_add(10.0 * tf.cast(steps, tf.float32)),
    )
    self.scaffold = tf.compat.v1.train.Scaffold(
      init_fn=lambda _, session: self.count.load(begin_at, session)
    )

  def make_local(self, name, value):
    return tf.compat.v1.get_variable(
      name,
      initializer=value,
      use_resource=True,
      collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )

  def run(self, hook):
    """Runs to the end; returns the steps of each call."""
    calls = []
    creator = tf.compat.v1.train.ChiefSessionCreator(self.scaffold)
    with tf.compat.v1.train.MonitoredSession(creator, [hook]) as session:
      while not session.should_stop():
        before = hook.step
        session.run(self.train_op)
        calls.append(hook.step - before)
    return calls


class StopHookTest(tf.test.TestCase):
  def run_hook(self, start_step, num_steps, stops, on_tpu=True, begin_at=None):
    """Returns the steps of each call, and what was given at each stop."""
    at_stops = []

    def at_stop(step, logs, read):
      at_stops.append((step, logs, read(["w"])["w"]))
      return step < num_steps

    hook = estimator_loop._StopHook(
      start_step,
      functools.partial(loop.next_stop, num_steps, stops),
      at_stop,
      lambda sums, num, seconds: (sums.tolist(), num),
      max_iterations=6,
    )
    with tf.Graph().as_default():
      graph = CountingGraph(on_tpu, begin_at or start_step)
      return graph.run(hook), at_stops

  def test_a_tpu_loops_up_to_the_next_stop(self):
    calls, at_stops = self.run_hook(0, 23, [4, 10])
    self.assertEqual(calls, [4, 4, 2, 2, 4, 4, 3])
    self.assertEqual([x[0] for x in at_stops], [4, 8, 10, 12, 16, 20, 23])

  def test_it_takes_no_more_than_the_configured_steps(self):
    calls, at_stops = self.run_hook(0, 20, [10])
    self.assertEqual(calls, [6, 4, 6, 4])
    self.assertEqual([x[0] for x in at_stops], [10, 20])

  def test_it_resumes_between_stops(self):
    calls, _ = self.run_hook(7, 13, [5])
    self.assertEqual(calls, [3, 3])

  def test_without_a_tpu_each_call_is_one_step(self):
    calls, at_stops = self.run_hook(0, 5, [2], on_tpu=False)
    self.assertEqual(calls, [1] * 5)
    self.assertEqual([x[0] for x in at_stops], [2, 4, 5])

  def test_sums_and_values_are_those_of_the_stop(self):
    _, at_stops = self.run_hook(0, 23, [10])
    expected = [
      (10, (100.0, 10), 10),
      (20, (100.0, 10), 20),
      (23, (30.0, 3), 23),
    ]
    self.assertEqual(at_stops, expected)

  def test_a_session_that_is_not_where_the_input_is_is_refused(self):
    with self.assertRaisesRegex(RuntimeError, "step 4, .* started at step 8"):
      self.run_hook(8, 12, [4], begin_at=4)

  def test_large_variables_are_read_in_several_messages(self):
    variables = [tf.Variable(tf.zeros([n])) for n in (3, 4, 1, 20, 2)]
    with mock.patch.object(estimator_loop, "_MAX_BYTES", 32):
      groups = estimator_loop._group(variables)
    sizes = [[v.shape[0] for v in group] for group in groups]
    self.assertEqual(sizes, [[3, 4, 1], [20], [2]])


if __name__ == "__main__":
  tf.test.main()
