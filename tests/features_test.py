"""The packaged classifier has its recorded accuracy, for any image size."""

import hashlib
import importlib.resources
import json

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import features

_OUTPUTS = importlib.resources.files("paragan_tf.outputs") / "files"
_DATA = importlib.resources.files("paragan_tf.data") / "files"

_classifier = None


def classifier() -> features.FashionClassifier:
  """Returns one classifier for all tests, made at the first call."""
  global _classifier
  _classifier = _classifier or features.FashionClassifier()
  return _classifier


def draw_embedded(count):
  """Returns embedded images, `[count, 32, 32, 1]`, and their labels."""
  with (_DATA / "fashion_mnist.npz").open("rb") as f:
    data = np.load(f)
    images, labels = data["images"][:count], data["labels"][:count]
  images = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None]
  return (images / 127.5 - 1).astype(np.float32), labels


def metadata():
  return json.loads(str(features.load_weights()["metadata"]))


class FashionClassifierTest(tf.test.TestCase, parameterized.TestCase):
  def test_recorded_accuracy_is_right(self):
    images, labels = draw_embedded(10000)
    right = [
      np.argmax(classifier()(images[i : i + 500]).logits, -1)
      == labels[i : i + 500]
      for i in range(0, len(images), 500)
    ]
    accuracy = np.mean(right)
    self.assertNear(accuracy, metadata()["test_accuracy"], 1e-3)
    self.assertBetween(accuracy, 0.9, 0.96)

  def test_file_is_below_one_megabyte(self):
    size = len((_OUTPUTS / "fashion_classifier.npz").read_bytes())
    self.assertBetween(size, 100_000, 1_000_000)

  def test_hash_is_of_the_weights(self):
    weights = features.load_weights()
    del weights["metadata"]
    content = b"".join(weights[name].tobytes() for name in sorted(weights))
    self.assertEqual(classifier().sha256, hashlib.sha256(content).hexdigest())
    self.assertEqual(classifier().sha256, metadata()["sha256"])

  def test_forward_pass_is_that_of_a_plain_convolutional_net(self):
    images, _ = draw_embedded(3)
    w = {k: v for k, v in features.load_weights().items() if k != "metadata"}
    x = images
    for layer in ("conv0", "conv1", "conv2"):
      x = _convolve(x, w[f"{layer}_kernel"], w[f"{layer}_bias"])
      b, h, c = len(x), x.shape[1] // 2, x.shape[3]
      x = x.reshape(b, h, 2, h, 2, c).max(axis=(2, 4))
    kernel, bias = w["features_kernel"], w["features_bias"]
    x = np.maximum(x.reshape(len(x), -1) @ np.float32(kernel) + bias, 0)
    logits = x @ np.float32(w["logits_kernel"]) + w["logits_bias"]
    result = classifier()(images)
    self.assertAllClose(result.features, x, rtol=1e-3, atol=1e-3)
    self.assertAllClose(result.logits, logits, rtol=1e-3, atol=1e-3)

  @parameterized.named_parameters(
    ("native", (5, 32, 32, 1)),
    ("smaller", (2, 28, 28, 1)),
    ("larger_in_color", (3, 64, 64, 3)),
    ("oblong", (1, 24, 40, 3)),
  )
  def test_shapes_follow_the_batch_alone(self, shape):
    result = classifier()(np.zeros(shape, np.float32))
    self.assertEqual(result.features.shape, (shape[0], 96))
    self.assertEqual(result.logits.shape, (shape[0], 10))

  def test_batches_and_sizes_share_one_trace(self):
    net = features.FashionClassifier()
    for shape in ((1, 32, 32, 1), (7, 32, 32, 1), (2, 48, 48, 3)):
      net(np.zeros(shape, np.float32))
    self.assertEqual(net.__call__.experimental_get_tracing_count(), 1)

  def test_rows_do_not_depend_on_their_batch(self):
    images, _ = draw_embedded(6)
    alone = classifier()(images[4:5])
    self.assertAllClose(alone.features[0], classifier()(images).features[4])

  def test_color_counts_only_by_its_mean(self):
    gray, _ = draw_embedded(4)
    shift = np.array([0.25, -0.5, 0.25], np.float32)
    self.assertAllClose(
      classifier()(gray + shift).logits, classifier()(gray).logits, atol=1e-3
    )

  def test_larger_images_are_averaged(self):
    images, _ = draw_embedded(4)
    double = images.repeat(2, axis=1).repeat(2, axis=2)
    # What averages to the image is, for the classifier, the image.
    double[:, ::2] += 0.5
    double[:, 1::2] -= 0.5
    self.assertAllClose(
      classifier()(double).logits, classifier()(images).logits, atol=1e-3
    )

  def test_smaller_images_are_interpolated(self):
    ramp = np.linspace(-1, 1, 16, dtype=np.float32)
    image = np.broadcast_to(ramp[None, :, None, None], (1, 16, 16, 1))
    gray = features.to_gray(tf.constant(image), 32)
    # Rows 2i and 2i + 1 lie a quarter of a pixel off row i.
    step = ramp[1] - ramp[0]
    self.assertAllClose(gray[0, 2:-2:2, 5, 0], ramp[1:-1] - step / 4)
    self.assertAllClose(gray[0, 3:-2:2, 5, 0], ramp[1:-1] + step / 4)

  def test_noise_lowers_the_accuracy(self):
    images, labels = draw_embedded(500)
    noisy = images + np.random.RandomState(0).normal(0, 1, images.shape)
    clean = np.mean(np.argmax(classifier()(images).logits, -1) == labels)
    noisy = classifier()(noisy.astype(np.float32)).logits
    self.assertLess(np.mean(np.argmax(noisy, -1) == labels), clean - 0.2)

  def test_nothing_is_left_for_a_checkpoint_or_an_optimizer(self):
    self.assertEmpty(classifier().variables)

  def test_works_inside_the_graph_of_another_function(self):
    images, _ = draw_embedded(2)
    traced = tf.function(lambda x: classifier()(x).logits)
    self.assertAllClose(
      traced(tf.constant(images)), classifier()(images).logits
    )


def _convolve(x, kernel, bias):
  """A 3x3 convolution as a sum over kernel positions, then ReLU."""
  h, w = x.shape[1:3]
  x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  y = np.float32(bias)
  for i in range(3):
    for j in range(3):
      y = y + x[:, i : i + h, j : j + w] @ np.float32(kernel[i, j])
  return np.maximum(y, 0)


if __name__ == "__main__":
  tf.test.main()
