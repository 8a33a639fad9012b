"""Profiles, what their tiles waste, and what a layout is by default."""

import gin
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.tpu import tpu_function

from paragan_tf import hardware
from paragan_tf.hardware import Layout
from tests import testing

V3 = hardware.PROFILES["tpu_v3"]
GPUS = [name for name in hardware.PROFILES if name.startswith("gpu")]
TPUS = [name for name in hardware.PROFILES if name.startswith("tpu")]


class TilesTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(*TPUS)
  def test_known_wastes_of_channels(self, name):
    found = hardware.PROFILES[name]
    for channels, share in ((3, 0.977), (96, 0.25), (128, 0.0), (192, 0.25)):
      wasted = hardware.waste([16, 8, 8, channels], tf.float32, found)
      self.assertAlmostEqual(wasted, share, delta=5e-4)

  def test_rows_are_filled_up_too_and_more_in_half_precision(self):
    self.assertEqual(
      hardware.padded_shape([3, 5, 96], tf.float32, V3), (3, 8, 128)
    )
    self.assertEqual(
      hardware.padded_shape([3, 5, 96], tf.bfloat16, V3), (3, 16, 128)
    )
    self.assertEqual(hardware.padded_shape([130], tf.float32, V3), (256,))

  def test_nothing_is_wasted_where_there_are_no_tiles(self):
    found = hardware.PROFILES["cpu"]
    for dtype in (tf.float32, tf.bfloat16):
      self.assertEqual(hardware.waste([3, 5, 3], dtype, found), 0.0)

  @parameterized.parameters(*GPUS)
  def test_gpus_take_channels_in_eights(self, name):
    found = hardware.PROFILES[name]
    for channels, share in ((3, 0.625), (12, 0.25), (8, 0.0), (96, 0.0)):
      for dtype in (tf.float32, tf.bfloat16):
        wasted = hardware.waste([5, 7, 7, channels], dtype, found)
        self.assertAlmostEqual(wasted, share)

  def test_tpus_are_as_fast_as_their_clock_times_their_units(self):
    # Products of 128x128 a cycle: published peaks agree with the clocks.
    units = {name: hardware.PROFILES[name] for name in TPUS}
    for name, num in zip(TPUS, (1, 2, 4, 4, 8, 16)):
      peak = 2 * num * 128**2 * units[name].hertz
      self.assertAllClose(peak, units[name].flops, rtol=0.01)


class LayoutTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()  # Somebody may have left it locked.

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.parameters(*hardware.PROFILES)
  def test_every_hardware_has_a_whole_layout(self, name):
    layout = Layout(hardware=name).resolve()
    self.assertIn(layout.resizes, hardware.RESIZES)
    self.assertIn(layout.rgb_convs, hardware.RGB_CONVS)
    # Compilers of the others fill up by themselves.
    self.assertEqual(layout.multiple, 8 if name in GPUS else 1)
    asked = Layout(hardware=name, multiple=4).resolve()
    self.assertEqual(asked, layout._replace(multiple=4))
    self.assertNotIn(None, layout)
    self.assertEqual(layout.precision, hardware.PROFILES[name].precision)

  def test_auto_is_what_the_program_runs_on(self):
    cpu, tpu = (Layout(hardware=name).resolve() for name in ("cpu", "tpu_v3"))
    self.assertEqual(Layout().resolve(), cpu)
    with testing.strategy().scope():
      self.assertEqual(Layout().resolve(), cpu)
    with tpu_function.tpu_shard_context(8):
      self.assertEqual(Layout().resolve(), tpu)

  def test_an_option_overrides_the_profile_per_player(self):
    gin.bind_parameter("g/hardware.Layout.resizes", "apart")
    with gin.config_scope("g"):
      self.assertEqual(hardware.resolve_layout().resizes, "apart")
    with gin.config_scope("d"):
      self.assertEqual(hardware.resolve_layout().resizes, "folded")

  @parameterized.parameters(
    ({"hardware": "abacus"}, "`hardware` .* 'abacus'"),
    ({"resizes": "never"}, "`resizes` .* 'never'"),
    ({"rgb_convs": "round"}, "`rgb_convs` .* 'round'"),
    ({"multiple": 0}, "`multiple` .* 0"),
  )
  def test_bad_values_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      Layout(**options)


if __name__ == "__main__":
  tf.test.main()
