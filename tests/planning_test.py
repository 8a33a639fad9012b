"""From a profile to a table, a page and a gin file; and the profile itself."""

import json
import os
import tempfile
from unittest import mock

import gin
from absl.testing import absltest, parameterized

from paragan_tf import config, planning, profiling
from paragan_tf.engine.scaling.links import Link
from paragan_tf.engine.scaling.plan import Plan
from paragan_tf.profiling import Source
from tests.profile_test import make_profile

FASHION = ("gin/runs/fashion.gin",)


def measured(batch, extras=False, players=False, files=()):
  """Returns what a worker of 10 ms + 1 ms an image would measure."""
  row = {
    "batch": batch,
    "seconds": 0.01 + 0.001 * batch + 0.005 * bool(files),
    "memory": int(1e9 + 1e6 * batch),
    "on_gpu": False,
    "limit": 2 * 10**9,
  }
  if players:
    row["players"] = {"g": 0.006 * batch, "d": 0.004 * batch}
  if extras:
    row["extras"] = {
      "num_batches": 1,
      "input": 5000.0,
      "gradient_bytes": {"g": 400, "d": 200},
      "state_bytes": {"g": 4, "d": 2},
      "codec": {"encode": 0.002, "decode": 0.001, "bytes": 160},
      "shapes": [[10, 10], [50]],
      "noise_scale": {"g": 500.0, "d": 900.0},
    }
  return row


def run_job(source, job):
  """Stands for a process that measures."""
  if "shapes" in job:
    return {"workers": 2, "seconds": {"sync": 0.001, "quantized": 0.002}}
  names = ("batch", "extras", "players", "files")
  return measured(**{name: job[name] for name in names if name in job})


class ProfilingTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = tempfile.mkdtemp()

  def profile(self, source=Source(FASHION), run=run_job, **options):  # noqa: B008
    with mock.patch.object(profiling, "_run", side_effect=run) as runs:
      found = profiling.profile(source, self.folder, **options)
    return found, runs.call_count

  def test_the_known_line_is_found_and_kept(self):
    seen = []
    found, count = self.profile(progress=lambda *x: seen.append(x))
    self.assertEqual(found.batches, (16, 64, 128))  # Of a batch of 64.
    self.assertAlmostEqual(found.step_seconds.fixed, 0.01)
    self.assertAlmostEqual(found.step_seconds.per_image, 0.001)
    self.assertAlmostEqual(found.memory_bytes.at(100), 1.1e9, places=1)
    self.assertEqual(found.memory_source, "measured on this CPU")
    self.assertAlmostEqual(found.player_seconds["g"].at(10), 0.06)
    # 5 ms more, of which 3 ms are messages.
    self.assertAlmostEqual(found.scheme_seconds["quantized"].fixed, 0.015)
    self.assertAlmostEqual(found.scheme_seconds["gossip"].fixed, 0.012)
    self.assertEqual(found.exchange_seconds["sync"], 0.001)
    self.assertEqual(found.memory_limit, 2 * 10**9)
    self.assertEqual(count, 6)
    self.assertEqual(seen[-1], (6, 6))
    again, count = self.profile()
    self.assertEqual((again, count), (found, 0))
    self.assertEqual(self.profile(refresh=True)[1], 6)

  def test_another_config_device_or_thread_is_another_profile(self):
    self.profile()
    wide = ("dcgan.Generator.width = 64",)
    self.assertEqual(self.profile(Source(FASHION, wide))[1], 6)
    self.assertEqual(self.profile(Source(FASHION, num_threads=1))[1], 6)
    with mock.patch.object(profiling, "device_name", return_value="other"):
      self.assertEqual(self.profile()[1], 6)
    self.assertLen(os.listdir(self.folder), 4)
    # What a plan sets is no other worker.
    planned = ("experiment.Experiment.batch_size = 32", "run.Run.num_steps = 1")
    self.assertEqual(self.profile(Source(FASHION, planned))[1], 0)

  def test_batches_beyond_the_memory_are_left_out(self):
    source = Source(FASHION, batches=(8, 16, 2000))
    found, count = self.profile(source)
    self.assertEqual(found.batches, (8, 16))
    self.assertEqual(count, 5)

  def test_a_profile_of_another_config_is_refused(self):
    path = os.path.join(self.folder, "mine.json")
    with open(path, "w") as f:
      f.write(make_profile().to_json())
    self.assertEqual(profiling.read(path), make_profile())
    with self.assertRaisesRegex(ValueError, "is of another config .0123456789"):
      profiling.read(path, "f" * 16)
    with open(path, "w") as f:
      f.write("{}")
    with self.assertRaisesRegex(ValueError, "cannot be read: .*measure it"):
      profiling.read(path)

  @parameterized.parameters((8,), (0, 8), (8, 8))
  def test_batches_without_a_line_are_refused(self, *batches):
    with self.assertRaisesRegex(ValueError, "`batches` must be two or more"):
      self.profile(Source(FASHION, batches=batches))

  def test_a_worker_that_fails_says_why(self):
    bad = Source(FASHION)
    failed = mock.Mock(returncode=1, stdout="", stderr="one\nlast words\n")
    ends = mock.patch.object(profiling.subprocess, "run", return_value=failed)
    with ends, self.assertRaisesRegex(ValueError, "be profiled: last words"):
      profiling.profile(bad, self.folder)


class ReportTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    config.load(FASHION, [])
    self.profile = make_profile(config_hash=profiling.config_hash())

  def report(self, **goal):
    goal = {"num_workers": 8, "link": Link("slow", 1e7, 1e-3), **goal}
    return planning.Report(self.profile, planning.read_goal(**goal))

  def test_the_config_says_what_is_left_open(self):
    goal = planning.read_goal(num_workers=8)
    self.assertEqual((goal.bs, goal.base_batch), (512, 64))
    self.assertEqual(goal.num_images, 2000 * 64)
    config.load(FASHION, ["experiment.Experiment.batch_size = 48"])
    self.assertEqual(planning.read_goal(num_workers=8).bs, 384)
    self.assertEqual(planning.read_goal(8, bs=96).base_batch, 48)
    self.assertEqual(planning.read_num_batches(), 1)
    config.load(FASHION, ["schedule.Sequential.num_d_steps = 3"])
    self.assertEqual(planning.read_num_batches(), 3)
    config.load(FASHION, [])
    report = self.report()
    self.assertEqual(report.choose("sync").num_steps, 250)
    self.assertEqual(self.report(num_updates=7).choose("sync").num_steps, 7)

  def test_it_says_which_scheme_wins_where_and_why(self):
    report = self.report(price=2.0)
    words = report.text()
    self.assertIn("8 workers by slow, 512 images an update", words)
    self.assertIn("per_label", words)
    self.assertRegex(words, r"worker\(s\): `\w+` is \d.* on the wire\.")
    self.assertEqual(list(report.sweep), [2**k for k in range(11)])
    self.assertEqual(list(self.report(num_workers=4096).sweep)[-1], 4096)
    with self.assertRaisesRegex(ValueError, "`scheme` must be one of"):
      report.choose("magic")

  def test_figures_and_page_have_all_schemes(self):
    report = self.report(num_workers=5)  # No group of roles fits.
    figures = json.loads(json.dumps(report.json()))
    self.assertIn("paragan", figures["refused"])
    self.assertContainsSubset(["sync", "paragan"], figures["sweep"]["1024"])
    page = report.html()
    for name in ("sync", "gossip", "quantized_two_phase", "1,024 workers"):
      self.assertIn(name, page)
    self.assertIn("measured on this CPU", page)

  def test_a_link_that_connects_few_ends_the_sweep(self):
    report = planning.Report(
      self.profile, planning.read_goal(8, link="nvlink3")
    )
    self.assertEqual(list(report.sweep), [1, 2, 4, 8])
    self.assertTrue(all(isinstance(x, Plan) for x in report.plans))

  def test_a_file_keeps_to_the_runs_intervals(self):
    path = os.path.join(tempfile.mkdtemp(), "plan.gin")
    planning.write_gin(
      self.report().choose("every_other_step"), path, acts=True
    )
    with open(path) as f:
      text = f.read()
    self.assertIn("run.Run.save_every = 500\n", text)
    self.assertIn("holding.Hold.acts = True\n", text)


if __name__ == "__main__":
  absltest.main()
