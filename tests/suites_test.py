"""What the benchmark's suites share, and sides of `step` and `engines`."""

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
from tools.suites import flops, interleave, machine_load
from tools.suites.engines import suite as engines
from tools.suites.engines.sides import Trainer
from tools.suites.flops import MultiplyAdds
from tools.suites.ours import Ours
from tools.suites.pinned import PinnedProcess, make_cluster_environments
from tools.suites.suite import Options
from tools.suites.tfgan import Session
from tools.suites.tfgan_estimator import Estimator
from tools.suites.workers import Worker, call_all, close_all

# Matrices only: G is 14x64 (4 latent, 10 classes, 8x8 pixels), D is 74x1.
TINY = (
  "from paragan_tf.nets import linear",
  "g/player.net = @linear.Generator",
  "d/player.net = @linear.Discriminator",
  "InputFn.resolution = 8",
  "Experiment.batch_size = 4",
)


class Clock:
  """A clock that a test sets."""

  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


class InterleaveTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.clock = Clock()
    self.calls = []
    self.enter_context(mock.patch.object(interleave, "log_progress"))
    self.enter_context(
      mock.patch.object(interleave.time, "monotonic", self.clock)
    )

  def make_task(self, name, seconds):
    """Returns a task that takes `seconds` and returns how many ran before."""

    def run():
      self.calls.append(name)
      self.clock.now += seconds
      return float(len(self.calls) - 1)

    return run

  def interleave(self, seconds):
    tasks = {name: self.make_task(name, 1.0) for name in "abc"}
    return interleave.interleave(tasks, self.clock.now + seconds)

  def test_the_order_of_repetitions_alternates(self):
    results = self.interleave(seconds=12.5)
    self.assertEqual("".join(self.calls), "abccbaabccba")
    self.assertAllEqual(results["a"], [0, 5, 6, 11])
    self.assertAllEqual(results["b"], [1, 4, 7, 10])
    self.assertAllEqual(results["c"], [2, 3, 8, 9])

  def test_a_repetition_begins_only_if_it_can_end_in_time(self):
    self.interleave(seconds=17.5)  # The sixth would end after 18.
    self.assertLen(self.calls, 5 * 3)

  def test_a_slow_repetition_is_remembered(self):
    slow = iter([1.0, 10.0, 1.0, 1.0, 1.0, 1.0])

    def run():
      self.clock.now += next(slow)
      return 0.0

    results = interleave.interleave({"a": run}, self.clock.now + 20.0)
    self.assertLen(results["a"], 3)  # 12 s: a fourth one might take 10.

  def test_three_repetitions_are_run_even_after_the_deadline(self):
    results = self.interleave(seconds=-1.0)
    self.assertAllEqual(results["b"], [1, 4, 7])

  def test_tuples_become_rows(self):
    results = interleave.interleave(
      {"a": lambda: (1.0, 2.0)}, 0.0, min_repetitions=2
    )
    self.assertAllEqual(results["a"], [[1.0, 2.0], [1.0, 2.0]])

  def test_spread_is_median_and_quartiles(self):
    figures = {}
    interleave.add_spread(figures, "speed", np.array([5.0, 1.0, 4.0, 2.0, 3.0]))
    self.assertEqual(
      figures, {"speed": 3.0, "speed_low": 2.0, "speed_high": 4.0}
    )
    self.assertEqual(
      interleave.format_spread(figures, "speed", ".1f"), "3.0 (2.0 - 4.0)"
    )


