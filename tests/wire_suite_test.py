"""The suite `wire`: what it counts, what it says, and who it measures."""

import functools
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.suites_test import TINY
from tools.suites import wire, wire_figures, wire_plot, wire_quality
from tools.suites.link import Link
from tools.suites.wire_figures import Checked, Timed, Traffic, traffic
from tools.suites.wire_quality import Quality
from tools.suites.wire_sides import WAYS, Counter, Said
from tools.suites.workers import Worker, closing

SMALL = (*TINY[:-1], "linear.Generator.z_dim = 54")  # 64 x 64 weights.
NUM_G, NUM_D = 64 * 64 + 64, 74 + 1
SIZE = 4 * (NUM_G + NUM_D)


def said():
  """Returns what is said of 1 MB, the same for all numbers of workers."""
  ways = {name: Said(1e6, 1e6, 1_000_000) for name in WAYS}
  ways["periodic"] = Said(5e5, 5e5, 1_000_000)
  ways["gossip"] = Said(2e6, 2e6, 1_000_000, rounds=1)
  ways["gossip_3"] = Said(6e6, 6e6, 1_000_000, rounds=3)
  for name, given in (("dq8", 254e3), ("dq4", 129e3), ("top1", 2e4)):
    ways[name] = Said(given, 3 * given, 1_000_000, "gather")
  ways["dq8_two_phase"] = Said(3e5, 4e5, 1_000_000, "two_phase")
  return {2: ways, 4: ways, 8: ways}


def timed():
  """Returns three rounds of two numbers of workers."""
  seconds = {
    "all_reduce": np.array([0.4, 0.8, 0.5]),
    "gossip": np.array([0.8, 0.8, 1.0]),
    "dq8": np.array([0.2, 0.5, 0.2]),
  }
  reverse = {
    "all_reduce": np.array([0.4, 0.8, 0.5]),
    "gossip": np.array([0.1, 0.2, 0.25]),
  }
  return [
    Timed(4, "100mbit", seconds),
    Timed(4, "10ms", seconds),
    Timed(8, "10ms", reverse),
  ]


def figures():
  """Returns what is made of them."""
  found = wire_figures.gather(
    said(),
    timed(),
    {"100mbit": Checked(1e-4, 2e-4, 1.2e7), "10ms": Checked(1e-4, 0.0105, 2e8)},
  )
  return {**found, "load_before": 0.5}


class FiguresTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    ("all_reduce", Said(8.0, 8.0, 8), 4, Traffic(12.0, 6)),
    ("all_reduce", Said(8.0, 8.0, 8), 2, Traffic(8.0, 2)),
    ("periodic", Said(4.0, 4.0, 8), 4, Traffic(6.0, 3)),
    ("gossip", Said(16.0, 16.0, 8, rounds=1), 8, Traffic(16.0, 1)),
    ("gossip_3", Said(48.0, 48.0, 8, rounds=3), 8, Traffic(48.0, 3)),
    ("dq8", Said(2.0, 6.0, 8, "gather"), 4, Traffic(6.0, 3)),
    ("dq8", Said(2.0, 14.0, 8, "gather"), 8, Traffic(14.0, 7)),
    ("dq8_two_phase", Said(2.0, 3.0, 8, "two_phase"), 4, Traffic(3.0, 10)),
  )
  def test_what_goes_over_the_wire(self, name, one, m, expected):
    self.assertEqual(traffic(name, one, m), expected)

  def test_gains_are_taken_within_a_round(self):
    found = figures()
    self.assertAllClose(found["all_reduce_ms_100mbit_4"], 500.0)
    # 2, 1.6, 2.5 and 4, 4, 2.
    self.assertAllClose(found["dq8_time_gain_100mbit_4"], 2.0)
    self.assertAllClose(found["dq8_time_gain_100mbit_4_low"], 1.8)
    self.assertAllClose(found["gossip_time_gain_10ms_8"], 4.0)
    self.assertAllClose(found["gossip_time_gain_10ms_4"], 0.5)
    self.assertAllClose(found["dq8_bytes_ratio_2"], 0.254)
    self.assertAllClose(found["link_100mbit_mbit"], 96.0)
    self.assertNotIn("all_reduce_time_gain_10ms_8", found)

  def test_the_table_shows_who_wins_and_who_loses(self):
    parts = wire_figures.table(figures(), said(), timed()).split("\n\n")
    lines = [part.splitlines() for part in parts]
    self.assertLen(lines, 5)
    self.assertLen(lines[0], 2 + len(WAYS))
    self.assertRegex(lines[0][2], r"^all-reduce +1\.00 MB    2 +1\.50 MB    6")
    self.assertRegex(lines[1][3], r"^ring gossip +800 \(800 - 900\) 0\.50x")
    self.assertRegex(lines[1][4], r"^DQGAN, 8 bits +200\* .* 2\.00x")
    self.assertRegex(lines[2][3], r"^ring gossip +200\* .* 4\.00x$")
    self.assertRegex(lines[3][1], r"^0\.1 ms, 100 Mbit/s +0\.20 ms .*96 Mbit/s")
    self.assertRegex(lines[4][1], r"dq8_time_gain_100mbit_4 +2\.000.*, met$")
    self.assertEqual(lines[4][3], "load 0.5 before")

  def test_links_that_are_not_as_asked_for_are_told(self):
    links = {
      "1ms": Checked(1e-4, 1.08e-3, 1.3e9),
      "100mbit": Checked(1e-4, 2e-4, 1.2e7),
      "10ms": Checked(1e-4, 0.0105, 2e8),
    }
    found = wire_figures.gather(said(), timed(), links)
    self.assertAllClose(found["link_1ms_latency_ratio"], 1.08)
    self.assertAllClose(found["link_10ms_rate_ratio"], 0.16)
    self.assertAllClose(found["link_100mbit_latency_ratio"], 2.0)
    lines = wire_figures._links_table(found).splitlines()[1:]
    self.assertEndsWith(lines[0], "NOT within 10 %: latency")
    self.assertRegex(
      lines[1], r"1\.08 ms \(1\.08\), 10400 .*\(1\.04\): within 10 %$"
    )
    self.assertRegex(lines[2], r"\(0\.16\): NOT within 10 %: rate$")

  def test_what_is_missed_is_told(self):
    found = {**figures(), "dq8_time_gain_100mbit_4": 1.2}
    self.assertIn("1.200", wire_figures.table(found, said(), timed()))
    self.assertRegex(wire_figures.table(found, said(), timed()), "1.5, MISSED")

  def test_the_plot_is_a_picture(self):
    path = os.path.join(self.get_temp_dir(), "wire.png")
    wire_plot.draw(figures(), said(), timed(), path)
    with open(path, "rb") as f:
      self.assertEqual(f.read(4), b"\x89PNG")

  def test_quality_is_mean_and_deviation(self):
    distances = {n: np.array([1.0, 2.0, 3.0]) for n in wire_quality.SIDES}
    found = wire_quality.gather(Quality(400, distances))
    self.assertAllClose(found["dq8_frechet"], 2.0)
    self.assertAllClose(found["dq8_frechet_std"], 1.0)
    lines = wire_quality.table(found).splitlines()
    self.assertEqual(lines[0], "4 replicas, 400 steps, 3 seeds")
    self.assertRegex(lines[2], r"^all-reduce +2\.0 \+- 1\.0$")

  def test_a_gap_is_told_where_seeds_do_not_explain_it(self):
    distances = {n: np.array([1.0, 2.0, 3.0]) for n in wire_quality.SIDES}
    distances["gossip"] = np.array([2.0, 3.0, 4.0])
    distances["dq8"] = np.array([4.0, 5.0, 6.0])
    distances["dq4"] = np.array([0.1, 0.1, 0.1])
    found = wire_quality.gather(Quality(400, distances))
    # Twice the root of 1 / 3 + 1 / 3.
    self.assertAllClose(found["dq8_frechet_noise"], 1.633, atol=1e-3)
    self.assertAllClose(found["dq8_frechet_gap"], 3.0)
    self.assertNotIn("central_frechet_gap", found)
    lines = dict(
      zip(["", "", *distances], wire_quality.table(found).split("\n"))
    )
    self.assertEndsWith(lines["gossip"], "+1.0 (1.6): within seed noise")
    self.assertEndsWith(lines["dq8"], "+3.0 (1.6): worse")
    self.assertEndsWith(lines["dq4"], "-1.9 (1.2): better")
    self.assertEndsWith(lines["top1"], "+0.0 (1.6): within seed noise")

  def test_both_modes_have_all_that_is_aimed_at(self):
    for plans in (wire._QUICK, wire._FULL):
      names = {
        f"{way}_time_gain_{link}_{plan.num_workers}"
        for plan in plans
        for way in plan.ways
        for link in plan.links
      }
      self.assertContainsSubset(list(wire_figures.AIMS)[1:], names)


