"""The verdict of a rehearsal, and the figures of the suite, of made-up ones."""

from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from tests.train_test import ServerTestCase
from tools.suites.rehearsal import suite
from tools.suites.rehearsal.suite import Found
from tools.tpu import rehearsal_report as report
from tools.tpu.rehearsal_report import Row

COMPILED = {
  "batch_size": 2048,
  "num_steps": 2,
  "memory_bytes": 3 * 2**20,
  "flops": 1e6,
  "num_collectives": 10,
  "collective_bytes": 2**20,
  "compile_seconds": 12.3,
}
RUN = {
  "num_steps": 10,
  "max_weight_gap": 1e-7,
  "max_weight_change": 1e-2,
}


class RehearsalReportTest(tf.test.TestCase, parameterized.TestCase):
  def rehearse(self, cores=(8, 128, 1024), failures=(), **compiled):
    """Rehearses with outcomes that are made up; also returns what was run."""
    done = []

    def run_one(wanted):
      done.append((wanted.num_cores, wanted.topology))
      name = f"{wanted.num_cores} cores"
      if wanted.num_cores in failures:
        return Row(name, failure="no room.")
      if wanted.topology is None:
        return Row(name, RUN)
      return Row(name, {**COMPILED, **compiled})

    with mock.patch.object(report, "run_one", run_one):
      return report.rehearse(["a.gin"], [], cores), done

  def test_it_is_compiled_for_all_cores_and_run_on_eight(self):
    found, done = self.rehearse()
    self.assertEqual(
      sorted(done[:-1]),
      [(8, "v3:2x2"), (128, "v3:8x8"), (1024, "v3:16x32")],
    )
    self.assertEqual(done[-1], (8, None))
    self.assertIsNone(found.failure())
    lines = found.text().splitlines()
    self.assertLen(lines, 5)
    self.assertIn("batch 2,048, 3.0 MiB a core", lines[0])
    self.assertIn("5.0 collectives a step of 0.500 MiB", lines[0])
    self.assertIn("differ from MirroredStrategy's by 1.0e-07", lines[3])
    self.assertIn("computes what it should", lines[4])
    self.assertLen(found.json()["rows"], 4)

  @parameterized.parameters(dict(flops=1e11), dict(memory_bytes=1e9))
  def test_a_large_run_is_not_run_and_says_so(self, **compiled):
    found, done = self.rehearse(**compiled)
    self.assertNotIn((8, None), done)
    lines = found.text().splitlines()
    self.assertRegex(lines[3], "skipped: too large .* of at most 1e\\+12")
    self.assertIn("what it computes is not tested", lines[4])
    self.assertIsNone(found.failure())

  def test_a_number_of_cores_that_fails_is_the_verdict(self):
    found, done = self.rehearse(failures=[1024])
    self.assertIn((8, None), done)
    self.assertIn("1024 cores failed: no room.", found.failure())
    lines = found.text().splitlines()
    self.assertIn("FAILED: no room.", lines[2])
    self.assertIn("not ready", lines[4])

  def test_what_fails_on_all_cores_is_one_sentence(self):
    with self.assertRaisesRegex(ValueError, "^no room.$"):
      self.rehearse(failures=[8, 128, 1024])

  @parameterized.parameters(
    (1e-7, 1e-2, True),
    (2e-5, 1e-2, False),
    (2e-6, 1e-5, False),
    (5e-8, 1e-6, True),
    (float("nan"), 1e-2, False),
  )
  def test_a_gap_is_no_larger_than_rounding(self, gap, change, holds):
    found = report._find_gap(
      {"max_weight_gap": gap, "max_weight_change": change}
    )
    self.assertEqual(found is None, holds)
    self.assertIsNone(report._find_gap(COMPILED))

  def test_other_numbers_of_cores_are_refused(self):
    with self.assertRaisesRegex(ValueError, "some of 8, 128, 1024, got 9"):
      report.check_cores([8, 9])


class ToolTest(ServerTestCase, parameterized.TestCase):
  @parameterized.parameters(
    (["--rehearse_cores=9"], "`--rehearse_cores` must be some of"),
    (["--html=x.html"], "`--html` and `--rehearse` exclude each other"),
    (["--json=/none/x.json"], "`--json` must be a file in a folder"),
  )
  def test_wrong_flags_are_told_before_the_work(self, more, words):
    done = self.server.run(
      "tools.tpu_report", "--rehearse", "--gin_file=a.gin", *more
    )
    self.assertEqual(done.returncode, 2)
    (line,) = done.stderr.strip().splitlines()
    self.assertStartsWith(line, f"Error: {words}")


class SuiteTest(tf.test.TestCase):
  def test_schemes_are_counted(self):
    found = {
      "sync": Found(True, True, [1e-7, 2e-6]),
      "gossip": Found(True, False, [1e-7, 2e-5]),
      "quantized": Found(False, True, [None, 1e-7]),
    }
    figures = suite.count_schemes(found)
    self.assertEqual(figures["schemes_traced"], 2)
    self.assertEqual(figures["schemes_compiled_1024"], 2)
    self.assertEqual(figures["schemes_run_8"], 1)
    self.assertEqual(figures["max_weight_gap"], float("inf"))
    table = suite.format_table(found, figures).splitlines()
    self.assertRegex(table[2], "gossip +yes +no +1.0e-07, 2.0e-05")

  def test_a_rehearsal_of_each_scheme_can_be_made(self):
    for scheme in suite.SCHEMES:
      for net in suite.NETS:
        wanted = suite.make_rehearsal(scheme, net)
        self.assertLen(wanted.gin_files, 1 + len(suite.SCHEMES[scheme][0]))
        self.assertIn(
          f"g/experiment.player.net = @{net}.Generator", wanted.bindings
        )


if __name__ == "__main__":
  tf.test.main()