class FlopsTest(tf.test.TestCase, parameterized.TestCase):
  def count(self, make):
    with tf.Graph().as_default():
      return flops.count_operations([tensor.op for tensor in make()])

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
      self.assertEqual(counted, MultiplyAdds(num * each, num * each * factor))

  def test_matrix_products(self):
    def make():
      a, b = tf.zeros([4, 6]), tf.zeros([6, 7])
      y = tf.matmul(a, b)
      return [y, *tf.gradients(y, [a, b])]  # Transposed once each.

    self.assertEqual(
      self.count(make), MultiplyAdds(3 * 4 * 6 * 7, 3 * 4 * 6 * 7)
    )

  def test_products_of_many_matrices(self):
    def make():
      a, b = tf.zeros([2, 4, 6]), tf.zeros([2, 7, 6])
      y = tf.matmul(a, b, transpose_b=True)  # As attention has it.
      return [y, *tf.gradients(y, [a, b])]  # One of them transposed.

    amount = 3 * 2 * 4 * 6 * 7
    self.assertEqual(self.count(make), MultiplyAdds(amount, amount))

  def test_what_is_shared_counts_once(self):
    def make():
      y = tf.matmul(tf.zeros([4, 6]), tf.zeros([6, 7]))
      return [y + 1.0, y + 2.0]

    self.assertEqual(self.count(make).executed, 4 * 6 * 7)

  def test_what_is_unused_does_not_run(self):
    def make():
      unused = tf.matmul(tf.zeros([4, 6]), tf.zeros([6, 7]))
      with tf.control_dependencies([unused]):
        return [tf.matmul(tf.zeros([2, 3]), tf.zeros([3, 5]))]

    self.assertEqual(self.count(make).executed, 2 * 3 * 5)

  def test_what_is_assigned_does_run(self):
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
    self.assertEqual(flops.count_function(function).executed, 4 * 6 * 7)

  def test_multiply_adds_add_up(self):
    self.assertEqual(
      MultiplyAdds(1.0, 2.0).plus(MultiplyAdds(10.0, 20.0)),
      MultiplyAdds(11.0, 22.0),
    )


class WorkersTest(tf.test.TestCase):
  def start_worker(self, make, environment=None):
    worker = Worker("worker", make, environment)
    self.addCleanup(worker.close)
    return worker

  def test_results_come_in_order(self):
    worker = self.start_worker(functools.partial(list, "abc"))
    self.assertEqual(worker.call("index", "c"), 2)
    worker.submit("append", "d")
    worker.submit("index", "d")
    self.assertIsNone(worker.wait())
    self.assertEqual(worker.wait(), 3)

  def test_all_calls_are_submitted_before_the_first_wait(self):
    workers = [mock.Mock(Worker) for _ in range(2)]
    order = mock.Mock()
    for i, worker in enumerate(workers):
      order.attach_mock(worker, f"worker{i}")
      worker.wait.return_value = i
    self.assertEqual(call_all(iter(workers), "run", 3), [0, 1])
    self.assertEqual(
      order.mock_calls,
      [
        mock.call.worker0.submit("run", 3),
        mock.call.worker1.submit("run", 3),
        mock.call.worker0.wait(),
        mock.call.worker1.wait(),
      ],
    )

  def test_an_error_of_a_user_is_raised_here(self):
    worker = self.start_worker(functools.partial(int, "x"))
    with self.assertRaisesRegex(ValueError, "invalid literal"):
      worker.wait()

  def test_an_ended_process_is_reported_with_its_code(self):
    worker = self.start_worker(functools.partial(os._exit, 3))
    for call in (worker.wait, functools.partial(worker.call, "run")):
      with self.assertRaisesRegex(RuntimeError, "`worker` ended.* code 3;"):
        call()

  def test_the_environment_is_the_workers_own(self):
    os.environ["HERE"] = "here"
    self.addCleanup(os.environ.pop, "HERE")
    given = self.start_worker(
      functools.partial(os.getenv, "GIVEN"), {"GIVEN": "a"}
    )
    taken = self.start_worker(
      functools.partial(os.getenv, "HERE", "b"), {"HERE": None}
    )
    self.assertEqual(call_all([given, taken], "upper"), ["A", "B"])
    self.assertNotIn("GIVEN", os.environ)
    self.assertEqual(os.environ["HERE"], "here")

  def test_all_end_even_after_an_error(self):
    worker = self.start_worker(list)
    with self.assertRaises(KeyError), close_all([worker]):
      raise KeyError
    self.assertFalse(worker._process.is_alive())


