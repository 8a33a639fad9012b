"""A profile and the lines that are fitted to it."""

import numpy as np
from absl.testing import absltest, parameterized

from paragan_tf.engine.scaling import profile
from paragan_tf.engine.scaling.profile import Fit, Profile


def make_profile(**changes) -> Profile:
  """Returns the profile of a made-up worker: 10 ms + 1 ms an image."""
  found = Profile(
    device="cpu",
    num_threads=1,
    num_cores=2,
    config_hash="0123456789abcdef",
    batches=(8, 16, 32),
    num_batches=1,
    step_seconds=Fit(0.01, 0.001),
    scheme_seconds={"quantized": Fit(0.012, 0.001)},
    player_seconds={"g": Fit(0.006, 0.0006), "d": Fit(0.005, 0.0005)},
    memory_bytes=Fit(1e9, 1e6),
    memory_limit=2 * 10**9,
    memory_source="measured on this CPU",
    input_images_per_second=20_000.0,
    gradient_bytes={"g": 4_000_000, "d": 2_000_000},
    state_bytes={"g": 4_000, "d": 2_000},
    message_bytes=1_600_000,
    codec_seconds={"encode": 0.01, "decode": 0.002},
    noise_scale={"g": 500.0, "d": 900.0},
    exchange_engine="2 replicas in one process",
    exchange_workers=2,
    exchange_seconds={"all_reduce": 0.004},
  )
  return found._replace(**changes)


class ProfileTest(parameterized.TestCase):
  @parameterized.parameters(
    ([8, 16, 32, 64], 0.02, 0.003),
    ([4, 64], 0.5, 0.0001),
    ([1, 7, 256], 0.0, 0.004),
  )
  def test_a_fit_recovers_a_known_line(self, batches, fixed, slope):
    values = [fixed + slope * x for x in batches]
    found = profile.fit(batches, values)
    np.testing.assert_allclose(found.fixed, fixed, atol=1e-12)
    np.testing.assert_allclose(found.per_image, slope, atol=1e-12)
    self.assertLess(found.error, 1e-9)
    np.testing.assert_allclose(found.at(100), fixed + slope * 100)

  def test_a_fit_through_noise_says_how_far_it_is_off(self):
    batches = np.array([8, 16, 32, 64, 128])
    noise = 1 + 0.05 * np.array([1, -1, 1, -1, 1])
    found = profile.fit(batches, (0.02 + 0.003 * batches) * noise)
    self.assertBetween(found.error, 0.03, 0.06)
    self.assertBetween(found.per_image, 0.0027, 0.0033)

  def test_neither_coefficient_is_negative(self):
    falling = profile.fit([8, 16], [2.0, 1.0])
    self.assertEqual(falling.per_image, 0.0)
    self.assertBetween(falling.fixed, 1.0, 2.0)
    steep = profile.fit([8, 16], [1.0, 4.0])
    self.assertEqual(steep.fixed, 0.0)
    self.assertBetween(steep.per_image, 1 / 8, 4 / 16)

  def test_one_point_gives_a_line_through_zero(self):
    self.assertEqual(profile.fit([8], [2.0]), Fit(0.0, 0.25))

  @parameterized.parameters(([], []), ([8], [1.0, 2.0]), ([8, 16], [0.0, 1.0]))
  def test_points_that_are_none_are_refused(self, batches, values):
    with self.assertRaisesRegex(ValueError, "`batches` and `values` must be"):
      profile.fit(batches, values)

  def test_a_profile_is_read_as_it_was_written(self):
    found = make_profile()
    self.assertEqual(Profile.from_json(found.to_json()), found)

  def test_a_profile_of_another_version_is_refused(self):
    text = make_profile().to_json().replace("num_cores", "num_units")
    with self.assertRaisesRegex(ValueError, "num_cores, num_units: measure"):
      Profile.from_json(text)


if __name__ == "__main__":
  absltest.main()
