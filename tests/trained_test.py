"""A trained G is loaded without its data, whatever trained it."""

import base64
import glob
import json
import os
import shutil
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import paragan_tf as pg
from paragan_tf import comparison, trained
from paragan_tf.outputs import records, samples
from paragan_tf.start import prepare
from tests import run_test, testing
from tests.run_test import GOSSIP, LINEAR, ONE, TINY
from tests.user_nets import SPEC


def g_of_user():
  """Returns an unconditional G for the images of `SPEC`."""
  size = SPEC.resolution**2 * SPEC.channels
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      tf.keras.Input([4]),
      layers.Dense(size, activation="tanh"),
      layers.Reshape([SPEC.resolution, SPEC.resolution, SPEC.channels]),
    ]
  )


def d_of_user():
  return tf.keras.Sequential(
    [tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)]
  )


# Wide and fast enough that samples differ.
VARIED = ("dcgan.Generator.width = 8", "g/optimizers.Adam.learning_rate = 0.1")


class TrainedTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gin.clear_config()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def train(self, *more, strategy=None, steps=4):
    """Trains a tiny run, and forgets its config."""
    strategy = strategy or ONE("/cpu:0")
    made = run_test.run(strategy, self.folder, steps, *VARIED, *more)
    gin.clear_config()
    return made

  def hide_data(self):
    """Makes the config name images that are not there."""
    path = f"{self.folder}/config.gin"
    with open(path) as f:
      text = f.read()
    with open(path, "w") as f:
      f.write(text.replace("@sources.fashion", "'npz:/no/such.npz'"))

  def check_same(self, made, g):
    """The samples are those of the run itself."""
    labels = np.arange(16) % 3
    expected = made.experiment.sampler(labels, seed=1)
    found = g.make_sampler()(labels, seed=1)
    self.assertAllClose(found, expected, rtol=0, atol=1e-6)
    self.assertGreater(np.std(expected, 0).max(), 1e-3)

  def test_no_data_is_read(self):
    made = self.train()
    self.hide_data()
    g = trained.load(self.folder)
    self.check_same(made, g)
    self.assertEqual(g.info.step, 4)
    self.assertEqual(g.info.num_classes, 10)
    self.assertEqual(g.info.label_names, made.experiment.input_fn.source[3])
    exported = made.experiment.plain_g()
    for a, b in zip(g.net.variables, exported.variables):
      self.assertAllEqual(a, b)

  @parameterized.named_parameters(
    ("labels", ()),
    ("none", ("input_fn.InputFn.conditional = False",)),
    ("some", ("input_fn.InputFn.only_labels = [1, 5, 7, 8]",)),
    ("linear", LINEAR),
    ("gossip", GOSSIP),
    ("truncated", ("experiment.Experiment.truncation = 0.5",)),
  )
  def test_older_runs_say_by_their_shapes_what_g_is(self, more):
    made = self.train(*more)
    expected = trained.load(self.folder).info
    os.remove(f"{self.folder}/generator.json")
    self.hide_data()
    g = trained.load(self.folder)
    self.assertEqual(g.info, expected._replace(label_names=()))
    self.check_same(made, g)

  def test_where_the_mean_over_replicas_is_the_model_that_is_loaded(self):
    made = self.train(*GOSSIP, strategy=testing.strategy())
    g = trained.load(self.folder)
    self.assertTrue(g.info.mean_of_replicas)
    self.check_same(made, g)

  def test_every_engine_leaves_the_same(self):
    made = self.train(*LINEAR)
    for engine in testing.ENGINES[1:]:
      folder = f"{self.folder}_{engine}"
      bindings = [*TINY, *LINEAR, "run.Run.num_steps = 4"]
      other = prepare(["gin/runs/fashion.gin"], bindings, folder, engine=engine)
      other.open()
      other()
      gin.clear_config()
      self.check_same(other, trained.load(folder))
    self.check_same(made, trained.load(self.folder))

  def test_a_checkpoint_is_chosen_by_its_step(self):
    self.train(steps=8)
    g4, g8 = (trained.load(self.folder, step) for step in (4, None))
    self.assertEqual((g4.info.step, g8.info.step), (4, 8))
    self.assertNotAllEqual(g4.sample(4).images, g8.sample(4).images)
    with self.assertRaisesRegex(ValueError, "`step` must be .* 4, 8; got 5"):
      trained.load(self.folder, 5)

  def test_what_differs_in_another_net_is_said(self):
    self.train()
    path = f"{self.folder}/config.gin"
    with open(path) as f:
      text = f.read()
    with open(path, "w") as f:
      f.write(text.replace("Generator.width = 8", "Generator.width = 9"))
    words = r"another G .* `g_ema/.*has the shape \[.*\] there, and \[.*more sh"
    with self.assertRaisesRegex(ValueError, words):
      trained.load(self.folder)
    with open(path, "w") as f:
      f.write(
        text.replace("@dcgan.Generator", "@linear.Generator").replace(
          "nets import dcgan\n",
          "nets import dcgan\nfrom paragan_tf.nets import linear\n",
        )
      )
    words = "it also has `g_ema/deconv0/.*and .* more; `g_ema/linear/b` has the"
    with self.assertRaisesRegex(ValueError, words):
      trained.load(self.folder)

  def test_what_a_checkpoint_lacks_is_said(self):
    self.assertEqual(
      trained._compare({f"g_ema/{i}": [2] for i in range(5)}, {}),
      ["it lacks `g_ema/0`, `g_ema/1`, `g_ema/2` and 2 more"],
    )
    self.assertEmpty(trained._compare({"a": [1]}, {"a": [1]}))

  def test_folders_without_a_g_are_one_sentence(self):
    with self.assertRaisesRegex(ValueError, "got '.*': there is no such"):
      trained.load(self.folder)
    os.makedirs(self.folder)
    with self.assertRaisesRegex(ValueError, "neither 'config.gin' nor"):
      trained.load(self.folder)
    with open(f"{self.folder}/config.gin", "w") as f:
      f.write("")
    with self.assertRaisesRegex(ValueError, "has no checkpoint yet: wait"):
      trained.load(self.folder)

  def test_torn_files_are_one_sentence(self):
    self.train()
    data = glob.glob(f"{self.folder}/model.ckpt-4.data*")[0]
    with open(data, "r+b") as f:
      whole = f.read()
      f.truncate(100)
    with self.assertRaisesRegex(ValueError, "damaged, the newest is .*ckpt-4"):
      trained.load(self.folder)
    with open(data, "wb") as f:
      f.write(whole)
    with open(f"{self.folder}/generator.json", "w") as f:
      f.write("{")
    with self.assertRaisesRegex(ValueError, "generator.json' cannot be read"):
      trained.load(self.folder)
    with open(f"{self.folder}/config.gin", "a") as f:
      f.write("\nimport no_such_module_of_a_user\n")
    os.remove(f"{self.folder}/generator.json")
    words = "config.gin' cannot be used: .*no_such_module.* must be found"
    with self.assertRaisesRegex(ValueError, words):
      trained.load(self.folder)

  def test_an_export_is_loaded_from_its_folder(self):
    made = self.train()
    trained.load(self.folder).export(f"{self.folder}/export")
    g = trained.load(f"{self.folder}/export")
    self.check_same(made, g)
    with self.assertRaisesRegex(ValueError, "`step` must be left out, got 4"):
      trained.load(f"{self.folder}/export", 4)

  def test_a_net_of_ones_own_needs_its_program_or_an_export(self):
    images = testing.images(64, SPEC)
    gan = pg.Estimator(g_of_user, d_of_user, self.folder, 8, z_dim=4)
    gan.train(images, steps=3)
    for _ in range(2):
      words = "net of your own.*export_saved_model.*`--model_dir=EXPORT`"
      with self.assertRaisesRegex(ValueError, words):
        trained.load(self.folder)
      # Older runs do not say it.
      if os.path.exists(f"{self.folder}/generator.json"):
        shutil.move(f"{self.folder}/generator.json", f"{self.folder}/moved")
    shutil.move(f"{self.folder}/moved", f"{self.folder}/generator.json")
    expected = gan.sample(5, seed=2)
    # Another program has the nets and the folder, and no data.
    other = pg.Estimator(g_of_user, d_of_user, self.folder, z_dim=4)
    self.assertAllEqual(other.sample(5, seed=2).images, expected.images)
    self.assertIsNone(other._run)
    data = tf.data.Dataset.from_tensor_slices({"z": expected.z})
    drawn = [x["images"] for x in other.predict(lambda: data)]
    self.assertAllEqual(samples.to_pixels(np.stack(drawn)), expected.images)
    exported = trained.load(other.export_saved_model(f"{self.folder}/export"))
    self.assertAllEqual(exported.sample(5, seed=2).images, expected.images)
    self.assertLen(other.interpolate(num=2, num_frames=3).images, 6)
    page = f"{self.folder}/compare.html"
    table = other.compare(output=page)
    self.assertRegex(table, f"(?s)^run .*{self._testMethodName} +finished +3")
    with open(page) as f:
      self.assertIn("Drawn for this page", f.read())

  def compare(self, *paths, **options):
    """Returns the pictures of a comparison, by run, and its page."""
    encoded = []
    encode = records.encode_png
    with mock.patch.object(
      comparison.records, "encode_png", lambda x: encoded.append(x) or encode(x)
    ):
      page = pg.compare(paths, drawing=comparison.Drawing(**options)).page
    return encoded, page

  def test_compared_runs_are_drawn_with_equal_codes_and_classes(self):
    made = self.train()
    one, self.folder = self.folder, f"{self.folder}_other"
    self.train("experiment.Experiment.seed = 7", steps=8)
    both, page = self.compare(one, self.folder, num=6, classes=[1, 2], seed=5)
    for folder, picture in zip((one, self.folder), both):
      g = trained.load(folder)
      found = g.sample(6, [1, 2], seed=5)
      grid = samples.enlarge(samples.grid(found.images, 6), 3)
      self.assertAllEqual(picture, grid)
      png = base64.b64encode(records.encode_png(grid)).decode()
      self.assertIn(png, page)
    self.assertNotAllEqual(*both)
    self.assertIn("newest checkpoints, seed 5. In each place they have", page)
    self.assertIn("<small>step 8</small>", page)
    self.assertNotIn("Why not", page)
    other, _ = self.compare(one, num=6, classes=[1, 2], seed=6)
    self.assertNotAllEqual(other[0], both[0])
    # By default all classes, each in a column of its own.
    (default,), _ = self.compare(one)
    found = trained.load(one).sample(60)
    grid = samples.enlarge(samples.grid(found.images, 10), 3)
    self.assertAllEqual(default, grid)
    self.assertEqual(made.done, 4)

  def test_compared_runs_say_how_their_codes_differ(self):
    self.train()
    one, self.folder = self.folder, f"{self.folder}_other"
    self.train("experiment.Experiment.truncation = 0.5")
    _, page = self.compare(one, self.folder)
    name = os.path.basename(one)
    words = f"differ in place: truncation ({name} None, {name}_other 0.5)"
    self.assertIn(words, page)
    _, page = self.compare(one, self.folder, truncation=0.5)
    self.assertIn("In each place they have the same", page)
    os.remove(f"{self.folder}/generator.json")
    records.write_file(f"{self.folder}/config.gin", b"")
    _, page = self.compare(one, self.folder)
    self.assertIn(f"Not drawn anew, so with other latent codes: {name}_o", page)
    with self.assertRaisesRegex(ValueError, "`classes` must be from 0 to 9"):
      self.compare(one, classes=[10])

  def test_what_is_recorded_of_g_is_readable(self):
    made = self.train()
    with open(f"{made.folder.path}/generator.json") as f:
      found = json.load(f)
    self.assertEqual(found["resolution"], 32)
    self.assertEqual(found["z_dim"], 4)
    self.assertFalse(found["own_net"])


if __name__ == "__main__":
  testing.main()