class MachineLoadTest(tf.test.TestCase):
  def set_system(self, ticks, own, now):
    """Sets what the system reports: ticks of 10 ms, our seconds, the time."""
    read = mock.mock_open(read_data=f"cpu  {ticks}\ncpu0 1 2 3\n")
    usage = mock.Mock(ru_utime=own / 4, ru_stime=own / 4)
    for where, name, value in (
      (machine_load, "open", read),
      (machine_load.resource, "getrusage", mock.Mock(return_value=usage)),
      (machine_load.os, "sysconf", mock.Mock(return_value=100)),
      (machine_load.os, "getloadavg", mock.Mock(return_value=(1.5, 0.0, 0.0))),
      (machine_load.time, "monotonic", mock.Mock(return_value=now)),
    ):
      self.enter_context(mock.patch.object(where, name, value, create=True))

  def test_others_are_all_that_we_are_not(self):
    # user nice system idle iowait irq softirq steal guest guest_nice
    self.set_system("1000 100 200 9000 300 10 20 30 500 500", own=2.0, now=50.0)
    machine = machine_load.MachineLoad()
    self.set_system("1400 150 240 9900 400 11 29 30 900 900", own=3.0, now=52.0)
    # 5 s busy in 2 s, one of them ours.
    figures = machine.figures()
    self.assertAllClose(figures, {"load_before": 1.5, "others_cores": 2.0})

  def test_without_proc_there_is_no_figure_of_others(self):
    self.set_system("", own=0.0, now=0.0)
    machine_load.open.side_effect = FileNotFoundError
    figures = machine_load.MachineLoad().figures()
    self.assertEqual(figures, {"load_before": 1.5})

  def test_figures_are_described(self):
    figures = {"load_before": 1.25}
    self.assertEqual(machine_load.describe(figures), "load 1.2 before")
    figures["others_cores"] = 0.5
    self.assertEqual(
      machine_load.describe(figures),
      "load 1.2 before, others kept 0.5 cores busy meanwhile",
    )


class LocalWorker:
  """A worker in this process."""

  def __init__(self, target):
    self._target = target

  def submit(self, method, *args):
    self._result = getattr(self._target, method)(*args)

  def wait(self):
    return self._result


class SidesTest(tf.test.TestCase):
  """All sides of the suite `step`, with tiny nets; TF-GAN's if it is there."""

  def test_a_step_is_one_update_of_each_player_on_every_side(self):
    workers = [
      Worker(side.__name__, functools.partial(side, TINY))
      for side in ((Session, Estimator) if testing.HAS_TF_GAN else ())
    ]
    self.addCleanup(gin.clear_config)
    with close_all(workers):
      sides = [LocalWorker(Ours(TINY)), *workers]
      for num_steps, done in ((1, 1), (2, 3)):
        seconds = call_all(sides, "run", num_steps)
        self.assertAllGreater(seconds, 0.0)
        for updates in call_all(sides, "count_updates"):
          self.assertEqual(updates, {"g": done, "d": done})
      counts = call_all(sides, "count_multiply_adds")
    g, d = 4 * 14 * 64, 4 * 74  # Multiply-adds of one pass of a batch.
    update_d = 2 * d + 2 * d  # Real and fake: forward, gradient of the weight.
    update_g = d + d + g  # D forward, back to its input, G's weight.
    self.assertEqual(
      [count.executed for count in counts],
      [
        g + update_d + update_g,  # We draw once for both.
        g + update_d + g + update_g,
        g + update_d + g + update_g + g + 2 * d,  # And D's loss once more.
      ][: len(sides)],
    )
    if sys.version_info >= (3, 11):
      self.assertFalse(hasattr(inspect, "getargspec"))


class EnginesTest(tf.test.TestCase):
  """All sides of the suite `engines`, with tiny nets."""

  def test_a_cluster_has_all_addresses_and_an_index_for_each(self):
    found = [json.loads(e["TF_CONFIG"]) for e in make_cluster_environments(3)]
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

  def test_a_run_reports_where_its_time_went(self):
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
      Worker(
        "pair", functools.partial(PinnedProcess, core, 2, (), TINY[:-1]), place
      )
      for core, place in zip(cores, make_cluster_environments(2))
    ]
    with close_all(pair):
      self.assertEqual(call_all(pair, "get_images_per_step"), [64, 64])
      for summary, images in call_all(pair, "summarize"):
        self.assertIn("128 on 2 replica(s)", summary)
        self.assertEqual(images, 128)
      call_all(pair, "run", 3)
      self.assertEqual(call_all(pair, "count_updates"), 2 * [{"g": 5, "d": 5}])
      pinned = [os.sched_getaffinity(w._process.pid) for w in pair]
    self.assertEqual(pinned, [{core} for core in cores])


if __name__ == "__main__":
  testing.main()
