"""What is read out of compiled programs, and compiling where that is at hand.

`make test-tpu` makes the compiler's environment and runs all of it.
"""

import ast
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import gin
import tensorflow as tf
import tensorflow_datasets as tfds
from absl.testing import parameterized

from paragan_tf import config, experiment, hardware
from tests.train_test import ForkServer
from tools.tpu import environment, export, figures, programs

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = (
  "--gin_file=gin/runs/benchmark_step.gin",
  "--gin_bindings=sngan.Generator.width = 16",
  "--gin_bindings=sngan.Discriminator.width = 16",
  "--cores=8",
)
# Two operations that count, one inside another, and a view.
TEXT = """
%fused (p: f32[8]) -> f32[8] {
  %inner = f32[16,8,8,96]{3,0,2,1:T(8,128)} add(%p), \
x={"estimated_cycles":"7"}
}
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[16,8,8,3]{3,0,2,1:T(8,128)} parameter(0)
  %one = (f32[]{:T(256)}, bf16[5,16,96]{2,1,0:T(8,128)(2,1)}) fusion(%a), \
metadata={op_name="conv"}, backend_config={"estimated_cycles":"100"}
  %half = u32[]{:T(128)} custom-call(%a), custom_call_target="X64SplitLow"
  ROOT %two = f32[16,8,8,3]{3,0,2,1:T(8,128)} copy(%one), \
backend_config={"estimated_cycles":"20"}
}
"""


KEYS = (
  "gain_time",
  "gain_time_layout_only",
  "hbm_ratio",
  "hbm_bytes",
  "hbm_limit_bytes",
)
# Says of every program what a compiler would say that has no room for it.
COMPILER = """#!/bin/sh
echo '{"error": "RESOURCE_EXHAUSTED: no room"}' > "${3%.hlo}.json"
: > "${3%.hlo}.txt"
"""


class ProgramsTest(tf.test.TestCase, parameterized.TestCase):
  def test_cycles_are_those_of_the_main_computation(self):
    self.assertEqual(programs.count_cycles(TEXT), 120)
    self.assertEqual(programs.count_x64_calls(TEXT), 1)
    kinds = [operation.kind for operation in programs.parse_operations(TEXT)]
    self.assertEqual(kinds, ["parameter", "fusion", "custom-call", "copy"])

  @parameterized.parameters(
    (("f32", "16,8,8,3", "3,0,2,1", "8,128"), 12288, 524288),
    (("bf16", "5,16,96", "2,1,0", "8,128"), 15360, 20480),
    (("f32", "16,8,8,128", "3,0,2,1", "8,128"), 524288, 524288),
    (("f32", "96", "0", "256"), 384, 1024),
    (("f32", "", "", "256"), 4, 4),
    (("s64", "2,3", "", ""), 48, 48),
    (("pred", "2,3", "", ""), 6, 6),
  )
  def test_tiles(self, array, full, padded):
    self.assertEqual(programs.count_bytes(array), (full, padded))

  def test_the_largest_wastes(self):
    first, second = programs.find_waste(TEXT)
    self.assertEqual(first.shape, "f32[16,8,8,3]")
    self.assertEqual((first.num, first.empty_bytes), (1, 512000))
    self.assertAlmostEqual(first.share, 0.977, delta=1e-3)
    self.assertEqual((second.shape, second.name), ("bf16[5,16,96]", "conv"))
    self.assertAlmostEqual(second.share, 0.25)


