"""The outer loop's stops and actions, and the inner loop's logs."""

import contextlib
import time
from unittest import mock

import tensorflow as tf

from paragan_tf.engine import loop
from paragan_tf.engine.pace import Pace


class Counter(tf.Module):
  """A step that counts, and logs its inputs."""

  log_names = ("d/loss", "g/loss", "g/norm")
  last_step_log_names = ("g/norm",)
  cycle = 2

  def __init__(self):
    super().__init__()
    self.phases = []
    self.total = tf.Variable(0.0)

  def first_like(self, phase):
    return phase

  def __call__(self, images, labels, phase, is_logged):
    self.phases.append(phase)
    self.total.assign_add(tf.reduce_sum(images))
    g_loss = tf.reduce_sum(labels)
    return {
      "g/loss": g_loss,
      "d/loss": tf.constant(2.0),
      "g/norm": tf.cast(is_logged, tf.float32) * g_loss,
    }


class Rare(Counter):
  """A step whose first of five phases differs."""

  cycle = 5

  def first_like(self, phase):
    return min(phase, 1)

  def __call__(self, images, labels, phase, is_logged):
    logs = super().__call__(images, labels, phase, is_logged)
    return {**logs, "d/loss": tf.constant(float(phase == 0))}


class Phases(Counter):
  """A step of five phases that sums its images, weighted by the phase."""

  cycle = 5

  def __init__(self):
    super().__init__()
    self.weighted = tf.Variable(0.0)

  def __call__(self, images, labels, phase, is_logged):
    self.weighted.assign_add(tf.reduce_sum(images) * (phase + 1))
    return super().__call__(images, labels, phase, is_logged)


class InnerLoopTest(tf.test.TestCase):
  def test_equal_phases_are_traced_once(self):
    step = Rare()
    data = tf.data.Dataset.range(100).map(
      lambda i: (tf.cast([i], tf.float32), tf.cast([i], tf.float32))
    )
    inner = loop.InnerLoop(tf.distribute.get_strategy(), step, iter(data), 1)
    logs = inner(10)
    self.assertEqual(step.phases, [0, 1])
    self.assertAllClose(step.total, sum(range(10)))
    self.assertAllClose(logs["g/loss"], sum(range(10)) / 10)
    self.assertAllClose(logs["d/loss"], 1 / 5)

  def test_runs_whole_cycles_in_one_program(self):
    step = Counter()
    data = tf.data.Dataset.range(100).map(
      lambda i: (tf.cast([i, i], tf.float32), tf.cast([i], tf.float32))
    )
    inner = loop.InnerLoop(tf.distribute.get_strategy(), step, iter(data), 2)
    logs = inner(4)
    self.assertEqual(step.phases, [0, 1])  # Traced once, for each phase.
    self.assertAllClose(step.total, 2 * (0 + 1 + 2 + 3))
    self.assertAllClose(logs["g/loss"], (0 + 1 + 2 + 3) / 4)
    self.assertAllClose(logs["d/loss"], 2.0)
    self.assertGreater(logs["images_per_second"], 0)
    logs = inner(2)  # Goes on in the data, without another trace.
    self.assertEqual(step.phases, [0, 1])
    self.assertAllClose(logs["g/loss"], (4 + 5) / 2)

  def test_steps_that_fill_no_cycle_run_in_their_phases(self):
    for start_step, calls in ((0, (1, 1, 3, 2)), (3, (4, 7)), (4, (2, 1))):
      step, seen = Phases(), []
      data = tf.data.Dataset.range(start_step, 100).map(
        lambda i: (tf.cast([i], tf.float32), tf.cast([i], tf.float32))
      )
      inner = loop.InnerLoop(
        tf.distribute.get_strategy(), step, iter(data), 1, start_step
      )
      for num_steps in calls:
        first = start_step + len(seen)
        logs = inner(num_steps)
        seen += list(range(first, first + num_steps))
        self.assertAllClose(
          logs["g/loss"], sum(range(first, first + num_steps)) / num_steps
        )
        self.assertAllClose(logs["g/norm"], seen[-1])
      expected = sum(i * (i % 5 + 1) for i in seen)
      self.assertAllClose(step.weighted, expected)

  def test_norms_are_those_of_the_last_step(self):
    inner = HooksTest.make(self)
    self.assertAllClose(inner(4)["g/norm"], 3.0)
    self.assertAllClose(inner(3)["g/norm"], 6.0)

  def test_replicas_sum_their_logs_on_their_devices(self):
    """The host fetches the sums once a call: no step returns its logs."""
    inner = HooksTest.make(self)
    inner(4)
    (program,) = inner._run._list_all_concrete_functions()
    self.assertEqual(program.structured_outputs.shape, [2])
    self.assertAllClose(inner._sums, [0.0, 0.0, 0.0])

  def test_input_wait_is_the_fraction_of_time_spent_on_input(self):
    def sleep(value):
      time.sleep(0.1)
      return value

    class Slow(Counter):
      def __call__(self, images, labels, phase, is_logged):
        late = tf.py_function(sleep, [tf.reduce_sum(labels)], tf.float32)
        self.total.assign_add(tf.ensure_shape(late, []))
        return super().__call__(images, labels, phase, is_logged)

    def element(i):
      return tf.cast([i], tf.float32), tf.cast([i], tf.float32)

    def slow_element(i):
      return element(tf.ensure_shape(tf.py_function(sleep, [i], tf.int64), []))

    shares = []
    for make_element, step in ((element, Slow()), (slow_element, Counter())):
      data = tf.data.Dataset.range(100).map(make_element)
      inner = loop.InnerLoop(tf.distribute.get_strategy(), step, iter(data), 1)
      inner(2)
      shares.append(inner(4)["input_wait"])
    self.assertLess(shares[0], 0.4)
    self.assertBetween(shares[1], 0.6, 1.0)

  def test_a_step_ends_after_its_updates(self):
    """Otherwise updates would count as waiting for the next batch."""
    inner = HooksTest.make(self)
    program = inner._run.get_concrete_function(
      inner._iterator, tf.constant(1), (0, 1), tf.constant(True)
    )
    (loop_op,) = (
      op for op in program.graph.get_operations() if op.type.endswith("While")
    )
    name = loop_op.get_attr("body").name
    body = program.graph._get_function(name).graph
    clocks = [op for op in body.get_operations() if op.type == "Timestamp"]
    self.assertLen(clocks, 4)  # A batch has arrived, a step has ended, twice.
    for clock in clocks[1::2]:
      self.assertIn("AssignAddVariableOp", kinds(clock))


