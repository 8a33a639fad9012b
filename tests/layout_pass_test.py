"""The plan of all tensors says what the nets compute."""

import gin
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment, hardware
from paragan_tf.nets import layers, layout_pass
from paragan_tf.types import ImageSpec
from tests import testing
from tools import layout_plan

TPU = hardware.PROFILES["tpu_v3"]
SPEC = ImageSpec(32, 3, 4)
NETS = (
  "from paragan_tf import hardware",
  "from paragan_tf import experiment",
  "from paragan_tf.nets import biggan",
  "g/experiment.player.net = @biggan.Generator",
  "d/experiment.player.net = @biggan.Discriminator",
  "biggan.Generator.width = 24",
  "biggan.Generator.z_dim = 20",
  "biggan.Generator.shared_dim = 6",
  "biggan.Discriminator.width = 24",
  "experiment.player.precision = 'bfloat16'",
  "hardware.Layout.hardware = 'tpu_v3'",
)


def plan(*bindings):
  gin.clear_config()
  config.load([], [*NETS, *bindings])
  found = experiment.plan_layout(SPEC, 16)
  return {row.name: row for rows in found.values() for row in rows}


class LayoutPassTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_shapes_tiles_and_waste_of_a_plain_net(self):
    rows = plan()
    row = rows["d/block1/conv1"]
    self.assertEqual(row.shape, (16, 16, 16, 96))
    self.assertEqual(row.carried, row.shape)
    # Sixteen images fill the rows of a tile of bfloat16.
    self.assertEqual(row.tiles, (16, 16, 16, 128))
    self.assertAllClose([row.waste_before, row.waste_after], [0.25, 0.25])
    self.assertEqual((row.dtype, row.zeros), ("bfloat16", 0.0))
    self.assertEqual(rows["d/linear"].dtype, "float32")
    self.assertIn("stays float32", rows["d/linear"].dtype_reason)
    self.assertIn("precision", row.dtype_reason)

  def test_carried_padding_leaves_no_tile_empty(self):
    rows = plan("hardware.Layout.pad_channels = 128")
    row = rows["d/block1/conv1"]
    self.assertEqual(row.carried, (16, 16, 16, 128))
    self.assertAllClose([row.waste_before, row.waste_after], [0.25, 0.0])
    self.assertAllClose(row.zeros, 0.25)
    image = rows["g/conv"]
    self.assertEqual((image.shape[-1], image.carried[-1]), (3, 128))
    for row in rows.values():
      if len(row.shape) == 4:
        self.assertEqual(row.waste_after, 0.0, row.name)

  def test_forms_are_those_that_layers_compute(self):
    rows = plan()
    self.assertEqual(rows["g/block0/conv1"].form, "apart")
    self.assertIn("few pixels", rows["g/block0/conv1"].reason)
    self.assertEqual(rows["g/block2/conv1"].form, "strided")
    self.assertEqual(rows["g/block0/shortcut"].form, "on the small image")
    self.assertEqual(rows["g/conv"].form, "blocks")
    attention = rows["g/attention"]
    self.assertEqual(attention.form, "sum after product")
    self.assertEqual(attention.shape, (16, 256, 64))
    off = plan(
      "hardware.Layout.resizes = 'apart'", "hardware.Layout.rgb_convs = 'plain'"
    )
    self.assertEqual(off["g/block2/conv1"].form, "apart")
    self.assertEqual(off["g/conv"].form, "plain")

  def test_every_kernel_has_a_row(self):
    config.load([], NETS)
    with gin.config_scope("d"):
      net = experiment.player(SPEC, 0, "d").net
    labels = tf.TensorSpec([2], tf.int32)
    inputs = tf.TensorSpec([2, 32, 32, 3])
    rows = layout_pass.plan_net(net, inputs, labels, TPU)
    named = {row.name for row in rows}
    for module in net.submodules:
      # Attention computes three of its kernels as one.
      joined = "/attention/" in module.name_scope.name
      if isinstance(module, (layers.Conv, layers.Linear)) and not joined:
        self.assertIn(module.name_scope.name.rstrip("/"), named)

  def test_a_net_of_the_user_is_shown_by_its_weights(self):
    class Net(tf.Module):
      def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.zeros([3, 3, 96, 96]), name="w")

    (row,) = layout_pass.plan_net(Net(), tf.TensorSpec([2, 3]), None, TPU)
    self.assertEqual((row.shape, row.form), ((3, 3, 96, 96), "as written"))

  def test_the_tool_prints_the_plan_as_a_table_and_as_a_page(self):
    files = ["gin/runs/smoke.gin"]
    made = layout_plan.make_plan(files, [], "tpu_v3")
    self.assertEqual(list(made), ["g", "d"])
    text, page = layout_plan.format_text(made), layout_plan.format_html(made)
    for row in made["g"] + made["d"]:
      self.assertIn(row.name, text)
      self.assertIn(row.name, page)
    self.assertIn("empty before", text)
    self.assertNotIn("http", page.replace("http://www.w3.org", ""))


if __name__ == "__main__":
  testing.main()
