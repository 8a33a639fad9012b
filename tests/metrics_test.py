"""Metrics have their known values; different protocols never compare."""

import dataclasses
import json

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import features, metrics

PROTOCOL = metrics.Protocol(
  extractor="mean",
  extractor_sha256="ab" * 32,
  resizer="none",
  num_samples=2000,
  num_reference=8000,
  reference_split="train",
  ema=True,
  truncation=None,
  bn_mode="stored",
  seed=0,
)
SAMPLING = metrics.Sampling(ema=False, truncation=0.5, bn_mode="batch", seed=3)


def gaussian(mean, deviations):
  """A set with exactly this mean and these deviations, uncorrelated.

  Two points on each axis: they add `x^2 + x^2` to its sum of squares, which
  the covariance divides by `n - 1`.
  """
  d = len(deviations)
  x = np.diag(np.asarray(deviations) * np.sqrt((2 * d - 1) / 2))
  return np.concatenate([x, -x]) + mean


def random_features(seed, n=300, d=6, rank=None):
  rng = np.random.RandomState(seed)
  mix = rng.normal(size=(rank or d, d))
  return rng.normal(size=(n, rank or d)) @ mix + rng.normal(size=d)


class FrechetDistanceTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("same", (0, 0), (1, 2), (0, 0), (1, 2), 0.0),
    ("mean", (0, 0), (1, 2), (3, 4), (1, 2), 25.0),
    ("deviation", (0, 0), (1, 2), (0, 0), (4, 2), 9.0),
    ("both", (1, 1), (1, 5), (1, 3), (3, 2), 4 + 4 + 9.0),
    ("flat", (0, 0), (1, 0), (0, 0), (0, 2), 1 + 4.0),
  )
  def test_diagonal_gaussians(self, mean_a, dev_a, mean_b, dev_b, expected):
    """Without correlation it is |mean_a - mean_b|^2 + |dev_a - dev_b|^2."""
    a, b = gaussian(mean_a, dev_a), gaussian(mean_b, dev_b)
    self.assertAllClose(np.cov(a.T), np.diag(np.square(dev_a)))
    self.assertNear(metrics.frechet_distance(a, b), expected, 1e-9)

  def test_correlation_counts(self):
    """The same axes' lengths, turned by 45 degrees.

    For A = diag(9, 1) and B = [[5, 4], [4, 5]], (tr (AB)^1/2)^2 is
    tr AB + 2 sqrt(det AB) = 50 + 2 * 9.
    """
    turn = np.array([[1, 1], [-1, 1]]) / np.sqrt(2)
    a = gaussian((0, 0), (3, 1))
    self.assertNear(
      metrics.frechet_distance(a, a @ turn), 20 - 2 * np.sqrt(68), 1e-9
    )

  @parameterized.named_parameters(
    ("full_rank", None, 1.0),
    ("dead_features", 3, 1.0),
    ("dead_and_large", 3, 100.0),
  )
  def test_distance_of_a_set_to_itself_is_zero(self, rank, scale):
    a = random_features(0, d=40, rank=rank) * scale
    for other in (a, a[::-1]):
      distance = metrics.frechet_distance(a, other)
      self.assertBetween(distance, 0, 1e-6)

  def test_rounding_never_makes_it_negative(self):
    for seed in range(20):
      a = random_features(seed, n=50)
      self.assertBetween(metrics.frechet_distance(a, a[::-1]), 0, 1e-9)

  def test_different_null_spaces_lose_no_digits(self):
    axes = np.linalg.qr(random_features(0, n=40, d=40))[0]
    a = random_features(1, d=20) @ axes[:20]
    b = random_features(2, d=20) @ axes[20:]
    apart = np.sum(np.square(a.mean(0) - b.mean(0)))
    apart += np.trace(np.cov(a.T)) + np.trace(np.cov(b.T))
    self.assertNear(metrics.frechet_distance(a, b) / apart, 1, 1e-12)

  def test_order_of_the_sets_does_not_matter(self):
    a, b = random_features(1), random_features(2, n=200)
    ab, ba = metrics.frechet_distance(a, b), metrics.frechet_distance(b, a)
    self.assertNear(ab, ba, 1e-9)
    self.assertGreater(ab, 0.1)

  def test_translation_adds_its_square(self):
    a = random_features(1)
    v = np.array([1.0, -2, 0, 3, 0, 0.5])
    self.assertNear(metrics.frechet_distance(a, a + v), 14.25, 1e-9)

  def test_scale_counts_squared(self):
    a, b = random_features(1), random_features(2)
    self.assertNear(
      metrics.frechet_distance(3 * a, 3 * b),
      9 * metrics.frechet_distance(a, b),
      1e-8,
    )

  @parameterized.named_parameters(
    ("one_row", np.zeros((1, 3)), "shape"),
    ("one_axis", np.zeros(3), "shape"),
    ("other_width", np.zeros((4, 2)), "got 3 and 2"),
    ("nan", np.full((4, 3), np.nan), "4 of 4 rows"),
  )
  def test_refuses(self, b, message):
    with self.assertRaisesRegex(ValueError, message):
      metrics.frechet_distance(np.ones((4, 3)), b)


