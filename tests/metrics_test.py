"""A suite measures by its protocol; different protocols never compare."""

import dataclasses
import json

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import (
  distances,
  features,
  measures,
  metrics,
  neighbors,
  statistics,
  streaming,
)

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

  def test_json_keeps_deviation_classes_and_versions(self):
    value = metrics.MetricValue(
      "kid", 5.0, PROTOCOL, 1.0, 0.5, {"0": 4.0, "1": 6.0}, metrics.versions()
    )
    fields = json.loads(json.dumps(value.to_json()))
    self.assertEqual(metrics.MetricValue.from_json(fields), value)
    self.assertEqual(fields["versions"]["tensorflow"], tf.__version__)

  def test_records_of_older_versions_stay_readable(self):
    fields = metrics.MetricValue("frechet", 1.0, PROTOCOL).to_json()
    del fields["protocol"]["options"], fields["protocol"]["reference_sha256"]
    self.assertEqual(metrics.MetricValue.from_json(fields).protocol, PROTOCOL)

  def test_json_of_another_version_is_refused(self):
    fields = metrics.MetricValue("a", 1.0, PROTOCOL).to_json()
    del fields["protocol"]["seed"]
    with self.assertRaisesRegex(ValueError, "`protocol` must have the fields"):
      metrics.MetricValue.from_json(fields)


class NameTest(tf.test.TestCase):
  def test_only_the_network_of_fid_gives_plain_names(self):
    mean, fid = MeanExtractor(), MeanExtractor()
    fid.is_fid = True
    for metric, other in (
      ("fid", "frechet_mean"),
      ("intra_fid", "intra_frechet_mean"),
      ("inception_score", "classifier_score_mean"),
      ("kid", "kid_mean"),
      ("precision", "precision_mean"),
      ("label_agreement", "label_agreement_mean"),
    ):
      self.assertEqual(metrics.name_for(metric, fid), metric)
      self.assertEqual(metrics.name_for(metric, mean), other)

  def test_an_extractor_cannot_call_itself_fid(self):
    impostor = MeanExtractor()
    impostor.name = "inception"
    self.assertEqual(metrics.name_for("fid", impostor), "frechet_inception")


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


ALL = [
  "frechet",
  "kid",
  "precision",
  "recall",
  "density",
  "coverage",
  "mind",
  "classifier_score",
  "label_agreement",
  "classes_recognized",
]
NO_CLASSES = ALL[:-2]


class MeasureTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.RandomState(0)
    self.labels = rng.randint(0, 2, 50)
    self.heldout = half_images(self.labels, 1)
    self.reference_labels = rng.randint(0, 2, 120)
    self.reference = half_images(self.reference_labels, 2)
    self.extractor = MeanExtractor()

  def make_suite(self, labeled=True, **kwargs):
    reference = statistics.ImageSet(
      self.reference, self.reference_labels if labeled else None, "x"
    )
    heldout = statistics.ImageSet(self.heldout, self.labels, "heldout")
    return metrics.MetricSuite(
      self.extractor,
      statistics.cached(None, self.extractor, reference),
      statistics.cached(None, self.extractor, heldout),
      batch_size=16,
      **kwargs,
    )

  def measure(self, sample_fn, suite=None, **kwargs):
    kwargs = {"labels": self.labels, **kwargs}
    suite = suite or self.make_suite()
    values = suite.measure(sample_fn, SAMPLING, **kwargs)
    names = [value.name.rpartition("_")[0] for value in values]
    self.assertEqual([f"{n}_mean" for n in names], [v.name for v in values])
    return dict(zip(names, values))

  def features_of(self, images):
    images = statistics.to_floats(images)
    return self.extractor(images).features.numpy()

  def test_samples_that_are_the_heldout_images_get_the_real_score(self):
    values = self.measure(
      lambda labels, start: self.heldout[start : start + len(labels)]
    )
    self.assertCountEqual(values, ALL)
    for value in values.values():
      self.assertAllClose(value.value, value.real_score, rtol=1e-9)
      self.assertNotEqual(value.real_score, 0)

  def test_value_and_real_score_equal_the_metric_functions(self):
    samples = half_images(1 - self.labels, 5)
    values = self.measure(lambda y, i: tf.constant(samples[i : i + len(y)]))
    real, heldout, fake = map(
      self.features_of, (self.reference, self.heldout, samples)
    )
    for x, get in (
      (fake, lambda name: values[name].value),
      (heldout, lambda name: values[name].real_score),
    ):
      self.assertNear(get("frechet"), distances.frechet_distance(x, real), 1e-9)
      self.assertEqual(get("kid"), distances.kernel_distance(x, real)[0])
      self.assertEqual(get("mind"), distances.monge_distance(x, real))
      self.assertEqual(
        [get(name) for name in neighbors.Neighbors._fields],
        list(neighbors.compare(real, x)),
      )
      self.assertNear(
        get("classifier_score"), streaming.inception_score(x)[0], 1e-9
      )
      self.assertEqual(
        get("label_agreement"), distances.label_agreement(x, self.labels)
      )
    self.assertLess(values["label_agreement"].value, 0.5)
    self.assertGreater(values["label_agreement"].real_score, 0.5)
    self.assertEqual(
      values["kid"].deviation, distances.kernel_distance(fake, real)[1]
    )

  def test_samples_are_drawn_for_the_labels_in_order(self):
    asked = []

    def sample_fn(labels, start):
      self.assertEqual(labels.dtype, np.int32)
      self.assertEqual(start, sum(map(len, asked)))
      asked.append(labels)
      return half_images(labels, start)

    self.measure(sample_fn)
    self.assertEqual([len(labels) for labels in asked], [16, 16, 16, 2])
    self.assertAllEqual(np.concatenate(asked), self.labels)

  def test_protocol_describes_the_measurement(self):
    values = self.measure(half_images, labels=self.labels[:20])
    origin = statistics.hash_images(
      statistics.ImageSet(self.reference, self.reference_labels)
    )
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
      reference_sha256=origin,
    )
    self.assertEqual(values["frechet"].protocol, expected)
    for name, options in (
      ("kid", "100 subsets of 20"),
      ("precision", "k=3, 20 of 120 features"),
      ("density", "k=5, 20 of 120 features"),
      ("mind", "1000 directions, 20 features"),
      ("classifier_score", "10 splits"),
    ):
      self.assertEqual(
        values[name].protocol, dataclasses.replace(expected, options=options)
      )

  def test_without_labels_no_class_is_measured(self):
    values = self.measure(half_images, labels=None)
    self.assertCountEqual(values, NO_CLASSES)
    self.assertEqual(values["frechet"].protocol.num_samples, 50)

  def test_only_what_is_asked_for_is_measured(self):
    values = self.measure(half_images, only=["recall", "fid"])
    self.assertEqual(list(values), ["frechet", "recall"])

  def test_features_of_real_images_are_computed_once(self):
    suite = self.make_suite()
    self.assertEqual(self.extractor.batches, [120, 50])
    for _ in range(2):
      self.measure(half_images, suite)
    self.assertEqual(self.extractor.batches, [120, 50] + [16, 16, 16, 2] * 2)

  def test_uint8_images_are_converted_to_floats(self):
    def to_uint8(images):
      return np.round((images + 1.0) * 127.5).astype(np.uint8)

    floats = self.measure(half_images)["frechet"]
    self.reference, self.heldout = map(to_uint8, (self.reference, self.heldout))
    got = self.measure(lambda y, i: to_uint8(half_images(y, i)))["frechet"]
    self.assertEqual(got.value, floats.value)
    self.assertEqual(got.real_score, floats.real_score)

  def test_a_probe_knows_the_classes_that_the_extractor_does_not(self):
    self.reference_labels = np.random.RandomState(3).randint(0, 2, 120)
    self.reference = half_images(self.reference_labels, 2)
    unknown = self.make_suite(labeled=False, knows_classes=False)
    self.assertCountEqual(self.measure(half_images, unknown), NO_CLASSES)
    suite = self.make_suite(knows_classes=False)
    values = self.measure(half_images, suite)
    right = values["label_agreement"]
    wrong = self.measure(lambda y, i: half_images(1 - y, i), suite)
    self.assertGreater(right.value, 0.7)
    self.assertLess(wrong["label_agreement"].value, 0.3)
    self.assertEqual(right.protocol.extractor, "mean with a probe")
    self.assertEqual(values["frechet"].protocol.extractor, "mean")
    self.assertEqual(values["classes_recognized"].value, 2)

  def test_classes_are_compared_one_by_one(self):
    rng = np.random.RandomState(4)
    self.reference_labels = rng.randint(0, 2, 300)
    self.reference = half_images(self.reference_labels, 2)
    labels = np.repeat([0, 1], 60)
    samples = half_images(labels, 7)
    swapped = {  # The distance of all cannot see this.
      name: self.measure(
        lambda y, i, x=x: x[i : i + len(y)], labels=labels, only=["intra_fid"]
      )["intra_frechet"]
      for name, x in (("right", samples), ("wrong", samples[::-1]))
    }
    right, wrong = swapped["right"], swapped["wrong"]
    real, fake = map(self.features_of, (self.reference, samples))
    expected = [
      distances.frechet_distance(
        fake[labels == c], real[self.reference_labels == c]
      )
      for c in (0, 1)
    ]
    self.assertAllClose([right.per_class["0"], right.per_class["1"]], expected)
    self.assertNear(right.value, np.mean(expected), 1e-9)
    self.assertGreater(wrong.value, 3 * right.value)
    self.assertIsNone(right.real_score)  # 50 held-out images are too few.

  def test_progress_ends_at_the_total(self):
    calls = []
    self.measure(half_images, progress=lambda *call: calls.append(call))
    self.assertEqual(calls, [(16, 50), (32, 50), (48, 50), (50, 50)])

  def test_versions_are_beside_the_value(self):
    value = self.measure(half_images, only=["fid"])["frechet"]
    self.assertEqual(value.versions, metrics.versions())

  def test_a_sampler_that_returns_too_few_is_refused(self):
    with self.assertRaisesRegex(ValueError, r"\[16, h, w, c\], got \(15, 4"):
      self.measure(lambda labels, start: half_images(labels[1:], start))

  def test_samples_that_are_no_numbers_are_refused(self):
    with self.assertRaisesRegex(ValueError, "16 of 16 rows .* diverged"):
      self.measure(lambda y, i: np.nan * half_images(y, i))

  def test_what_cannot_be_measured_says_what_it_needs(self):
    self.extractor.has_logits = False
    for only, labels, words in (
      ("inception_score", None, "`mean` has no logits"),
      ("label_agreement", None, "samples have no labels"),
      ("intra_fid", self.labels, "at least 50 images of a class"),
      ("recall", self.labels[:5], "at least 6 .* got 120 and 5"),
      ("fidd", None, "must be one of fid, kid, .* got 'fidd'"),
    ):
      with self.assertRaisesRegex(ValueError, words):
        self.measure(self.fail, only=[only], labels=labels)

  def test_images_of_a_class_count_as_far_as_their_features_are_kept(self):
    real = statistics.Statistics(None, 60, labels=np.zeros(60, int))
    labels = np.arange(20_000) % 200  # A hundred each; of half features.
    refuse = measures._too_few_of_a_class
    self.assertIsNone(refuse(real, len(labels), labels))
    self.assertIsNone(refuse(real, 9_000, labels[:9_000] % 150))
    more = np.arange(20_000) % 210
    self.assertRegex(refuse(real, len(more), more), "samples up to 48")

  def test_a_reference_of_another_project_has_moments_only(self):
    real = self.features_of(self.reference)
    moments = distances.Moments(real.mean(axis=0), np.cov(real.T))
    suite = metrics.MetricSuite(
      self.extractor, statistics.Statistics(moments, None)
    )
    (value,) = suite.measure(half_images, SAMPLING, 30, only=["fid"])
    fake = self.features_of(half_images(np.zeros(30, int), 0))
    self.assertNear(value.value, distances.frechet_distance(fake, real), 1e-6)
    self.assertIsNone(value.real_score)
    names = [v.name for v in suite.measure(half_images, SAMPLING, 30)]
    self.assertEqual(names, ["frechet_mean"])
    with self.assertRaisesRegex(ValueError, "`kid` .* only `mu` and `sigma`"):
      suite.measure(half_images, SAMPLING, 30, only=["kid"])

  def test_a_reference_of_another_network_is_refused(self):
    reference = statistics.cached(
      None, self.extractor, statistics.ImageSet(self.reference)
    )
    other = MeanExtractor()
    other.sha256 = "ef" * 32
    with self.assertRaisesRegex(ValueError, "compute it again"):
      metrics.MetricSuite(other, reference)
    moments = distances.Moments(np.zeros(7), np.eye(7))
    self.extractor.num_features = 2
    with self.assertRaisesRegex(ValueError, "the 2 features of `mean`, got 7"):
      metrics.MetricSuite(self.extractor, statistics.Statistics(moments, None))


class MetricsTest(tf.test.TestCase):
  def test_names_are_unique(self):
    self.assertLen(set(measures.METRICS), len(measures.METRICS))


if __name__ == "__main__":
  tf.test.main()
