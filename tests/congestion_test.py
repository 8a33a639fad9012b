"""The controller on simulated timings: it grows, shrinks, and is stable."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import congestion
from paragan_tf.data.congestion import Bounds, Observation, Plan, State

BOUNDS = Bounds(Plan(2, 2), Plan(32, 64), 1 << 20)
CALM = Observation(0.0, 0.1)
STARVED = Observation(0.05, 0.05)
BLOCKED = Observation(0.05, 0.05, blocked=True)


def replay(trace, state=None, bounds=BOUNDS):
  """Returns the state after each observation."""
  states = [state or State(bounds.least)]
  for observed in trace:
    states.append(congestion.advance(states[-1], observed, bounds))
  return states[1:]


def plans(trace, **kwargs):
  """Returns the plan after each observation."""
  bounds = kwargs.get("bounds", BOUNDS)
  return [state.plan(bounds) for state in replay(trace, **kwargs)]


def simulate(latency_fn, num=2000, step=0.1, bounds=BOUNDS):
  """Returns plans and waits of a run; the latency is a function of the time."""
  state, now, waits, found = State(bounds.least), 0.0, [], []
  ready, latencies = [], []
  for k in range(num):
    readers, depth = state.plan(bounds)
    while len(ready) < min(k + depth + 1, num):
      # The read starts when a reader is free and the depth allows it.
      free = sorted(ready)[-readers] if len(ready) >= readers else 0.0
      start = max(free, now)
      latencies.append(latency_fn(start))
      ready.append(start + latencies[-1])
    wait = max(max(ready[: k + 1]) - now, 0.0)
    now += wait + step
    waits.append(wait)
    # A long wait counts as several, as in the buffer.
    num_slices = int(wait / 0.05) + 1
    for i in range(num_slices):
      last = i == num_slices - 1
      elapsed = wait / num_slices + (step if last else 0.0)
      latency = latencies[k] if last else 0.0
      observed = Observation(
        wait / num_slices, elapsed, latency, latency, blocked=readers > depth
      )
      state = congestion.advance(state, observed, bounds)
    found.append(state.plan(bounds))
  return found, np.array(waits)


class AdvanceTest(tf.test.TestCase, parameterized.TestCase):
  def test_waits_double_the_readers(self):
    found = plans([CALM] * 5 + [STARVED] * 6)
    self.assertEqual(found[:6], [Plan(2, 2)] * 6)
    self.assertEqual([p.num_readers for p in found[6:]], [4, 4, 8, 8, 16])

  def test_waits_with_idle_readers_double_the_depth(self):
    found = plans([BLOCKED] * 6)
    self.assertEqual([p.depth for p in found], [2, 4, 4, 8, 8, 16])
    self.assertEqual({p.num_readers for p in found}, {2})

  def test_plans_stay_within_bounds(self):
    late, soon = (
      Observation(0.0, 0.01, 5.0, 50.0),
      Observation(0, 0.1, 0.1, 0.1),
    )
    for trace in (
      [STARVED] * 200,
      [BLOCKED] * 200,
      [CALM] * 5000,
      [late] * 300 + [soon] * 600,
    ):
      for plan in plans(trace):
        self.assertBetween(plan.num_readers, 2, 32)
        self.assertBetween(plan.depth, 2, 64)
    self.assertEqual(plans([STARVED] * 200)[-1], Plan(32, 2))
    self.assertEqual(plans([BLOCKED] * 200)[-1], Plan(2, 64))
    self.assertEqual(plans([late] * 300)[-1], Plan(32, 64))
    self.assertEqual(plans([late] * 300 + [soon] * 600)[-1], Plan(2, 3))

  def test_one_wait_changes_nothing(self):
    found = plans([CALM] * 40 + [STARVED] + [CALM] * 20)
    self.assertEqual(set(found), {Plan(2, 2)})

  def test_short_waits_are_noise(self):
    found = plans([Observation(0.0015, 0.01)] * 500)
    self.assertEqual(set(found), {Plan(2, 2)})

  def test_calm_windows_shrink_by_a_quarter(self):
    start = State(Plan(32, 64))
    found = plans([CALM] * 64 * 3, state=start)
    self.assertEqual(found[62], Plan(32, 64))
    self.assertEqual(found[63], Plan(24, 48))
    self.assertEqual(found[-1], Plan(13, 27))
    self.assertEqual(plans([CALM] * 2000, state=start)[-1], Plan(2, 2))

  def test_a_few_waits_neither_grow_nor_shrink(self):
    # Three percent of the time, in every second batch.
    trace = [CALM, Observation(0.006, 0.1)] * 500
    found = plans(trace, state=State(Plan(8, 8)))
    self.assertEqual(set(found), {Plan(8, 8)})

  def test_shrinking_too_much_makes_windows_longer(self):
    # Seven readers are too few, eight are enough.
    state, changes = State(Plan(8, 8)), []
    for i in range(6000):
      too_few = state.floor.num_readers < 8
      observed = STARVED if too_few else CALM
      new = congestion.advance(state, observed, BOUNDS)
      if new.floor != state.floor:
        changes.append(i)
      state = new
    self.assertEqual(state.patience, 16 * 64)
    first, later = (
      sum(a <= i < b for i in changes) for a, b in ((0, 1000), (5000, 6000))
    )
    self.assertGreater(first, 6)
    self.assertLessEqual(later, 3)

  def test_windows_are_short_again_at_the_minimum(self):
    state = State(Plan(4, 4), patience=512)
    found = replay([CALM] * 3000, state=state)
    self.assertEqual(found[1000].patience, 512)
    self.assertEqual(found[-1].patience, 64)


class TraceTest(tf.test.TestCase):
  def test_the_plan_grows_in_a_burst_and_shrinks_after_it(self):
    def latency(now):
      return 1.6 if 60 <= now < 80 else 0.16

    found, waits = simulate(latency)
    self.assertLessEqual(found[400].num_readers, 4)
    most = max(plan.num_readers for plan in found[580:1000])
    self.assertBetween(most, 16, 32)
    self.assertLessEqual(found[-1].num_readers, 4)
    # A latency of 1.6 seconds is sixteen steps, one of 0.16 less than two.
    self.assertLessEqual(max(plan.depth for plan in found[:400]), 4)
    self.assertBetween(max(plan.depth for plan in found[580:1000]), 17, 64)
    self.assertLessEqual(found[-1].depth, 4)
    # Two readers would wait 160 seconds for these 20 seconds of burst.
    self.assertLess(waits.sum(), 12)

  def test_white_noise_does_not_make_it_oscillate(self):
    random = np.random.RandomState(0)
    latencies = random.uniform(0.05, 0.25, 4000)
    index = iter(range(4000))
    found, waits = simulate(lambda now: latencies[next(index)])
    late = found[1000:]
    self.assertLessEqual(max(plan.num_readers for plan in late), 8)
    changes = sum(a != b for a, b in zip(late, late[1:]))
    self.assertLess(changes, 20)
    self.assertLess(waits[1000:].mean(), 0.005)

  def test_a_slow_source_is_read_with_all_readers(self):
    found, _ = simulate(lambda now: 10.0, num=600)
    self.assertEqual(found[-1].num_readers, 32)
    self.assertEqual(found[300:], [found[300]] * 300)


class BoundsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    (Plan(2, 2), Plan(1, 2), 1, "`max_readers` must be at least 2, got 1"),
    (Plan(0, 2), Plan(1, 2), 1, "`max_readers` must be at least 1"),
    (Plan(2, 4), Plan(2, 3), 1, "`max_depth` must be at least 4, got 3"),
    (Plan(2, 2), Plan(2, 2), 0, "`max_bytes` must be above 0, got 0"),
  )
  def test_bounds_without_a_plan_are_refused(self, least, most, size, words):
    with self.assertRaisesRegex(ValueError, words):
      Bounds(least, most, size)


if __name__ == "__main__":
  tf.test.main()
