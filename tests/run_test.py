"""A whole run: what it leaves, and that it resumes bit for bit."""

import contextlib
import functools
import io
import os
import shutil
import tempfile
from typing import Any, NamedTuple

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.engine import strategies
from paragan_tf.engine.entries import StepState
from paragan_tf.nets import linear, norms
from paragan_tf.outputs import checkpoints, records, samples
from paragan_tf.run import Run
from paragan_tf.types import Mode
from tests import testing

TINY = [
  "dcgan.Generator.width = 1",
  "dcgan.Generator.z_dim = 4",
  "dcgan.Discriminator.width = 2",
  "experiment.Experiment.batch_size = 8",
  "experiment.Experiment.extractor = None",
  "ema.Ema.start_step = 2",
  "run.Run.log_every = 4",
  "run.Run.sample_every = 100",
  "run.Run.save_every = 4",
]
ONE = tf.distribute.OneDeviceStrategy
# Traced in a tenth of the time: for four replicas.
LINEAR = [
  "g/experiment.player.net = @linear.Generator",
  "d/experiment.player.net = @linear.Discriminator",
  "linear.Discriminator.spectral = True",
]
EVERY_OTHER_STEP = [*LINEAR, "experiment.player.exchange = @exchange.Periodic"]
ACCUMULATED = ["include 'gin/sync/gradients_every_other_step.gin'", *LINEAR]
ASYNC = [
  *EVERY_OTHER_STEP,
  "experiment.Experiment.schedule = @schedule.Asynchronous",
]
# What follows D: its state is in the checkpoint too.
FOLLOWING = [
  *LINEAR,
  "from paragan_tf.game import augment",
  "from paragan_tf.game import penalties",
  "experiment.Experiment.augment = @augment.Ada",
  "augment.Ada.speed = 100",
  "augment.Ada.policy = ['flip', 'brightness']",
  "d/experiment.player.penalties = [@penalties.LeCam()]",
  "penalties.LeCam.start_step = 2",
]
GOSSIP = ["include 'gin/sync/gossip.gin'", *LINEAR]
QUANTIZED = [
  "include 'gin/sync/quantized.gin'",
  *LINEAR,
  "quantize.Quantized.min_size = 8",
  "experiment.player.optimizer = @optimistic.OptimisticSGD",
]
TWO_PHASE = [*QUANTIZED, "quantize.Quantized.form = 'two_phase'"]
# 2.4 bytes an entry, and much owed: gathered by few, two phases among four.
LONG = [
  *QUANTIZED,
  "quantize.Quantized.compressor = @compress.TopK()",
  "compress.TopK.share = 0.3",
  "optimistic.OptimisticSGD.learning_rate = 0.1",
]


def prepare(strategy, folder, num_steps, *more):
  """Makes a tiny run, as a new program would; nothing is trained."""
  bindings = [*TINY, f"run.Run.num_steps = {num_steps}", *more]
  config.load(["gin/runs/fashion.gin"], bindings)
  made = Run(experiment.Experiment(strategy), folder)
  made.restore()
  return made


def run(strategy, folder, num_steps, *more):
  """Trains a tiny run up to a step."""
  return train(prepare(strategy, folder, num_steps, *more))


def train(made):
  """Trains what was prepared."""
  made.open()
  made()
  return made


def values(made):
  """Returns the copies of all variables on replicas that use them, by name."""
  built = made.experiment
  state = StepState(built.step, built.strategy, built.processes)
  return {
    f"{entry.name}/{replica}": copy.numpy()
    for entry in state.entries
    for replica, copy in zip(entry.replicas, entry.copies)
  }


# By name: on how many replicas, and what is bound.
SCHEMES = {
  "one_replica": (1, ()),
  "one_async": (1, ASYNC),
  "one_following": (1, FOLLOWING),
  "four_replicas": (4, LINEAR),
  "four_every_other_step": (4, EVERY_OTHER_STEP),
  "four_gradients_every_other_step": (4, ACCUMULATED),
  "four_async": (4, ASYNC),
  "four_gossip": (4, GOSSIP),
  "four_quantized": (4, QUANTIZED),
  "four_two_phase": (4, TWO_PHASE),
}


