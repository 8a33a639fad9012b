"""The program of the poster, in the forms in which it is printed."""

import types
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import paragan_tf as pg
from paragan_tf.outputs import features
from tests import testing


class Generator:
  """Without `self`, as printed."""

  def model_fn(latent_var, y):  # noqa: N805
    x = tf.concat([latent_var, tf.one_hot(y, 3)], 1)
    output = tf.keras.layers.Dense(64, activation="tanh")(x)
    return tf.reshape(output, [-1, 8, 8, 1])


class Discriminator:
  def model_fn(x, y):  # noqa: N805
    x = tf.concat([tf.reshape(x, [-1, 64]), tf.one_hot(y, 3)], 1)
    out_logit = tf.keras.layers.Dense(1)(x)
    output = tf.sigmoid(out_logit)
    return output, out_logit


def input_fn():
  data = testing.images(48), testing.labels(48)
  return tf.data.Dataset.from_tensor_slices(data).batch(8)


def estimator(**arguments):
  return pg.Estimator(
    Generator(), Discriminator(), z_dim=4, num_classes=3, **arguments
  )


class PosterTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()

  def test_steps_are_an_int_and_a_range(self):
    steps = pg.Config(max_steps=1000).max_steps
    self.assertEqual(steps, 1000)
    self.assertLess(steps, 1001)
    self.assertEqual(list(steps)[-1], 999)
    self.assertLen(range(steps), 1000)
    self.assertEqual(pg.Config(max_steps=range(7)).max_steps, 7)

  @parameterized.named_parameters(
    ("of_a_config", pg.Config(max_steps=2, input_fn=input_fn), iter),
    ("counted", pg.Config(max_steps=2, input_fn=input_fn), range),
    ("of_a_range", dict(max_steps=range(2), input_fn=input_fn), iter),
    ("of_an_int", dict(max_steps=2, input_fn=input_fn), range),
  )
  def test_each_form_of_the_loop_trains(self, cfg, steps):
    scale_mgr = pg.ScalingManager(config=cfg, bs=8, num_workers=4)
    gan = estimator()
    asked = cfg["max_steps"] if isinstance(cfg, dict) else cfg.max_steps
    for _ in steps(asked):
      logs = scale_mgr.train(gan)
    self.assertTrue(np.isfinite(logs["d/loss"]))
    self.assertEqual(gan.get_run().done, 2)

  def test_metrics_are_measured_or_refused_by_name(self):
    cfg = pg.Config(max_steps=1, input_fn=input_fn)
    scale_mgr = pg.ScalingManager(config=cfg, bs=8)
    scale_mgr.train(estimator())
    self.assertGreater(scale_mgr.eval(metric="fid"), 0.0)
    self.assertGreaterEqual(scale_mgr.eval(metric="is"), 1.0)
    self.assertGreaterEqual(
      scale_mgr.eval(metric="classifier_score_fashion"), 1.0
    )
    with self.assertRaisesRegex(ValueError, "one of is, fid.*got 'lpips'"):
      scale_mgr.eval(metric="lpips")
    words = "`intra_fid` cannot be measured: at least 50 images of a class"
    with self.assertRaisesRegex(ValueError, words):
      scale_mgr.eval(metric="intra_fid")
    no_logits = mock.patch.object(
      features.FashionClassifier, "has_logits", False, create=True
    )
    evaluation = scale_mgr._gan.get_run().experiment.evaluation
    evaluation._metric_suites.clear()
    words = "`inception_score` cannot be measured: .* has no logits"
    with no_logits, self.assertRaisesRegex(ValueError, words):
      scale_mgr.eval(metric="is")

  def test_where_no_network_is_nothing_is_measured(self):
    cfg = types.SimpleNamespace(max_steps=1, input_fn=input_fn)
    scale_mgr = pg.ScalingManager(config=cfg, bs=8)
    scale_mgr.train(estimator())
    evaluation = scale_mgr._gan.get_run().experiment.evaluation
    evaluation._choice = evaluation._choice._replace(make=None)
    with self.assertRaisesRegex(ValueError, "`fid` cannot be measured: set"):
      scale_mgr.eval(metric="fid")
    evaluation._metrics = ("kid",)
    evaluation._choice = evaluation._choice._replace(make=lambda: None)
    with self.assertRaisesRegex(ValueError, "add it to .*Experiment.metrics"):
      scale_mgr.eval(metric="fid")

  @parameterized.parameters(0, -3, "many", 1.5, None, True)
  def test_steps_that_are_none_are_refused(self, max_steps):
    with self.assertRaisesRegex(ValueError, "`max_steps` must be a number"):
      pg.Config(max_steps=max_steps)


if __name__ == "__main__":
  testing.main()
