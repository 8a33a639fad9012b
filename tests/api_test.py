"""The library as a program of your own sees it."""

import os
from unittest import mock

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import paragan_tf as pg
from paragan_tf import api, config
from paragan_tf.engine import strategies
from paragan_tf.outputs import records
from tests import testing
from tests.user_nets import in_every_keras


class Generator:
  """As on the poster."""

  def __init__(self):
    self.dense = tf.keras.layers.Dense(32 * 32)

  def model_fn(self, latent_var, y):
    x = self.dense(tf.concat([latent_var, tf.one_hot(y, 10)], 1))
    output = tf.reshape(tf.tanh(x), [-1, 32, 32, 1])
    return output


class Discriminator:
  def __init__(self):
    self.dense = tf.keras.layers.Dense(1)

  def model_fn(self, x, y):
    x = tf.reshape(x, [-1, 32 * 32])
    out_logit = self.dense(tf.concat([x, tf.one_hot(y, 10)], 1))
    return tf.sigmoid(out_logit), out_logit


class Module(tf.Module):
  """An unconditional G for 8x8 images."""

  def __init__(self):
    super().__init__()
    self.w = tf.Variable(tf.ones([4, 64]) * 0.1)

  def __call__(self, z):
    return tf.reshape(tf.tanh(z @ self.w), [-1, 8, 8, 1])


class Critic(tf.Module):
  """A D without randomness."""

  def __init__(self):
    super().__init__()
    self.w = tf.Variable(tf.linspace(-0.1, 0.1, 64)[:, None])

  def __call__(self, x):
    return tf.reshape(x, [-1, 64]) @ self.w


def critic():
  return tf.keras.Sequential(
    [tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)]
  )


def keras_pair(keras):
  """Returns a functional G with a batch norm, and a D with dropout."""
  layers = keras.layers
  z, y = keras.Input([4]), keras.Input([], dtype="int32")
  h = layers.Dense(64)(layers.Concatenate()([z, layers.Embedding(3, 4)(y)]))
  h = layers.Activation("tanh")(layers.BatchNormalization()(h))
  g = keras.Model([z, y], layers.Reshape([8, 8, 1])(h))
  return g, keras.Sequential(
    [layers.Flatten(), layers.Dropout(0.1), layers.Dense(1)]
  )


def input_fn():
  images = tf.constant(testing.images(32))
  return testing.slices(images).batch(8)


def labeled_input_fn():
  images, labels = testing.images(32), testing.labels(32)
  return testing.slices((images, labels)).batch(8)


class Config:
  max_steps = 6


class ApiTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def test_the_posters_program_runs_as_it_stands(self):
    cfg = Config()
    scale_mgr = pg.ScalingManager(config=cfg, bs=64, num_workers=16)
    gan = pg.Estimator(Generator(), Discriminator())
    for _ in range(cfg.max_steps):
      logs = scale_mgr.train(gan)
    fid = scale_mgr.eval(metric="fid")
    self.assertGreater(fid, 10.0)
    self.assertTrue(np.isfinite(logs["d/loss"]))
    self.assertEqual(scale_mgr.batch_per_worker, 4)
    self.assertEndsWith(gan.latest_checkpoint(), "model.ckpt-6")
    self.assertIn("report.html", os.listdir(gan.model_dir))
    measured = [x for x in records.read(gan.model_dir) if "metrics" in x][-1]
    self.assertAllClose(measured["metrics"][0]["value"], fid)
    with self.assertRaisesRegex(ValueError, "`metric`.*got 'lpips'"):
      scale_mgr.eval(metric="lpips")

  def test_the_package_exports_what_the_api_does(self):
    self.assertCountEqual(api.__all__, pg._API)
    for name in api.__all__:
      self.assertIs(getattr(api, name), getattr(pg, name))

  def test_an_estimator_resumes_from_its_folder(self):
    def estimator(folder):
      return pg.Estimator(Module, Critic, f"{self.folder}/{folder}", 8, z_dim=4)

    estimator("parts").train(input_fn, steps=3)
    parts = estimator("parts").train(input_fn, max_steps=6)
    whole = estimator("whole").train(input_fn, steps=6)
    got, expected = (
      tf.train.load_checkpoint(gan.latest_checkpoint())
      for gan in (parts, whole)
    )
    self.assertEqual(expected.get_tensor("global_step"), 6)
    for name in expected.get_variable_to_shape_map():
      self.assertAllEqual(got.get_tensor(name), expected.get_tensor(name), name)

  def test_each_end_of_a_run_is_recorded_once(self):
    gan = pg.Estimator(Module, Critic, self.folder, 8, z_dim=4)
    for steps in (2, 3):
      gan.train(input_fn, steps=steps)
    gan.train(max_steps=5)  # Nothing is left.
    for _ in range(2):
      gan.advance()
    starts = records.read_starts(self.folder)
    found = [(x["step"], x["num_steps"]) for x in starts]
    self.assertEqual(found, [(0, 2), (2, 5)])

  def test_steps_that_fill_no_cycle_of_the_exchange_are_trained(self):
    found, estimator = [], pg.Estimator  # Imported before gin is read.
    for calls in ((5,), (3, 2), (1,) * 5):
      gin.clear_config()
      config.load(["gin/sync/paragan.gin"], [])
      folder = f"{self.folder}/{len(calls)}"
      gan = estimator(Module, Critic, folder, 8, z_dim=4)
      scale_mgr = pg.ScalingManager(dict(input_fn=input_fn), bs=8)
      for steps in calls:
        scale_mgr.train(gan, steps)
      gan.train(input_fn, max_steps=5)  # Nothing is left; this saves.
      self.assertEndsWith(gan.latest_checkpoint(), "model.ckpt-5")
      found.append(tf.train.load_checkpoint(gan.latest_checkpoint()))
    for name in found[0].get_variable_to_shape_map():
      for other in found[1:]:
        expected = found[0].get_tensor(name)
        self.assertAllEqual(other.get_tensor(name), expected, name)

  def test_prediction_and_export_draw_the_same_images(self):
    gan = pg.Estimator(Module(), critic(), self.folder, 8, z_dim=4)
    gan.train(input_fn, steps=2)
    z = testing.z(5)
    data = tf.data.Dataset.from_tensor_slices({"z": z})
    images = [sample["images"] for sample in gan.predict(lambda: data)]
    self.assertLen(images, 5)
    exported = tf.saved_model.load(gan.export_saved_model(f"{self.folder}/x"))
    served = exported.signatures["floats"](z=tf.constant(z))["images"]
    self.assertAllClose(served, images)
    step = gan.get_run().experiment.step
    w = step.ema.twin.trainable_variables[0].numpy()
    self.assertAllClose(images[0].reshape(-1), np.tanh(z[0] @ w), atol=1e-6)
    self.assertNotAllClose(w, 0.1 * np.ones([4, 64]))

  @in_every_keras()
  def test_keras_models_are_trained_on_four_replicas_and_exported(self, nets):
    self.check_keras_models(nets, strategies.Choice(testing.strategy(), ""))

  @in_every_keras()
  @pytest.mark.soak
  def test_keras_models_are_trained_on_one_replica_and_exported(self, nets):
    self.check_keras_models(nets, strategies.choose())

  def check_keras_models(self, nets, choice):
    with mock.patch.object(strategies, "choose", return_value=choice):
      gan = pg.Estimator(*keras_pair(nets.keras), self.folder, 8, 3)
      gan.train(labeled_input_fn, steps=3)
    self.assertEqual(gan.evaluate()["global_step"], 3)
    z = {"z": testing.z(5), "labels": testing.labels(5)}
    data = tf.data.Dataset.from_tensor_slices(z)
    images = [sample["images"] for sample in gan.predict(lambda: data)]
    exported = tf.saved_model.load(gan.export_saved_model(f"{self.folder}/x"))
    z = {name: tf.constant(value) for name, value in z.items()}
    served = exported.signatures["floats"](**z)["images"]
    self.assertAllClose(served, images, atol=1e-6)
    self.assertGreater(np.std(images), 1e-3)

  def test_evaluation_measures_on_the_users_images(self):
    gan = pg.Estimator(Module(), critic(), self.folder, 8, z_dim=4)
    gan.train(input_fn, steps=2)
    values = gan.evaluate()
    self.assertEqual(values["global_step"], 2)
    self.assertGreater(
      values["frechet_fashion"], values["frechet_fashion_real"]
    )
    self.assertNotIn("label_agreement_fashion", values)

  @parameterized.named_parameters(
    ("no_steps", dict(), "One of `steps` and `max_steps`"),
    ("both", dict(steps=1, max_steps=2), "One of `steps` and `max_steps`"),
  )
  def test_wrong_steps_are_refused(self, steps, words):
    gan = pg.Estimator(Module(), critic(), self.folder, z_dim=4)
    with self.assertRaisesRegex(ValueError, words):
      gan.train(input_fn, **steps)

  def test_before_training_there_is_no_g(self):
    gan = pg.Estimator(Module(), critic(), self.folder, 8, z_dim=4)
    for use in (gan.sample, lambda: gan.export_saved_model(self.folder)):
      with self.assertRaisesRegex(ValueError, "no G in .* call `train` first"):
        use()
    self.assertFalse(os.path.exists(self.folder))

  def test_invalid_arguments_are_refused(self):
    with self.assertRaisesRegex(ValueError, "multiple of `num_workers`.*10"):
      pg.ScalingManager(Config(), bs=10, num_workers=4)
    with self.assertRaisesRegex(ValueError, "train first"):
      pg.ScalingManager(Config(), bs=8).eval()
    gan = pg.Estimator(Module(), critic(), self.folder, 8, 5, z_dim=4)
    with self.assertRaisesRegex(ValueError, "`num_classes` is 5"):
      gan.train(input_fn, steps=1)
    gan = pg.Estimator(Module(), critic(), self.folder, 8, z_dim=4)
    gan.train(input_fn, steps=1)
    with self.assertRaisesRegex(ValueError, "one `input_fn`"):
      gan.train(lambda: input_fn(), steps=1)

  def test_another_batch_size_is_refused_once_there_is_a_run(self):
    gan = pg.Estimator(Module(), critic(), self.folder, 8, z_dim=4)
    gan.batch_size = 4  # Nothing is built yet.
    gan.train(input_fn, steps=1)
    words = f"`batch_size` must stay 4.* got 16: .*'{self.folder}'"
    with self.assertRaisesRegex(ValueError, words):
      gan.batch_size = 16
    with self.assertRaisesRegex(ValueError, words):
      pg.ScalingManager(Config(), bs=16).train(gan)
    pg.ScalingManager(Config(), bs=4).train(gan)
    self.assertEqual(gan.batch_size, 4)
    gan.train(max_steps=3)
    other = pg.Estimator(Module(), critic(), self.folder, 16, z_dim=4)
    self.assertEndsWith(
      other.train(input_fn, steps=1).latest_checkpoint(), "model.ckpt-4"
    )


if __name__ == "__main__":
  testing.main()