class LabelAgreementTest(tf.test.TestCase):
  def test_returns_the_fraction_that_matches(self):
    logits = np.array([[2, 1, 0], [0, 1, 9], [5, 6, 0], [-1, -3, -2]])
    self.assertEqual(metrics.label_agreement(logits, [0, 2, 0, 1]), 0.5)
    self.assertEqual(metrics.label_agreement(logits, [0, 2, 1, 0]), 1.0)

  def test_refuses_other_counts(self):
    with self.assertRaisesRegex(ValueError, r"\(4, 3\) and \(1,\)"):
      metrics.label_agreement(np.zeros((4, 3)), [0])


class MetricValueTest(tf.test.TestCase, parameterized.TestCase):
  def test_compares_values_of_one_protocol(self):
    a = metrics.MetricValue("frechet", 5.0, PROTOCOL, 1.0)
    b = metrics.MetricValue("frechet", 3.5, dataclasses.replace(PROTOCOL))
    self.assertEqual(metrics.compare(a, b), 1.5)

  @parameterized.named_parameters(
    ("seed", {"seed": 1}),
    ("truncation", {"truncation": 0.5}),
    ("two", {"num_samples": 10, "ema": False}),
    *(
      (f"field_{field.name}", {field.name: "other"})
      for field in dataclasses.fields(metrics.Protocol)
    ),
  )
  def test_never_compares_across_protocols(self, changes):
    a = metrics.MetricValue("frechet", 5.0, PROTOCOL)
    b = a._replace(protocol=dataclasses.replace(PROTOCOL, **changes))
    with self.assertRaises(ValueError) as raised:
      metrics.compare(a, b)
    for field in dataclasses.asdict(PROTOCOL):
      named = f"`{field}`" in str(raised.exception)
      self.assertEqual(named, field in changes, field)

  def test_never_compares_different_metrics(self):
    a = metrics.MetricValue("frechet", 5.0, PROTOCOL)
    with self.assertRaisesRegex(ValueError, "`name`: 'frechet' and 'other'"):
      metrics.compare(a, a._replace(name="other"))

  @parameterized.named_parameters(
    ("real_score", 1.25, 0.5), ("no_real_score", None, None)
  )
  def test_json_round_trip(self, real_score, truncation):
    protocol = dataclasses.replace(PROTOCOL, truncation=truncation)
    value = metrics.MetricValue("frechet", 5.0, protocol, real_score)
    fields = json.loads(json.dumps({"step": 7, **value.to_json()}))
    self.assertEqual(metrics.MetricValue.from_json(fields), value)
    fields["floor"] = fields.pop("real_score")  # As older runs call it.
    self.assertEqual(metrics.MetricValue.from_json(fields), value)

  def test_json_of_another_version_is_refused(self):
    fields = metrics.MetricValue("a", 1.0, PROTOCOL).to_json()
    del fields["protocol"]["seed"]
    with self.assertRaisesRegex(ValueError, "`protocol` must have the fields"):
      metrics.MetricValue.from_json(fields)