def kinds(op):
  """Returns the types of all operations that come before one."""
  seen, found = set(), [op]
  while found:
    one = found.pop()
    if one.name not in seen:
      seen.add(one.name)
      found += [x.op for x in one.inputs] + list(one.control_inputs)
  return {op.graph.get_operation_by_name(name).type for name in seen}


class HooksTest(tf.test.TestCase):
  """Settings that benchmarks change before the first call."""

  def make(self):
    data = tf.data.Dataset.range(100).map(
      lambda i: (tf.cast([i], tf.float32), tf.cast([i], tf.float32))
    )
    return loop.InnerLoop(
      tf.distribute.get_strategy(), Counter(), iter(data), 1
    )

  def test_the_wrapped_program_runs_in_place_of_the_program(self):
    num_calls = tf.Variable(0)

    def count(program):
      def counted(*args):
        num_calls.assign_add(1)
        return program(*args)

      return counted

    inner = self.make()
    inner.wrap_program(count)
    self.assertAllClose(inner(4)["g/loss"], (0 + 1 + 2 + 3) / 4)
    self.assertAllClose(inner(2)["g/loss"], (4 + 5) / 2)
    self.assertEqual(num_calls.numpy(), 2)

  def test_calls_between_stops_change_no_log(self):
    whole, parts = self.make(), self.make()
    expected = whole(6)
    for num_steps in (2, 2):
      parts.advance(num_steps, is_logged=False)
    self.assertIsNotNone(parts.advance(2, is_logged=True))
    logs = parts.read_logs()
    for name in ("d/loss", "g/loss", "g/norm"):
      self.assertAllEqual(logs[name], expected[name], name)
    self.assertEqual(whole._run.experimental_get_tracing_count(), 1)
    self.assertEqual(parts._run.experimental_get_tracing_count(), 1)

  def test_logs_are_averaged_over_processes_unless_it_is_turned_off(self):
    twice = mock.Mock(side_effect=lambda value: 2.0 * value)
    for average, expected in ((True, 2.0), (False, 1.0)):
      inner = self.make()
      inner.average_logs = average
      with mock.patch.object(loop.Processes, "mean", twice):
        self.assertAllClose(inner(2)["d/loss"], 2.0 * expected)
    twice.assert_called_once()


