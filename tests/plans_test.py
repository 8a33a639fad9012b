"""Shapes and sizes of every backbone at every resolution, without memory."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.nets import (
  biggan,
  biggan_deep,
  contragan,
  dcgan,
  linear,
  plans,
  sagan,
  sngan,
  wgan_gp,
)
from paragan_tf.types import ImageSpec, Mode
from tests import abstract

# Trained numbers of G and D for 3 channels and 1000 classes: at 32 px, where
# nets have plans of their own, and at 128 px. There those of SNGAN (81.44 M
# in all), SAGAN (81.47 M), BigGAN (158.42 M) and ContraGAN (160.78 M) are the
# published ones to the last digit: attention at 64 px, latents of 128, 128, 120
# and 120, and 2C embeddings of 1536.
SNGAN = {32: (1136003, 328769), 128: (41996931, 39443137)}
NUM_WEIGHTS = {
  sngan: SNGAN,
  sagan: {32: (1141124, 333890), 128: (42017412, 39448258)},
  biggan: {32: (9542916, 10021250), 128: (70433988, 87982370)},
  contragan: {32: (9542916, 10169090), 128: (70433988, 90343202)},
  biggan_deep: {32: (7889668, 3415810), 128: (50244484, 34590210)},
  wgan_gp: SNGAN,
  dcgan: {32: (1968323, 4758977), 128: (16767939, 27546561)},
}
MILLIONS = (
  ("sngan", sngan, 81.44),
  ("sagan", sagan, 81.47),
  ("biggan", biggan, 158.42),
  ("contragan", contragan, 160.78),
)
# Channels at 4, 8, 16, ... px in units of 96, by the tables of BigGAN's
# appendix, and one step further.
BIGGAN_UNITS = {
  128: (16, 16, 8, 4, 2, 1),
  256: (16, 16, 8, 8, 4, 2, 1),
  512: (16, 16, 8, 8, 4, 2, 1, 1),
  1024: (16, 16, 8, 8, 4, 2, 1, 1, 1),
}


def make_cases(resolutions):
  """Returns one test case a net and resolution."""
  return [
    (f"{nets.__name__.split('.')[-1]}_{resolution}", nets, resolution)
    for nets in NUM_WEIGHTS
    for resolution in resolutions
  ]


def conv(inputs, outputs, size=3, bias=True):
  return size * size * inputs * outputs + outputs * bias


def attention(channels):
  return 2 * conv(channels, channels // 8, 1, False) + channels**2 + 1


def biggan_by_hand(resolution):
  """Returns the numbers of weights, layer by layer, not by our code."""
  c = [96 * unit for unit in BIGGAN_UNITS[resolution]]
  g = 20 * 16 * c[0] + 16 * c[0] + 1000 * 128
  for a, b in zip(c, c[1:]):
    g += 2 * (20 + 128) * (a + b)
    g += conv(a, b) + conv(b, b) + conv(a, b, 1)
  # At 64 px G's block has the channels of its end, D's those of its start.
  g += attention(c[4]) + 2 * 96 + conv(96, 3)
  d = attention(c[5]) + 1536 + 1 + 1000 * 1536
  for a, b in zip([3, *c[:0:-1]], c[::-1]):
    d += conv(a, b) + conv(b, b) + conv(a, b, 1)
  d -= conv(c[0], c[0], 1)  # The last block keeps size and width.
  return g, d


class SizeTest(tf.test.TestCase, parameterized.TestCase):
  def check(self, nets, resolution):
    """Looks at shapes; returns the numbers of weights."""
    spec = ImageSpec(resolution, channels=3, num_classes=1000)
    with abstract.sizes():
      g, d = nets.Generator(spec, 0), nets.Discriminator(spec, 0)
      z = tf.compat.v1.placeholder(tf.float32, [None, g.z_dim])
      labels = tf.compat.v1.placeholder(tf.int32, [None])
      images = g(z, labels, Mode.EVAL)
      verdict = d.judge(images, labels, Mode.EVAL)
    shape = [None, resolution, resolution, 3]
    self.assertEqual(images.shape.as_list(), shape)
    self.assertEqual(verdict.logits.shape.as_list(), [None])
    return abstract.num_weights(g), abstract.num_weights(d)

  @parameterized.named_parameters(*make_cases([32, 128]))
  def test_every_net_has_its_shapes_and_size(self, nets, resolution):
    found = self.check(nets, resolution)
    self.assertEqual(found, NUM_WEIGHTS[nets][resolution])

  @parameterized.named_parameters(*make_cases([64, 256, 512, 1024]))
  @pytest.mark.soak
  def test_every_net_has_its_shapes_and_size_at_every_resolution(
    self, nets, resolution
  ):
    found = self.check(nets, resolution)
    if nets is biggan and resolution in BIGGAN_UNITS:
      self.assertEqual(found, biggan_by_hand(resolution))

  @parameterized.named_parameters(*MILLIONS)
  def test_published_sizes_at_128_px(self, nets, millions):
    self.assertEqual(round(sum(NUM_WEIGHTS[nets][128]) / 1e6, 2), millions)

  def test_biggan_layer_by_layer(self):
    self.assertEqual(biggan_by_hand(128), NUM_WEIGHTS[biggan][128])

  @parameterized.parameters(*plans.RESOLUTIONS)
  def test_a_plan_leads_from_4_px_to_the_image_and_back(self, resolution):
    widths = plans.widths(resolution, 96)
    if resolution in BIGGAN_UNITS:
      units = BIGGAN_UNITS[resolution]
      self.assertEqual(widths, tuple(96 * unit for unit in units))
    self.assertEqual(4 * 2 ** (len(widths) - 1), resolution)
    downs = plans.downs(resolution)
    self.assertLen(downs, len(widths))
    end = 8 if resolution == 32 else 4
    self.assertEqual(plans.after(resolution, downs)[-1], end)

  def test_the_real_thing_agrees(self):
    spec = ImageSpec(32, 3, 4)
    g = biggan.Generator(spec, 0, width=2)
    d = biggan.Discriminator(spec, 0, width=2)
    with abstract.sizes():
      a = biggan.Generator(spec, 0, width=2)
      b = biggan.Discriminator(spec, 0, width=2)
    for real, shapes in ((g, a), (d, b)):
      self.assertEqual(
        [(v.name, v.shape, v.trainable) for v in real.variables],
        [(v.name, v.shape, v.trainable) for v in shapes.variables],
      )


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    *(
      (f"{nets.__name__.split('.')[-1]}_{size}_{player}", nets, size, player)
      for nets in (sagan, biggan, biggan_deep)
      for size in (4, 24, 128)
      for player in ("Generator", "Discriminator")
    )
  )
  def test_attention_stands_inside_the_net(self, nets, size, player):
    spec = ImageSpec(64, 3, 0)
    if size == 4 and player == "Discriminator":
      size = 2  # D comes down to 4 px.
    message = rf"`attention`.*\[.*32.*\].*got {size}"
    with abstract.sizes(), self.assertRaisesRegex(ValueError, message):
      getattr(nets, player)(spec, 0, attention=size)

  def test_the_place_of_attention(self):
    block = plans.attention_block
    self.assertIsNone(block(None, 64, [8, 16]))
    self.assertEqual(block(16, 64, [8, 16, 32]), 1)
    self.assertEqual(block("auto", 64, [8, 16, 32]), 2)
    self.assertEqual(block("auto", 512, [256, 128, 64]), 2)
    self.assertEqual(block(8, 32, [16, 8, 8, 8]), 1)
    with self.assertRaisesRegex(ValueError, "`attention`.*got 'here'"):
      block("here", 64, [8])

  @parameterized.named_parameters(("3", 3), ("21", 21))
  def test_a_latent_must_split_evenly(self, z_dim):
    with self.assertRaisesRegex(ValueError, f"`z_dim`.* 4,.*got {z_dim}"):
      biggan.Generator(ImageSpec(32, 3, 0), 0, z_dim=z_dim)

  def test_by_default_each_part_has_twenty(self):
    for resolution, z_dim in ((32, 80), (128, 120), (512, 160)):
      with abstract.sizes():
        g = biggan.Generator(ImageSpec(resolution, 3, 10), 0)
      self.assertEqual(g.z_dim, z_dim)

  def test_widths_must_suit_attention(self):
    with self.assertRaisesRegex(ValueError, "`width`.*8 divides, got 4"):
      sagan.Discriminator(ImageSpec(32, 3, 0), 0, width=4)

  def test_contragan_needs_classes(self):
    with self.assertRaisesRegex(ValueError, "`num_classes`.*2c"):
      contragan.Discriminator(ImageSpec(32, 3, 0), 0, width=2)
    with self.assertRaisesRegex(ValueError, "`num_classes`.*got 0: take"):
      contragan.Generator(ImageSpec(32, 3, 0), 0, width=2)

  @parameterized.named_parameters(
    ("width", sngan.Generator, {"width": 0}, "`width`.*got 0"),
    ("modulation", sngan.Generator, {"modulation": "x"}, "`modulation`.*'x'"),
    ("z_dim", sngan.Generator, {"z_dim": 0}, "`z_dim`.*got 0"),
    ("z_dim_dcgan", dcgan.Generator, {"z_dim": -1}, "`z_dim`.*got -1"),
    ("z_dim_deep", biggan_deep.Generator, {"z_dim": 0}, "`z_dim`.*got 0"),
    ("z_dim_split", biggan.Generator, {"z_dim": 0}, "`z_dim`.*got 0"),
    ("z_dim_linear", linear.Generator, {"z_dim": 0}, "`z_dim`.*got 0"),
    ("shared", biggan.Generator, {"shared_dim": 0}, "`shared_dim`.*got 0"),
    (
      "shared_deep",
      biggan_deep.Generator,
      {"shared_dim": -2},
      "`shared_dim`.*got -2",
    ),
    ("depth", biggan_deep.Generator, {"depth": 0}, "`depth`.*got 0"),
    ("depth_d", biggan_deep.Discriminator, {"depth": 0}, "`depth`.*got 0"),
  )
  def test_other_bad_values_are_refused(self, make, options, message):
    with self.assertRaisesRegex(ValueError, message):
      make(ImageSpec(32, 3, 0), 0, **options)


if __name__ == "__main__":
  tf.test.main()