class RecognizedTest(tf.test.TestCase):
  def test_a_class_counts_if_it_is_better_than_chance(self):
    # Ten classes of 100: chance is 10, two standard errors are 6.
    hits = [0, 5, 10, 15, 16, 17, 18, 50, 99, 100]
    labels = np.repeat(np.arange(10), 100)
    guesses = np.concatenate(
      [
        np.where(np.arange(100) < n, c, (c + 1) % 10)
        for c, n in enumerate(hits)
      ]
    )
    self.assertEqual(metrics.count_recognized(np.eye(10)[guesses], labels), 5)

  def test_one_prediction_for_all_recognizes_one_class(self):
    labels = np.repeat(np.arange(10), 100)
    same = np.eye(10)[np.zeros(1000, int)]
    self.assertEqual(metrics.count_recognized(same, labels), 1)


class MeanExtractor:
  """Two features, the means of the image's halves; the larger is its class."""

  name = "mean"
  sha256 = "cd" * 32
  resizer = "none"

  def __init__(self):
    self.batches = []

  def __call__(self, images):
    self.batches.append(len(images))
    halves = tf.stack(
      [
        tf.reduce_mean(images[:, :2], (1, 2, 3)),
        tf.reduce_mean(images[:, 2:], (1, 2, 3)),
      ],
      axis=-1,
    )
    return features.Features(halves, halves)


def half_images(labels, seed):
  """`[n, 4, 4, 1]`: the half that `labels` names is lighter, on average."""
  rng = np.random.RandomState(seed)
  values = rng.uniform(-0.4, 0.2, (len(labels), 2))
  values[np.arange(len(labels)), labels] += 0.3
  images = np.repeat(values, 2, axis=1)[:, :, None, None]
  return np.broadcast_to(images, (len(labels), 4, 4, 1)).astype(np.float32)


class MeasureTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.RandomState(0)
    self.labels = rng.randint(0, 2, 50)
    self.heldout = half_images(self.labels, 1)
    self.reference = half_images(rng.randint(0, 2, 120), 2)
    self.extractor = MeanExtractor()

  def measure(self, sample_fn, **kwargs):
    kwargs = {"heldout_labels": self.labels, "batch_size": 16, **kwargs}
    suite = metrics.MetricSuite(
      self.extractor, self.reference, self.heldout, **kwargs
    )
    values = suite.measure(sample_fn, SAMPLING, kwargs.get("progress"))
    return {value.name: value for value in values}

  def test_samples_that_are_the_heldout_images_get_the_real_score(self):
    values = self.measure(
      lambda labels, start: self.heldout[start : start + len(labels)]
    )
    self.assertCountEqual(
      values, ["frechet", "label_agreement", "classes_recognized"]
    )
    for value in values.values():
      self.assertEqual(value.value, value.real_score)
      self.assertGreater(value.real_score, 0)

  def test_value_and_real_score_equal_the_metric_functions(self):
    samples = half_images(1 - self.labels, 5)
    values = self.measure(lambda y, i: tf.constant(samples[i : i + len(y)]))
    reference, heldout, fake = (
      self.extractor(x).features.numpy()
      for x in (self.reference, self.heldout, samples)
    )
    frechet, agreement = values["frechet"], values["label_agreement"]
    self.assertNear(
      frechet.value, metrics.frechet_distance(fake, reference), 1e-9
    )
    self.assertNear(
      frechet.real_score, metrics.frechet_distance(heldout, reference), 1e-9
    )
    self.assertEqual(
      agreement.value, metrics.label_agreement(fake, self.labels)
    )
    self.assertEqual(
      agreement.real_score, metrics.label_agreement(heldout, self.labels)
    )
    self.assertLess(agreement.value, 0.5)
    self.assertGreater(agreement.real_score, 0.5)

  def test_samples_are_drawn_for_the_heldout_labels_in_order(self):
    asked = []

    def sample_fn(labels, start):
      self.assertEqual(labels.dtype, np.int32)
      self.assertEqual(start, sum(map(len, asked)))
      asked.append(labels)
      return half_images(labels, start)

    self.measure(sample_fn)
    self.assertEqual([len(labels) for labels in asked], [16, 16, 16, 2])
    self.assertAllEqual(np.concatenate(asked), self.labels)

  def test_num_samples_limits_value_and_real_score(self):
    values = self.measure(half_images, num_samples=20)
    self.assertEqual(self.extractor.batches, [16] * 7 + [8] + [16, 4] * 2)
    heldout = self.extractor(self.heldout[:20]).features.numpy()
    reference = self.extractor(self.reference).features.numpy()
    self.assertNear(
      values["frechet"].real_score,
      metrics.frechet_distance(heldout, reference),
      1e-9,
    )

  def test_protocol_describes_the_measurement(self):
    values = self.measure(half_images, num_samples=20, reference_split="x")
    expected = metrics.Protocol(
      extractor="mean",
      extractor_sha256="cd" * 32,
      resizer="none",
      num_samples=20,
      num_reference=120,
      reference_split="x",
      ema=False,
      truncation=0.5,
      bn_mode="batch",
      seed=3,
    )
    for value in values.values():
      self.assertEqual(value.protocol, expected)

  def test_without_labels_only_the_distance_is_measured(self):
    values = self.measure(lambda y, i: half_images(y, i), heldout_labels=None)
    self.assertCountEqual(values, ["frechet"])

  def test_features_of_real_images_are_computed_once(self):
    suite = metrics.MetricSuite(
      self.extractor, self.reference, self.heldout, self.labels
    )
    self.assertEqual(self.extractor.batches, [120, 50])
    for _ in range(2):
      suite.measure(half_images, SAMPLING)
    self.assertEqual(self.extractor.batches, [120, 50, 50, 50])

  def test_uint8_images_are_converted_to_floats(self):
    def to_uint8(images):
      return np.round((images + 1.0) * 127.5).astype(np.uint8)

    self.reference, self.heldout = (
      to_uint8(self.reference),
      to_uint8(self.heldout),
    )
    got = self.measure(half_images)["frechet"]
    self.reference, self.heldout = (
      x.astype(np.float32) / 127.5 - 1.0 for x in (self.reference, self.heldout)
    )
    self.assertEqual(got, self.measure(half_images)["frechet"])

  def test_a_probe_knows_the_classes_that_the_extractor_does_not(self):
    labels = np.random.RandomState(3).randint(0, 2, 120)
    self.reference = half_images(labels, 2)
    unknown = {"knows_classes": False}
    self.assertCountEqual(self.measure(half_images, **unknown), ["frechet"])
    values = self.measure(half_images, reference_labels=labels, **unknown)
    right, wrong = (
      values["label_agreement"],
      self.measure(
        lambda y, i: half_images(1 - y, i), reference_labels=labels, **unknown
      )["label_agreement"],
    )
    self.assertGreater(right.value, 0.7)
    self.assertLess(wrong.value, 0.3)
    self.assertEqual(right.protocol.extractor, "mean with a probe")
    self.assertEqual(values["frechet"].protocol.extractor, "mean")
    self.assertEqual(values["classes_recognized"].value, 2)

  def test_progress_ends_at_the_total(self):
    calls = []
    self.measure(half_images, progress=lambda *call: calls.append(call))
    self.assertEqual(calls[0], (16, 170))
    self.assertEqual(
      calls[-5:], [(170, 170), (16, 50), (32, 50), (48, 50), (50, 50)]
    )
    self.assertEqual(calls[:-4], sorted(set(calls[:-4])))

  def test_more_samples_than_heldout_images_are_refused(self):
    with self.assertRaisesRegex(ValueError, "`heldout_images`, 50, got 51"):
      self.measure(half_images, num_samples=51)

  def test_labels_must_match(self):
    with self.assertRaisesRegex(ValueError, "got 50 and 3"):
      self.measure(half_images, heldout_labels=self.labels[:3])

  def test_a_sampler_that_returns_too_few_is_refused(self):
    with self.assertRaisesRegex(ValueError, r"\[16, h, w, c\], got \(15, 4"):
      self.measure(lambda labels, start: half_images(labels[1:], start))


if __name__ == "__main__":
  tf.test.main()