class Inner:
  """An inner loop that notes how many steps it is asked for.

  Args:
    step_seconds: What it says a step takes; `None` where it traces.
  """

  def __init__(self, step_seconds=0.1):
    self.asked = []
    self.logged = []
    self.step_seconds = step_seconds

  def advance(self, num_steps, is_logged):
    self.asked.append(num_steps)
    self.logged.append(is_logged)
    return self.step_seconds and num_steps * self.step_seconds

  def read_logs(self):
    return {"steps": sum(self.asked)}


class OuterLoopTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.inner = Inner()
    self.acted = []

  def act(self, step, logs):
    del logs
    self.acted.append(step)

  def train(self, *args, **pace):
    return loop.train(self.inner, *args, [self.act], Pace(**pace))

  def test_stops_at_every_multiple_and_at_the_end(self):
    ended = self.train(0, 11, [4, 6], cycle=4)
    self.assertEqual(self.acted, [4, 6, 8, 11])
    self.assertEqual(self.inner.asked, [4, 2, 2, 3])
    self.assertEqual(self.inner.logged, [True] * 4)
    self.assertEqual(ended, 11)

  def test_resumes_from_the_start_step(self):
    self.train(6, 12, [4], cycle=4)
    self.assertEqual(self.acted, [8, 12])
    self.assertEqual(self.inner.asked, [2, 4])

  def test_should_stop_ends_the_loop_after_the_actions(self):
    asked = iter([False, True])
    ended = self.train(0, 12, [4], should_stop=lambda: next(asked), cycle=4)
    self.assertEqual((ended, self.acted), (4, [4]))

  def test_slow_steps_make_short_calls_and_the_logs_stay_those_of_a_stop(self):
    ticks = []
    self.train(0, 100, [100], tick=ticks.append)
    # The first one is unknown; then it is two seconds of 0.1 s each.
    self.assertEqual(self.inner.asked, [1, 20, 20, 20, 20, 19])
    self.assertEqual(self.inner.logged, [False] * 5 + [True])
    self.assertEqual(ticks, [1, 21, 41, 61, 81, 100])
    self.assertEqual(self.acted, [100])

  def test_calls_that_take_long_or_are_unknown_are_told_apart(self):
    calls = []

    def around(step, is_long):
      calls.append((step, is_long))
      return contextlib.nullcontext()

    pace = Pace(around=around)
    for seconds in (None, 0.1, 3.0, 0.1):
      with pace.call(len(calls), 1):
        pace.measured(1, seconds)
    self.assertEqual(calls, [(0, True), (1, True), (2, False), (3, True)])

  def test_a_request_to_stop_is_seen_between_calls(self):
    asked = iter([False, False, True])
    ended = self.train(0, 100, [100], should_stop=lambda: next(asked))
    self.assertEqual((ended, self.acted), (21, []))

  def test_calls_begin_and_end_with_a_cycle(self):
    self.train(3, 100, [100], cycle=8)
    self.assertEqual(self.inner.asked, [5, 16, 16, 16, 16, 16, 12])
    # Unless a cycle takes too long.
    self.inner = Inner(step_seconds=0.5)
    self.train(0, 20, [20], cycle=8)
    self.assertEqual(self.inner.asked, [8, 4, 4, 4])

  def test_while_programs_are_traced_nothing_is_measured(self):
    self.inner = Inner(step_seconds=None)
    self.train(0, 24, [24], cycle=8)
    self.assertEqual(self.inner.asked, [8, 8, 8])

  def test_processes_decide_by_the_same_numbers(self):
    # Here a step takes 0.1 s, elsewhere 0.3 s.
    self.train(0, 100, [100], mean=lambda x: [x[0], x[1] and x[1] * 2, *x[2:]])
    self.assertEqual(self.inner.asked[:3], [1, 10, 10])

  def test_every_runs_at_multiples_only(self):
    action = loop.every(4, self.act)
    for step in (2, 4, 6, 8):
      action(step, {})
    self.assertEqual(self.acted, [4, 8])


if __name__ == "__main__":
  tf.test.main()
