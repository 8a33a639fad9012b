"""The program of the poster, in the forms in which it is printed."""

import contextlib
import functools
import io
import os
import types
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import paragan_tf as pg
from paragan_tf import profiling, worker_profile
from paragan_tf.outputs import features
from paragan_tf.sync.exchange import AccumulatedGradients
from tests import testing
from tests.profile_test import make_profile


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
  return testing.slices(data).batch(8)


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


class PlanTest(tf.test.TestCase, parameterized.TestCase):
  """A plan that is made from a kept profile, and followed."""

  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = self.get_temp_dir()

  def keep(self, gan, folder, **changes):
    """Keeps a profile of the nets of `gan`, as if it had been measured."""
    hashed = profiling.config_hash(gan.describe())
    found = make_profile(config_hash=hashed, num_threads=0, **changes)
    profiling.write(found, profiling.cache_path(folder, hashed, 0))

  def train(self, folder, bs=8, num_workers=1, steps=2, **options):
    cfg = pg.Config(steps, input_fn, cache_dir=folder, **options)
    scale_mgr = pg.ScalingManager(cfg, bs=bs, num_workers=num_workers)
    gan = estimator()
    words = io.StringIO()
    with contextlib.redirect_stdout(words):
      for _ in cfg.max_steps:
        scale_mgr.train(gan)
    return scale_mgr, gan.get_run(), words.getvalue()

  def test_without_a_profile_the_batch_is_shared_only(self):
    scale_mgr, made, words = self.train(f"{self.folder}/none")
    self.assertIsNone(scale_mgr.plan)
    self.assertNotIn("Plan:", words)
    self.assertEqual(made.experiment.batch_size, 8)

  def test_a_kept_profile_is_planned_from(self):
    folder = f"{self.folder}/kept"
    self.keep(estimator(), folder)
    scale_mgr, made, words = self.train(folder, rate_rule="sqrt", base_batch=2)
    self.assertIn("Plan: 1 worker(s), 8 images each", words)
    self.assertEqual(made.experiment.batch_size, 8)
    factors = scale_mgr.plan.rate_factors
    for who, player in made.experiment.step.players.items():
      rate = player.optimizer.learning_rate(tf.constant(10**6)).numpy()
      self.assertAllClose(rate, factors[who] * 2e-4)
      self.assertBetween(factors[who], 1.95, 2.0)  # The root of 8 / 2.
    never, _, _ = self.train(folder, profile="never")
    self.assertIsNone(never.plan)

  def test_a_share_beyond_memory_is_computed_in_parts(self):
    folder = f"{self.folder}/short"
    # Room for 4 images of 1 MB.
    self.keep(estimator(), folder, memory_limit=1_116_000_000)
    scale_mgr, made, _ = self.train(folder, bs=8, steps=3)
    self.assertEqual(scale_mgr.plan.accumulate, 2)
    self.assertEqual(made.experiment.batch_size, 4)
    self.assertEqual(made.done, 6)  # Two parts an update.
    for player in made.experiment.step.players.values():
      self.assertIsInstance(player.exchange, AccumulatedGradients)
      self.assertEqual(player.optimizer.t.numpy(), 3)

  def test_a_profile_is_measured_if_asked_and_kept(self):
    folder = f"{self.folder}/measured"
    quick = functools.partial(worker_profile.Worker, seconds=0.01)
    with mock.patch.object(worker_profile, "Worker", quick):
      scale_mgr, _, words = self.train(folder, profile="measure")
    self.assertIn("Plan: ", words)
    self.assertLen(os.listdir(folder), 1)
    found = profiling.read(os.path.join(folder, os.listdir(folder)[0]))
    self.assertEqual(found.gradient_bytes["d"], 4 * (64 + 3 + 1))
    self.assertEqual(found.gradient_bytes["g"], 4 * (4 + 3 + 1) * 64)
    self.assertGreater(found.step_seconds.at(8), 0.0)
    self.assertGreater(scale_mgr.plan.prediction.images_per_second, 0.0)
    again, _, _ = self.train(folder)
    self.assertIsNotNone(again.plan)

  def test_a_plan_comes_before_an_estimator_is_built(self):
    folder = f"{self.folder}/built"
    gan = estimator()
    self.keep(gan, folder, memory_limit=1_116_000_000)
    gan.batch_size = 8
    gan.get_run(input_fn)
    cfg = pg.Config(2, input_fn, cache_dir=folder)
    scale_mgr = pg.ScalingManager(cfg, bs=8)
    scale_mgr.train(gan)
    self.assertIsNone(scale_mgr.plan)
    with self.assertRaisesRegex(ValueError, "`batch_size` must stay 8"):
      pg.ScalingManager(cfg, bs=16).train(gan)

  @parameterized.parameters(
    dict(profile="later"),
    dict(scheme="magic"),
    dict(rate_rule="cubic"),
    dict(link="string"),
  )
  def test_options_that_are_none_are_refused(self, **options):
    (name,) = options
    with self.assertRaisesRegex(ValueError, f"`{name}` must be one of"):
      pg.Config(2, **options)


if __name__ == "__main__":
  testing.main()
