"""The suite `async`: what it counts, what it says, and who it measures."""

import functools
import math
import os
import pathlib
import re
from unittest import mock

import numpy as np
import tensorflow as tf

from tests.suites_test import TINY
from tools.suites import apart_figures, apart_plot, apart_quality
from tools.suites.apart import Throughput
from tools.suites.apart_quality import Curve
from tools.suites.apart_sides import Cycle, PinnedDevice, RoleWork, TwoDevices
from tools.suites.engines_sides import cluster_of
from tools.suites.suite import Options
from tools.suites.workers import Worker, ask_all, closing

ASYNC = {"async": 60}
WORK = RoleWork(g=10e6, d=8e6, draw=2e6)
STEP = "gin/runs/benchmark_step.gin"


def cycle(ready, done, num_steps=2, wall=10.0, waited=1.0):
  """Returns a cycle with one talk, which begins and ends at these seconds."""
  return Cycle(100.0, 100.0 + wall, waited, num_steps, 100 + np.c_[ready, done])


def throughput():
  """Returns two rounds of four steps with 32 images."""
  both = [cycle([4.0], [7.0]), cycle([6.0], [8.0])]
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
    work=WORK,
  )


def quality():
  """Returns two seeds, three measurements: sync is good, one is better."""
  ends = {"sync": 20.0, "async": 10.0}
  curves = {}
  for name in apart_quality.SIDES:
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
  """A worker that needs so many seconds for a step, and says so at once."""

  def __init__(self, cycle: int, seconds: float):
    self._answers = {"warm_up": cycle, "run": seconds}

  def tell(self, method, *args):
    self._said = self._answers[method] * math.prod(args)

  def answer(self):
    return self._said

  def close(self):
    pass


class FiguresTest(tf.test.TestCase):
  def test_the_slower_role_sets_the_bound(self):
    # Sync: 20 or 18 on two devices; roles: 10.
    self.assertAllClose(tuple(apart_figures.bound(WORK)), (1.0, 0.9))
    # On four devices 20 / 4 and 18 / 4; roles: the one D has 8.
    self.assertAllClose(
      tuple(apart_figures.bound(WORK, 3, 1)), (5 / 8, 4.5 / 8)
    )
    # Three devices; both of D have 4, G has 10.
    self.assertAllClose(
      tuple(apart_figures.bound(WORK, 1, 2)), (20 / 30, 18 / 30)
    )

  def test_a_talk_begins_when_the_last_one_is_ready(self):
    parts = apart_figures.parts(throughput().cycles["async"])
    # The first waits from 4 to 6; both talk from then, to 7 and to 8.
    self.assertAllClose(
      parts, np.array([[10 - 2 - 1 - 1, 2, 1, 1], [10 - 2 - 1, 0, 2, 1]]) / 2
    )

  def test_ratios_are_taken_within_a_round(self):
    figures = apart_figures.gather([throughput()], num_steps=4)
    # 4 / 2, 8 / 5.
    self.assertAllClose(figures["async_vs_sync_throughput"], 1.8)
    self.assertAllClose(figures["async_vs_sync_throughput_low"], 1.7)
    self.assertAllClose(figures["async_vs_sync_reuse_throughput"], 1.35)
    self.assertAllClose(figures["batch_32_pinned_async_vs_sync"], 1.5)
    self.assertAllClose(figures["async_vs_sync_bytes"], 0.6)
    self.assertAllClose(figures["bound_vs_sync"], 1.0)
    self.assertAllClose(figures["batch_32_async_images_per_second"], 44.8)
    table = apart_figures.table(figures, [throughput()])
    self.assertIn("best at batch 32: async is 1.80 (1.70 - 1.90)", table)
    self.assertIn("G 3000/1000/500/500  D 3500/0/1000/500", table)

  def test_the_fast_get_as_many_steps_as_syncs_time_allows(self):
    paced = {
      "sync": Paced(1, 0.1),
      "async": Paced(1, 0.08),
      "paragan": Paced(2, 0.07),
      "slow": Paced(2, 40.0),
    }
    with mock.patch.multiple(
      apart_quality, _workers=lambda seed, names: paced, _PACE_SECONDS=0
    ):
      fair = apart_quality.fair_steps(100, list(paced))
    # 100 / .7 are 142.9, in whole cycles; none stands still.
    self.assertEqual(
      fair, {"sync": 100, "async": 125, "paragan": 142, "slow": 2}
    )

  def test_what_a_sides_files_say_about_optimizers_counts(self):
    for name, (title, files, _) in apart_quality.SIDES.items():
      said = [pathlib.Path(file).read_text() for file in files]
      bound = "\n".join(apart_quality.bindings_of(name))
      with self.subTest(title):
        self.assertFalse(parameters("\n".join(said)) & parameters(bound))

  def test_sides_may_be_left_out_but_sync_and_unknown_ones_are_refused(self):
    nobody = mock.Mock(return_value={})
    refused = self.assertRaisesRegex(ValueError, "`--only` must .*, got 'all'")
    with mock.patch.object(apart_quality, "fair_steps", nobody):
      apart_quality.run(Options(only=("async_d64", "async")))
      with refused:
        apart_quality.run(Options(only=("all",)))
      names = nobody.call_args.args[1]
      self.assertEqual(names, ["sync", "async", "async_d64"])
      apart_quality.run(Options(quick=True))
      self.assertEqual(nobody.call_args.args[1], names)
      apart_quality.run(Options(quick=True, only=("async_ttur",)))
      self.assertEqual(nobody.call_args.args[1], ["sync", "async_ttur"])

  def test_time_to_quality_is_found_between_measurements(self):
    seconds, distances = np.array([[1.0, 3.0]]), np.array([[100.0, 1.0]])
    curve = Curve(np.array([10, 20]), seconds, distances)
    self.assertAllClose(apart_quality.time_to(10.0, curve), 2.0)
    self.assertAllClose(apart_quality.time_to(200.0, curve), 1.0)

  def test_times_are_compared_at_a_distance_that_both_reach(self):
    figures = apart_quality.gather(quality())
    self.assertAllClose(figures["sync_frechet"], 20.0)
    self.assertAllClose(figures["sync_frechet_std"], 2**0.5)
    # Async stands at sync's 20 after 2 of 4 s.
    self.assertAllClose(figures["async_vs_sync_time_to_quality"], 2.0)
    self.assertEqual(figures["async_reaches_sync"], 1.0)
    # This one ends at 4 x 20, where sync is after the first second.
    self.assertAllClose(figures["async_d64_level"], 80.0)
    self.assertAllClose(figures["async_d64_vs_sync_time_to_quality"], 0.25)
    self.assertEqual(figures["async_d64_reaches_sync"], 0.0)
    _, *lines = apart_quality.table(figures, quality()).splitlines()
    said = dict(zip(apart_quality.SIDES, lines))
    self.assertRegex(said["sync"], r"^sync, .* 20\.0 \+- 1\.4 +30 +4\.0$")
    self.assertRegex(said["async"], r"2\.00 to 20\.0$")
    self.assertRegex(said["async_d64"], r"0\.25 to 80\.0$")

  def test_the_picture_has_a_panel_for_each_thing(self):
    figures = apart_figures.gather([throughput()], num_steps=4)
    sizes = []
    for runs, learned in (([throughput()], None), ([throughput()], quality())):
      path = os.path.join(self.get_temp_dir(), "plot.png")
      apart_plot.draw(figures, runs, learned, path)
      shape = tf.io.decode_png(tf.io.read_file(path)).shape
      sizes.append(shape[0])
    self.assertEqual(sizes[1], 3 * sizes[0])


