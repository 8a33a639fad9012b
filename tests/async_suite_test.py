"""The suite `async`: its counts, figures, tables and sides."""

import functools
import math
import os
import pathlib
import re
from unittest import mock

import numpy as np
import tensorflow as tf

from tests.suites_test import TINY
from tools.suites.async_ import figures, plot, quality
from tools.suites.async_.figures import Throughput
from tools.suites.async_.quality import Curve
from tools.suites.async_.sides import (
  Cycle,
  PinnedDevice,
  RoleMultiplyAdds,
  TwoDevices,
)
from tools.suites.pinned import make_cluster_environments
from tools.suites.suite import Options
from tools.suites.workers import Worker, call_all, close_all

ASYNC = {"async": 60}
COST = RoleMultiplyAdds(g=10e6, d=8e6, draw=2e6)
STEP = "gin/runs/benchmark_step.gin"


def make_cycle(ready, done, num_steps=2, wall=10.0, input_wait=1.0):
  """Returns a cycle whose one collective is ready and done at these times."""
  return Cycle(
    100.0, 100.0 + wall, input_wait, num_steps, 100 + np.c_[ready, done]
  )


def make_throughput():
  """Returns two repetitions of four steps with 32 images."""
  both = [make_cycle([4.0], [7.0]), make_cycle([6.0], [8.0])]
  return Throughput(
    batch_size=32,
    seconds={
      "sync": np.array([4.0, 8.0]),
      "sync_reuse": np.array([3.0, 6.0]),
      "async": np.array([2.0, 5.0]),
      "async_every_step": np.array([4.0, 4.0]),
    },
    num_bytes={
      "sync": 100,
      "sync_reuse": 100,
      "async": 60,
      "async_every_step": 120,
    },
    pinned={"sync": np.array([4.0, 4.0]), "async": np.array([2.0, 4.0])},
    cycles={"sync": [both], "async": [both]},
    multiply_adds=COST,
  )


def make_quality():
  """Returns two seeds, three measurements: sync is good, one is better."""
  ends = {"sync": 20.0, "async": 10.0}
  curves = {}
  for name in quality.SIDES:
    distances = np.array([[4.0, 2.0, 1.05], [4.0, 2.0, 0.95]])
    curves[name] = Curve(
      np.array([10, 20, 30]),
      np.array([[1.0, 2.0, 4.0]] * 2),
      distances * ends.get(name, 80.0),
    )
  return curves


def parameters(text):
  """Returns the scopes and names of what gin's text binds, without modules."""
  pattern = r"^(\w+/)?(?:\w+\.)*(\w+\.\w+) ="
  return set(re.findall(pattern, text, re.MULTILINE))


class Paced(Worker):
  """A worker that reports a fixed number of seconds for a step."""

  def __init__(self, cycle: int, seconds: float):
    self._results = {"warm_up": cycle, "run": seconds}

  def submit(self, method, *args):
    self._result = self._results[method] * math.prod(args)

  def wait(self):
    return self._result

  def close(self):
    pass


