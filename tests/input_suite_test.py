"""The suite `input`: its storage, sides and figures."""

import os
import socket
import tempfile
import time
from unittest import mock

import numpy as np
import requests
from absl.testing import absltest, parameterized

from tools.suites.input import figures, images, plot, storage
from tools.suites.input.sides import BATCH_SIZE, STEP_SECONDS, Side, Trace
from tools.suites.machine_load import MachineLoad


def make_trace(num_batches, seconds, waits=0.0, num_bytes=1e6):
  """Returns a trace of equal batches."""
  times = np.linspace(seconds / num_batches, seconds, num_batches)
  same = np.ones(num_batches)
  held = num_bytes * np.where(np.arange(num_batches) % 2, 1.5, 0.5)
  return Trace(times, waits * same, held, 8 * same, 4 * same)


class ProfilesTest(parameterized.TestCase):
  def test_calm_has_one_latency(self):
    profile = storage.make_calm(0.08, 0)
    self.assertEqual({profile(i, 0.7 * i) for i in range(50)}, {0.08})

  def test_a_heavy_tail_has_the_median_and_rare_high_latencies(self):
    profile = storage.make_heavy_tail(0.08, 0)
    latencies = np.array([profile(i, 0.0) for i in range(4000)])
    self.assertAlmostEqual(np.median(latencies), 0.08, delta=0.006)
    self.assertBetween(np.mean(latencies > 0.8), 0.02, 0.06)
    self.assertLessEqual(latencies.max(), 8.0)
    self.assertEqual(profile(7, 0.0), storage.make_heavy_tail(0.08, 0)(7, 5.0))
    self.assertNotEqual(
      profile(7, 0.0), storage.make_heavy_tail(0.08, 1)(7, 0.0)
    )

  def test_a_burst_has_ten_times_the_latency_for_some_seconds(self):
    for seed in range(4):
      profile = storage.make_bursts(0.08, seed)
      latencies = np.array([profile(0, t) for t in np.arange(0, 16, 0.01)])
      self.assertEqual(set(np.round(latencies, 6)), {0.08, 0.8})
      self.assertAlmostEqual(np.mean(latencies > 0.1), 3 / 8, delta=0.01)
      self.assertEqual(latencies[0], 0.08)


class StorageTest(absltest.TestCase):
  def test_parts_of_a_file_come_after_their_latency(self):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "x"), "wb") as f:
      f.write(bytes(range(100)))
    served = storage.Storage(folder)
    url = f"{served.get_address()}/x"
    served.set_profile("calm", 0.05, 0)
    started = time.monotonic()
    part = requests.get(url, headers={"Range": "bytes=10-19"}, timeout=9)
    self.assertGreaterEqual(time.monotonic() - started, 0.05)
    self.assertEqual(
      (part.status_code, part.content), (206, bytes(range(10, 20)))
    )
    served.set_profile("calm", 0.0, 0)
    self.assertEqual(requests.get(url, timeout=9).content, bytes(range(100)))
    missing = requests.get(f"{served.get_address()}/y", timeout=9)
    self.assertEqual(missing.status_code, 404)

  def test_many_connections_at_once_are_served_soon(self):
    served = storage.Storage(tempfile.mkdtemp())
    host, port = served.get_address()[len("http://") :].split(":")
    served.set_profile("calm", 0.0, 0)
    started = time.monotonic()
    readers = [socket.create_connection((host, int(port))) for _ in range(128)]
    for reader in readers:
      reader.sendall(b"GET /none HTTP/1.1\r\n\r\n")
    for reader in readers:
      with reader, reader.makefile("rb") as response:
        self.assertStartsWith(response.readline(), b"HTTP/1.1 404")
        while response.readline().strip():  # To the end of the head.
          pass
    self.assertLess(time.monotonic() - started, 0.9)


class SideTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.mkdtemp()
    cls.served = storage.Storage(folder)
    with mock.patch.object(images, "_NUM_IMAGES", 128):
      images.write_set(folder)

  @parameterized.parameters(*figures.SIDES)
  def test_each_side_reads_the_storage(self, name):
    side = Side(name, self.served.get_address())
    trace = side.run(0.02, 0.15)
    self.assertGreater(trace.images_per_second, 1)
    # No faster than the device takes them.
    num_steps = len(trace.times) - 1
    self.assertGreaterEqual(trace.times[-1], num_steps * STEP_SECONDS)
    self.assertGreater(trace.num_bytes.max(), 1e5)
    is_ours = name in ("step_timing", "threads")
    self.assertEqual(trace.depths.min() > 0, is_ours)


class FiguresTest(absltest.TestCase):
  def make_traces(self):
    """Returns traces of two seeds."""
    sides = {
      "step_timing": [
        make_trace(100, 4.0, num_bytes=1e6),
        make_trace(100, 5.0, num_bytes=2e6),
      ],
      "threads": [make_trace(100, 8.0, num_bytes=2e6)] * 2,
      "prefetch_2": [make_trace(100, 8.0)] * 2,
      "autotune": [
        make_trace(100, 8.0, 0.02, 4e6),
        make_trace(100, 8.0, 0.02, 4e6),
      ],
      "autotune_default": [make_trace(100, 16.0)] * 2,
    }
    return {scenario: sides for scenario in figures.SCENARIOS}

  def test_figures_are_ratios_within_a_seed(self):
    rates = {"ours": np.array([90.0, 95.0]), "bare": np.array([100.0, 100.0])}
    values = figures.gather(self.make_traces(), rates)
    self.assertAlmostEqual(values["bursts_vs_autotune"], 1.8)
    self.assertAlmostEqual(values["bursts_vs_autotune_low"], 1.7)
    self.assertAlmostEqual(values["heavy_tail_bytes_vs_autotune"], 0.375)
    self.assertAlmostEqual(values["bursts_peak_bytes_vs_autotune"], 0.375)
    self.assertAlmostEqual(values["bursts_peak_bytes_vs_autotune_low"], 0.3125)
    self.assertAlmostEqual(values["calm_vs_best"], 1.0)
    self.assertAlmostEqual(values["bursts_threads_vs_autotune"], 1.0)
    self.assertAlmostEqual(values["heavy_tail_threads_bytes_vs_autotune"], 0.5)
    self.assertAlmostEqual(values["bytes_vs_autotune"], 0.375)
    self.assertAlmostEqual(values["starved_vs_autotune"], 3.6)
    self.assertAlmostEqual(values["decoding_step_timing_depth"], 8)
    self.assertAlmostEqual(values["decode_vs_bare"], 0.925)
    self.assertAlmostEqual(values["calm_autotune_idle"], 0.25)
    self.assertAlmostEqual(
      values["calm_step_timing_images_per_second"], BATCH_SIZE * 22.5
    )
    self.assertAlmostEqual(values["bursts_step_timing_peak_bytes"], 3e6)
    values.update(MachineLoad().figures())
    self.assertIn("0.93", figures.format_table(values))

  def test_the_plot_is_written(self):
    path = os.path.join(tempfile.mkdtemp(), "x.png")
    plot.draw(self.make_traces()["bursts"], path)
    self.assertGreater(os.path.getsize(path), 10000)


if __name__ == "__main__":
  absltest.main()
