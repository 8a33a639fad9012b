"""Every config can be read, says what it is, and builds its run."""

import pathlib
import re
from unittest import mock

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.nets import layers
from paragan_tf.run import Run

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = sorted((ROOT / "gin" / "runs").glob("*.gin"))
PARTS = sorted(set((ROOT / "gin").rglob("*.gin")) - set(RUNS))
# Those whose nets have most layers; `_imagenet128_tpu` has the same parts.
DEEP = [path for path in RUNS if re.search("(256|512|1024)_|_deep_", path.stem)]
NETS = ("Generator", "Discriminator")


def make_cases(paths):
  """Returns one test case a file."""
  return [(path.stem, path) for path in sorted(paths)]


class GinTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.named_parameters(*make_cases(PARTS))
  def test_a_part_says_what_it_is_and_can_be_read(self, path):
    self.assertStartsWith(path.read_text(), "# ")
    config.load([str(path)], [])

  @parameterized.named_parameters(*make_cases(RUNS))
  def test_a_run_says_its_command_and_can_be_read(self, path):
    header = path.read_text().split("from __gin__")[0]
    for word in ("#   ", "Required:", "Often changed:"):
      self.assertIn(word, header)
    config.load([str(path)], self.bindings(path))

  def bindings(self, path):
    """Returns what a run needs that is not in the package, or not here.

    What is fetched is a few images, and ImageNet's nets are thin: `runs_test`
    has them at their size.
    """
    sets = {
      "cifar10": 10,
      "tiny_imagenet": 200,
      "imagenet": 1000,
      "folder": 10,
    }
    found = [name for name in sets if name in path.stem]
    if not found:
      return []
    random = np.random.RandomState(0)
    file = f"{self.get_temp_dir()}/few.npz"
    pixels = random.randint(256, size=[20, 32, 32, 3]).astype(np.uint8)
    labels = np.arange(20) % 9
    labels[0] = sets[found[0]] - 1
    np.savez(file, images=pixels, labels=labels)
    given = [
      "from paragan_tf.data import sources",
      "InputFn.source = @sources.npz",
      f"sources.npz.path = '{file}'",
      "sources.npz.num_heldout = 2",
    ]
    if "imagenet" in path.stem:
      nets = path.stem.split(f"_{found[0]}")[0]
      given += [f"{nets}.{net}.width = 8" for net in NETS]
      given.append("Experiment.batch_size = 2")
    return given

  @parameterized.named_parameters(*make_cases(set(RUNS) - set(DEEP)))
  def test_a_run_builds(self, path):
    self.check_run(path)

  @parameterized.named_parameters(*make_cases(DEEP))
  @pytest.mark.soak
  def test_a_run_of_many_layers_builds(self, path):
    self.check_run(path)

  def check_run(self, path):
    config.load([str(path)], self.bindings(path))
    # First values take most of the time, and nobody looks at them.
    for name in ("glorot_init", "normal_init", "orthogonal_init"):
      zeros = mock.Mock(return_value=lambda name, shape: tf.zeros(shape))
      self.enter_context(mock.patch.object(layers, name, zeros))
    built = experiment.Experiment(tf.distribute.OneDeviceStrategy("/cpu:0"))
    folder = self.get_temp_dir()
    run = Run(built, f"{folder}/{path.stem}")
    self.assertGreater(run.num_steps, 0)
    self.assertIn(f"{run.num_steps:,} in all", run.summary())


class ConfigTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_a_parameter_that_was_added_had_the_value_of_before(self):
    old = "schedule.Asynchronous.cache_depth = 2\n"
    for new, expected in (("'float32'", []), ("'uint8'", ["'float32'"])):
      now = f"{old}schedule.Asynchronous.cache_dtype = {new}\n"
      rows = config.differences(old, now)
      self.assertEqual([before for _, before, _ in rows], expected)

  def test_differences_are_listed_with_both_values(self):
    old = "# Parameters\na.x = 1\na.y = \\\n    'long'\nb.z = [1,\n       2]\n"
    new = "import a\na.x = 2\na.y = 'long'\nb.z = [1, 2]\nc.w = None\n"
    rows = config.differences(old, new)
    self.assertEqual(rows, [("a.x", "1", "2"), ("c.w", "(not set)", "None")])

  def test_an_old_name_is_no_difference(self):
    old = "schedule.Asynchronous.g_share = 1\n"
    new = "schedule.Asynchronous.g_per_group = 1\n"
    self.assertEmpty(config.differences(old, new))

  def test_free_names_may_differ(self):
    for scope in ("", "g/"):
      old, new = (f"{scope}a.x = {value}\n" for value in (1, 2))
      self.assertEmpty(config.differences(old, new, ["a."]))
      self.assertLen(config.differences(old, new, ["b."]), 1)

  def test_scopes_are_told_apart(self):
    rows = config.differences("g/a.x = 1\n", "d/a.x = 1\n")
    self.assertEqual([row[0] for row in rows], ["d/a.x", "g/a.x"])

  @parameterized.parameters(*sorted(config._RENAMED.items()))
  def test_an_old_name_is_reported_with_the_new_one(self, old, new):
    words = f"`{old}` is called `{new}` now"
    if old.endswith("/"):  # A folder of configs.
      file = next((ROOT / new).glob("*.gin")).name
      config.load([f"{new}{file}"], [])
      with self.assertRaisesRegex(ValueError, words):
        config.load([f"{old}{file}"], [])
      return
    owner, value = "hardware.Layout", None
    if "_share" in old:
      owner, value = "schedule.Asynchronous", 1
    files = ["gin/layout/tpu.gin", "gin/sync/paragan.gin"]
    config.load(files, [f"{owner}.{new} = {value}"])
    with self.assertRaisesRegex(ValueError, words):
      config.load(files, [f"{owner}.{old} = {value}"])

  def test_asynchronous_roles_take_gradients_every_other_step(self):
    names = ("async", "gradients_every_other_step")
    files = [f"gin/sync/{name}.gin" for name in names]
    config.load(["gin/runs/smoke.gin", *files], [])
    step = experiment.Experiment(tf.distribute.get_strategy()).step
    self.assertEqual(step.cycle, 2)
    # D takes the fakes of both steps, each once.
    self.assertEqual(step.schedule.cache_depth, 2)
    for player in step.players.values():
      self.assertEqual(player.exchange.moves_per_update, 2)

  def test_a_value_that_is_left_open_is_named(self):
    words = (
      '`InputFn.source` must be set.*add `--gin_bindings="InputFn.source = '
    )
    with self.assertRaisesRegex(ValueError, words):
      config.load(["gin/runs/folder64.gin"], [])

  def test_an_old_name_in_an_include_is_reported_too(self):
    path = pathlib.Path(self.get_temp_dir()) / "old.gin"
    path.write_text("include 'gin/policy/ttur.gin'\n")
    words = "`gin/policy/` is called `gin/optimizers/` now"
    with self.assertRaisesRegex(ValueError, words):
      config.load([str(path)], [])

  def test_what_cannot_be_read_is_one_sentence(self):
    cases = (
      (["no_such.gin"], [], "'no_such.gin' does not exist"),
      ([], ["run.Run.no_such = 1"], "no_such"),
      ([], ["no_such.thing = 1"], "no_such"),
      ([], ["broken ="], "config"),
    )
    for files, bindings, words in cases:
      with self.assertRaisesRegex(ValueError, words) as caught:
        config.load(files, bindings)
      self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
  tf.test.main()