class FiguresTest(tf.test.TestCase):
  def test_the_slower_role_sets_the_bound(self):
    # Sync: 20 or 18 on two devices; roles: 10.
    self.assertAllClose(tuple(figures.compute_bound(COST)), (1.0, 0.9))
    # On four devices 20 / 4 and 18 / 4; roles: the one D has 8.
    self.assertAllClose(
      tuple(figures.compute_bound(COST, 3, 1)), (5 / 8, 4.5 / 8)
    )
    # Three devices; both of D have 4, G has 10.
    self.assertAllClose(
      tuple(figures.compute_bound(COST, 1, 2)), (20 / 30, 18 / 30)
    )

  def test_a_collective_begins_when_the_last_device_is_ready(self):
    parts = figures.split_time(make_throughput().cycles["async"])
    # The first waits from 4 to 6; both exchange from then, to 7 and to 8.
    self.assertAllClose(
      parts, np.array([[10 - 2 - 1 - 1, 2, 1, 1], [10 - 2 - 1, 0, 2, 1]]) / 2
    )

  def test_ratios_are_taken_within_a_round(self):
    values = figures.gather([make_throughput()], num_steps=4)
    # 4 / 2, 8 / 5.
    self.assertAllClose(values["async_vs_sync_throughput"], 1.8)
    self.assertAllClose(values["async_vs_sync_throughput_low"], 1.7)
    self.assertAllClose(values["async_vs_sync_reuse_throughput"], 1.35)
    self.assertAllClose(values["batch_32_pinned_async_vs_sync"], 1.5)
    self.assertAllClose(values["async_vs_sync_bytes"], 0.6)
    self.assertAllClose(values["bound_vs_sync"], 1.0)
    self.assertAllClose(values["batch_32_async_images_per_second"], 44.8)
    table = figures.format_table(values, [make_throughput()])
    self.assertIn("best at batch 32: async is 1.80 (1.70 - 1.90)", table)
    self.assertIn("G 3000/1000/500/500  D 3500/0/1000/500", table)

  def test_fast_sides_make_as_many_steps_as_syncs_time_allows(self):
    paced = {
      "sync": Paced(1, 0.1),
      "async": Paced(1, 0.08),
      "paragan": Paced(2, 0.07),
      "slow": Paced(2, 40.0),
    }
    with mock.patch.multiple(
      quality, _start_workers=lambda seed, names: paced, _PACE_SECONDS=0
    ):
      fair = quality.find_fair_steps(100, list(paced))
    # 100 / .7 are 142.9, in whole cycles; none stands still.
    self.assertEqual(
      fair, {"sync": 100, "async": 125, "paragan": 142, "slow": 2}
    )

  def test_bindings_do_not_override_the_optimizers_of_a_sides_files(self):
    for name, (title, files, _) in quality.SIDES.items():
      texts = [pathlib.Path(file).read_text() for file in files]
      bound = "\n".join(quality.make_bindings(name))
      with self.subTest(title):
        self.assertFalse(parameters("\n".join(texts)) & parameters(bound))

  def test_sides_may_be_left_out_but_sync_and_unknown_ones_are_refused(self):
    no_steps = mock.Mock(return_value={})
    refused = self.assertRaisesRegex(ValueError, "`--only` must .*, got 'all'")
    with mock.patch.object(quality, "find_fair_steps", no_steps):
      quality.run(Options(only=("async_d64", "async")))
      with refused:
        quality.run(Options(only=("all",)))
      names = no_steps.call_args.args[1]
      self.assertEqual(names, ["sync", "async", "async_d64"])
      quality.run(Options(quick=True))
      self.assertEqual(no_steps.call_args.args[1], names)
      quality.run(Options(quick=True, only=("async_ttur",)))
      self.assertEqual(no_steps.call_args.args[1], ["sync", "async_ttur"])

  def test_time_to_quality_is_found_between_measurements(self):
    seconds, distances = np.array([[1.0, 3.0]]), np.array([[100.0, 1.0]])
    curve = Curve(np.array([10, 20]), seconds, distances)
    self.assertAllClose(quality.find_time_to(10.0, curve), 2.0)
    self.assertAllClose(quality.find_time_to(200.0, curve), 1.0)

  def test_times_are_compared_at_a_distance_that_both_reach(self):
    values = quality.gather(make_quality())
    self.assertAllClose(values["sync_frechet"], 20.0)
    self.assertAllClose(values["sync_frechet_std"], 2**0.5)
    # Async stands at sync's 20 after 2 of 4 s.
    self.assertAllClose(values["async_vs_sync_time_to_quality"], 2.0)
    self.assertEqual(values["async_reaches_sync"], 1.0)
    # This one ends at 4 x 20, where sync is after the first second.
    self.assertAllClose(values["async_d64_level"], 80.0)
    self.assertAllClose(values["async_d64_vs_sync_time_to_quality"], 0.25)
    self.assertEqual(values["async_d64_reaches_sync"], 0.0)
    _, *lines = quality.format_table(values, make_quality()).splitlines()
    rows = dict(zip(quality.SIDES, lines))
    self.assertRegex(rows["sync"], r"^sync, .* 20\.0 \+- 1\.4 +30 +4\.0$")
    self.assertRegex(rows["async"], r"2\.00 to 20\.0$")
    self.assertRegex(rows["async_d64"], r"0\.25 to 80\.0$")

  def test_the_plot_has_a_panel_for_each_measurement(self):
    values = figures.gather([make_throughput()], num_steps=4)
    sizes = []
    for runs, learned in (
      ([make_throughput()], None),
      ([make_throughput()], make_quality()),
    ):
      path = os.path.join(self.get_temp_dir(), "plot.png")
      plot.draw(values, runs, learned, path)
      shape = tf.io.decode_png(tf.io.read_file(path)).shape
      sizes.append(shape[0])
    self.assertEqual(sizes[1], 3 * sizes[0])


class SidesTest(tf.test.TestCase):
  def test_two_devices_train_and_count(self):
    make = functools.partial(TwoDevices, STEP, (), TINY)
    with close_all([worker := Worker("two", make)]):
      self.assertEqual(worker.call("warm_up"), 1)
      self.assertGreater(worker.call("run", 2), 0.0)
      # All weights, and no state in these nets.
      num = 14 * 64 + 64 + 74 + 1
      self.assertEqual(worker.call("get_bytes_per_step"), 4 * num)
      # For an image: G forward is 14 x 64. Its update is that, D's gradient to
      # the image (D's scores are not needed for that), and G's gradient. D's
      # update is forward and gradient, of real and of fake.
      work = worker.call("count_multiply_adds")
      self.assertEqual(work.draw, 14 * 64)
      self.assertEqual(work.g, 2 * 14 * 64 + 74)
      self.assertEqual(work.d, 2 * 2 * 74)

  def test_pinned_devices_time_every_collective(self):
    files = ("gin/sync/paragan.gin",)
    cores = sorted(os.sched_getaffinity(0))[:2]
    pair = [
      Worker(f"{core}", functools.partial(PinnedDevice, core, files, TINY), env)
      for core, env in zip((cores * 2)[:2], make_cluster_environments(2))
    ]
    with close_all(pair):
      both = call_all(pair, "run_cycle")
    for one in both:
      self.assertEqual(one.num_steps, 2)
      # Weights, fakes, and the logs at the end.
      self.assertEqual(one.collectives.shape, (3, 2))
      self.assertAllGreater(one.collectives[:, 0], one.began)
      self.assertAllGreater(one.collectives[:, 1] - one.collectives[:, 0], 0.0)
      self.assertAllLess(one.collectives[:, 1], one.ended)


if __name__ == "__main__":
  tf.test.main()