class ReportTest(tf.test.TestCase, parameterized.TestCase):
  def rows(self):
    return [
      figures.Row("step_off", seconds=0.3, seconds_by_cycles=0.2, hbm_bytes=10),
      figures.Row(
        "step_layout", seconds=0.2, seconds_by_cycles=0.16, hbm_bytes=8
      ),
      figures.Row(
        "step_bfloat16", seconds=0.15, seconds_by_cycles=0.1, hbm_bytes=6
      ),
    ]

  def test_gains(self):
    found = figures.Report("v3:2x2", "tpu_v3", self.rows()).json()
    expected = {
      "gain_time": 2.0,
      "gain_time_layout_only": 1.5,
      "gain_cycles": 2.0,
      "gain_cycles_layout_only": 1.25,
      "hbm_ratio": 0.6,
      "hbm_bytes": 6,
      "hbm_limit_bytes": 16 * 1024**3,
    }
    for name, value in expected.items():
      self.assertAlmostEqual(found[name], value, msg=name)
    self.assertIsNone(found["reason"])
    json.dumps(found)

  @parameterized.named_parameters(
    ("off", 0, ["hbm_bytes", "hbm_limit_bytes"]),
    ("layout", 1, ["gain_time", "hbm_ratio", "hbm_bytes", "hbm_limit_bytes"]),
    ("bfloat16", 2, ["gain_time_layout_only", "hbm_limit_bytes"]),
  )
  def test_what_cannot_be_is_none_with_a_reason(self, missing, there):
    name = self.rows()[missing].name
    for reason in ("not asked for", "did not compile, no <room>"):
      rows = self.rows()
      row = rows.pop(missing)
      if "room" in reason:
        rows.append(figures.Row(row.name, error="no <room>"))
      report = figures.Report("v3:2x2", "tpu_v3", rows)
      found = report.json()
      self.assertCountEqual([k for k in KEYS if found[k] is not None], there)
      self.assertRegex(found["reason"], f"`{name}` .*{reason}")
      self.assertIn("-", report.text())
      self.assertIn("<td>-", report.html())
      self.assertIsNone(report.failure())

  def test_nothing_compiled_is_a_failure_that_says_why(self):
    rows = [figures.Row(r.name, error=f"no {r.name}") for r in self.rows()]
    report = figures.Report("v3:2x2", "tpu_v3", rows)
    self.assertRegex(report.failure(), "none .* compile, no step_off; .*layout")
    found = report.json()
    for key in KEYS[:-1]:
      self.assertIsNone(found[key], key)

  def roles(self):
    return [
      figures.Row(
        f"{who}_{name}",
        seconds=scale * seconds,
        seconds_by_cycles=1.0,
        hbm_bytes=int(12 * seconds / scale),
      )
      for who, scale in (("g", 1.0), ("d", 2.0))
      for name, seconds in (("off", 3.0), ("layout", 2.0), ("bfloat16", 1.0))
    ]

  def test_with_roles_the_slower_and_the_larger_one_count(self):
    rows = self.roles()
    rows[0] = rows[0]._replace(seconds=5.0)  # And yet D is slower.
    rows.append(figures.Row("g_only_resizes", error="too <large>"))
    report = figures.Report("v3:2x2", "tpu_v3", rows)
    found = report.json()
    self.assertAlmostEqual(found["gain_time"], 3.0)
    # D is slower, G is larger.
    self.assertEqual((found["hbm_bytes"], found["hbm_bytes_off"]), (12, 36))
    self.assertIn("too <large>", report.text())
    self.assertIn("too &lt;large&gt;", report.html())
    self.assertIn("stimates of the TPU compiler", report.html())

  @parameterized.parameters(0, 2, 3, 5)
  def test_nothing_is_gained_by_a_role_that_did_not_compile(self, missing):
    rows = self.roles()
    rows[missing] = figures.Row(rows[missing].name, error="too large")
    found = figures.Report("v3:2x2", "tpu_v3", rows).json()
    self.assertIsNone(found["gain_time"])
    self.assertIsNone(found["hbm_ratio"])
    self.assertEqual(found["hbm_bytes"] is None, missing in (2, 5))
    self.assertIn(f"`{rows[missing].name}` did not", found["reason"])

  def test_a_row_is_read_from_what_the_compiler_wrote(self):
    path = pathlib.Path(tempfile.mkdtemp(), "step_off.hlo")
    path.with_suffix(".txt").write_text(TEXT)
    gib = 1024**3
    reported = {
      "flops": 1e9,
      "bytes": 1e8,
      "optimal_seconds": 0.25 - programs.count_x64_calls(TEXT),
      "argument_bytes": 4 * gib,
      "output_bytes": 3 * gib,
      "alias_bytes": 3 * gib,
      "temp_bytes": 2 * gib,
      "code_bytes": 0,
    }
    path.with_suffix(".json").write_text(json.dumps(reported))
    row = figures.read_row("step_off", path, 4, "tpu_v3")
    self.assertAlmostEqual(row.seconds, 0.25)
    self.assertAlmostEqual(row.optimal_seconds, -0.75)
    report = figures.Report("v3:2x2", "tpu_v3", [row])
    raw = report.json()["programs"]["step_off"]["optimal_seconds"]
    self.assertAlmostEqual(raw, -0.75)
    self.assertRegex(report.text(), "plus one second for each X64")
    self.assertAlmostEqual(row.seconds_by_cycles, 120 / 0.94e9)
    self.assertEqual(row.hbm_bytes, 6 * gib)
    # Half a GB an image, 12 GB left: in whole rows of eight.
    self.assertEqual((row.images, row.images_fitting), (4, 24))
    self.assertRegex(report.text(), "4 images, and room for 24: .* 6.0 times")
    full = figures.Report("v3:2x2", "tpu_v3", [row._replace(images=24)])
    self.assertRegex(full.text(), "24 images, and no room for more")

  def test_an_unknown_tpu_is_refused(self):
    for topology in ("v9:2x2", "v3", "cpu:1"):
      with self.assertRaisesRegex(ValueError, f"`--topology` .* '{topology}'"):
        figures.find_chip(topology)
    self.assertEqual(figures.find_chip("v5e:2x2"), "tpu_v5e")

  def test_every_part_is_compiled_alone_if_asked(self):
    few, all_ = (
      figures.make_variants("tpu_v3", more) for more in (False, True)
    )
    self.assertEqual(list(few), ["off", "layout", "bfloat16"])
    self.assertGreater(len(all_), len(few) + 5)
    self.assertLen({tuple(b) for b in all_.values()}, len(all_))

  def test_off_is_every_part_of_a_layout_off(self):
    fields = {field.name for field in dataclasses.fields(hardware.Layout)}
    self.assertEqual({*figures._OFF}, fields - {"hardware"})
    config.load(["gin/layout/off.gin"], [])
    self.addCleanup(gin.clear_config)
    of_file = gin.get_bindings(hardware.Layout)
    of_report = {k: ast.literal_eval(v) for k, v in figures._OFF.items()}
    self.assertEqual(of_file, of_report)
    self.assertEqual(gin.get_bindings("player"), {"precision": "float32"})


