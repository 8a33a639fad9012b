"""The suite `input`: a storage as late as it says, and figures by hand."""

import json
import os
import socket
import tempfile
import time
from unittest import mock

import numpy as np
import requests
from absl.testing import absltest, parameterized

from tools import cli
from tools.suites import input_plot, input_sides, inputs, learning, storage
from tools.suites.input_sides import BATCH_SIZE, STEP_SECONDS, Trace
from tools.suites.meanwhile import Meanwhile


def trace(num_batches, seconds, waits=0.0, num_bytes=1e6):
  """Returns a trace of equal batches."""
  times = np.linspace(seconds / num_batches, seconds, num_batches)
  same = np.ones(num_batches)
  held = num_bytes * np.where(np.arange(num_batches) % 2, 1.5, 0.5)
  return Trace(times, waits * same, held, 8 * same, 4 * same)


class LawsTest(parameterized.TestCase):
  def test_calm_is_always_as_late(self):
    law = storage.calm(0.08, 0)
    self.assertEqual({law(i, 0.7 * i) for i in range(50)}, {0.08})

  def test_the_tail_has_the_median_and_is_heavy(self):
    law = storage.heavy_tail(0.08, 0)
    late = np.array([law(i, 0.0) for i in range(4000)])
    self.assertAlmostEqual(np.median(late), 0.08, delta=0.006)
    self.assertBetween(np.mean(late > 0.8), 0.02, 0.06)
    self.assertLessEqual(late.max(), 8.0)
    self.assertEqual(law(7, 0.0), storage.heavy_tail(0.08, 0)(7, 5.0))
    self.assertNotEqual(law(7, 0.0), storage.heavy_tail(0.08, 1)(7, 0.0))

  def test_a_burst_is_ten_times_as_late_for_some_seconds(self):
    for seed in range(4):
      law = storage.bursts(0.08, seed)
      late = np.array([law(0, t) for t in np.arange(0, 16, 0.01)])
      self.assertEqual(set(np.round(late, 6)), {0.08, 0.8})
      self.assertAlmostEqual(np.mean(late > 0.1), 3 / 8, delta=0.01)
      self.assertEqual(late[0], 0.08)


class StorageTest(absltest.TestCase):
  def test_parts_of_a_file_come_late_by_the_law(self):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "x"), "wb") as f:
      f.write(bytes(range(100)))
    served = storage.Storage(folder)
    url = f"{served.address()}/x"
    served.begin("calm", 0.05, 0)
    started = time.monotonic()
    part = requests.get(url, headers={"Range": "bytes=10-19"}, timeout=9)
    self.assertGreaterEqual(time.monotonic() - started, 0.05)
    self.assertEqual(
      (part.status_code, part.content), (206, bytes(range(10, 20)))
    )
    served.begin("calm", 0.0, 0)
    self.assertEqual(requests.get(url, timeout=9).content, bytes(range(100)))
    missing = requests.get(f"{served.address()}/y", timeout=9)
    self.assertEqual(missing.status_code, 404)

  def test_all_who_connect_at_once_are_answered_soon(self):
    served = storage.Storage(tempfile.mkdtemp())
    host, port = served.address()[len("http://") :].split(":")
    served.begin("calm", 0.0, 0)
    started = time.monotonic()
    readers = [socket.create_connection((host, int(port))) for _ in range(128)]
    for reader in readers:
      reader.sendall(b"GET /none HTTP/1.1\r\n\r\n")
    for reader in readers:
      with reader, reader.makefile("rb") as answer:
        self.assertStartsWith(answer.readline(), b"HTTP/1.1 404")
        while answer.readline().strip():  # To the end of the head.
          pass
    self.assertLess(time.monotonic() - started, 0.9)


class SideTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.mkdtemp()
    cls.served = storage.Storage(folder)
    with mock.patch.object(input_sides, "_NUM_IMAGES", 128):
      input_sides.write_set(folder)

  @parameterized.parameters(*inputs.SIDES)
  def test_each_side_reads_the_storage(self, name):
    side = input_sides.Side(name, self.served.address())
    seen = side.run(0.02, 0.15)
    self.assertGreater(seen.images_per_second, 1)
    # No faster than the device takes them.
    num_steps = len(seen.times) - 1
    self.assertGreaterEqual(seen.times[-1], num_steps * STEP_SECONDS)
    self.assertGreater(seen.num_bytes.max(), 1e5)
    self.assertEqual(seen.depths.min() > 0, name == "ours")


