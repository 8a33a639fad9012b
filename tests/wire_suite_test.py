"""The suite `wire`: its counts, figures, tables and sides."""

import functools
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.suites_test import TINY
from tools.suites.suite import Options
from tools.suites.wire import figures, plot, quality, suite
from tools.suites.wire.figures import (
  LinkCheck,
  Timing,
  Traffic,
  compute_traffic,
)
from tools.suites.wire.network_emulator import Link
from tools.suites.wire.quality import Quality
from tools.suites.wire.sides import EXCHANGES, Payload, PayloadCounter
from tools.suites.workers import Worker, close_all

SMALL = (*TINY[:-1], "linear.Generator.z_dim = 54")  # 64 x 64 weights.
NUM_G, NUM_D = 64 * 64 + 64, 74 + 1
SIZE = 4 * (NUM_G + NUM_D)


def make_payloads():
  """Returns payloads of 1 MB, the same for all numbers of workers."""
  payloads = {name: Payload(1e6, 1e6, 1_000_000) for name in EXCHANGES}
  payloads["periodic"] = Payload(5e5, 5e5, 1_000_000)
  payloads["accumulated"] = Payload(5e5, 5e5, 1_000_000)
  payloads["gossip"] = Payload(2e6, 2e6, 1_000_000, rounds=1)
  payloads["gossip_3"] = Payload(6e6, 6e6, 1_000_000, rounds=3)
  for name, sent in (("dq8", 254e3), ("dq4", 129e3), ("top1", 2e4)):
    payloads[name] = Payload(sent, 3 * sent, 1_000_000, "gather")
  payloads["dq8_two_phase"] = Payload(3e5, 4e5, 1_000_000, "two_phase")
  return {2: payloads, 4: payloads, 8: payloads}


def make_timings():
  """Returns three repetitions of two numbers of workers."""
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
    Timing(4, "100mbit", seconds),
    Timing(4, "10ms", seconds),
    Timing(8, "10ms", reverse),
  ]


def make_figures():
  """Returns the figures of these payloads and timings."""
  found = figures.gather(
    make_payloads(),
    make_timings(),
    {
      "100mbit": LinkCheck(1e-4, 2e-4, 1.2e7),
      "10ms": LinkCheck(1e-4, 0.0105, 2e8),
    },
  )
  return {**found, "load_before": 0.5}


class FiguresTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    ("all_reduce", Payload(8.0, 8.0, 8), 4, Traffic(12.0, 6)),
    ("all_reduce", Payload(8.0, 8.0, 8), 2, Traffic(8.0, 2)),
    ("periodic", Payload(4.0, 4.0, 8), 4, Traffic(6.0, 3)),
    ("accumulated", Payload(4.0, 4.0, 8), 4, Traffic(6.0, 3)),
    ("gossip", Payload(16.0, 16.0, 8, rounds=1), 8, Traffic(16.0, 1)),
    ("gossip_3", Payload(48.0, 48.0, 8, rounds=3), 8, Traffic(48.0, 3)),
    ("dq8", Payload(2.0, 6.0, 8, "gather"), 4, Traffic(6.0, 3)),
    ("dq8", Payload(2.0, 14.0, 8, "gather"), 8, Traffic(14.0, 7)),
    ("dq8_two_phase", Payload(2.0, 3.0, 8, "two_phase"), 4, Traffic(3.0, 10)),
  )
  def test_traffic_follows_from_the_payload(self, name, one, m, expected):
    self.assertEqual(compute_traffic(name, one, m), expected)

  def test_gains_are_taken_within_a_round(self):
    found = make_figures()
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
    parts = figures.format_table(
      make_figures(), make_payloads(), make_timings()
    ).split("\n\n")
    lines = [part.splitlines() for part in parts]
    self.assertLen(lines, 5)
    self.assertLen(lines[0], 2 + len(EXCHANGES))
    self.assertRegex(lines[0][2], r"^all-reduce +1\.00 MB    2 +1\.50 MB    6")
    self.assertRegex(lines[1][3], r"^ring gossip +800 \(800 - 900\) 0\.50x")
    self.assertRegex(lines[1][4], r"^DQGAN, 8 bits +200\* .* 2\.00x")
    self.assertRegex(lines[2][3], r"^ring gossip +200\* .* 4\.00x$")
    self.assertRegex(lines[3][1], r"^0\.1 ms, 100 Mbit/s +0\.20 ms .*96 Mbit/s")
    self.assertRegex(lines[4][1], r"dq8_time_gain_100mbit_4 +2\.000.*, met$")
    self.assertEqual(lines[4][3], "load 0.5 before")

  def test_links_that_differ_from_the_request_are_reported(self):
    links = {
      "1ms": LinkCheck(1e-4, 1.08e-3, 1.3e9),
      "100mbit": LinkCheck(1e-4, 2e-4, 1.2e7),
      "10ms": LinkCheck(1e-4, 0.0105, 2e8),
    }
    found = figures.gather(make_payloads(), make_timings(), links)
    self.assertAllClose(found["link_1ms_latency_ratio"], 1.08)
    self.assertAllClose(found["link_10ms_rate_ratio"], 0.16)
    self.assertAllClose(found["link_100mbit_latency_ratio"], 2.0)
    lines = figures._format_links(found).splitlines()[1:]
    self.assertEndsWith(lines[0], "NOT within 10 %: latency")
    self.assertRegex(
      lines[1], r"1\.08 ms \(1\.08\), 10400 .*\(1\.04\): within 10 %$"
    )
    self.assertRegex(lines[2], r"\(0\.16\): NOT within 10 %: rate$")

  def test_a_missed_target_is_reported(self):
    found = {**make_figures(), "dq8_time_gain_100mbit_4": 1.2}
    self.assertIn(
      "1.200", figures.format_table(found, make_payloads(), make_timings())
    )
    self.assertRegex(
      figures.format_table(found, make_payloads(), make_timings()),
      "1.5, MISSED",
    )

  def test_the_plot_is_a_picture(self):
    path = os.path.join(self.get_temp_dir(), "suite.png")
    plot.draw(make_figures(), make_payloads(), make_timings(), path)
    with open(path, "rb") as f:
      self.assertEqual(f.read(4), b"\x89PNG")

  def test_quality_is_mean_and_deviation(self):
    distances = {n: np.array([1.0, 2.0, 3.0]) for n in quality.SIDES}
    found = quality.gather(Quality(400, distances))
    self.assertAllClose(found["dq8_frechet"], 2.0)
    self.assertAllClose(found["dq8_frechet_std"], 1.0)
    lines = quality.format_table(found).splitlines()
    self.assertEqual(lines[0], "4 replicas, 400 steps, 3 seeds")
    self.assertRegex(lines[2], r"^all-reduce +2\.0 \+- 1\.0$")

  def test_selected_sides_come_with_what_they_are_compared_with(self):
    options = Options(only=("dq8_sgd", "gossip"))
    names = quality.select_sides(options)
    self.assertEqual(names, ("central", "gossip", "central_sgd", "dq8_sgd"))
    self.assertEqual(quality.select_sides(Options()), tuple(quality.SIDES))
    found = quality.gather(Quality(400, {n: np.arange(3.0) for n in names}))
    self.assertLen(quality.format_table(found).splitlines(), 2 + len(names))

  def test_a_gap_is_reported_unless_seeds_explain_it(self):
    distances = {n: np.array([1.0, 2.0, 3.0]) for n in quality.SIDES}
    distances["gossip"] = np.array([2.0, 3.0, 4.0])
    distances["dq8"] = np.array([4.0, 5.0, 6.0])
    distances["dq4"] = np.array([0.1, 0.1, 0.1])
    distances["central_sgd"] = np.array([7.0, 8.0, 9.0])
    distances["gossip_sgd"] = np.array([8.0, 9.0, 10.0])
    found = quality.gather(Quality(400, distances))
    # Twice the root of 1 / 3 + 1 / 3.
    self.assertAllClose(found["dq8_frechet_noise"], 1.633, atol=1e-3)
    self.assertAllClose(found["dq8_frechet_gap"], 3.0)
    self.assertNotIn("central_frechet_gap", found)
    self.assertNotIn("central_sgd_frechet_gap", found)
    self.assertAllClose(found["gossip_sgd_frechet_gap"], 1.0)
    lines = dict(
      zip(["", "", *distances], quality.format_table(found).split("\n"))
    )
    self.assertEndsWith(lines["gossip"], "+1.0 (1.6): within seed noise")
    self.assertEndsWith(lines["dq8"], "+3.0 (1.6): worse")
    self.assertEndsWith(lines["dq4"], "-1.9 (1.2): better")
    self.assertEndsWith(lines["top1"], "+0.0 (1.6): within seed noise")

  def test_both_modes_measure_all_targets(self):
    for plans in (suite._QUICK, suite._FULL):
      names = {
        f"{exchange}_time_gain_{link}_{plan.num_workers}"
        for plan in plans
        for exchange in plan.exchanges
        for link in plan.links
      }
      self.assertContainsSubset(list(figures.TARGETS)[1:], names)


