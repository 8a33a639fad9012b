"""What the benchmark's suites share, and all whom they measure."""

import functools
import inspect
import json
import os
import pathlib
import socket
import sys
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import records
from tests import testing
from tools.suites import engines, meanwhile, rounds, work
from tools.suites.engines_sides import Pinned, Trainer, cluster_of
from tools.suites.ours import Ours
from tools.suites.suite import Options
from tools.suites.tfgan import Session
from tools.suites.tfgan_estimator import Estimator
from tools.suites.work import Work
from tools.suites.workers import Worker, ask_all, closing

# Matrices only: G is 14x64 (4 latent, 10 classes, 8x8 pixels), D is 74x1.
TINY = (
  "from paragan_tf.nets import linear",
  "g/player.net = @linear.Generator",
  "d/player.net = @linear.Discriminator",
  "InputFn.resolution = 8",
  "Experiment.batch_size = 4",
)


class Clock:
  """Time that passes only when told to."""

  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


class RoundsTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.clock = Clock()
    self.calls = []
    self.enter_context(mock.patch.object(rounds, "say"))
    self.enter_context(mock.patch.object(rounds.time, "monotonic", self.clock))

  def turn(self, name, seconds):
    """Returns a turn that takes `seconds` and returns how many came before."""

    def take():
      self.calls.append(name)
      self.clock.now += seconds
      return float(len(self.calls) - 1)

    return take

  def take_turns(self, seconds):
    turns = {name: self.turn(name, 1.0) for name in "abc"}
    return rounds.take_turns(turns, self.clock.now + seconds)

  def test_rounds_go_forth_and_back(self):
    results = self.take_turns(seconds=12.5)
    self.assertEqual("".join(self.calls), "abccbaabccba")
    self.assertAllEqual(results["a"], [0, 5, 6, 11])
    self.assertAllEqual(results["b"], [1, 4, 7, 10])
    self.assertAllEqual(results["c"], [2, 3, 8, 9])

  def test_a_round_begins_only_if_it_can_end_in_time(self):
    self.take_turns(seconds=17.5)  # The sixth would end after 18.
    self.assertLen(self.calls, 5 * 3)

  def test_a_slow_round_is_remembered(self):
    slow = iter([1.0, 10.0, 1.0, 1.0, 1.0, 1.0])

    def take():
      self.clock.now += next(slow)
      return 0.0

    results = rounds.take_turns({"a": take}, self.clock.now + 20.0)
    self.assertLen(results["a"], 3)  # 12 s: a fourth one might take 10.

  def test_three_rounds_are_made_however_late_it_is(self):
    results = self.take_turns(seconds=-1.0)
    self.assertAllEqual(results["b"], [1, 4, 7])

  def test_tuples_become_rows(self):
    results = rounds.take_turns({"a": lambda: (1.0, 2.0)}, 0.0, min_rounds=2)
    self.assertAllEqual(results["a"], [[1.0, 2.0], [1.0, 2.0]])

  def test_spread_is_median_and_quartiles(self):
    figures = {}
    rounds.add_spread(figures, "speed", np.array([5.0, 1.0, 4.0, 2.0, 3.0]))
    self.assertEqual(
      figures, {"speed": 3.0, "speed_low": 2.0, "speed_high": 4.0}
    )
    self.assertEqual(rounds.spread(figures, "speed", ".1f"), "3.0 (2.0 - 4.0)")


