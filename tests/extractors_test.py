"""Extractors are found by name, and wrong ones say what to do."""

import importlib
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import extractors, features, inception, mobile_net

IMAGES = np.random.RandomState(0).uniform(-1, 1, (3, 8, 8, 3)).astype("float32")


class Model(tf.Module):
  """Mean colors of images of 4 pixels a side, and logits."""

  def __init__(self):
    super().__init__()
    self.scale = tf.Variable(2.0)

  @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 3], tf.float32)])
  def __call__(self, images):
    colors = self.scale * tf.reduce_mean(images, (1, 2))
    return {"features": colors, "logits": colors[:, :2]}


class NetworkTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("features", lambda x: tf.reduce_mean(x, (1, 2)), False),
    ("a_map_of_features", lambda x: x, False),
    ("a_pair", lambda x: (x, x[:, 0, 0]), True),
    ("a_dict", lambda x: {"logits": x[:, 0, 0], "features": x}, True),
    ("pool_3", lambda x: {"logits": x[:, 0, 0], "pool_3": x}, True),
  )
  def test_a_function_returns(self, fn, has_logits):
    found = extractors.make(fn)(IMAGES)
    self.assertAllClose(found.features, IMAGES.mean((1, 2)), atol=1e-5)
    self.assertEqual(found.logits is not None, has_logits)

  def test_gray_images_get_three_colors(self):
    found = extractors.make(lambda x: x)(IMAGES[..., :1])
    self.assertEqual(found.features.shape, (3, 3))

  def test_values_have_the_range_of_the_network(self):
    net = extractors.Network(lambda x: x, value_range=(0.0, 1.0))
    expected = (IMAGES.mean((1, 2)) + 1) / 2
    self.assertAllClose(net(IMAGES).features, expected, atol=1e-5)
    self.assertEqual(net.resizer, "none, values 0 to 1")

  def test_features_of_a_wrong_shape_are_refused(self):
    with self.assertRaisesRegex(ValueError, r"\[b, d\] .* got \[3\]"):
      extractors.make(lambda x: x[:, 0, 0, 0])(IMAGES)

  def test_a_saved_model_is_loaded(self):
    path = os.path.join(self.get_temp_dir(), "My-Net")
    model = Model()
    tf.saved_model.save(model, path, signatures=model.__call__)
    net = extractors.make(f"saved_model:{path}")
    self.assertEqual(net.name, "my_net")
    self.assertEqual(net.resizer, "4, clean, values -1 to 1")
    self.assertLen(net.sha256, 64)
    gray = np.full((2, 8, 8, 1), 0.25, np.float32)
    found = net(gray)
    self.assertAllClose(found.features, np.full((2, 3), 0.5), atol=1e-5)
    self.assertEqual(found.logits.shape, (2, 2))

  def test_a_keras_file_is_loaded_also_beside_tf_keras(self):
    path = os.path.join(self.get_temp_dir(), "tiny.keras")
    images = tf.keras.Input((4, 4, 3))
    means = tf.keras.layers.GlobalAveragePooling2D()(images)
    tf.keras.Model(images, means).save(path)
    importlib.import_module("tf_keras")  # Keras 2.15 would look for ever.
    net = extractors.make(f"keras:{path}")
    self.assertEqual(net.name, "tiny")
    gray = np.full((2, 8, 8, 1), 0.25, np.float32)
    self.assertAllClose(net(gray).features, np.full((2, 3), 0.25), atol=1e-5)

  @parameterized.named_parameters(
    ("kind", "resnet", "must begin with 'inception', .* got 'resnet'"),
    ("no_path", "keras:", "must name what to load"),
    ("no_file", "keras:/no/file.keras", "no such file"),
    ("no_folder", "saved_model:/no/folder", "no such file"),
    ("resizer", "inception:nearest", "`Inception` needs|`resizer` must be"),
  )
  def test_wrong_names_are_refused(self, text, words):
    with self.assertRaisesRegex(ValueError, words):
      extractors.make(text)

  def test_hub_without_its_package_says_what_to_do(self):
    with (
      mock.patch.object(
        extractors.importlib.util, "find_spec", return_value=None
      ),
      self.assertRaisesRegex(ValueError, "tensorflow_hub: install it"),
    ):
      extractors.make("hub:https://example.com/net")

  def test_a_network_of_gray_images_is_refused(self):
    with self.assertRaisesRegex(ValueError, r"\[b, h, h, 3\], got .*1\]"):
      extractors._input_size((None, 28, 28, 1), "x")


class ChooseTest(tf.test.TestCase):
  def choose(self, has_inception, has_mobile_net, channels=3):
    path = __file__ if has_inception else "/no/such/file"
    with (
      mock.patch.object(inception, "DEFAULT_PATH", path),
      mock.patch.object(
        mobile_net, "is_installed", return_value=has_mobile_net
      ),
    ):
      return extractors.choose("auto", channels)

  def test_color_images_take_the_best_network_that_is_there(self):
    self.assertIs(self.choose(True, True).make, inception.Inception)
    self.assertIs(self.choose(False, True).make, mobile_net.MobileNet)

  def test_without_a_network_for_color_one_line_says_what_to_do(self):
    found = self.choose(False, False)
    self.assertIsNone(found.make)
    self.assertRegex(
      found.note, "^No metric .*`make inception`.*'mobilenet'`.$"
    )
    self.assertNotIn("\n", found.note)

  def test_gray_images_take_the_shipped_classifier(self):
    found = self.choose(True, True, channels=1)
    self.assertIs(found.make, features.FashionClassifier)

  def test_a_config_may_name_a_class_or_nothing(self):
    found = extractors.choose(features.FashionClassifier, 1)
    self.assertIs(found.make, features.FashionClassifier)
    self.assertEqual(extractors.choose(None, 3), (None, ""))


if __name__ == "__main__":
  tf.test.main()
