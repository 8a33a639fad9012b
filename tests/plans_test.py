"""Shapes and sizes of every backbone at every resolution, without memory."""

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

# Trained numbers of G and D for 3 channels and 1000 classes. Those at 128 px of
# SNGAN (81.44 M in all), SAGAN (81.47 M), BigGAN (158.42 M) and ContraGAN
# (160.78 M) are the published ones to the last digit: attention at 64 px,
# latents of 128, 128, 120 and 120, and 2C embeddings of 1536.
NUM_WEIGHTS = {
  sngan: {
    32: (1136003, 328769),
    64: (17974915, 20566721),
    128: (41996931, 39443137),
    256: (49027203, 44425409),
    512: (49361219, 44503425),
    1024: (49695235, 44581441),
  },
  sagan: {
    32: (1141124, 333890),
    64: (17995396, 20571842),
    128: (42017412, 39448258),
    256: (49109124, 44445890),
    512: (49443140, 44523906),
    1024: (49777156, 44601922),
  },
  biggan: {
    32: (9542916, 10021250),
    64: (24693444, 45511970),
    128: (70433988, 87982370),
    256: (82235844, 99225890),
    512: (82468068, 99401282),
    1024: (82700292, 99576674),
  },
  contragan: {
    32: (9542916, 10169090),
    64: (24693444, 47872802),
    128: (70433988, 90343202),
    256: (82235844, 101586722),
    512: (82468068, 101762114),
    1024: (82700292, 101937506),
  },
  biggan_deep: {
    32: (7889668, 3415810),
    64: (32935812, 20951554),
    128: (50244484, 34590210),
    256: (55736708, 38247426),
    512: (56019780, 38301122),
    1024: (56302852, 38354818),
  },
  wgan_gp: {
    32: (1136003, 328769),
    64: (17974915, 20566721),
    128: (41996931, 39443137),
    256: (49027203, 44425409),
    512: (49361219, 44503425),
    1024: (49695235, 44581441),
  },
  dcgan: {
    32: (1968323, 4758977),
    64: (5503427, 10956737),
    128: (16767939, 27546561),
    256: (35594179, 44324801),
    512: (54420419, 61103041),
    1024: (73246659, 77881281),
  },
}
CASES = tuple(
  (f"{nets.__name__.split('.')[-1]}_{resolution}", nets, resolution, numbers)
  for nets, rows in NUM_WEIGHTS.items()
  for resolution, numbers in rows.items()
)
MILLIONS = (
  ("sngan", sngan, 81.44),
  ("sagan", sagan, 81.47),
  ("biggan", biggan, 158.42),
  ("contragan", contragan, 160.78),
)


def conv(inputs, outputs, size=3, bias=True):
  return size * size * inputs * outputs + outputs * bias


def attention(channels):
  return 2 * conv(channels, channels // 8, 1, False) + channels**2 + 1


class SizeTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*CASES)
  def test_every_net_has_its_shapes_and_size(self, nets, resolution, numbers):
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
    found = abstract.num_weights(g), abstract.num_weights(d)
    self.assertEqual(found, numbers)

  @parameterized.named_parameters(*MILLIONS)
  def test_published_sizes_at_128_px(self, nets, millions):
    self.assertEqual(round(sum(NUM_WEIGHTS[nets][128]) / 1e6, 2), millions)

  def test_biggan_layer_by_layer(self):
    # By the table of the paper's appendix, not by our code.
    c = [96 * unit for unit in (16, 16, 8, 4, 2, 1)]
    g = 20 * 16 * c[0] + 16 * c[0] + 1000 * 128
    for a, b in zip(c, c[1:]):
      g += 2 * (20 + 128) * (a + b)
      g += conv(a, b) + conv(b, b) + conv(a, b, 1)
    g += attention(192) + 2 * 96 + conv(96, 3)
    d = attention(96) + 1536 + 1 + 1000 * 1536
    for a, b in zip([3, *c[:0:-1]], c[::-1]):
      d += conv(a, b) + conv(b, b) + (conv(a, b, 1) if a != b else 0)
    self.assertEqual((g, d), NUM_WEIGHTS[biggan][128])

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
    place = plans.attention_place
    self.assertIsNone(place(None, 64, [8, 16]))
    self.assertEqual(place(16, 64, [8, 16, 32]), 1)
    self.assertEqual(place("auto", 64, [8, 16, 32]), 2)
    self.assertEqual(place("auto", 512, [256, 128, 64]), 2)
    self.assertEqual(place(8, 32, [16, 8, 8, 8]), 1)
    with self.assertRaisesRegex(ValueError, "`attention`.*got 'here'"):
      place("here", 64, [8])

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