class WorkTest(tf.test.TestCase, parameterized.TestCase):
  def count(self, make):
    with tf.Graph().as_default():
      return work.count([tensor.op for tensor in make()])

  @parameterized.named_parameters(
    # A 3x3 kernel from 3 to 5 channels on 2 images of 8x8 pixels.
    ("size_3", 3, 1, 2 * 8 * 8 * 5 * 27, 1.0),
    # At half the resolution: a quarter of the places, 16 inputs for 9.
    ("size_4_strided", 4, 2, 2 * 4 * 4 * 5 * 48, 9 / 4),
    ("size_1", 1, 1, 2 * 8 * 8 * 5 * 3, 4.0),
  )
  def test_convolution_and_both_gradients(self, size, stride, each, factor):
    def make(num):
      x, w = tf.zeros([2, 8, 8, 3]), tf.zeros([size, size, 3, 5])
      y = tf.nn.conv2d(x, w, stride, "SAME")
      return [y, *tf.gradients(y, [x, w])][:num]

    for num in (1, 2, 3):
      counted = self.count(functools.partial(make, num))
      self.assertEqual(counted, Work(num * each, num * each * factor))

  def test_matrix_products(self):
    def make():
      a, b = tf.zeros([4, 6]), tf.zeros([6, 7])
      y = tf.matmul(a, b)
      return [y, *tf.gradients(y, [a, b])]  # Transposed once each.

    self.assertEqual(self.count(make), Work(3 * 4 * 6 * 7, 3 * 4 * 6 * 7))

  def test_products_of_many_matrices(self):
    def make():
      a, b = tf.zeros([2, 4, 6]), tf.zeros([2, 7, 6])
      y = tf.matmul(a, b, transpose_b=True)  # As attention has it.
      return [y, *tf.gradients(y, [a, b])]  # One of them transposed.

    amount = 3 * 2 * 4 * 6 * 7
    self.assertEqual(self.count(make), Work(amount, amount))

  def test_what_is_shared_counts_once(self):
    def make():
      y = tf.matmul(tf.zeros([4, 6]), tf.zeros([6, 7]))
      return [y + 1.0, y + 2.0]

    self.assertEqual(self.count(make).executed, 4 * 6 * 7)

  def test_what_nobody_takes_does_not_run(self):
    def make():
      unused = tf.matmul(tf.zeros([4, 6]), tf.zeros([6, 7]))
      with tf.control_dependencies([unused]):
        return [tf.matmul(tf.zeros([2, 3]), tf.zeros([3, 5]))]

    self.assertEqual(self.count(make).executed, 2 * 3 * 5)

  def test_what_is_kept_does_run(self):
    def make():
      kept = tf.Variable(tf.zeros([4, 7]))
      assign = kept.assign(tf.matmul(tf.zeros([4, 6]), tf.zeros([6, 7])))
      with tf.control_dependencies([assign]):
        return [tf.constant(1.0) + 1.0]

    self.assertEqual(self.count(make).executed, 4 * 6 * 7)

  def test_a_function_runs_what_it_changes(self):
    kept = tf.Variable(tf.zeros([4, 7]))

    @tf.function
    def change(a, b):
      kept.assign(tf.matmul(a, b))

    function = change.get_concrete_function(tf.zeros([4, 6]), tf.zeros([6, 7]))
    self.assertEqual(work.count_function(function).executed, 4 * 6 * 7)

  def test_works_add_up(self):
    self.assertEqual(Work(1.0, 2.0).plus(Work(10.0, 20.0)), Work(11.0, 22.0))


class WorkersTest(tf.test.TestCase):
  def worker(self, make, environment=None):
    worker = Worker("somebody", make, environment)
    self.addCleanup(worker.close)
    return worker

  def test_calls_are_answered_in_order(self):
    worker = self.worker(functools.partial(list, "abc"))
    self.assertEqual(worker.ask("index", "c"), 2)
    worker.tell("append", "d")
    worker.tell("index", "d")
    self.assertIsNone(worker.answer())
    self.assertEqual(worker.answer(), 3)

  def test_all_are_asked_before_one_answers(self):
    workers = [mock.Mock(Worker) for _ in range(2)]
    order = mock.Mock()
    for i, worker in enumerate(workers):
      order.attach_mock(worker, f"worker{i}")
      worker.answer.return_value = i
    self.assertEqual(ask_all(iter(workers), "run", 3), [0, 1])
    self.assertEqual(
      order.mock_calls,
      [
        mock.call.worker0.tell("run", 3),
        mock.call.worker1.tell("run", 3),
        mock.call.worker0.answer(),
        mock.call.worker1.answer(),
      ],
    )

  def test_what_a_user_can_cause_comes_back(self):
    worker = self.worker(functools.partial(int, "x"))
    with self.assertRaisesRegex(ValueError, "invalid literal"):
      worker.answer()

  def test_an_ended_process_is_told_with_its_code(self):
    worker = self.worker(functools.partial(os._exit, 3))
    for ask in (worker.answer, functools.partial(worker.ask, "run")):
      with self.assertRaisesRegex(RuntimeError, "`somebody` ended.* code 3;"):
        ask()

  def test_the_environment_is_the_workers_own(self):
    os.environ["HERE"] = "here"
    self.addCleanup(os.environ.pop, "HERE")
    given = self.worker(functools.partial(os.getenv, "GIVEN"), {"GIVEN": "a"})
    taken = self.worker(
      functools.partial(os.getenv, "HERE", "b"), {"HERE": None}
    )
    self.assertEqual(ask_all([given, taken], "upper"), ["A", "B"])
    self.assertNotIn("GIVEN", os.environ)
    self.assertEqual(os.environ["HERE"], "here")

  def test_all_end_even_after_an_error(self):
    worker = self.worker(list)
    with self.assertRaises(KeyError), closing([worker]):
      raise KeyError
    self.assertFalse(worker._process.is_alive())