def strategy(num_replicas):
  """Returns the shared strategy, or one of a single replica."""
  return testing.strategy() if num_replicas > 1 else ONE("/cpu:0")


class Whole(NamedTuple):
  """A run of 8 steps with checkpoints at 4 and 8, and what it printed."""

  made: Run
  words: str
  temporary: Any

  @property
  def folder(self):
    return self.made.folder.path

  @property
  def checkpoint(self):
    return tf.train.load_checkpoint(latest(self.folder))

  def copy(self, folder):
    """Copies the run to a folder, as it is."""
    shutil.copytree(self.folder, folder)

  def copy_half(self, folder):
    """Copies the run as it was at step 4."""
    self.copy(folder)
    os.remove(f"{latest(folder)}.index")


def latest(folder):
  return checkpoints.Checkpoints(folder).latest()


@functools.cache
def whole(name):
  """Returns the run of a scheme; trained once, for all tests of this file."""
  num_replicas, more = SCHEMES[name]
  temporary = tempfile.TemporaryDirectory()
  with contextlib.redirect_stdout(io.StringIO()) as words:
    made = run(strategy(num_replicas), f"{temporary.name}/{name}", 8, *more)
  return Whole(made, words.getvalue(), temporary)


def tearDownModule():
  whole.cache_clear()


class QuickTest(tf.test.TestCase):
  """From images to a report in a few seconds; `make quick` runs it."""

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_a_run_that_was_not_restored_does_not_train(self):
    folder = os.path.join(self.get_temp_dir(), "new")
    made = prepare(ONE("/cpu:0"), folder, 4, *LINEAR)
    fresh = Run(made.experiment, folder)
    with self.assertRaisesRegex(ValueError, "`Run.restore` must be called"):
      fresh.train(4)

  def test_a_run_trains_saves_and_measures(self):
    folder = os.path.join(self.get_temp_dir(), "quick")
    with contextlib.redirect_stdout(io.StringIO()) as words:
      made = run(
        ONE("/cpu:0"),
        folder,
        8,
        *LINEAR,
        "Experiment.extractor = @features.FashionClassifier",
        "Run.num_metric_samples = 100",
        "Run.num_metric_reference = 200",
      )
    self.assertEqual(made.done, 8)
    self.assertRegex(words.getvalue(), r"frechet\w* +\d+\.\d+")
    self.assertEndsWith(latest(folder), "model.ckpt-8")
    self.assertTrue(os.path.exists(f"{folder}/report.html"))


