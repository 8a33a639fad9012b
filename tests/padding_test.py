"""Padded nets compute what unpadded ones do, on every backbone."""

import contextlib
import json
from unittest import mock

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, hardware
from paragan_tf.hardware import Layout
from paragan_tf.nets import blocks, fused, layers, norms
from paragan_tf.types import ImageSpec, Mode
from tests import nets_test, testing

INIT = layers.normal_init(0.5, seed=1)
NORM = norms.BatchNorm
# A net for each layer that treats channels in its own way.
QUICK = tuple(
  case
  for case in nets_test.SMALL
  if case[0]
  in ("dcgan", "sagan", "layer_norm_wgan_gp", "biggan_deep", "contragan")
)
TOLERANCE = 1e-10  # In float64.
OTHERS = tuple(case for case in nets_test.CASES if case not in QUICK)


@contextlib.contextmanager
def in_float64():
  """Lets nets compute in float64, where it is float32 otherwise.

  In float32, rounding takes some pixels past the kink of a relu.
  """
  double = tf.float64

  def with_double(fn):
    return lambda *args, dtype=double, **kwargs: fn(*args, dtype, **kwargs)

  def variable(value, *args, **kwargs):
    return made(tf.cast(value, double), *args, **kwargs)

  made, one_hot = tf.Variable, tf.one_hot
  with mock.patch.multiple(
    tf,
    float32=double,
    Variable=variable,
    zeros=with_double(tf.zeros),
    ones=with_double(tf.ones),
    one_hot=lambda *args: tf.cast(one_hot(*args), double),
  ):
    yield


def make_pair(make, spec, files, bindings):
  """Returns a pair as gin lays it out, weights moved from first values."""
  gin.clear_config()
  config.load(files, ["from paragan_tf import hardware", *bindings])
  pair = nets_test.make(make, spec)
  cast = [
    tf.cast(x, tf.float64) if x is not None and x.dtype.is_floating else x
    for x in pair.batch
  ]
  return nets_test.perturb(pair._replace(batch=pair.batch._make(cast)))


def compute(pair, mode):
  """Returns images, verdict, all gradients, and the state that is left."""
  g, d, batch = pair
  with tf.GradientTape() as tape:
    images = g(batch.z, batch.labels, mode)
    verdict = d.judge(images, batch.labels, mode)
    parts = [x for x in verdict if x is not None]
    loss = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in parts])
  weights = [*g.trainable_variables, *d.trainable_variables]
  grads = tape.gradient(loss, weights, unconnected_gradients="zero")
  state = [v for net in (g, d) for v in net.variables if not v.trainable]
  return [np.array(x) for x in [images, *parts, *grads, *state]]


class PaddingTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def check(self, make, spec, mode=Mode.TRAIN, bindings=()):
    with in_float64():
      plain = make_pair(make, spec, [], bindings)
      padded = make_pair(make, spec, ["gin/layout/padded128.gin"], bindings)
      expected, found = compute(plain, mode), compute(padded, mode)
    for one, other in zip(plain, padded):
      if isinstance(one, tf.Module):
        names = [(v.name, v.shape) for v in other.variables]
        self.assertEqual(names, [(v.name, v.shape) for v in one.variables])
    self.assertLen(found, len(expected))
    largest = max(float(np.abs(x).max()) for x in expected)
    for one, other in zip(found, expected):
      self.assertEqual(one.dtype, np.float64)
      self.assertEqual(one.shape, other.shape)
      # Biases before a norm have no gradient but rounding.
      size = max(0.03 * largest, float(np.abs(other).max()))
      self.assertAllClose(one, other, rtol=0, atol=TOLERANCE * size)

  @parameterized.named_parameters(*QUICK)
  def test_values_and_gradients_are_the_same(self, make, spec):
    self.check(make, spec)

  @parameterized.named_parameters(*OTHERS)
  @pytest.mark.soak
  def test_so_they_are_of_all_nets(self, make, spec):
    self.check(make, spec)

  @parameterized.named_parameters(*nets_test.CASES)
  @pytest.mark.soak
  def test_so_they_are_with_the_layout_of_a_tpu(self, make, spec):
    self.check(make, spec, bindings=["hardware.Layout.hardware = 'tpu_v3'"])

  def test_joined_projections_and_stored_statistics_may_be_padded(self):
    bindings = ["hardware.Layout.hardware = 'tpu_v3'"]
    make = nets_test.biggan_pair
    for mode in (Mode.TRAIN, Mode.EVAL):
      self.check(make, nets_test.GREY32, mode, bindings)

  def test_padding_is_zero_and_goes_from_layer_to_layer(self):
    with gin.unlock_config():
      gin.bind_parameter("hardware.Layout.pad_channels", 8)
    block = blocks.GeneratorBlock(5, 3, INIT, norms.BatchNorm, True, "block")
    for norm in (block.norm1, block.norm2):
      norm.beta.assign(tf.ones_like(norm.beta))
    y = block(
      tf.random.stateless_normal([2, 4, 4, 5], [0, 1]), None, Mode.TRAIN
    )
    self.assertEqual(y.shape, [2, 8, 8, 8])
    self.assertAllEqual(y[..., 3:], tf.zeros([2, 8, 8, 5]))
    self.assertGreater(np.abs(y[..., :3]).min(), 0)
    widths = [(x.widths.inputs, x.widths.outputs) for x in (block.conv1,)]
    self.assertEqual(widths, [(8, 8)])

  @parameterized.parameters(
    (lambda: blocks.DeepGeneratorBlock(16, 8, INIT, NORM, True, True, "b"), 16),
    (lambda: blocks.DeepDiscriminatorBlock(8, 16, INIT, True, True, "b"), 8),
  )
  def test_shortcuts_drop_and_add_channels_without_padding(self, make, inputs):
    x, found = tf.random.stateless_normal([2, 4, 4, inputs], [0, 1]), []
    for multiple in (1, 12):
      with gin.unlock_config():
        gin.bind_parameter("hardware.Layout.pad_channels", multiple)
      block = make()
      with tf.GradientTape() as tape:
        entry = tf.pad(x, [[0, 0]] * 3 + [[0, -inputs % multiple]])
        tape.watch(x)
        y = block(entry, None, Mode.TRAIN)
        loss = tf.reduce_sum(tf.sin(y))
      found.append((y, tape.gradient(loss, block.trainable_variables)))
    (plain, grads), (padded, padded_grads) = found
    outputs = plain.shape[-1]
    self.assertAllClose(padded[..., :outputs], plain, rtol=1e-4, atol=1e-4)
    self.assertAllEqual(padded[..., outputs:], 0.0 * padded[..., outputs:])
    for one, other in zip(padded_grads, grads):
      self.assertAllClose(one, other, rtol=1e-3, atol=1e-3)

  def test_every_layer_of_a_net_computes_whole_tiles(self):
    with gin.unlock_config():
      gin.bind_parameter("hardware.Layout.pad_channels", 16)
      gin.bind_parameter("hardware.Layout.hardware", "tpu_v3")
    spec = ImageSpec(32, 3, 4)
    g, d = nets_test.biggan_pair(spec, 0)
    batch = testing.batch(2, spec, nets_test.Z_DIM)

    @tf.function(autograph=False)
    def step(images):
      fakes = g(batch.z, batch.labels, Mode.FROZEN)
      return d(fakes + images, batch.labels, Mode.FROZEN)

    graph = step.get_concrete_function(batch.images).graph
    kernels = [
      op.inputs[1].shape for op in graph.get_operations() if op.type == "Conv2D"
    ]
    self.assertGreater(len(kernels), 20)
    for shape in kernels:
      self.assertEqual([size % 16 for size in shape[2:]], [0, 0], shape)

  def test_auto_pads_what_is_faster_padded_at_every_resolution(self):
    rows = [
      {"width": width, "plain": plain, "padded": padded}
      for width, plain, padded in (
        *((20, 9, 9), (20, 9, 8)),
        *((96, 9, 8), (96, 9, 10)),
        *((148, 9, 8), (148, 7, 6)),
        *((192, 5, 5), (192, 6, 6)),
      )
    ]
    widths = hardware.list_padded_widths(rows)
    self.assertEqual(widths, (20, 148))
    layout = Layout("tpu_v3", pad_channels="auto").resolve()
    layout = layout._replace(padded_widths=widths)
    found = [layout.padded_width(w) for w in (20, 96, 128, 148, 192)]
    self.assertEqual(found, [128, 96, 128, 256, 192])

  @parameterized.parameters("cpu", "gpu_a100", "tpu_v5p")
  def test_auto_pads_nothing_where_nothing_was_measured(self, name):
    layout = Layout(name, pad_channels="auto").resolve()
    self.assertEqual(layout.padded_width(96), 96)

  def test_the_table_of_cycles_has_a_source_and_both_numbers(self):
    table = json.loads(hardware.PADDING_CYCLES.read_text())
    self.assertIn("tpu_v3", table)
    for name, measured in table.items():
      self.assertIn(name, hardware.PROFILES)
      self.assertIn("libtpu", measured["compiler"])
      for row in measured["rows"]:
        self.assertGreater(min(row["plain"], row["padded"]), 0)

  def test_the_batch_is_not_padded(self):
    with gin.unlock_config():
      gin.bind_parameter("hardware.Layout.pad_channels", 8)
    linear = layers.Linear(3, 5, INIT, True)
    y = linear(tf.ones([3, 3]), fused.begin(linear, Mode.TRAIN))
    self.assertEqual(y.shape, [3, 8])


if __name__ == "__main__":
  testing.main()
