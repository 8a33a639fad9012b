"""The suite `backbones`: its figures, by hand."""

import json
import os
import tempfile

import numpy as np
from absl.testing import absltest

from tools import cli
from tools.suites.backbones import quality
from tools.suites.backbones.quality import Evaluation

EVALUATIONS = {
  "sngan": [
    Evaluation(0, 0.0, 2500.0, 0.1, 1),
    Evaluation(800, 600.0, 400.0, 0.3, 9),
  ]
}


class QualityTest(absltest.TestCase):
  def test_figures_are_those_of_the_last_evaluation(self):
    figures = quality.gather(EVALUATIONS, [60.0, 0.8, 10])
    self.assertEqual(figures["sngan_gain"], 6.25)
    self.assertEqual(figures["sngan_classes_recognized"], 9)
    self.assertEqual(figures["floor_frechet"], 60.0)
    table = quality.format_table(EVALUATIONS, [60.0, 0.8, 10])
    self.assertIn("2500 to 400", table)
    self.assertIn("9 of 10", table)

  def test_figures_of_numpy_types_can_be_written(self):
    path = os.path.join(tempfile.mkdtemp(), "x.json")
    figures = quality.gather(EVALUATIONS, [60.0, np.float32(0.5), 10])
    figures["counted"] = np.int64(9)
    cli.write_json("json", path, figures)
    with open(path) as f:
      written = json.load(f)
    self.assertEqual(written["counted"], 9)
    self.assertEqual(written["floor_label_agreement"], 0.5)

  def test_a_backbone_trains_until_the_targets_are_met_or_time_is_over(self):
    class FakeWorker:
      def __init__(self):
        self.calls = []

      def call(self, method, until):
        self.calls.append(until)
        distance = 1000.0 / (1 + 2 * len(self.calls))
        return Evaluation(1, until, distance, 0.5, 10)

    fake = FakeWorker()
    evaluations = quality._train("x", fake, 100.0)
    # 333 at first; 5 times as good is 67, after seven evaluations: not in time.
    self.assertLen(evaluations, 6)
    self.assertEqual(fake.calls, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
    self.assertEqual(evaluations[0].frechet, 1000.0 / 3)


if __name__ == "__main__":
  absltest.main()