class MeasureTest(tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def measure_twin(self, *more):
    """Returns the distance after no step; the nets stay as they are."""
    extractor = "Experiment.extractor = @features.FashionClassifier"
    config.load(["gin/runs/fashion.gin"], [*TINY, extractor, *more])
    made = experiment.Experiment(ONE("/cpu:0"))
    twin = made.step.ema.twin
    for norm in norms.batch_norms(twin):
      norm.mean.assign(tf.fill(norm.mean.shape, 3.0))  # As if far behind.
    before = {v.name: v.numpy() for v in twin.variables}
    value = made.evaluation.measure(100, 200)[0]
    for v in twin.variables:
      self.assertAllEqual(v, before[v.name])
    return value

  def test_standing_statistics_are_those_of_samples(self):
    stored = self.measure_twin()
    standing = self.measure_twin("Experiment.num_standing = 2")
    self.assertEqual(stored.protocol.bn_mode, "stored")
    self.assertEqual(standing.protocol.bn_mode, "standing, 2")
    self.assertNotAllClose(stored.value, standing.value, rtol=0.01)
    self.assertEqual(
      self.measure_twin("Experiment.num_standing = 2").value, standing.value
    )

  def test_less_than_none_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`num_standing` must be 0 or more"):
      self.measure_twin("Experiment.num_standing = -1")


def copies(made, variable):
  """Returns what each replica has, stacked."""
  return np.stack(strategies.copies(made.experiment.strategy, variable))


class MeanTest(tf.test.TestCase, parameterized.TestCase):
  """Where the mean over replicas is what was learned."""

  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.parameters("four_gossip", "four_two_phase")
  def test_the_mean_is_shown_and_resumed_from(self, name):
    trained = whole(name)
    four, more = trained.made, SCHEMES[name][1]
    config.load(["gin/runs/fashion.gin"], [*TINY, *more])
    self.check_shown(four)
    trained.copy(self.folder)
    one = prepare(ONE("/cpu:0"), self.folder, 12, *more)
    self.assertEqual(one.done, 8)
    self.check_taken_up(four, one)
    if name == "four_gossip":
      self.check_summary(four)
      way = "`g` and `d` by Gossip on `ring` of 4, rho 0.3333, rounds 1"
    else:
      way = "`g` by Quantized by Stochastic(.*); two_phase, .*; `d` by Quantiz"
    self.assertRegex(trained.words, f"Replicas exchange {way}")

  def heading_for(self, made):
    """Returns where all are on the way to: `w - mean e - sum s`, by player."""
    found = {}
    for who, side in made.experiment.step.players.items():
      exchange = side.exchange
      owed = [copies(made, e).mean(0) for e in exchange.e]
      for s in exchange.s:
        rest = copies(made, s).sum(0)
        for i, e in enumerate(owed):
          if not exchange._is_small(e.shape):
            owed[i] = e + rest[: e.size].reshape(e.shape)
            rest = rest[e.size :]
      base = side.optimizer.base(side.net.trainable_variables)
      found[who] = [copies(made, w)[0] - e for w, e in zip(base, owed)]
    return found

  def assert_same_way(self, made, form, before):
    exchanges = [p.exchange for p in made.experiment.step.players.values()]
    self.assertEqual([e.form for e in exchanges], [form] * 2)
    for who, values in self.heading_for(made).items():
      for got, expected in zip(values, before[who]):
        self.assertAllClose(got, expected, rtol=0, atol=1e-6, msg=who)

  def test_debts_outlive_a_change_of_the_form(self):
    one = run(ONE("/cpu:0"), self.folder, 4, *LONG)
    four = prepare(testing.strategy(), self.folder, 8, *LONG)
    self.assert_same_way(four, "two_phase", self.heading_for(one))
    four = run(testing.strategy(), self.folder, 8, *LONG)
    for side in four.experiment.step.players.values():
      debts = copies(four, side.exchange.s[0]).sum(0)
      self.assertGreater(np.abs(debts).max(), 1e-4)  # Else none would do.
    one = prepare(ONE("/cpu:0"), self.folder, 12, *LONG)
    self.assert_same_way(one, "gather", self.heading_for(four))

  @parameterized.product(
    scheme=("gossip", "quantized"), nets=("dcgan", "sngan", "wgan_gp")
  )
  @pytest.mark.soak
  def test_it_trains_with_any_net(self, scheme, nets):
    more = [
      f"include 'gin/nets/{nets}.gin'",
      f"include 'gin/sync/{scheme}.gin'",
      *(f"{nets}.{net}.width = 4" for net in ("Generator", "Discriminator")),
    ]
    if nets == "wgan_gp":
      more += [
        "from paragan_tf.game import penalties",
        "d/experiment.player.penalties = [@penalties.GradientPenalty()]",
        "experiment.Experiment.loss = @losses.wasserstein",
      ]
    made = run(testing.strategy(), self.folder, 4, *more)
    for line in records.read(self.folder):
      self.assertTrue(np.isfinite(line["d/loss"]), line)
      self.assertGreater(line["g/update_ratio"], 0.0)
    base = {
      who: side.optimizer.base(side.net.trainable_variables)
      for who, side in made.experiment.step.players.items()
    }
    for who in "gd":
      spreads = [np.ptp(copies(made, x), 0).max() for x in base[who]]
      self.assertEqual(max(spreads) == 0.0, scheme == "quantized", who)

  def check_shown(self, made):
    """Samples and exports are those of the mean of all averages."""
    twin = made.experiment.step.ema.twin
    shown = made.experiment.plain_g()
    for v, x in zip(shown.variables, twin.variables):
      mean = copies(made, x).mean(0)
      self.assertAllClose(v, mean, rtol=0, atol=1e-6, msg=x.name)
    labels = np.arange(8) % 3
    images = made.experiment.sampler(labels, seed=1)
    z = tf.constant(made.experiment.sampler.codes(8, seed=1))
    expected = shown(z, tf.constant(labels, tf.int32), Mode.EVAL)
    self.assertAllClose(images, expected, atol=1e-5)

  def check_taken_up(self, four, one):
    """One replica has the means, and the sums of what is summed."""
    variables = (made.experiment.step.variables for made in (four, one))
    players = four.experiment.step.players.values()
    summed = {
      v.name
      for p in players
      for v in getattr(p.exchange, "summed_residuals", ())
    }
    spread = {}
    for x, y in zip(*variables):
      self.assertEqual(x.name, y.name)
      values = copies(four, x)
      merged = values.sum(0) if x.name in summed else values.mean(0)
      self.assertAllClose(y, merged, rtol=0, atol=1e-6, msg=x.name)
      spread[x.name] = np.ptp(values, 0).max()
    # There is something to merge.
    self.assertGreater(spread["g/linear/weight/w:0"], 1e-6)
    for name in [
      *summed,
      *(n for n in spread if n.endswith("g/linear/weight/w/e:0")),
    ]:
      self.assertGreater(spread[name], 0.0, name)

  def check_summary(self, made):
    """The summary and the log have how replicas communicate."""
    self.assertIn("Gossip on `ring` of 4, rho 0.3333", made.summary())
    line = records.read(made.folder.path)[-1]
    for name in ("distance", "distance_after"):
      self.assertGreater(line[f"exchange/d_g/{name}"], 0.0)
    self.assertAllClose(line["exchange/d_g/rho"], 1 / 3)
    players = made.experiment.step.players.values()
    sizes = [v.shape.num_elements() for p in players for v in p.net.variables]
    self.assertAllClose(line["exchange/bytes"], 2 * 4 * (sum(sizes) + 2 * 256))


class ExperimentTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def check_resumes(self, name):
    """Four steps, stop, four steps: bit for bit the eight in one go."""
    num_replicas, more = SCHEMES[name]
    trained = whole(name)
    trained.copy_half(self.folder)
    parts = prepare(strategy(num_replicas), self.folder, 8, *more)
    self.assertEqual(parts.done, 4)
    train(parts)
    self.assertEqual(parts.done, 8)
    expected, got = values(trained.made), values(parts)
    self.assertEqual(expected.keys(), got.keys())
    for key, value in expected.items():
      self.assertAllEqual(got[key], value, key)
    moved = checkpoints.Checkpoints(trained.folder)
    four, eight = (tf.train.load_checkpoint(p) for p in moved.paths())
    slot = "base" if more in (QUANTIZED, TWO_PHASE) else "v"
    names = ["g/linear/weight/w", f"d_optimizer/d/linear/weight/w/{slot}"]
    if more is FOLLOWING:
      names += ["augment/p", "lecam/real", "lecam/fake"]
    for key in names:
      self.assertNotAllEqual(four.get_tensor(key), eight.get_tensor(key))

  @parameterized.parameters(*(n for n in SCHEMES if n != "four_quantized"))
  def test_resumes_bit_for_bit(self, name):
    self.check_resumes(name)

  @pytest.mark.soak  # Two phases keep all that a gather keeps, and more.
  def test_a_gather_resumes_bit_for_bit(self):
    self.check_resumes("four_quantized")

  def test_the_checkpoint_has_all_that_a_run_learns(self):
    keys = whole("one_replica").checkpoint.get_variable_to_shape_map()
    for key in (
      "global_step",
      "g/linear/weight/w",
      "g/norm0/mean",
      "g_ema/linear/weight/w",
      "d/conv0/weight/u",
      "g_optimizer/g/linear/weight/w/v",
      "d_optimizer/t",
    ):
      self.assertIn(key, keys)

  def test_replicas_that_average_weights_resume_on_another_number(self):
    """A checkpoint has one value for all replicas, moments included."""
    trained = whole("four_every_other_step")
    trained.copy(self.folder)
    made = prepare(ONE("/cpu:0"), self.folder, 12, *EVERY_OTHER_STEP)
    self.assertEqual(made.done, 8)
    expected = values(trained.made)
    for name, value in values(made).items():
      self.assertAllEqual(value, expected[name], name)

  def test_the_cache_of_fakes_is_in_the_checkpoint(self):
    read = whole("four_async").checkpoint
    # Replicas 1 and 3 play D; at step 8 they hold the fakes of steps 6 and 7.
    own = [read.get_tensor(f"fakes/pixels/replica_{i}") for i in (1, 3)]
    self.assertNotAllClose(*own)
    self.assertAllEqual(read.get_tensor("fakes/born/replica_1"), [6, 7])

  @parameterized.parameters("four_replicas", "four_gradients_every_other_step")
  def test_equal_replicas_resume_on_another_number(self, name):
    trained = whole(name)
    trained.copy(self.folder)
    made = prepare(ONE("/cpu:0"), self.folder, 12, *SCHEMES[name][1])
    self.assertEqual(made.done, 8)
    expected = values(trained.made)
    for name, value in values(made).items():
      self.assertAllEqual(value, expected[name], name)

  def test_a_run_leaves_its_record(self):
    folder = whole("one_replica").folder
    self.assertContainsSubset(
      {"checkpoint", "config.gin", "events", "metrics.jsonl", "report.html"},
      os.listdir(folder),
    )
    self.assertCountEqual(
      os.listdir(f"{folder}/samples"), ["00000008.png", "interpolation.png"]
    )
    lines = records.read(folder)
    self.assertContainsSubset(
      {"d/loss", "g/loss", "images_per_second", "input_wait"}, lines[-1]
    )

  @parameterized.parameters(("one_replica", 1), ("four_replicas", 4))
  def test_a_run_records_what_it_starts_with(self, name, num_replicas):
    (start,) = records.read_starts(whole(name).folder)
    made = whole(name).made
    expected = {
      "step": 0,
      "num_devices": 1,  # Logical devices are no hardware of their own.
      "num_replicas": num_replicas,
      "num_processes": 1,
      "engine": "strategy",
      "batch_size": made.experiment.batch_size,
      "images_per_step": made.experiment.images_per_step,
      "num_steps": made.num_steps,
    }
    self.assertEqual({x: start[x] for x in expected}, expected)
    self.assertEqual(start["versions"]["tensorflow"], tf.__version__)

  def test_a_row_between_classes_ends_where_both_are_whole(self):
    # A linear G knows its classes from the start.
    config.load(["gin/runs/fashion.gin"], [*TINY, *LINEAR])
    made = experiment.Experiment(ONE("/cpu:0"))
    picture = made.evaluation.interpolation(rows=3, columns=5)
    self.assertEqual(picture.shape, (3 * 33 - 1, 5 * 33 - 1, 1))
    # The second row goes from class 1 to 2, both with the second code.
    z = np.repeat(made.sampler.codes(2, seed=1)[1:], 2, 0)
    ends = samples.grid(made.sampler(np.array([1, 2]), 1, z=z), 2)
    self.assertAllClose(picture[33:65, :32], ends[:, :32], atol=1)
    self.assertAllClose(picture[33:65, -32:], ends[:, -32:], atol=1)
    self.assertNotAllClose(ends[:, :32], ends[:, -32:], atol=1)
    self.assertNotAllClose(picture[33:65, 66:98], ends[:, :32], atol=1)

  def test_where_classes_cannot_be_mixed_nothing_is_drawn_between(self):
    unlabeled = "input_fn.InputFn.conditional = False"
    run(ONE("/cpu:0"), self.folder, 4, *LINEAR, unlabeled)
    self.assertEqual(os.listdir(f"{self.folder}/samples"), ["00000004.png"])
    config.load(["gin/runs/fashion.gin"], [*TINY, *LINEAR])
    given = {"g": linear.Generator, "d": linear.Discriminator}
    self.assertFalse(experiment.Experiment(ONE("/cpu:0"), given).mixes_classes)
    self.assertTrue(experiment.Experiment(ONE("/cpu:0")).mixes_classes)

  def test_norms_that_communicate_are_refused_with_a_role_split(self):
    role_split = [
      *ASYNC[len(LINEAR) :],
      "from paragan_tf.nets import norms",
      "norms.BatchNorm.group_size = 'all'",
    ]
    config.load(["gin/runs/fashion.gin"], [*TINY, *role_split])
    with self.assertRaisesRegex(ValueError, "Norms of `g` .* = 1`"):
      experiment.Experiment(testing.strategy())
    experiment.Experiment(ONE("/cpu:0"))  # Where each replica plays both.

  def test_a_changed_config_is_refused_with_its_differences(self):
    whole("one_replica").copy_half(self.folder)
    before = sorted(os.listdir(self.folder))
    with self.assertRaisesRegex(ValueError, "learning_rate` was .*now 0.5"):
      prepare(
        ONE("/cpu:0"),
        self.folder,
        8,
        "g/optimizers.Adam.learning_rate = 0.5",
      )
    self.assertEqual(sorted(os.listdir(self.folder)), before)

  def test_what_a_run_cannot_do_is_said_before_anything_is_written(self):
    cases = (
      ("experiment.Experiment.batch_size = 6", "multiple of the 4 replicas"),
      (
        "input_fn.InputFn.resolution = 48",
        "must be one of .*, got 48",
      ),
      ("run.Run.num_steps = 0", "got 0"),
      (
        "dcgan.Discriminator.conditioning = 'ac'",
        "'ac' of D needs .*`AuxiliaryClassifier` .*`g/player.penalties = ",
      ),
      (
        "dcgan.Discriminator.conditioning = '2c'",
        "'2c' of D needs .*`Contrastive` of both players, and `g` has none",
      ),
      ("sources.fashion.num_heldout = 10000", "got 10000"),
    )
    for binding, words in cases:
      with self.assertRaisesRegex(ValueError, words):
        run(testing.strategy(), self.folder, 4, binding)
    odd = [*EVERY_OTHER_STEP, "run.Run.save_every = 3"]
    words = "`Run.save_every` must be a multiple of 2.* got 3: take 4"
    with self.assertRaisesRegex(ValueError, words):
      run(testing.strategy(), self.folder, 4, *odd)
    by_label = ["InputFn.by_label = True", "InputFn.only_labels = [0, 1, 2]"]
    with self.assertRaisesRegex(ValueError, "`by_label` .* has 3 for 4: take"):
      run(testing.strategy(), self.folder, 4, *LINEAR, *by_label)
    self.assertFalse(os.path.exists(self.folder))

  def test_divergence_is_reported_and_the_checkpoint_kept(self):
    whole("one_replica").copy_half(self.folder)
    made = prepare(ONE("/cpu:0"), self.folder, 8)
    made.open()
    weight = made.experiment.step.players["g"].net.trainable_variables[0]
    weight.assign(weight + float("nan"))
    with self.assertRaisesRegex(FloatingPointError, "diverged.*ckpt-4"):
      made()
    self.assertEndsWith(latest(self.folder), "model.ckpt-4")

  def test_stopping_early_saves(self):
    whole("one_replica").copy_half(self.folder)
    made = prepare(ONE("/cpu:0"), self.folder, 12, "run.Run.save_every = 12")
    made.open()
    asked = iter([False, True])
    with contextlib.redirect_stdout(io.StringIO()) as words:
      made(lambda: next(asked))
    # The first call of the loop is of one step, as their time is not known.
    self.assertEqual(made.done, 5)
    self.assertEndsWith(latest(self.folder), "model.ckpt-5")
    self.assertIn("Stopped at step 5", words.getvalue())


if __name__ == "__main__":
  tf.test.main()