class MeanwhileTest(tf.test.TestCase):
  def meanwhile(self, ticks, own, now):
    """Sets what the system says: ticks of 10 ms, seconds of ours, the time."""
    read = mock.mock_open(read_data=f"cpu  {ticks}\ncpu0 1 2 3\n")
    usage = mock.Mock(ru_utime=own / 4, ru_stime=own / 4)
    for where, name, value in (
      (meanwhile, "open", read),
      (meanwhile.resource, "getrusage", mock.Mock(return_value=usage)),
      (meanwhile.os, "sysconf", mock.Mock(return_value=100)),
      (meanwhile.os, "getloadavg", mock.Mock(return_value=(1.5, 0.0, 0.0))),
      (meanwhile.time, "monotonic", mock.Mock(return_value=now)),
    ):
      self.enter_context(mock.patch.object(where, name, value, create=True))

  def test_others_are_all_that_we_are_not(self):
    # user nice system idle iowait irq softirq steal guest guest_nice
    self.meanwhile("1000 100 200 9000 300 10 20 30 500 500", own=2.0, now=50.0)
    watch = meanwhile.Meanwhile()
    self.meanwhile("1400 150 240 9900 400 11 29 30 900 900", own=3.0, now=52.0)
    # 5 s busy in 2 s, one of them ours.
    figures = watch.figures()
    self.assertAllClose(figures, {"load_before": 1.5, "others_cores": 2.0})

  def test_where_nobody_tells_nothing_is_said(self):
    self.meanwhile("", own=0.0, now=0.0)
    meanwhile.open.side_effect = FileNotFoundError
    figures = meanwhile.Meanwhile().figures()
    self.assertEqual(figures, {"load_before": 1.5})

  def test_words(self):
    figures = {"load_before": 1.25}
    self.assertEqual(meanwhile.words(figures), "load 1.2 before")
    figures["others_cores"] = 0.5
    self.assertEqual(
      meanwhile.words(figures),
      "load 1.2 before, others kept 0.5 cores busy meanwhile",
    )


class Here:
  """As a worker, for what may share this process."""

  def __init__(self, target):
    self._target = target

  def tell(self, method, *args):
    self._said = getattr(self._target, method)(*args)

  def answer(self):
    return self._said


class SidesTest(tf.test.TestCase):
  """All sides of the suite `step`, with tiny nets."""

  def test_a_step_is_one_update_of_each_player_on_every_side(self):
    workers = [
      Worker(side.__name__, functools.partial(side, TINY))
      for side in (Session, Estimator)
    ]
    self.addCleanup(gin.clear_config)
    with closing(workers):
      sides = [Here(Ours(TINY)), *workers]
      for num_steps, done in ((1, 1), (2, 3)):
        seconds = ask_all(sides, "run", num_steps)
        self.assertAllGreater(seconds, 0.0)
        for updates in ask_all(sides, "updates"):
          self.assertEqual(updates, {"g": done, "d": done})
      works = ask_all(sides, "work")
    g, d = 4 * 14 * 64, 4 * 74  # Multiply-adds of one pass of a batch.
    update_d = 2 * d + 2 * d  # Real and fake: forward, gradient of the weight.
    update_g = d + d + g  # D forward, back to its input, G's weight.
    self.assertEqual(
      [work.executed for work in works],
      [
        g + update_d + update_g,  # We draw once for both.
        g + update_d + g + update_g,
        g + update_d + g + update_g + g + 2 * d,  # And D's loss once more.
      ],
    )
    if sys.version_info >= (3, 11):
      self.assertFalse(hasattr(inspect, "getargspec"))


class EnginesTest(tf.test.TestCase):
  """All sides of the suite `engines`, with tiny nets."""

  def test_a_cluster_names_its_members_and_the_place_of_each(self):
    found = [json.loads(e["TF_CONFIG"]) for e in cluster_of(3)]
    self.assertEqual([x["task"]["index"] for x in found], [0, 1, 2])
    (addresses,) = {tuple(x["cluster"]["worker"]) for x in found}
    self.assertLen(set(addresses), 3)
    for address in addresses:  # Free again.
      host, port = address.split(":")
      socket.create_server((host, int(port))).close()

  def test_one_core_is_refused(self):
    self.enter_context(
      mock.patch.object(os, "sched_getaffinity", return_value={5})
    )
    with self.assertRaisesRegex(ValueError, "two cores, got 1"):
      engines.run(Options(quick=True))

  def test_a_run_tells_where_its_time_went(self):
    folder = self.get_temp_dir()
    self.addCleanup(gin.clear_config)
    trainer = Trainer(folder, TINY)
    self.addCleanup(trainer._stderr.close)
    splits = [trainer.run(20) for _ in range(3)]
    self.assertEqual([x.num_steps for x in splits], [18, 20, 20])
    for split in splits:
      self.assertBetween(split.program, 0.01 * split.wall, split.wall)
      self.assertBetween(split.wait, 0.0, split.program)
    logged = [line["step"] for line in records.read(f"{folder}/run")]
    self.assertEqual(logged, [20, 40, 60])
    self.assertIn("step 20/1000", pathlib.Path(folder, "stderr").read_text())

  def test_pinned_processes_share_a_batch_that_grows(self):
    allowed = sorted(os.sched_getaffinity(0))
    cores = [allowed[0], allowed[-1]]
    pair = [
      Worker("pair", functools.partial(Pinned, core, 2, (), TINY[:-1]), place)
      for core, place in zip(cores, cluster_of(2))
    ]
    with closing(pair):
      self.assertEqual(ask_all(pair, "images_per_step"), [64, 64])
      for summary, images in ask_all(pair, "summary"):
        self.assertIn("128 on 2 replica(s)", summary)
        self.assertEqual(images, 128)
      ask_all(pair, "run", 3)
      self.assertEqual(ask_all(pair, "updates"), 2 * [{"g": 5, "d": 5}])
      pinned = [os.sched_getaffinity(w._process.pid) for w in pair]
    self.assertEqual(pinned, [{core} for core in cores])


if __name__ == "__main__":
  testing.main()
