"""The suite `scaling`: its model, figures, tables, plot and sides."""

import functools
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine.scaling.costs import SCHEMES
from paragan_tf.engine.scaling.links import LINKS
from tools.suites.pinned import make_cluster_environments
from tools.suites.scaling import figures, measure, model, paper, plot, sides
from tools.suites.scaling.measure import Exchanged, Measured, Solo
from tools.suites.scaling.paper import Counts
from tools.suites.workers import Worker, call_all, close_all

# A call takes 1 ms, a message 0.5 ms, a MB 2 ms.
SOFTWARE = (1e-3, 5e-4, 2e-9)
COUNTS = Counts(
  {"g": 4 * 70_000_000, "d": 4 * 88_000_000},
  {"g": 250_000, "d": 0},
  160_000_000,
)


def make_solo() -> Solo:
  """One worker: 10 ms and 1 ms an image; with 8 bits 15 ms and 1 ms."""
  fixed = {"all_reduce": 0.010, "dq8": 0.015}
  alone = {
    (name, b): fixed[name] + 1e-3 * b for name in fixed for b in measure.BATCHES
  }
  together = {key: 1.1 * seconds for key, seconds in alone.items()}
  counts = {
    "gradient_bytes": {"g": 1_500_000, "d": 500_000},
    "state_bytes": {"g": 4_000, "d": 0},
    "message_bytes": 500_000,
    "codec_seconds": {"encode": 4e-3, "decode": 2e-3},
  }
  return Solo(alone, together, (0.026,) * 100, counts)


def make_exchanged():
  """Exchanges with these times, twice as long of four workers on two cores."""
  call, message, byte = SOFTWARE
  # Messages, and how often a byte is sent.
  sent = {
    ("all_reduce", 2): (2, 1.0),
    ("all_reduce", 4): (6, 1.5),
    ("gather", 2): (1, 1.0),
    ("gather", 4): (3, 3.0),
  }
  return [
    Exchanged(
      m, name, size, m / 2 * (call + num * message + times * size * byte)
    )
    for (name, m), (num, times) in sent.items()
    for size in (1 << 10, 1 << 20, 1 << 22)
  ]


def make_measured():
  """Three repetitions of each case, all of whose steps take 50 ms."""
  return [
    Measured(scheme, num, link, np.array([0.04, 0.05, 0.06]))
    for num in (2, 4)
    for link in (measure.LOOPBACK, "10ms")
    for scheme in measure.EXCHANGES
  ]


@functools.cache
def make_figures():
  """The figures of all of these, and of the paper's case."""
  found = figures.gather(make_solo(), make_exchanged(), make_measured())
  predicted = paper.predict_all(COUNTS)
  found.update(paper.gather(COUNTS, predicted, paper.simulate_all(COUNTS, 20)))
  return found, predicted


class ModelTest(tf.test.TestCase, parameterized.TestCase):
  def test_fits_recover_what_was_measured(self):
    for num in (2, 4):
      software = model.fit_software(make_exchanged(), num)
      self.assertAllClose(software[:3], np.array(SOFTWARE) * num / 2)
      self.assertAllClose(software.error, 0.0, atol=1e-9)
      machine = model.make_machine(make_solo(), make_exchanged(), num)
      self.assertAllClose(
        (
          machine.call_seconds,
          machine.message_seconds,
          machine.byte_seconds,
        ),
        SOFTWARE,
      )
    profile = model.make_profile(make_solo())
    self.assertAllClose(profile.step_seconds[:2], (0.010, 1e-3))
    self.assertAllClose(profile.scheme_seconds["quantized"].at(16), 0.031)

  def test_no_cost_is_below_0(self):
    # Larger messages take less: no line through these rises.
    falling = [x._replace(seconds=1 / x.num_bytes) for x in make_exchanged()]
    self.assertGreaterEqual(min(model.fit_software(falling, 2)), 0.0)

  @parameterized.parameters(
    # A step of 26 ms, 1.1 times as long; two calls, 2 hops each, 2.004 MB.
    ("sync", 2, "loopback", 28.6 + 2 + 4 * 0.5 + 4.008),
    # Two workers to a core; 6 hops each; each byte 1.5 times.
    ("sync", 4, "loopback", 2 * (28.6 + 2 + 12 * 0.5 + 6.012)),
    # One call, on every other step.
    ("every_other_step", 2, "loopback", 28.6 + (1 + 1 + 4.008) / 2),
    # 5 ms more of its own, and the other's message to decode; 0.5 MB. Two
    # gathers, and the statistics of G.
    ("quantized", 2, "loopback", 1.1 * 33 + 3 + 4 * 0.5 + 1.008),
    # Three latencies of statistics, while gradients are computed; a gather has
    # two.
    (
      "quantized",
      2,
      "10ms",
      # Half of the gathers' bytes pass while the other one is handled.
      1.1 * 33 + 3 + 4 * 0.5 + 1.008 + 20 + (0.504e6 - 0.25e6) / 1.25e6,
    ),
    # Hops, and requests before them, of 10 ms; 2 MB at 10 Gbit/s.
    ("sync", 2, "10ms", 28.6 + 8.008 + 6 * 10 + 2.004e6 / 1.25e6),
  )
  def test_a_case_by_hand(self, scheme, num, link, expected):
    case = (scheme, num, link)
    found = model.predict_case(make_solo(), make_exchanged(), case)
    self.assertAllClose(1e3 * found.step_seconds, expected, rtol=1e-6)
    # All steps are alike, so the simulation has nothing to add.
    simulated = model.simulate_case(make_solo(), make_exchanged(), case)
    self.assertAllClose(simulated.step_seconds, found.step_seconds)

  def test_errors_are_of_images_per_second(self):
    case = ("sync", 2, "loopback")
    found = model.predict_case(make_solo(), make_exchanged(), case)
    seconds = {case: 1.2 * found.step_seconds}
    errors = model.compute_errors({case: found}, seconds)
    self.assertAllClose(errors[case], 0.2)


