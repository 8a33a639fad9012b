"""Losses, optimizers, callbacks and data as arguments of an estimator."""

import functools
import os

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import paragan_tf as pg
from paragan_tf import choices, config
from paragan_tf.callbacks import Callbacks
from paragan_tf.data import array_input
from paragan_tf.game import losses, optimizers, rates
from paragan_tf.types import Losses
from tests import testing
from tests.api_test import Critic, Module


def doubled(scores):
  """A loss of a user's own."""
  found = losses.hinge(scores)
  return Losses(2 * found.d, 2 * found.g)


class Recorder:
  """Notes what it is told."""

  def __init__(self):
    self.told = []

  def on_log(self, step, logs):
    self.told.append(("log", step, "d/loss" in logs))

  def on_save(self, step, path):
    self.told.append(("save", step, os.path.basename(path)))

  def on_end(self, step):
    self.told.append(("end", step))


class ChoicesTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    self.images = testing.images(64)

  def estimator(self, **given):
    return pg.Estimator(Module, Critic, self.folder, 8, z_dim=4, **given)

  def test_names_and_rates_choose_the_optimizers(self):
    gin.parse_config(
      [
        "from __gin__ import dynamic_registration",
        "from paragan_tf.game import optimizers",
        "d/optimizers.RMSProp.decay = 0.7",
        "d/optimizers.RMSProp.learning_rate = 0.3",
      ]
    )
    gan = self.estimator(
      loss="wasserstein",
      g_optimizer="AdaBelief",
      g_learning_rate=0.02,
      d_optimizer="rmsprop",
    )
    step = gan.get_run(self.images).experiment.step
    g, d = (step.players[who].optimizer for who in "gd")
    self.assertIsInstance(g, optimizers.AdaBelief)
    self.assertAllClose(g.rate(), 0.02)
    self.assertEqual(g.name, "g_optimizer")
    self.assertIsInstance(d, optimizers.RMSProp)
    self.assertAllClose(d.rate(), 0.3)  # Gin's values hold beside it.
    self.assertIs(step.game.loss_fn, losses.wasserstein)

  def test_a_rate_alone_changes_the_optimizer_of_the_config(self):
    gin.parse_config(
      [
        "from __gin__ import dynamic_registration",
        "from paragan_tf import experiment",
        "from paragan_tf.game import optimizers",
        "d/experiment.player.optimizer = @optimizers.SGD",
      ]
    )
    gan = self.estimator(
      g_learning_rate=rates.constant(0.5, 10), d_learning_rate=0.25
    )
    step = gan.get_run(self.images).experiment.step
    g, d = (step.players[who].optimizer for who in "gd")
    self.assertIsInstance(g, optimizers.Adam)
    self.assertLess(float(g.rate()), 0.5)
    self.assertIsInstance(d, optimizers.SGD)
    self.assertAllClose(d.rate(), 0.25)

  def test_callables_are_taken(self):
    make = functools.partial(optimizers.Adam, beta1=0.25)
    gan = self.estimator(loss=doubled, d_optimizer=make)
    step = gan.get_run(self.images).experiment.step
    self.assertIs(step.game.loss_fn, doubled)
    self.assertEqual(step.players["d"].optimizer.beta1, 0.25)

  def test_a_run_is_not_resumed_with_other_choices(self):
    given = dict(loss="hinge", g_optimizer="sgd", g_learning_rate=0.1)
    self.estimator(**given).train(self.images, steps=2)
    self.estimator(**given).train(self.images, steps=1)
    for name, other, was in (
      ("loss", "wasserstein", "'hinge'"),
      ("g_optimizer", "adam", "'sgd'"),
      ("g_learning_rate", 0.2, "'0.1'"),
      ("d_optimizer", optimizers.Adam, r"\(not set\)"),
    ):
      words = f"`estimator_{name}` was {was}, now "
      with self.assertRaisesRegex(ValueError, words):
        self.estimator(**{**given, name: other}).train(self.images, steps=1)
    # The record can be read as a config.
    config.load([f"{self.folder}/config.gin"], [])

  @parameterized.named_parameters(
    ("loss", dict(loss="hing"), "`loss` must be one of hinge.*got 'hing'"),
    ("loss_type", dict(loss=3), "`loss` must be .* got 3"),
    ("name", dict(d_optimizer="adm"), "`d_optimizer` must be .*adam.*'adm'"),
    (
      "instance",
      dict(g_optimizer=optimizers.Adam(0.1)),
      "`g_optimizer` must be .* instance of Adam: give its name",
    ),
    ("callback", dict(callbacks=[3]), "`callbacks` must be .* got 3"),
  )
  def test_wrong_choices_are_refused_at_once(self, given, words):
    with self.assertRaisesRegex(ValueError, words):
      self.estimator(**given)

  def test_choices_are_described_by_their_names(self):
    make = functools.partial(optimizers.Adam, beta1=0.25)
    self.assertEqual(
      choices.describe(a=make, b=None, c="ADAM", d=0.5, e=doubled),
      {
        "a": "paragan_tf.game.optimizers.Adam(beta1=0.25)",
        "c": "adam",
        "d": "0.5",
        "e": f"{__name__}.doubled",
      },
    )

  def test_callbacks_are_told_of_logs_saves_and_the_end(self):
    gin.parse_config(
      [
        "from __gin__ import dynamic_registration",
        "from paragan_tf import run",
        "run.Run.log_every = 2",
        "run.Run.save_every = 3",
      ]
    )
    recorder, steps = Recorder(), []
    gan = self.estimator(
      callbacks=[recorder, lambda step, logs: steps.append(step)]
    )
    gan.train(self.images, steps=4)
    # Checkpoints are written while training goes on, and told when they are.
    saves = [x for x in recorder.told if x[0] == "save"]
    others = [x for x in recorder.told if x[0] != "save"]
    self.assertEqual(
      saves, [("save", 3, "model.ckpt-3"), ("save", 4, "model.ckpt-4")]
    )
    self.assertEqual(others, [("log", 2, True), ("log", 4, True), ("end", 4)])
    self.assertEqual(recorder.told[-1], ("end", 4))
    self.assertEqual(steps, [2, 4])

  def test_what_a_callback_raises_ends_the_training(self):
    gin.parse_config(
      [
        "from __gin__ import dynamic_registration",
        "from paragan_tf import run",
        "run.Run.log_every = 1",
      ]
    )

    def stop(step, logs):
      raise KeyError(f"at {step}")

    gan = self.estimator(callbacks=[stop])
    with self.assertRaisesRegex(KeyError, "at 1"):
      gan.train(self.images, steps=4)

  def test_a_callback_may_have_some_of_the_methods(self):
    class OnlyEnd:
      ended = 0

      def on_end(self, step):
        self.ended = step

    only = OnlyEnd()
    calls = Callbacks([only])
    calls.call("on_log", 1, {})
    calls.call("on_save", 1, "")
    calls.call("on_end", 5)
    self.assertEqual(only.ended, 5)


class DataTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def test_arrays_and_datasets_are_trained_on_alike(self):
    images, labels = testing.images(64), testing.labels(64)
    pixels = np.round((images + 1) * 127.5).astype(np.uint8)
    data = tf.data.Dataset.from_tensor_slices((pixels, labels)).batch(4)
    for i, given in enumerate((images, pixels, (images, labels), data)):
      gan = pg.Estimator(Module, Critic, f"{self.folder}/{i}", 8, 0, z_dim=4)
      gan.train(given, steps=1)
      gan.train(given, steps=1)
      self.assertEndsWith(gan.latest_checkpoint(), "model.ckpt-2")
    gan = pg.Estimator(Module, Critic, f"{self.folder}/pair", 8, 0, z_dim=4)
    gan.train((images, labels), steps=1)
    gan.train((images, labels), steps=1)  # Another tuple of the same arrays.
    with self.assertRaisesRegex(ValueError, "one `input_fn`"):
      gan.train((images + 0, labels), steps=1)

  def test_labels_say_how_many_classes_there_are(self):
    images, labels = testing.images(30), np.arange(30) % 3
    self.assertEqual(array_input.make_input((images, labels), None)[1], 3)
    self.assertEqual(array_input.make_input((images, labels), 5)[1], 5)
    self.assertEqual(array_input.make_input((images, labels), 0)[1], 0)
    self.assertEqual(array_input.make_input(images, None)[1], 0)

  def test_arrays_are_shuffled_anew_in_each_epoch(self):
    images = np.arange(50, dtype=np.uint8).reshape([50, 1, 1, 1])
    input_fn = array_input.make_input(images, None).input_fn

    def read():
      found = input_fn().repeat(2).as_numpy_iterator()
      return np.stack(list(found)).reshape([2, 50])

    epochs = read()
    for epoch in epochs:
      self.assertAllEqual(np.sort(epoch), np.arange(50))
    self.assertNotAllEqual(*epochs)
    self.assertAllEqual(read(), epochs)

  @parameterized.named_parameters(
    ("rank", np.zeros([4, 8, 8], np.uint8), r"\[n, h, w, c\].*\[4, 8, 8\]"),
    ("type", np.zeros([4, 8, 8, 1], np.int32), "of uint8.*got int32"),
    ("range", np.full([4, 8, 8, 1], 255.0), r"\[-1, 1\].*255.*divide by"),
    ("nan", np.full([4, 8, 8, 1], np.nan), r"\[-1, 1\].*nan"),
    (
      "labels",
      (np.zeros([4, 8, 8, 1], np.uint8), np.zeros([3], int)),
      r"one for each of the 4 images, got int64 \[3\]",
    ),
    (
      "one_hot",
      (np.zeros([4, 8, 8, 1], np.uint8), np.zeros([4, 3])),
      r"Labels must be integers.*\[4, 3\]",
    ),
  )
  def test_wrong_arrays_are_refused(self, data, words):
    with self.assertRaisesRegex(ValueError, words):
      array_input.make_input(data, None)


if __name__ == "__main__":
  testing.main()
