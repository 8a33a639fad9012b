"""Images are decoded, cropped, resized and augmented."""

import io

import numpy as np
import PIL.Image
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import transforms
from paragan_tf.data.transforms import Transform

# 6 rows, 10 columns; red is the column, green the row.
PIXELS = np.zeros([6, 10, 3], np.uint8)
PIXELS[..., 0] = 20 * np.arange(10)
PIXELS[..., 1] = 40 * np.arange(6)[:, None]


def encode(kind, pixels=PIXELS, **options):
  """Returns the bytes of a file."""
  file = io.BytesIO()
  PIL.Image.fromarray(pixels).save(file, kind, **options)
  return file.getvalue()


def decode(transform, resolution=6, position=0, seed=0, kind="png"):
  """Returns the image that a run would get."""
  content = tf.constant(encode(kind))
  position = tf.constant(position, tf.int64)
  return transform.decode(content, resolution, 3, seed, position).numpy()


class DecodeTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("png", "png", {}),
    ("bmp", "bmp", {}),
    ("webp", "webp", {"lossless": True}),
    ("webp_with_loss", "webp", {}),
    ("jpeg", "jpeg", {}),
    ("jpeg_of_all_colors", "jpeg", {"quality": 100, "subsampling": 0}),
  )
  def test_every_kind_is_decoded_as_pillow_does(self, kind, options):
    content = encode(kind, **options)
    with PIL.Image.open(io.BytesIO(content)) as image:
      expected = np.asarray(image)
    got = transforms.decode_image(tf.constant(content), 3)
    self.assertAllEqual(got, expected)
    # Ops of newer releases decode WebP in color.
    if kind == "webp" and tf.__version__.startswith("2.15."):
      with self.assertRaisesRegex(tf.errors.OpError, "JPEG, PNG, GIF, BMP"):
        transforms.decode_image(tf.constant(content), 3, python=False)
    else:
      got = transforms.decode_image(tf.constant(content), 3, python=False)
      self.assertAllEqual(got, expected)

  def test_kinds_can_be_mixed_in_a_graph(self):
    contents = [encode("png"), encode("webp", lossless=True)]
    data = tf.data.Dataset.from_tensor_slices(contents)
    for image in data.map(lambda x: transforms.decode_image(x, 3)):
      self.assertAllEqual(image, PIXELS)

  @parameterized.parameters("center", "random", "none")
  def test_an_image_is_the_same_in_a_graph(self, crop):
    contents = [
      encode(kind, PIXELS[:, :width])
      for width in (6, 10, 4)
      for kind in ("png", "jpeg", "bmp", "webp", "gif")
    ]
    transform = Transform(crop=crop)

    def decode(position, content):
      return transform.decode(content, 6, 3, 7, position)

    data = tf.data.Dataset.from_tensor_slices(contents).enumerate()
    for (position, content), image in zip(data, data.map(decode)):
      self.assertAllEqual(image, decode(position, content))

  @parameterized.product(mode=["1", "P", "L", "RGB"], channels=[1, 3])
  def test_a_bitmap_of_any_kind_is_as_pillow_has_it(self, mode, channels):
    file = io.BytesIO()
    PIL.Image.fromarray(PIXELS).convert(mode).save(file, "bmp")
    got = transforms.decode_image(tf.constant(file.getvalue()), channels)
    with PIL.Image.open(file) as image:
      expected = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    self.assertAllEqual(got, expected.reshape([6, 10, channels]))

  @parameterized.parameters("png", "webp")
  def test_grey_is_one_channel(self, kind):
    got = transforms.decode_image(tf.constant(encode(kind)), 1)
    self.assertEqual(got.shape, [6, 10, 1])

  def test_the_center_is_cropped(self):
    self.assertAllEqual(decode(Transform()), PIXELS[:, 2:8])

  def test_without_crop_it_is_stretched(self):
    got = decode(Transform(crop="none", resize="area"), resolution=2)
    self.assertAllEqual(got[..., 0], [[40, 140]] * 2)
    self.assertAllEqual(got[..., 1], [[40, 40], [160, 160]])

  def test_a_random_crop_depends_on_seed_and_position(self):
    transform = Transform(crop="random")
    lefts = [
      int(decode(transform, position=i)[0, 0, 0]) // 20 for i in range(40)
    ]
    self.assertEqual(set(lefts), {0, 1, 2, 3, 4})
    again = [
      int(decode(transform, position=i)[0, 0, 0]) // 20 for i in range(40)
    ]
    self.assertEqual(lefts, again)
    other = [
      int(decode(transform, position=i, seed=1)[0, 0, 0]) // 20
      for i in range(40)
    ]
    self.assertNotEqual(lefts, other)

  def test_area_is_the_mean_of_the_covered_pixels(self):
    got = decode(Transform(resize="area"), resolution=3)
    blocks = PIXELS[:, 2:8].reshape([3, 2, 3, 2, 3]).mean((1, 3))
    self.assertAllEqual(got, np.round(blocks).astype(np.uint8))

  def test_bicubic_is_that_of_pillow(self):
    image = PIL.Image.fromarray(PIXELS[:, 2:8])
    expected = np.asarray(image.resize((4, 4), PIL.Image.BICUBIC)).astype(int)
    got = decode(Transform(), resolution=4).astype(int)
    self.assertAllClose(got, expected, atol=1)

  @parameterized.parameters(
    (dict(crop="middle"), "`Transform.crop` must be one of.*got 'middle'"),
    (dict(resize="nearest"), "`Transform.resize` must be one of.*'nearest'"),
  )
  def test_unknown_options_are_refused(self, options, words):
    with self.assertRaisesRegex(ValueError, words):
      Transform(**options)


class ToFloatsTest(tf.test.TestCase):
  def floats(self, transform, positions=tuple(range(200)), seed=0):
    """Returns the same image at several positions."""
    images = tf.constant(np.stack([PIXELS[:, 2:8]] * len(positions)))
    positions = tf.constant(positions, tf.int64)
    return transform.to_floats(images, seed, positions).numpy()

  def test_by_default_pixels_are_only_scaled(self):
    got = self.floats(Transform(), [0])[0]
    self.assertAllClose(got, PIXELS[:, 2:8] / 127.5 - 1.0)

  def test_about_half_of_the_images_are_mirrored(self):
    got = self.floats(Transform(flip=True))
    plain = self.floats(Transform())
    mirrored = np.all(got == plain[:, :, ::-1], (1, 2, 3))
    self.assertAllEqual(got[~mirrored], plain[~mirrored])
    self.assertBetween(mirrored.sum(), 70, 130)

  def test_noise_fills_the_step_between_two_values(self):
    got = self.floats(Transform(dequantize=True))
    noise = (got + 1.0) * 128.0 - PIXELS[:, 2:8].astype(np.float32)
    self.assertAllInRange(noise, -1e-4, 1.0 + 1e-4)
    self.assertAllClose(noise.mean(), 0.5, atol=0.01)
    self.assertAllClose(noise.std(), 12**-0.5, atol=0.01)
    self.assertNotAllClose(noise[0], noise[1])

  def test_randomness_depends_on_the_position_not_on_the_batch(self):
    transform = Transform(flip=True, dequantize=True)
    whole = self.floats(transform)
    self.assertAllEqual(self.floats(transform, [7, 150]), whole[[7, 150]])
    one = transform.to_floats(
      tf.constant(PIXELS[:, 2:8]), 0, tf.constant(7, tf.int64)
    )
    self.assertAllEqual(one, whole[7])
    self.assertNotAllClose(self.floats(transform, seed=1), whole)


if __name__ == "__main__":
  tf.test.main()