class SidesTest(tf.test.TestCase):
  def test_two_devices_train_and_count(self):
    make = functools.partial(TwoDevices, STEP, (), TINY)
    with closing([worker := Worker("two", make)]):
      self.assertEqual(worker.ask("warm_up"), 1)
      self.assertGreater(worker.ask("run", 2), 0.0)
      # All weights, and no state in these nets.
      num = 14 * 64 + 64 + 74 + 1
      self.assertEqual(worker.ask("bytes_per_step"), 4 * num)
      # For an image: G forward is 14 x 64. Its move is that, D's way back to
      # the image (its scores are not needed for that), and G's gradient. D's
      # is forward and gradient, of real and of fake.
      work = worker.ask("work")
      self.assertEqual(work.draw, 14 * 64)
      self.assertEqual(work.g, 2 * 14 * 64 + 74)
      self.assertEqual(work.d, 2 * 2 * 74)

  def test_pinned_devices_take_the_time_of_every_talk(self):
    files = ("gin/sync/paragan.gin",)
    cores = sorted(os.sched_getaffinity(0))[:2]
    pair = [
      Worker(f"{core}", functools.partial(PinnedDevice, core, files, TINY), env)
      for core, env in zip((cores * 2)[:2], cluster_of(2))
    ]
    with closing(pair):
      both = ask_all(pair, "cycle")
    for one in both:
      self.assertEqual(one.num_steps, 2)
      # Weights, fakes, and the logs at the end.
      self.assertEqual(one.talks.shape, (3, 2))
      self.assertAllGreater(one.talks[:, 0], one.began)
      self.assertAllGreater(one.talks[:, 1] - one.talks[:, 0], 0.0)
      self.assertAllLess(one.talks[:, 1], one.ended)


if __name__ == "__main__":
  tf.test.main()
