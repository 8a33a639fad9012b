"""The figures of the suite `layout`, of made-up repetitions and runs."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tools.suites.layout import (
  bfloat16_quality,
  padded_convs,
  padding_gap,
  suite,
)
from tools.suites.layout.bfloat16_quality import Outcome


class LayoutTest(tf.test.TestCase):
  def test_speeds_are_compared_repetition_by_repetition(self):
    results = {name: np.array([1.0, 2.0, 4.0]) for name in suite.SIDES}
    results["plain"] = np.array([2.0, 2.0, 12.0])
    results["two_passes"] = np.array([2.0, 4.0, 4.0])
    figures = suite.gather(results)
    self.assertAlmostEqual(figures["cpu_vs_plain"], 2.0)
    self.assertAlmostEqual(figures["two_passes_vs_cpu"], 0.5)
    self.assertAlmostEqual(figures["resizes_apart_vs_cpu"], 1.0)
    self.assertEqual(figures["num_repetitions"], 3)
    for name in list(suite.SIDES)[1:]:
      self.assertIn(f"{name}_vs_cpu", figures)

  def test_the_table_has_a_line_for_each_side(self):
    results = {name: np.array([1.0, 2.0]) for name in ("plain", *suite.SIDES)}
    figures = suite.gather(results)
    figures.update(load_figures(), padded128_gap=2e-6)
    lines = suite.format_table(figures).splitlines()
    self.assertLen(lines, len(suite.SIDES) + 3)
    self.assertIn("2.0e-06", lines[-2])
    self.assertStartsWith(lines[1], "cpu_vs_plain")
    self.assertIn("1.00", lines[1])
    self.assertStartsWith(lines[-1], "2 repetitions")

  def test_padding_changes_nothing_but_rounding(self):
    gap = padding_gap.PaddingGap().measure()
    self.assertBetween(gap, 1e-9, 1e-4)

  def test_padded_convolutions_are_compared_round_by_round(self):
    with mock.patch.multiple(padded_convs, WIDTHS=(3,), _SIDE=4, _ROUNDS=2):
      gains = padded_convs.PaddedConvs().measure()
    self.assertEqual(list(gains), [3])
    self.assertLen(gains[3], 2)
    self.assertGreater(min(gains[3]), 0)


def load_figures():
  """Returns figures of the machine's load."""
  return suite.MachineLoad().figures()


class Bfloat16QualityTest(tf.test.TestCase, parameterized.TestCase):
  def found(self):
    return {
      "float32": [Outcome(f, 1500, 1500) for f in (10.0, 12.0, 14.0)],
      "bfloat16": [
        Outcome(11.0, 5000, 5000),
        Outcome(13.0, 1500, 1500),
        Outcome(15.0, 1500, 1500),
      ],
    }

  def test_means_and_deviations_are_over_the_seeds(self):
    figures = bfloat16_quality.gather(self.found())
    self.assertAlmostEqual(figures["float32_frechet"], 12.0)
    # Of three seeds, of which the mean is one's own.
    self.assertAlmostEqual(figures["float32_frechet_deviation"], 2.0)
    self.assertAlmostEqual(figures["bfloat16_frechet"], 13.0)

  def test_finite_steps_are_those_of_the_worst_seed(self):
    found = self.found()
    figures = bfloat16_quality.gather(found)
    self.assertEqual(figures["bfloat16_finite_steps"], 1500)
    self.assertEqual(figures["bfloat16_long_finite_steps"], 5000)
    self.assertNotIn("float32_long_finite_steps", figures)
    found["bfloat16"][1] = Outcome(float("nan"), 300, 1500)
    figures = bfloat16_quality.gather(found)
    self.assertEqual(figures["bfloat16_finite_steps"], 300)
    self.assertEqual(figures["bfloat16_long_finite_steps"], 5000)

  def test_a_long_run_that_fails_says_so(self):
    found = self.found()
    found["bfloat16"][0] = Outcome(11.0, 4200, 5000)
    figures = bfloat16_quality.gather(found)
    self.assertEqual(figures["bfloat16_finite_steps"], 1500)
    self.assertEqual(figures["bfloat16_long_finite_steps"], 4200)
    line = bfloat16_quality.format_table(figures).splitlines()[2]
    self.assertRegex(line, "bfloat16 .*1500 steps finite, 4200 of a long run")

  def test_one_seed_has_no_deviation(self):
    found = {name: runs[:1] for name, runs in self.found().items()}
    figures = bfloat16_quality.gather(found)
    self.assertEqual(figures["float32_frechet_deviation"], 0.0)
    self.assertLen(bfloat16_quality.format_table(figures).splitlines(), 3)


if __name__ == "__main__":
  tf.test.main()
