"""The suite `quality`: what it measures and keeps, its table and plot."""

import json
import os
from unittest import mock

import gin
import tensorflow as tf
from absl.testing import parameterized

from tests.suites_test import TINY
from tools.suites.learner import Learner
from tools.suites.quality import sides, suite
from tools.suites.quality.results import Point, Results, Settings
from tools.suites.suite import Options

SETTINGS = Settings(60, 100, 500, 10, 3)


class FakeWorker:
  """Measures a number that depends on its calls alone."""

  def __init__(self, name="x", make=None):
    self.calls = []
    self.seconds = 0.0

  def call(self, method, *args):
    self.calls.append((method, *args))
    if method == "advance":
      self.seconds += args[0] / 10
      return self.seconds
    num_samples = args[0]
    return [{"value": 1000.0 / num_samples, "real_score": 3.0}]

  def close(self):
    pass


class QualityTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.get_temp_dir(), self._testMethodName)
    self.enter_context(mock.patch.object(suite, "log_progress"))

  def results(self, settings=SETTINGS):
    return Results(self.path, settings)

  def test_a_curve_is_measured_with_the_first_seed_only(self):
    worker = FakeWorker()
    points = suite.measure(worker, SETTINGS, "sngan", 0)
    self.assertEqual(
      [point[:4] for point in points],
      [(20, 2, 10, 100), (40, 4, 10, 100), (60, 6, 10, 100), (60, 6, 100, 10)],
    )
    advanced = [x[1] for x in worker.calls if x[0] == "advance"]
    self.assertEqual(advanced, [20, 20, 20])
    worker = FakeWorker()
    (point,) = suite.measure(worker, SETTINGS, "sngan", 1)
    self.assertEqual(point, Point(60, 6.0, 100, 10.0, 3.0))
    self.assertEqual(worker.calls[1][1:4], (100, 500, ["fid"]))

  def test_the_first_seed_of_all_sides_comes_first(self):
    results = self.results()
    expected = [(x, seed) for seed in (0, 1, 2) for x in ("a", "b")]
    self.assertEqual(suite.list_missing(results, ["a", "b"]), expected)
    results.add("b", 0, [Point(60, 1.0, 100, 5.0)])
    expected.remove(("b", 0))
    self.assertEqual(suite.list_missing(results, ["a", "b"]), expected)

  def test_each_result_is_kept_at_once_and_not_measured_again(self):
    made = []

    class Stops(FakeWorker):
      def __init__(self, name, make):
        super().__init__()
        if len(made) == 2:
          raise KeyboardInterrupt
        made.append(name)

    stops = mock.patch.object(suite, "Worker", Stops)
    with stops, self.assertRaises(KeyboardInterrupt):
      suite.measure_missing(self.results(), ["sngan", "sagan"])
    again = self.results()
    self.assertEqual(made, ["sngan", "sagan"])
    self.assertLen(again.points("sngan", 0), 4)
    self.assertEqual(suite.list_missing(again, ["sngan"])[0], ("sngan", 1))
    with mock.patch.object(suite, "Worker", FakeWorker):
      suite.measure_missing(again, ["sngan", "sagan"])
    self.assertEmpty(suite.list_missing(self.results(), ["sngan", "sagan"]))
    with open(self.path) as f:
      self.assertEqual(json.load(f), again.figures())

  def test_only_one_number_of_samples_is_in_a_column(self):
    results = self.results()
    for seed, fid in ((0, 80.0), (2, 84.0)):
      curve = [Point(20, 30.0, 10, 500.0, 9.0)]
      results.add("gossip", seed, [*curve, Point(60, 90.0, 100, fid, 3.15)])
    lines = suite.format_table(results).splitlines()
    self.assertIn("FID-100 against 500 training images; held-out", lines[0])
    self.assertIn("images get 3.15", lines[0])
    words = lines[2].split()
    self.assertEqual(words[-7:], ["1.5", "80.0", "-", "84.0", *words[-3:]])
    self.assertEqual(words[-3:], ["82.0", "+-", "2.8"])
    self.assertEqual(lines[3], "25 results are missing.")
    self.assertEqual([x.fid for x in results.curve("gossip", 0)], [500.0])

  def test_results_of_other_settings_are_refused(self):
    self.results().add("sngan", 0, [Point(60, 1.0, 100, 5.0)])
    with self.assertRaisesRegex(ValueError, "`--json` .*name another file"):
      self.results(SETTINGS._replace(num_samples=101))
    with open(self.path, "w") as f:
      f.write('{"sngan_fid": 7}')
    with self.assertRaisesRegex(ValueError, "must be a file of this suite"):
      self.results()

  def test_a_file_is_needed(self):
    with self.assertRaisesRegex(ValueError, "needs `--json`"):
      suite.run(Options())

  def test_the_plot_is_drawn(self):
    results = self.results()
    results.add(
      "sngan", 0, [Point(20, 3.0, 10, 50.0), Point(60, 9.0, 100, 5.0)]
    )
    suite.plot.draw(results, f"{self.path}.png")
    self.assertGreater(os.path.getsize(f"{self.path}.png"), 1000)

  @parameterized.parameters(*sides.SIDES)
  def test_the_config_of_each_side_can_be_read(self, name):
    from paragan_tf import config

    self.addCleanup(gin.clear_config)
    gin_file, files, bindings, num_replicas = sides.make_config(name, 7)
    config.load([gin_file, *files], bindings)
    self.assertEqual(gin.query_parameter("Experiment.seed"), 7)
    self.assertEqual(gin.query_parameter("Experiment.extractor"), "inception")
    self.assertIn(num_replicas, (1, 2, 4))


class LearnerTest(tf.test.TestCase):
  def test_it_trains_and_measures(self):
    self.addCleanup(gin.clear_config)
    learner = Learner("gin/runs/benchmark_step.gin", bindings=TINY)
    first = learner.advance(2)
    self.assertGreater(first, 0.0)
    self.assertGreater(learner.advance(3), first)
    self.assertEqual(learner.step, 5)
    (value,) = learner.measure(20, 40, ["fid"])
    self.assertEqual(value["name"], "frechet_fashion")
    self.assertEqual(value["protocol"]["num_samples"], 20)
    self.assertEqual(value["protocol"]["num_reference"], 40)
    self.assertGreater(value["value"], 1.0)


if __name__ == "__main__":
  tf.test.main()