def run(*command, **variables):
  return subprocess.run(
    [sys.executable, "-m", *command],
    cwd=ROOT,
    capture_output=True,
    text=True,
    env={**os.environ, **variables},
    check=False,
  )


class ToolTest(tf.test.TestCase, parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.server = ForkServer(folder.name)
    cls.addClassCleanup(cls.server.close)

  def test_without_the_compiler_it_says_how_to_get_it(self):
    if sys.version_info[:2] < environment._OLDEST:
      done = self.server.run(
        "tools.tpu_report", *SMALL, PARAGAN_TPU_ENV="/proc/nowhere"
      )
      self.assertEqual(done.returncode, 2)
      self.assertIn("The TPU compiler needs Python 3.11", done.stderr)
      return
    # A folder that cannot be made.
    done = self.server.run(
      "tools.tpu_report", *SMALL, PARAGAN_TPU_ENV="/proc/nowhere", PIP_INDEX=""
    )
    self.assertEqual(done.returncode, 2)
    last = done.stderr.strip().splitlines()[-1]
    self.assertRegex(last, "^Error: The TPU compiler's environment in '/proc")
    self.assertIn("requirements.txt", last)
    self.assertIn("PARAGAN_TPU_ENV", last)

  def test_where_nothing_compiles_it_fails_and_says_why(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "bin").mkdir()
    (folder / "installed").write_text(environment._PINS.read_text())
    (folder / "bin" / "python").write_text(COMPILER)
    (folder / "bin" / "python").chmod(0o755)
    done = self.server.run(
      "tools.tpu_report",
      "--gin_file=gin/runs/smoke.gin",
      "--gin_bindings=from paragan_tf.nets import linear",
      "--gin_bindings=g/player.net = @linear.Generator",
      "--gin_bindings=d/player.net = @linear.Discriminator",
      "--cores=1",
      "--only=off",
      f"--json={folder}/tpu.json",
      PARAGAN_TPU_ENV=str(folder),
    )
    self.assertEqual(done.returncode, 2, done.stderr)
    last = done.stderr.strip().splitlines()[-1]
    self.assertRegex(last, "^Error: The TPU compiler took none .*: no room")
    found = json.loads((folder / "tpu.json").read_text())
    self.assertIsNone(found["gain_time"])
    self.assertIn("no room", found["reason"])

  def test_a_missing_flag_is_told_at_once(self):
    done = run("tools.tpu_report", "--cores=8")
    self.assertEqual(done.returncode, 2)
    (line,) = done.stderr.strip().splitlines()
    self.assertStartsWith(line, "Error: flag --gin_file=None: ")

  @parameterized.named_parameters(
    ("all", [], 3),
    ("none", ["InputFn.conditional = False"], 0),
    ("some", ["InputFn.only_labels = ['cat', 'owl']"], 2),
  )
  def test_labels_of_tfds_are_those_that_are_asked_for(self, more, num):
    features = {
      "image": tfds.features.Image(shape=(8, 8, 3)),
      "label": tfds.features.ClassLabel(names=["cat", "dog", "owl"]),
    }
    builder = mock.Mock()
    builder.info.features = features
    self.addCleanup(gin.clear_config)
    gin.clear_config()
    config.load(["gin/data/imagenet.gin"], ["InputFn.resolution = 64", *more])
    with mock.patch.object(tfds, "builder", lambda name: builder):
      spec = export.find_image_spec(experiment)
    self.assertEqual(tuple(spec), (64, 3, num))

  @parameterized.named_parameters(
    ("variant", ["--only=both"], "`--only` must be one of off, .*'both'"),
    ("file", ["--json=/no/where/x.json"], "`--json` .* make '/no/where' first"),
    ("topology", ["--topology=v3"], "`--topology` .* 'v3'"),
  )
  def test_wrong_flags_are_told_before_the_work(self, more, words):
    done = self.server.run(
      "tools.tpu_report", *SMALL, *more, PARAGAN_TPU_ENV="/proc/no"
    )
    self.assertEqual(done.returncode, 2)
    (line,) = done.stderr.strip().splitlines()
    self.assertRegex(line, f"^Error: {words}")

  @parameterized.named_parameters(
    ("cores", {"num_cores": 7}, "`--cores` must divide the run's batch of 16"),
    ("roles", {"role": "g", "num_cores": 8}, "`--roles` needs .*`Sequential`"),
  )
  def test_what_cannot_be_exported_is_refused(self, more, words):
    program = export.Program(["gin/runs/smoke.gin"], **more)
    with self.assertRaisesRegex(ValueError, words):
      export.export(program)

  @parameterized.named_parameters(
    *((kind, kind) for kind in ("v3:2x2", "v5e:2x2"))
  )
  def test_a_small_step_compiles(self, topology):
    if not environment.is_installed():
      self.skipTest("No TPU compiler here: `make test-tpu` gets it.")
    folder = tempfile.mkdtemp()
    done = run(
      "tools.tpu_report",
      *SMALL,
      f"--topology={topology}",
      "--only=off",
      "--only=bfloat16",
      f"--json={folder}/tpu.json",
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    found = json.loads(pathlib.Path(folder, "tpu.json").read_text())
    off, half = (
      found["programs"][f"step_{name}"] for name in ("off", "bfloat16")
    )
    for row in (off, half):
      self.assertIsNone(row["error"])
      self.assertGreater(row["seconds"], 0)
      self.assertLess(row["seconds"], 1)
      self.assertGreater(row["seconds_by_cycles"], 0)
      self.assertGreaterEqual(row["images_fitting"], row["images"])
      self.assertLess(row["hbm_bytes"], found["hbm_limit_bytes"])
    self.assertLess(half["bytes"], off["bytes"])


if __name__ == "__main__":
  tf.test.main()
