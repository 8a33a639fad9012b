import math
import time

from absl.testing import absltest, parameterized

from paragan_tf.engine.scaling import costs
from paragan_tf.engine.scaling.costs import SCHEMES, Machine
from paragan_tf.engine.scaling.simulation import Disturbances, simulate
from tests.costs_test import SWITCH, TORUS, make_profile

SLOW_SOFTWARE = Machine("m", 4, 2, 1.1, 0.0, 1e-2, 1e-2, 1e-8, 1)


def run(name, num_workers=8, link=SWITCH, machine=None, seed=0, **options):
  """Simulates a scheme by name; options are those of `Disturbances`."""
  num_steps = options.pop("num_steps", 400)
  profile = make_profile(**options.pop("profile", {}))
  return simulate(
    profile,
    SCHEMES[name],
    num_workers,
    4,
    link,
    machine,
    Disturbances(**options) if options else None,
    num_steps,
    seed,
  )


def predict(name, num_workers=8, link=SWITCH, machine=None, **profile):
  """The closed form of the same."""
  return costs.predict(
    make_profile(**profile), SCHEMES[name], num_workers, 4, link, machine
  )


class SimulationTest(parameterized.TestCase):
  @parameterized.product(
    name=tuple(SCHEMES), link=(SWITCH, TORUS), num_workers=(1, 2, 8)
  )
  def test_without_jitter_it_is_the_closed_form(self, name, link, num_workers):
    expected = predict(name, num_workers, link, SLOW_SOFTWARE)
    found = run(name, num_workers, link, SLOW_SOFTWARE, num_steps=7)
    self.assertEqual(found._fields, expected._fields)
    self.assertEqual(found.scheme, expected.scheme)
    self.assertSequenceAlmostEqual(found[1:], expected[1:], places=9)

  @parameterized.parameters("sync", "every_other_step", "per_label")
  def test_slow_input_is_the_closed_form(self, name):
    # 4 images at 0.1 a second: 40 s, more than a step.
    expected = predict(name, input_images_per_second=0.1)
    found = run(name, profile=dict(input_images_per_second=0.1))
    if name == "every_other_step":  # The buffer bridges what an exchange takes.
      self.assertAlmostEqual(found.step_seconds, 40.0)
    else:
      self.assertSequenceAlmostEqual(found[1:], expected[1:], places=9)
    self.assertGreater(found.input, 2.0)

  def test_batches_that_are_read_ahead_bridge_slow_reads(self):
    # Reading takes a step on average, and often two.
    slow = dict(
      profile=dict(input_images_per_second=2.2),
      input_jitter=1.0,
      num_steps=4000,
    )
    shallow = run("per_label", read_ahead=1, **slow)
    deep = run("per_label", read_ahead=16, **slow)
    self.assertGreater(shallow.input, 0.4)
    self.assertLess(deep.input, shallow.input / 2)

  @parameterized.parameters(2, 8, 64)
  def test_sync_waits_for_the_expected_maximum(self, num_workers):
    found = run("sync", num_workers, jitter=0.02, num_steps=2000)
    expected = 2.0 * 0.02 * costs.expected_max(num_workers)
    self.assertAlmostEqual(found.wait / expected, 1.0, delta=0.06)

  def test_local_steps_wait_less_and_gossip_least(self):
    waits = {
      name: run(name, 256, jitter=0.05, num_steps=600).wait
      / run(name, 256).compute
      for name in SCHEMES
      if SCHEMES[name].roles is None
    }
    self.assertAlmostEqual(
      waits["every_other_step"] / waits["sync"], 1 / math.sqrt(2), delta=0.05
    )
    self.assertAlmostEqual(
      waits["gossip"] / 0.05, costs.GOSSIP_WAIT, delta=0.05
    )
    self.assertLess(waits["gossip"], 0.5 * waits["sync"])
    self.assertEqual(waits["per_label"], 0.0)

  def test_gossip_does_not_wait_longer_with_more_workers(self):
    few, many = (
      run("gossip", m, jitter=0.05, num_steps=2000).wait for m in (64, 1024)
    )
    self.assertAlmostEqual(many / few, 1.0, delta=0.03)
    few, many = (run("sync", m, jitter=0.05).wait for m in (64, 1024))
    self.assertGreater(many / few, 1.2)

  @parameterized.parameters(*SCHEMES)
  def test_parts_add_up_and_the_seed_repeats_them(self, name):
    options = dict(
      jitter=0.1,
      stall_rate=0.01,
      stall=3.0,
      slow_share=0.25,
      slowdown=1.5,
      congestion_rate=0.1,
      congestion=2.0,
      profile=dict(input_images_per_second=1.0),
      input_jitter=0.3,
      machine=SLOW_SOFTWARE,
      num_steps=50,
    )
    first, again, other = (run(name, seed=s, **options) for s in (1, 1, 2))
    parts = (first.compute, first.wait, first.software, first.wire, first.input)
    self.assertAlmostEqual(sum(parts), first.step_seconds)
    self.assertGreaterEqual(min(parts), 0.0)
    self.assertEqual(first, again)
    self.assertNotEqual(first.step_seconds, other.step_seconds)

  def test_one_slow_worker_holds_up_whoever_waits_for_it(self):
    slow = dict(slow_share=1 / 64, slowdown=2.0)
    ratios = {
      name: run(name, 64, **slow).step_seconds - run(name, 64).step_seconds
      for name in ("sync", "gossip", "per_label")
    }
    self.assertAlmostEqual(ratios["sync"], 2.0)
    # All workers of a ring wait at last, though not at once.
    self.assertAlmostEqual(ratios["gossip"], 2.5, delta=0.1)
    self.assertAlmostEqual(ratios["per_label"], 2.0 / 64)

  def test_a_stall_delays_all_in_sync_and_neighbors_in_gossip(self):
    stalls = dict(stall_rate=1e-3, stall=5.0, num_steps=1000)
    sync, gossip, alone = (
      run(name, 256, **stalls).step_seconds - run(name, 256).step_seconds
      for name in ("sync", "gossip", "per_label")
    )
    # A worker of 256 stalls in 1 - 0.999^256 of the steps, for 10 s.
    self.assertAlmostEqual(sync / (10.0 * (1 - 0.999**256)), 1.0, delta=0.15)
    self.assertAlmostEqual(alone / 0.01, 1.0, delta=0.15)
    self.assertLess(gossip, sync)

  def test_congestion_slows_the_wire_of_whom_it_concerns(self):
    near = SWITCH._replace(latency=0.0)
    busy = dict(congestion_rate=1.0, congestion=3.0)
    found, free = run("sync", **busy), run("sync")
    num_bytes = 2 * 7 / 8 * 44e6
    self.assertAlmostEqual(found.wire - free.wire, 2 * num_bytes / 1e7)
    rare = dict(congestion_rate=0.01, congestion=3.0, num_steps=1000)
    slower = {
      name: run(name, 64, near, **rare).wire / run(name, 64, near).wire
      for name in ("sync", "gossip")
    }
    self.assertLess(slower["gossip"], 1.1)
    self.assertLess(slower["gossip"], slower["sync"])

  def test_measured_steps_can_be_drawn_in_place_of_jitter(self):
    # One step in four takes 1.6, so the slowest of 64 always does.
    found = run("sync", 64, steps=(0.8, 0.8, 0.8, 1.6))
    self.assertAlmostEqual(found.compute + found.wait, 3.2)
    self.assertAlmostEqual(found.compute, 2.0, delta=0.02)

  def test_4096_workers_take_seconds(self):
    began = time.monotonic()
    found = run("sync", 4096, jitter=0.02, num_steps=100)
    self.assertLess(time.monotonic() - began, 5.0)
    self.assertEqual(found.num_workers, 4096)

  @parameterized.parameters(
    (dict(jitter=-0.1), "`jitter` must be 0 or more"),
    (dict(stall_rate=2.0), r"`stall_rate` must be in \[0, 1\]"),
    (dict(slowdown=0.5), "`slowdown` must be at least 1"),
    (dict(read_ahead=0), "`read_ahead` must be at least 1"),
    (dict(steps=(1.0, 0.0)), "`steps` must all be above 0"),
    (dict(num_steps=0), "`num_steps` must be at least 1"),
    (dict(num_workers=0), "`num_workers` must be an integer above 0"),
  )
  def test_nonsense_is_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      run("sync", **options)


if __name__ == "__main__":
  absltest.main()
