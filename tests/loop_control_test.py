"""The controller of pipelines, on recorded and simulated timings of loops."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import loop_control
from paragan_tf.data.congestion import Bounds, Plan, State
from paragan_tf.data.loop_control import LoopBounds, LoopState, LoopTiming

BOUNDS = LoopBounds(
  Bounds(Plan(1, 2), Plan(32, 64), 1 << 20),
  Bounds(Plan(2, 1), Plan(8, 1), 1 << 20),
)
NUM_STEPS, STEP = 20, 0.04  # Of an inner loop.
CALM = LoopTiming(NUM_STEPS, NUM_STEPS * STEP, 0.0, 0)


def make_late(share, latencies=()):
  """Returns the timing of a loop that waited for this part of its time."""
  seconds = NUM_STEPS * STEP / (1 - share)
  return LoopTiming(NUM_STEPS, seconds, share * seconds, NUM_STEPS, latencies)


def replay(trace, state=None):
  """Returns the state after each loop."""
  states = [state or loop_control.start(BOUNDS)]
  for timing in trace:
    states.append(loop_control.advance(states[-1], timing, BOUNDS))
  return states[1:]


def depths(states):
  """Returns the depth of each plan."""
  return [state.plan(BOUNDS).depth for state in states]


def decoders(states):
  """Returns the decoders of each plan."""
  return [state.plan(BOUNDS).num_decoders for state in states]


def simulate(latency_fn, num_loops, make_seconds=0.0):
  """Returns plans and timings of a run that makes batches one by one.

  Args:
    latency_fn: Maps the time to the seconds of a read.
    num_loops: Inner loops.
    make_seconds: Seconds of decoding a batch, one after the other.
  """
  state, now, found, timings = loop_control.start(BOUNDS), 0.0, [], []
  ready, latencies = [], []
  num, made = 0, 0.0
  for _ in range(num_loops):
    depth, waits, started = state.plan(BOUNDS).depth, [], now
    latencies = []
    for _ in range(NUM_STEPS):
      while len(ready) <= num + depth:
        latencies.append(latency_fn(now))
        ready.append(now + latencies[-1])
      made = max(made, ready[num]) + make_seconds
      waits.append(max(made - now, 0.0))
      now += waits[-1] + STEP
      num += 1
    timing = LoopTiming(
      NUM_STEPS,
      now - started,
      sum(waits),
      sum(x > 0.002 for x in waits),
      tuple(sorted(latencies)),
    )
    timings.append(timing)
    state = loop_control.advance(state, timing, BOUNDS)
    found.append(state.plan(BOUNDS))
  return found, timings


class ObservationsTest(tf.test.TestCase):
  def test_they_have_the_sums_of_the_loop(self):
    timing = LoopTiming(20, 1.0, 0.2, 4, tuple(np.linspace(0.1, 0.2, 20)))
    found = timing.observations()
    self.assertLen(found, 20)
    self.assertAllClose(sum(x.wait for x in found), 0.2)
    self.assertAllClose(sum(x.interval for x in found), 1.0)
    self.assertEqual(sum(x.wait > 0 for x in found), 4)
    self.assertAllClose(sorted(x.latency for x in found), timing.latencies)

  def test_a_step_has_the_latency_of_its_slowest_read(self):
    latencies = tuple(np.linspace(0.0, 1.0, 160))  # Eight reads a step.
    found = LoopTiming(20, 1.0, 0.0, 0, latencies).observations()
    expected = 8 / 9  # The mean of the maximum of eight uniform ones.
    self.assertAllClose(np.mean([x.latency for x in found]), expected, 0.02)


class AdvanceTest(tf.test.TestCase, parameterized.TestCase):
  def test_calm_loops_keep_the_least_depth(self):
    self.assertEqual(set(depths(replay([CALM] * 50))), {2})

  def test_one_loop_doubles_the_depth_at_most(self):
    self.assertEqual(depths(replay([make_late(0.5)])), [4])

  def test_the_plan_covers_the_latency_at_once(self):
    # 0.5 s are 12.5 steps, with a margin.
    slow = CALM._replace(latencies=(0.5,) * NUM_STEPS)
    self.assertEqual(depths(replay([slow])), [17])

  def test_one_long_wait_is_enough_and_its_read_is_covered(self):
    latencies = (0.04,) * (NUM_STEPS - 1) + (0.9,)
    timing = LoopTiming(NUM_STEPS, 2.5, 1.7, 1, latencies)
    self.assertEqual(depths(replay([timing])), [46])  # Twice 0.9 s.
    deep = loop_control.start(BOUNDS)._replace(reading=State(Plan(2, 30)))
    self.assertEqual(depths(replay([timing], deep)), [60])
    short = timing._replace(waited=0.06, seconds=0.86)
    self.assertEqual(depths(replay([short])), [3])

  def test_the_depth_grows_in_a_burst_and_returns_after_it(self):
    found, timings = simulate(lambda t: 0.8 if 20 <= t < 40 else 0.04, 200)
    depth = [plan.depth for plan in found]
    times = np.cumsum([timing.seconds for timing in timings])
    self.assertLessEqual(max(d for d, t in zip(depth, times) if t < 20), 4)
    burst = [d for d, t in zip(depth, times) if 22 <= t < 40]
    self.assertBetween(max(burst), 21, 64)
    self.assertLessEqual(depth[-1], 4)
    late = [x.share for x, t in zip(timings, times) if 27 <= t < 40]
    self.assertLess(max(late), 0.02)

  def test_white_noise_does_not_make_it_oscillate(self):
    random = np.random.RandomState(0)
    found, timings = simulate(lambda t: random.uniform(0.01, 0.2), 200)
    late = [plan.depth for plan in found[50:]]
    self.assertLessEqual(max(late) - min(late), 2)
    changes = sum(a != b for a, b in zip(late, late[1:]))
    self.assertLess(changes, 24)
    self.assertLess(np.mean([x.share for x in timings[50:]]), 0.02)

  def test_plans_stay_within_bounds(self):
    random = np.random.RandomState(0)
    trace = [
      make_late(random.uniform(0, 0.99), tuple(np.sort(random.pareto(1, 20))))
      for _ in range(300)
    ]
    for state in replay(trace):
      plan = state.plan(BOUNDS)
      self.assertBetween(plan.depth, 2, 64)
      self.assertBetween(plan.num_readers, 1, 32)
      self.assertBetween(plan.num_decoders, 2, 8)

  def test_the_depth_does_not_grow_where_decoding_is_slow(self):
    found, timings = simulate(lambda t: 0.005, 200, make_seconds=0.2)
    self.assertGreater(timings[-1].share, 0.7)
    self.assertEqual({plan.depth for plan in found}, {2})
    self.assertEqual({plan.num_decoders for plan in found}, {8})

  def test_slow_decoding_gets_more_decoders(self):
    state = loop_control.start(BOUNDS)
    state = state._replace(decoding=State(Plan(2, 1)))
    # Twice the decoders, half the waits.
    for _ in range(30):
      share = 0.3 / decoders([state])[0]
      timing = make_late(share, (0.001,) * NUM_STEPS)
      state = loop_control.advance(state, timing, BOUNDS)
    self.assertEqual(decoders([state]), [4])
    self.assertEqual(depths([state]), [2])

  def test_calm_loops_take_decoders_away(self):
    found = decoders(replay([CALM._replace(latencies=(0.001,) * 20)] * 60))
    self.assertEqual((found[0], found[-1]), (8, 2))

  def test_growth_without_fewer_waits_is_taken_back(self):
    states = replay([make_late(0.3)] * 200)  # Nothing is known about reads.
    found = depths(states)
    self.assertEqual(max(found), 4)  # One attempt at a time.
    grown = [i for i, (a, b) in enumerate(zip(found, found[1:])) if b > a]
    self.assertLess(np.mean(np.array(found) > 2), 0.35)
    # Each attempt comes later than the one before.
    gaps = np.diff(grown)
    self.assertGreater(len(gaps), 1)
    self.assertAllGreater(np.diff(gaps), 0)

  def test_growth_with_fewer_waits_is_kept(self):
    state, found = loop_control.start(BOUNDS), []
    for _ in range(30):
      share = 0.8 / depths([state])[0]
      state = loop_control.advance(state, make_late(share), BOUNDS)
      found.append(depths([state])[0])
    self.assertEqual(found[-1], 16)
    self.assertEqual(found, sorted(found))

  def test_it_is_a_pure_function(self):
    trace = [CALM, make_late(0.5), make_late(0.2, (1.0,)), CALM] * 10
    before = loop_control.start(BOUNDS)
    self.assertEqual(replay(trace), replay(trace, before))
    self.assertEqual(before, loop_control.start(BOUNDS))
    self.assertIsInstance(before, LoopState)


if __name__ == "__main__":
  tf.test.main()