class FiguresTest(tf.test.TestCase):
  def test_the_worst_case_counts(self):
    found, predicted = make_figures()
    self.assertAllClose(
      found["measured_images_per_second_sync_10ms_4"], 64 / 0.05
    )
    for num in (2, 4):
      errors = [
        value
        for name, value in found.items()
        if name.startswith("predicted_error") and name.endswith(f"_{num}")
      ]
      self.assertLen(errors, 6)
      self.assertEqual(found[f"prediction_error_{num}"], max(errors))
    lines = figures.format_table(found, make_measured()).splitlines()
    self.assertLen(lines, 1 + 12 + 4)
    self.assertRegex(lines[1], r"^sync, loopback, 2 +640\.0 \(")
    targets = figures.format_targets(found)
    self.assertRegex(targets, r"prediction_error_4 .* <= 0\.15, MISSED")
    self.assertRegex(targets, r"1024_best .* >= 0\.91, met")
    self.assertIn("the paper", paper.format_table(found, predicted))

  def test_the_plot_is_a_picture(self):
    path = os.path.join(self.get_temp_dir(), "suite.png")
    plot.draw(make_figures()[0], make_measured(), path)
    with open(path, "rb") as f:
      self.assertEqual(f.read(4), b"\x89PNG")


class PaperTest(tf.test.TestCase):
  def test_sync_on_1024_cores_by_hand(self):
    found = paper.predict_all(COUNTS, jitter=0.0)["sync", 1024]
    chips, size = 512, 632_000_000 + 250_000
    wire = 2 * (chips - 1) / chips * size / LINKS["tpu_v3"].bytes_per_second
    # Four all-reduces of two passes, each half round two axes of 22.6 chips.
    wire += 4 * 2 * 2 * chips**0.5 / 2 * 1e-6
    self.assertAllClose(found.wire, wire)
    step = paper.STEP_SECONDS.value
    self.assertAllClose(found.efficiency, step / (step + wire))

  def test_hours_and_dollars_follow_from_images_per_second(self):
    found, _ = make_figures()
    rate = 16 / paper.STEP_SECONDS.value
    self.assertAllClose(
      found["paper_hours_1"], paper.IMAGES.value / rate / 3600
    )
    self.assertAllClose(
      found["paper_dollars_1024"],
      1024 * found["paper_hours_1024"] * paper.DOLLARS.value,
    )
    cores = found["paper_cores_14h"]
    self.assertBetween(cores, 32, 128)
    below = 1 << int(np.log2(cores))
    self.assertBetween(
      14.0, found[f"paper_hours_{2 * below}"], found[f"paper_hours_{below}"]
    )

  def test_the_jitter_that_explains_the_paper(self):
    jitter = paper.find_jitter(COUNTS, SCHEMES["sync"], 0.91)
    found = paper.predict_all(COUNTS, jitter)["sync", 1024]
    self.assertAllClose(found.efficiency, 0.91)

  def test_best_trains_one_model_and_the_rest_is_where_it_goes(self):
    found, _ = make_figures()
    best = found["planned_efficiency_1024_best"]
    names = set(SCHEMES) - {"per_label"}
    values = [found[f"planned_efficiency_1024_{name}"] for name in names]
    self.assertEqual(best, max(values))
    self.assertGreater(found["planned_efficiency_1024_per_label"], best)
    for name in SCHEMES:
      for m in paper.SIMULATED:
        shares = [
          found[f"simulated_{part}_share_{m}_{name}"]
          for part in ("compute", "wait", "wire", "input")
        ]
        self.assertAllClose(sum(shares), 1.0)


class SidesTest(tf.test.TestCase):
  def test_bytes_are_counted_from_the_nets(self):
    small = ("dcgan.Generator.width = 4", "dcgan.Discriminator.width = 4")
    nets = (*sides._NETS[:-2], *small)
    make = functools.partial(SmallPlayers, nets)
    worker = Worker("players", make, sides.ONE_THREAD)
    with close_all([worker]):
      found = worker.call("count")
    sizes = found["gradient_bytes"]
    # D: 4x4 kernels of 1 to 4, 8 and 16 channels, biases, classes, a logit.
    self.assertGreater(sizes["d"], 4 * 16 * (4 + 4 * 8 + 8 * 16))
    self.assertGreater(sizes["g"], 4 * 16 * (16 * 8 + 8 * 4 + 4))
    ratio = found["message_bytes"] / sum(sizes.values())
    self.assertBetween(ratio, 0.25, 0.40)  # Small vectors are not quantized.
    self.assertGreater(min(found["codec_seconds"].values()), 0.0)
    self.assertGreater(found["state_bytes"]["g"], 0)

  def test_two_processes_exchange(self):
    environments = make_cluster_environments(2)
    workers = [
      Worker(
        f"worker {i}",
        sides.ExchangeWorker,
        {**environment, **sides.ONE_THREAD},
      )
      for i, environment in enumerate(environments)
    ]
    with close_all(workers):
      for name in ("all_reduce", "gather"):
        self.assertGreater(min(call_all(workers, "run", name, 64, 2)), 0.0)


class SmallPlayers(sides.PlayerWorker):
  """Players of other nets."""

  def __init__(self, nets):
    with mock.patch.object(sides, "_NETS", nets):
      super().__init__()


if __name__ == "__main__":
  tf.test.main()