class FiguresTest(absltest.TestCase):
  def traces(self):
    """Returns what two seeds saw."""
    sides = {
      "ours": [trace(100, 4.0, num_bytes=1e6), trace(100, 5.0, num_bytes=2e6)],
      "prefetch_2": [trace(100, 8.0)] * 2,
      "autotune": [trace(100, 8.0, 0.02, 4e6), trace(100, 8.0, 0.02, 4e6)],
    }
    return {law: sides for law in storage.LAWS}

  def test_figures_are_ratios_within_a_seed(self):
    rates = {"ours": np.array([90.0, 95.0]), "bare": np.array([100.0, 100.0])}
    figures = inputs.gather(self.traces(), rates)
    self.assertAlmostEqual(figures["bursts_vs_autotune"], 1.8)
    self.assertAlmostEqual(figures["bursts_vs_autotune_low"], 1.7)
    self.assertAlmostEqual(figures["heavy_tail_bytes_vs_autotune"], 0.375)
    self.assertAlmostEqual(figures["bursts_peak_bytes_vs_autotune"], 0.375)
    self.assertAlmostEqual(figures["bursts_peak_bytes_vs_autotune_low"], 0.3125)
    self.assertAlmostEqual(figures["calm_vs_best"], 1.0)
    self.assertAlmostEqual(figures["decode_vs_bare"], 0.925)
    self.assertAlmostEqual(figures["calm_autotune_idle"], 0.25)
    self.assertAlmostEqual(
      figures["calm_ours_images_per_second"], BATCH_SIZE * 22.5
    )
    self.assertAlmostEqual(figures["bursts_ours_peak_bytes"], 3e6)
    figures.update(Meanwhile().figures())
    self.assertIn("0.93", inputs.table(figures))

  def test_the_plot_is_written(self):
    path = os.path.join(tempfile.mkdtemp(), "x.png")
    input_plot.draw(self.traces()["bursts"], path)
    self.assertGreater(os.path.getsize(path), 10000)


LOOKS = {
  "sngan": [
    learning.Look(0, 0.0, 2500.0, 0.1, 1),
    learning.Look(800, 600.0, 400.0, 0.3, 9),
  ]
}


class LearningTest(absltest.TestCase):
  def test_figures_are_those_of_the_last_look(self):
    figures = learning.gather(LOOKS, [60.0, 0.8, 10])
    self.assertEqual(figures["sngan_gain"], 6.25)
    self.assertEqual(figures["sngan_classes_recognized"], 9)
    self.assertEqual(figures["floor_frechet"], 60.0)
    table = learning.table(LOOKS, [60.0, 0.8, 10])
    self.assertIn("2500 to 400", table)
    self.assertIn("9 of 10", table)

  def test_what_metrics_count_can_be_written(self):
    path = os.path.join(tempfile.mkdtemp(), "x.json")
    figures = learning.gather(LOOKS, [60.0, np.float32(0.5), 10])
    figures["counted"] = np.int64(9)
    cli.write_json("json", path, figures)
    with open(path) as f:
      written = json.load(f)
    self.assertEqual(written["counted"], 9)
    self.assertEqual(written["floor_label_agreement"], 0.5)

  def test_it_looks_until_the_aims_are_reached(self):
    class Fake:
      def __init__(self):
        self.asked = []

      def ask(self, method, until):
        self.asked.append(until)
        distance = 1000.0 / (1 + 2 * len(self.asked))
        return learning.Look(1, until, distance, 0.5, 10)

    fake = Fake()
    looks = learning._watched("x", fake, 100.0)
    # 333 at first; 5 times as good is 67, after seven looks: not in time.
    self.assertLen(looks, 6)
    self.assertEqual(fake.asked, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
    self.assertEqual(looks[0].frechet, 1000.0 / 3)


if __name__ == "__main__":
  absltest.main()