class SidesTest(tf.test.TestCase):
  def test_exchanges_are_asked_what_they_say(self):
    # In a process of its own: two strategies in one would clash.
    counter = Worker("counter", functools.partial(Counter, 4))
    with closing([counter]):
      found = counter.ask("count", tuple(WAYS), 4, SMALL)
    self.assertEqual({one.size for one in found.values()}, {SIZE})
    self.assertEqual(found["all_reduce"].given, SIZE)
    self.assertEqual(found["periodic"].given, SIZE / 2)
    self.assertEqual(found["gossip"].given, 2 * (SIZE + 2 * 1024))
    self.assertEqual(found["gossip_3"].given, 2 * (3 * SIZE + 2 * 1024))
    small = 4 * (64 + NUM_D)  # G's and D's vectors go as they are.
    dq8 = 64 * 64 + 4 * 16 + small
    self.assertEqual(found["dq8"].given, dq8)
    self.assertEqual(found["dq8"].received, 3 * dq8)
    self.assertEqual(found["top1"].given, 8 * 41 + small)
    self.assertEqual(
      [found[name].form for name in ("gossip", "dq4", "dq8_two_phase")],
      ["", "gather", "two_phase"],
    )

  def test_links_are_checked_one_by_one(self):
    links = {"10ms": Link(0.02, 2e7), "1ms": Link(0.04, 8e6)}
    few = mock.patch.multiple(
      wire,
      _NUM_TRIES=1,
      _LEAST_WORDS=3,
      _SECONDS_OF_WORDS=0.0,
      _SECONDS_OF_BULK=0.1,
    )
    with few, mock.patch.dict(wire.LINKS, links):
      for _ in range(10):  # A busy machine is late, and slow, but not always.
        found = wire.check_links(links)
        if all(self.is_as_asked_for(found[x], links[x]) for x in links):
          break
    self.assertEqual(list(found), list(links))
    for name, one in found.items():
      self.assertTrue(self.is_as_asked_for(one, links[name]), one)

  def is_as_asked_for(self, checked, link):
    """Whether what was found is about what the link is to be."""
    return (
      0.0 < checked.own < link.latency
      and 0.7 < checked.latency / link.latency < 1.5
      and 0.5 < checked.rate / link.rate < 1.1
    )

  def test_processes_train_under_a_slow_link(self):
    slow = {"10ms": Link(0.05), "10gbit": Link()}
    plan = wire.Plan(2, ("all_reduce", "gossip"), tuple(slow), 0.0)
    with mock.patch.dict(wire.LINKS, slow):
      late, fast = wire.measure(plan, SMALL)
    self.assertEqual((late.num_workers, late.link), (2, "10ms"))
    for one in (late, fast):
      self.assertEqual(list(one.seconds), ["all_reduce", "gossip"])
      self.assertEqual({len(x) for x in one.seconds.values()}, {3})
    # A ring of two passes all on twice, neighbors once.
    self.assertGreater(late.seconds["all_reduce"].min(), 0.1)
    self.assertGreater(late.seconds["gossip"].min(), 0.05)
    # A busy machine makes both slower, but not the one without a link more.
    for name in plan.ways:
      self.assertLess(fast.seconds[name].min(), late.seconds[name].min(), name)


if __name__ == "__main__":
  tf.test.main()
