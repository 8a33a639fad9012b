"""The suite `per_label`: its simulation by hand, its tables and its plot."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tools.suites.per_label import plot, quality, scaling, simulation


class SimulationTest(parameterized.TestCase, tf.test.TestCase):
  @parameterized.parameters(
    ([5.0], 1, 8.0),
    ([5.0, 5.0], 2, 8.0),
    ([5.0, 4.0], 1, 14.0),  # 3 + 5, then 2 + 4.
    ([9.0, 5.0, 3.0], 2, 13.0),  # The second worker: 3 + 5, 2 + 3.
    ([1.0], 4, 4.0),
  )
  def test_the_end_is_that_of_the_longest_worker(self, seconds, num, end):
    found = simulation.simulate(seconds, num, start=3.0, further=2.0)
    self.assertAllClose(found, end)

  def test_efficiency_is_training_over_all_time(self):
    found = simulation.efficiency([6.0, 6.0, 6.0], 3, 2.0, 1.0)
    self.assertAllClose(found, 6.0 / 8.0)
    # A worker without a label has nothing to do.
    found = simulation.efficiency([6.0], 2, 0.0, 0.0)
    self.assertAllClose(found, 0.5)

  def test_labels_have_the_range_and_nearly_the_total_of_imagenet(self):
    sizes = simulation.imagenet_sizes()
    self.assertLen(sizes, 1000)
    self.assertEqual((min(sizes), max(sizes)), (732, 1300))
    self.assertAllClose(sum(sizes), 1_281_167, rtol=1e-3)

  def test_weak_scaling_does_not_depend_on_the_workers(self):
    found = simulation.run(20.0, 1.0)
    values = [v for k, v in found.items() if k.endswith("weak_seconds")]
    self.assertAllClose(
      found["simulated.1h.workers2000.weak_seconds"], 3600 / 3620
    )
    self.assertLen(np.unique(np.round(values, 9)), 2)  # Of both budgets.
    self.assertIn("2,000", simulation.format_table(found))


class TablesTest(tf.test.TestCase):
  def test_both_sides_get_the_same_compute(self):
    for game in quality.GAMES.values():
      self.assertEqual(game.num_steps % 10, 0)

  def test_means_and_spreads_are_over_seeds(self):
    figures = {
      "fashion_hinge.conditional.seed0.frechet": 10.0,
      "fashion_hinge.conditional.seed1.frechet": 20.0,
    }
    figures.update(quality._average("fashion_hinge", (0, 1), figures))
    self.assertEqual(figures["fashion_hinge.conditional.frechet"], 15.0)
    self.assertIn("15 ± 5", quality.format_table(figures))

  def test_names_of_metrics_lose_their_network(self):
    names = ("frechet_mobilenet", "intra_frechet_fashion", "fid", "recall_x")
    self.assertEqual(
      [quality._plain_name(x) for x in names],
      ["frechet", "intra_frechet", "frechet", "recall"],
    )

  def test_the_plot_shows_what_there_is(self):
    figures = {
      **simulation.run(20.0, 1.0),
      "memory.after_1_labels_mb": 500.0,
      "memory.after_2_labels_mb": 510.0,
      "fashion_hinge.conditional.frechet": 30.0,
      "fashion_hinge.per_label.frechet": 40.0,
    }
    path = os.path.join(self.get_temp_dir(), "plot.png")
    plot.draw(figures, path)
    self.assertGreater(os.path.getsize(path), 10_000)
    self.assertIn("memory.after_1_labels_mb", scaling.format_table(figures))


if __name__ == "__main__":
  tf.test.main()