class SidesTest(tf.test.TestCase):
  def test_exchanges_count_what_they_send(self):
    # In a process of its own: two strategies in one would clash.
    counter = Worker("counter", functools.partial(PayloadCounter, 4))
    with close_all([counter]):
      found = counter.call("count", tuple(EXCHANGES), 4, SMALL)
    self.assertEqual({one.size for one in found.values()}, {SIZE})
    self.assertEqual(found["all_reduce"].sent, SIZE)
    self.assertEqual(found["periodic"].sent, SIZE / 2)
    self.assertEqual(found["accumulated"].sent, SIZE / 2)
    self.assertEqual(found["gossip"].sent, 2 * (SIZE + 2 * 1024))
    self.assertEqual(found["gossip_3"].sent, 2 * (3 * SIZE + 2 * 1024))
    small = 4 * (64 + NUM_D)  # G's and D's vectors go as they are.
    dq8 = 64 * 64 + 4 * 16 + small
    self.assertEqual(found["dq8"].sent, dq8)
    self.assertEqual(found["dq8"].received, 3 * dq8)
    self.assertEqual(found["top1"].sent, 8 * 41 + small)
    self.assertEqual(
      [found[name].form for name in ("gossip", "dq4", "dq8_two_phase")],
      ["", "gather", "two_phase"],
    )

  def test_links_are_checked_one_by_one(self):
    links = {"10ms": Link(0.02, 2e7), "1ms": Link(0.04, 8e6)}
    few = mock.patch.multiple(
      suite,
      _NUM_TRIES=1,
      _MIN_PINGS=3,
      _SECONDS_OF_PINGS=0.0,
      _SECONDS_OF_BULK=0.1,
    )
    with few, mock.patch.dict(suite.LINKS, links):
      for _ in range(10):  # A busy machine is late, and slow, but not always.
        found = suite.check_links(links)
        if all(self.is_as_requested(found[x], links[x]) for x in links):
          break
    self.assertEqual(list(found), list(links))
    for name, one in found.items():
      self.assertTrue(self.is_as_requested(one, links[name]), one)

  def is_as_requested(self, checked, link):
    """Whether the measured link is about the requested one."""
    return (
      0.0 < checked.overhead < link.latency
      and 0.7 < checked.latency / link.latency < 1.5
      and 0.5 < checked.rate / link.rate < 1.1
    )

  def test_processes_train_under_a_slow_link(self):
    slow = {"10ms": Link(0.05), "10gbit": Link()}
    plan = suite.Plan(2, ("all_reduce", "gossip"), tuple(slow), 0.0)
    with mock.patch.dict(suite.LINKS, slow):
      late, fast = suite.measure(plan, SMALL)
    self.assertEqual((late.num_workers, late.link), (2, "10ms"))
    for one in (late, fast):
      self.assertEqual(list(one.seconds), ["all_reduce", "gossip"])
      self.assertEqual({len(x) for x in one.seconds.values()}, {3})
    # A ring of two forwards twice, gossip sends once.
    self.assertGreater(late.seconds["all_reduce"].min(), 0.1)
    self.assertGreater(late.seconds["gossip"].min(), 0.05)
    # A busy machine makes both slower, but not the one without a link more.
    for name in plan.exchanges:
      self.assertLess(fast.seconds[name].min(), late.seconds[name].min(), name)


if __name__ == "__main__":
  tf.test.main()
