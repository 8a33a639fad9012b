"""A profile from reports of the TPU compiler."""

import json
import os
import tempfile
import types

from absl.testing import absltest

from tools.tpu import profile

COUNTS = types.SimpleNamespace(
  gradient_bytes={"g": 400, "d": 200},
  state_bytes={"g": 4, "d": 2},
  message_bytes=160,
)


def row(images, seconds, error=None):
  return {
    "images": images,
    "seconds_by_cycles": seconds,
    "hbm_bytes": 10**9 + 10**7 * images,
    "error": error,
  }


def write(programs):
  """Writes a report; returns its path."""
  path = os.path.join(tempfile.mkdtemp(), "tpu.json")
  figures = {
    "topology": "v3:2x2",
    "hbm_limit_bytes": 16 * 10**9,
    "programs": programs,
  }
  with open(path, "w") as f:
    json.dump(figures, f)
  return path


class TpuProfileTest(absltest.TestCase):
  def test_two_reports_make_a_line(self):
    paths = [
      write({"step_bfloat16": row(16, 0.15), "step_off": row(16, 9.0)}),
      write({"step_bfloat16": row(32, 0.25)}),
    ]
    found = profile.make_profile(paths, COUNTS, 2, "abc")
    self.assertAlmostEqual(found.step_seconds.fixed, 0.05)
    self.assertAlmostEqual(found.step_seconds.at(64), 0.45)
    self.assertAlmostEqual(found.memory_bytes.at(100), 2e9, places=0)
    self.assertEqual(found.memory_source, "TPU compiler")
    self.assertEqual(found.memory_limit, 16 * 10**9)
    self.assertEqual(found.batches, (16, 32))
    self.assertEqual((found.config_hash, found.num_batches), ("abc", 2))

  def test_roles_and_variants_that_failed(self):
    path = write(
      {
        "step_bfloat16": row(16, 0.01, "too large"),
        "step_layout": row(16, 0.32),
        "g_bfloat16": row(16, 0.16),
      }
    )
    found = profile.make_profile([path], COUNTS, 1, "")
    self.assertAlmostEqual(found.step_seconds.at(16), 0.32)
    self.assertAlmostEqual(found.player_seconds["g"].at(32), 0.32)
    self.assertAlmostEqual(found.player_seconds["d"].at(16), 0.16)

  def test_what_has_no_figures_is_refused(self):
    with self.assertRaisesRegex(ValueError, "no figures of a step"):
      profile.make_profile([write({})], COUNTS, 1, "")
    with self.assertRaisesRegex(ValueError, "cannot be read"):
      profile.make_profile(["/nowhere.json"], COUNTS, 1, "")
    other = os.path.join(tempfile.mkdtemp(), "other.json")
    with open(other, "w") as f:
      f.write("{}")
    with self.assertRaisesRegex(ValueError, "a file of `tools.tpu_report"):
      profile.make_profile([other], COUNTS, 1, "")


if __name__ == "__main__":
  absltest.main()
