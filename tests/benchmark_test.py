"""The benchmark as a user meets it: its words, its codes and its figures."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf

from tools.suites.backbones import suite as backbones
from tools.suites.engines import figures as engines_figures
from tools.suites.engines.sides import TimeSplit
from tools.suites.flops import MultiplyAdds
from tools.suites.step import figures as step_figures

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The program with one more suite, which measures nothing.
WITH_FAKE = """
from tools import benchmark, cli
from tools.suites.suite import Result
def draw(path):
  open(path, "w").write("a picture")
benchmark.SUITES["fake"] = lambda options: Result(
  f"quick {options.quick}", {"speed": 1.5}, draw
)
cli.run(benchmark.main)
"""
# The program where TF-GAN cannot be imported.
WITHOUT_TF_GAN = """
import sys
sys.modules["tensorflow_gan"] = None
from tools import benchmark, cli
cli.run(benchmark.main)
"""


def benchmark(*flags):
  """Runs the program and returns the ended process."""
  return _run("-m", "tools.benchmark", *flags)


def with_fake(*flags):
  """Runs the program with the suite `fake`."""
  return _run("-c", WITH_FAKE, "--suite=fake", *flags)


def _run(*args):
  return subprocess.run(
    [sys.executable, *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def cells(line):
  """Returns what stands in the columns of a line."""
  return re.split(r" {2,}", line.strip())


class BenchmarkTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = folder.name

  def assert_refused(self, process, words):
    """One sentence, exit code 2, no traceback."""
    self.assertEqual(process.returncode, 2, process.stderr)
    self.assertRegex(process.stderr, words)
    self.assertNotIn("Traceback", process.stderr + process.stdout)
    self.assertLen(process.stderr.strip().splitlines(), 1)

  def test_figures_are_printed_and_written(self):
    path = os.path.join(self.folder, "figures.json")
    process = with_fake("--quick", f"--json={path}")
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertEqual(process.stdout, "quick True\n")
    with open(path) as f:
      self.assertEqual(json.load(f), {"speed": 1.5})

  def test_no_file_is_needed(self):
    process = with_fake()
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertEqual(process.stdout, "quick False\n")
    self.assertEmpty(os.listdir(self.folder))

  def test_an_unknown_suite_is_refused(self):
    self.assert_refused(
      benchmark("--suite=no_such"), "`--suite` must be one of step.*'no_such'"
    )

  def test_a_comparison_without_its_peer_is_refused(self):
    process = _run("-c", WITHOUT_TF_GAN, "--suite=step", "--quick")
    self.assert_refused(
      process, "TF-GAN, which needs .*`make PYTHON=python3.11`"
    )
    self.assertEmpty(process.stdout)

  def test_a_suite_is_required(self):
    self.assert_refused(benchmark(), "--suite")

  def test_a_file_that_cannot_be_written_is_refused_before_measuring(self):
    cases = (
      (
        os.path.join(self.folder, "no_such", "x.json"),
        "make '.*no_such' first",
      ),
      (self.folder, "`--json` must be a file that can be written, got '.*'"),
    )
    for path, words in cases:
      process = with_fake(f"--json={path}")
      self.assert_refused(process, words)
      self.assertEmpty(process.stdout)


class StepFiguresTest(tf.test.TestCase):
  def figures(self):
    results = {
      # Two steps of eight images in each of three repetitions.
      "ours": np.array([1.0, 2.0, 4.0]),
      "tfgan": np.array([1.5, 4.0, 6.0]),
      "tfgan_session": np.array([1.0, 3.0, 5.0]),
      "tfgan_plain": np.array([2.0, 6.0, 16.0]),
      "peak": np.array([10e9, 20e9, 10e9]),
    }
    works = {
      "ours": MultiplyAdds(2e9, 5e9),
      "tfgan": MultiplyAdds(4e9, 6e9),
      "tfgan_session": MultiplyAdds(3e9, 5e9),
      "tfgan_plain": MultiplyAdds(5e9, 5e9),
    }
    return step_figures.gather(results, works, num_steps=2, images=8)

  def test_ratios_are_taken_within_a_round(self):
    figures = self.figures()
    # 1.5 / 1, 4 / 2, 6 / 4; the ratio of the medians would be 2.
    self.assertAllClose(figures["vs_tfgan"], 1.5)
    self.assertAllClose(figures["vs_tfgan_low"], 1.5)
    self.assertAllClose(figures["vs_tfgan_high"], 1.75)
    self.assertAllClose(figures["vs_tfgan_session"], 1.25)  # 1, 1.5, 1.25
    self.assertAllClose(figures["vs_tfgan_plain"], 3.0)  # 2, 3, 4

  def test_speeds_count_all_images_of_a_round(self):
    figures = self.figures()
    self.assertAllClose(figures["images_per_second"], 8.0)  # 16, 8, 4
    self.assertAllClose(figures["images_per_second_low"], 6.0)
    self.assertAllClose(figures["images_per_second_high"], 12.0)
    self.assertAllClose(figures["tfgan_images_per_second"], 4.0)

  def test_work_is_two_operations_a_multiply_add(self):
    figures = self.figures()
    self.assertAllClose(figures["gflops_per_step"], 4.0)
    self.assertAllClose(figures["gflops_per_step_as_written"], 10.0)
    self.assertAllClose(figures["tfgan_gflops_per_step"], 8.0)
    self.assertAllClose(figures["tfgan_session_gflops_per_step"], 6.0)
    self.assertAllClose(figures["tfgan_plain_gflops_per_step"], 10.0)
    self.assertAllClose(figures["vs_tfgan_per_flop"], 1.5 * 2 / 4)

  def test_fraction_of_peak_counts_what_is_executed(self):
    figures = self.figures()
    # 4e9 multiply-adds in 1, 2 and 4 s, of 10e9, 20e9 and 10e9 a second.
    self.assertAllClose(figures["fraction_of_peak"], 0.1)
    self.assertAllClose(figures["fraction_of_peak_high"], 0.25)
    self.assertAllClose(figures["peak_gflops"], 20.0)
    self.assertAllClose(figures["best_peak_gflops"], 40.0)

  def test_the_table_has_a_line_for_each_side(self):
    figures = {**self.figures(), "load_before": 0.5}
    lines = step_figures.format_table(figures).splitlines()
    self.assertEqual(
      [cells(line) for line in lines[:5]],
      [
        ["images/s", "GFLOP a step", "ours is faster by"],
        ["ours", "8.0 (6.0 - 12.0)", "4.0"],
        [
          "TF-GAN's GANEstimator",
          "4.0 (3.3 - 7.3)",
          "8.0",
          "1.50 (1.50 - 1.75)",
        ],
        [
          "TF-GAN's updates in a session",
          "5.3 (4.3 - 10.7)",
          "6.0",
          "1.25 (1.12 - 1.38)",
        ],
        [
          "the same, nets as in the papers",
          "2.7 (1.8 - 5.3)",
          "10.0",
          "3.00 (2.50 - 3.50)",
        ],
      ],
    )
    self.assertEqual(
      lines[5:],
      [
        "",
        "peak   20.0 (20.0 - 30.0) GFLOP/s by matmul; we reach 10% (10% - 25%)",
        "3 repetitions of 2 step(s) a side; load 0.5 before",
      ],
    )


class BackbonesFiguresTest(tf.test.TestCase):
  def test_speed_and_fraction_are_taken_within_a_round(self):
    results = {name: np.array([1.0, 2.0, 4.0]) for name in backbones.NAMES}
    results["peak"] = np.array([10e9, 20e9, 10e9])
    work = {name: MultiplyAdds(2e9, 5e9) for name in backbones.NAMES}
    figures = backbones.gather(results, work, num_steps=2)
    # 2 steps of 16 images in 1, 2 and 4 s.
    self.assertAllClose(figures["biggan_images_per_second"], 16.0)
    # 4e9 in 1, 2 and 4 s, of 10e9, 20e9 and 10e9 a second.
    self.assertAllClose(figures["biggan_fraction_of_peak"], 0.1)
    self.assertAllClose(figures["biggan_gflops_per_step"], 4.0)
    title, heads, *rows, space, peak, repetitions = backbones.format_table(
      {**figures, "load_before": 0.5}
    ).splitlines()
    self.assertEqual(title, "32 px, batch 16, width 32")
    self.assertEqual(cells(heads), ["images/s", "GFLOP a step", "of the peak"])
    cells_of_row = ["16.0 (12.0 - 24.0)", "4.0", "10% (10% - 25%)"]
    self.assertEqual(
      [cells(row) for row in rows],
      [[name, *cells_of_row] for name in backbones.NAMES],
    )
    self.assertEqual(space, "")
    self.assertEqual(peak, "peak   20.0 (20.0 - 30.0) GFLOP/s by matmul")
    self.assertEqual(repetitions, "3 repetitions; load 0.5 before")


class EnginesFiguresTest(tf.test.TestCase):
  def figures(self):
    host = np.array(
      [
        TimeSplit(wall=10.0, program=9.0, wait=1.0, num_steps=18),
        TimeSplit(wall=20.0, program=19.5, wait=0.5, num_steps=20),
        TimeSplit(wall=40.0, program=39.0, wait=3.0, num_steps=20),
      ]
    )
    results = {
      # Two steps in each of three repetitions.
      "one": np.array([1.0, 2.0, 4.0]),
      "no_exchange": np.array([1.0, 4.0, 5.0]),
      "all_reduce": np.array([2.0, 2.5, 8.0]),
      "every_other_step": np.array([1.25, 4.0, 5.0]),
    }
    images = {name: 8 if name == "one" else 16 for name in results}
    return engines_figures.gather(host, results, images, num_steps=2)

  def test_the_host_adds_what_is_not_in_the_steps(self):
    figures = self.figures()
    # 2 of 10 s, 1 of 20 s, 4 of 40 s.
    self.assertAllClose(figures["host_overhead"], 0.1)
    self.assertAllClose(figures["host_overhead_low"], 0.075)
    self.assertAllClose(figures["host_overhead_high"], 0.15)
    self.assertAllClose(figures["host_milliseconds_per_call"], 1000.0)
    self.assertAllClose(figures["host_milliseconds_per_call_low"], 750.0)
    self.assertAllClose(figures["input_wait"], 0.075)  # 0.1, 0.025, 0.075
    self.assertAllClose(figures["seconds_per_step"], 1.0)
    self.assertEqual(figures["steps_per_call"], 20)

  def test_scaling_is_against_twice_one_within_a_round(self):
    figures = self.figures()
    # As twice the images: 1 / 2, 2 / 2.5, 4 / 8.
    self.assertAllClose(figures["weak_scaling_2"], 0.5)
    self.assertAllClose(figures["weak_scaling_2_low"], 0.5)
    self.assertAllClose(figures["weak_scaling_2_high"], 0.65)
    # 1 / 1.25, 2 / 4, 4 / 5 and 1 / 1, 2 / 4, 4 / 5.
    self.assertAllClose(figures["weak_scaling_2_every_other_step"], 0.8)
    self.assertAllClose(figures["weak_scaling_2_no_exchange"], 0.8)
    self.assertAllClose(figures["one_images_per_second"], 8.0)  # 16, 8, 4
    self.assertAllClose(figures["all_reduce_images_per_second"], 12.8)

  def test_the_table_has_a_line_for_each_side(self):
    figures = {**self.figures(), "load_before": 0.5}
    lines = engines_figures.format_table(figures).splitlines()
    self.assertEqual(
      [cells(line) for line in lines[:5]],
      [
        ["images/s", "of twice one"],
        ["one process, one core", "8.0 (6.0 - 12.0)"],
        [
          "two, gradients averaged at every step",
          "12.8 (8.4 - 14.4)",
          "0.50 (0.50 - 0.65)",
        ],
        [
          "two, weights on every other step",
          "8.0 (7.2 - 16.8)",
          "0.80 (0.65 - 0.80)",
        ],
        ["two without an exchange", "8.0 (7.2 - 20.0)", "0.80 (0.65 - 0.90)"],
      ],
    )
    self.assertEqual(
      lines[5:],
      [
        "",
        "host   10.00% (7.50% - 15.00%) of the time: "
        "1000.0 (750.0 - 1000.0) ms a call of 20 steps, 1.00 s each; "
        "7.50% is waiting for data",
        "3 calls, then 3 repetitions of 2 steps a side; load 0.5 before",
      ],
    )


if __name__ == "__main__":
  tf.test.main()
