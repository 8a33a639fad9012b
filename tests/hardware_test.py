"""Profiles, what their tiles waste, and what a layout is by default."""

from unittest import mock

import gin
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import hardware, tf_private
from paragan_tf.hardware import Layout
from tests import testing

V3 = hardware.PROFILES["tpu_v3"]
GPUS = [name for name in hardware.PROFILES if name.startswith("gpu_")]
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


class GpusTest(tf.test.TestCase, parameterized.TestCase):
  """The profile of a GPU, which TensorFlow only pretends to have."""

  @parameterized.parameters(
    ((7, 0), "Tesla V100-SXM2-16GB", "gpu_v100"),
    ((7, 5), "Tesla T4", "gpu_t4"),
    ((8, 0), "NVIDIA A100-SXM4-40GB", "gpu_a100"),
    ((8, 6), "NVIDIA A10", "gpu_a10"),
    ((8, 9), "NVIDIA L4", "gpu_l4"),
    ((9, 0), "NVIDIA H100 80GB HBM3", "gpu_h100"),
    ((10, 0), "NVIDIA B200", "gpu_b200"),
  )
  def test_it_is_that_of_its_compute_capability(self, pair, device, name):
    details = {"compute_capability": pair, "device_name": device}
    expected = hardware.PROFILES[name]
    self.assertEqual(hardware.gpu_profile(details), expected)
    # Of another chip only what its capability says is known.
    details["device_name"] = "NVIDIA Other"
    self.assertEqual(
      hardware.gpu_profile(details), expected._replace(memory=0, flops=0.0)
    )

  @parameterized.parameters(
    ((7, 2), "gpu_v100"),
    ((8, 7), "gpu_a10"),
    ((8, 10), "gpu_l4"),
    ((9, 9), "gpu_h100"),
    ((10, 3), "gpu_b200"),
    ((12, 0), "gpu_b200"),
    ((6, 1), "gpu"),
    (None, "gpu"),
  )
  def test_an_unknown_capability_has_the_one_below(self, pair, name):
    found = hardware.gpu_profile({"compute_capability": pair})
    expected = hardware.PROFILES[name]._replace(memory=0, flops=0.0)
    self.assertEqual(found, expected)

  @parameterized.parameters(
    ("NVIDIA A100-SXM4-80GB", 80, 312e12),
    ("NVIDIA A100 80GB PCIe", 80, 312e12),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5, 312e12),
    ("NVIDIA A30 24GB", 24, 0.0),
    ("NVIDIA A1000", 0, 0.0),
    (None, 0, 0.0),
  )
  def test_memory_is_what_the_name_says(self, device, gib, flops):
    found = hardware.gpu_profile(
      {"compute_capability": (8, 0), "device_name": device}
    )
    self.assertEqual((found.memory, found.flops), (gib * 2**30, flops))
    self.assertEqual(found.precision, "bfloat16")

  @parameterized.parameters(
    ({"compute_capability": (7, 0)}, "float32"),
    ({"compute_capability": (9, 0)}, "bfloat16"),
    ({}, "float32"),
  )
  def test_auto_asks_the_first_gpu(self, details, precision):
    with (
      mock.patch.object(tf.config, "list_physical_devices", {"GPU": [0]}.get),
      mock.patch.object(
        tf.config.experimental, "get_device_details", {0: details}.get
      ),
    ):
      layout = Layout().resolve()
    self.assertEqual(layout.precision, precision)
    self.assertEqual(layout.rgb_convs, "plain")  # A CPU's is a product.


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
    asked = Layout(hardware=name, pad_channels=4).resolve()
    self.assertEqual(asked, layout._replace(pad_channels=4))
    self.assertNotIn(None, layout)
    self.assertEqual(layout.precision, hardware.PROFILES[name].precision)

  def test_auto_is_what_the_program_runs_on(self):
    cpu, tpu = (Layout(hardware=name).resolve() for name in ("cpu", "tpu_v3"))
    self.assertEqual(Layout().resolve(), cpu)
    with testing.strategy().scope():
      self.assertEqual(Layout().resolve(), cpu)
    with tf_private.trace_for_tpu_shards(8):
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
    ({"pad_channels": 0}, "`pad_channels` .* 0"),
    ({"pad_channels": "all"}, "`pad_channels` .* 'all'"),
  )
  def test_bad_values_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      Layout(**options)


if __name__ == "__main__":
  tf.test.main()
