"""All labels as one G, and what trains them: independence, signs, bounds."""

import contextlib
import functools
import io
import os
import tempfile

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import label_trainer, measuring, trained
from paragan_tf.data import sources
from paragan_tf.engine import strategies
from paragan_tf.experiment import Experiment
from paragan_tf.game import losses, noise
from paragan_tf.outputs import export, labels
from paragan_tf.types import Batch, Mode
from tests import label_pools, testing

SIZES = (20, 40, 30)
COLLECTIVE = ("Collective", "Nccl", "AllReduce", "Send", "Recv", "CrossReplica")


class Trained:
  """Three labels, trained in this process by one trainer."""

  def __init__(self):
    self.temporary = tempfile.TemporaryDirectory()
    self.folder = f"{self.temporary.name}/pool"
    path = label_pools.write_set(f"{self.temporary.name}/set.npz", SIZES)
    label_pools.load(
      path,
      "InputFn.resolution = 32",
      "from paragan_tf.outputs import features",
      "Experiment.extractor = @features.FashionClassifier",
    )
    os.makedirs(self.folder)
    with open(f"{self.folder}/config.gin", "w") as f:
      f.write(gin.config_str())
    trainer = label_trainer.LabelTrainer(self.folder)
    self.programs = []
    with sources.keep(), contextlib.redirect_stdout(io.StringIO()):
      for label in range(len(SIZES)):
        run = trainer.prepare(label)
        run()
        self.programs.append(run._inner)
        state = labels.LabelState(
          label, f"name{label}", SIZES[label], "done", run.done
        )
        labels.write_state(self.folder, state)
    states = [labels.read_state(self.folder, i) for i in range(len(SIZES))]
    labels.write_manifest(self.folder, "set", states, range(len(SIZES)))
    self.experiment = trainer._experiment
    gin.clear_config()


@functools.cache
def trained_labels():
  return Trained()


def tearDownModule():
  trained_labels.cache_clear()


def op_types(function):
  """Returns the types of all ops of a function and of its library."""
  graph = function.graph.as_graph_def()
  nodes = [node.op for node in graph.node]
  nodes += [n.op for f in graph.library.function for n in f.node_def]
  return set(nodes)


def find_collectives(types):
  return sorted(x for x in types if any(word in x for word in COLLECTIVE))


class LabelGeneratorTest(parameterized.TestCase, tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def load(self):
    return trained.load(trained_labels().folder)

  def single(self, label):
    return trained.load(labels.folder(trained_labels().folder, label))

  def test_an_image_is_that_of_its_labels_own_g(self):
    z = np.random.RandomState(0).randn(25, 4).astype(np.float32)
    ids = np.random.RandomState(1).randint(3, size=25).astype(np.int32)
    mixed = self.load().make_sampler()(ids, 0, z=z)
    for label in range(3):
      alone = self.single(label).make_sampler()(None, 0, z=z[ids == label])
      np.testing.assert_array_equal(mixed[ids == label], alone)
    self.assertNotAllClose(mixed[ids == 0][:5], mixed[ids == 1][:5])

  def test_only_labels_that_are_asked_for_are_loaded(self):
    g = self.load()
    self.assertEqual(g.loaded, [])
    found = g.sample(4, classes=["name2"])
    self.assertEqual(g.loaded, [2])
    self.assertAllEqual(found.labels, [2] * 4)
    g.sample(2, classes=[0])
    self.assertEqual(g.loaded, [2, 0])

  def test_a_sample_does_not_depend_on_how_many_there_are(self):
    g = self.load()
    many, few = g.sample(20, seed=3), g.sample(2, seed=3)
    self.assertAllEqual(many.images[:2], few.images)

  def test_the_export_has_all_labels(self):
    g = self.load()
    path = g.export(os.path.join(self.get_temp_dir(), "export"))
    again, info = export.load(export.find(path))
    self.assertEqual(info.num_classes, 3)
    self.assertEqual(info.label_names, ("name0", "name1", "name2"))
    z = np.random.RandomState(0).randn(7, 4).astype(np.float32)
    ids = np.array([0, 2, 1, 1, 2, 0, 2], np.int32)
    images = again(tf.constant(z), tf.constant(ids), Mode.EVAL)
    expected = g.make_sampler()(ids, 0, z=z)
    self.assertAllClose(images, expected, atol=1e-5)
    pixels = trained.load(path).sample(6, seed=2).images
    self.assertAllClose(pixels, g.sample(6, seed=2).images, atol=1)

  def test_the_mixture_has_the_frequencies_of_the_data(self):
    counts = np.bincount(self.load().mixture(9000), minlength=3)
    self.assertAllClose(counts / 9000, np.array(SIZES) / 90, atol=2e-3)

  def test_metrics_are_those_of_the_mixture(self):
    folder = trained_labels().folder
    meter = measuring.RunMeter(folder, measuring.Request(num=9))
    found = {value.name: value for value in meter.measure()}
    self.assertIn("frechet_fashion", found)
    self.assertEqual(found["frechet_fashion"].protocol.num_samples, 9)
    self.assertEqual(meter.step, label_pools.STEPS)

  def test_what_only_one_g_can_do_is_refused(self):
    g = self.load()
    with self.assertRaisesRegex(ValueError, "a G that can mix them"):
      g.interpolate("class")
    with self.assertRaisesRegex(ValueError, "one for each label"):
      g.export_onnx("g.onnx")
    with self.assertRaisesRegex(ValueError, "`step` must be left out, got 4"):
      trained.load(trained_labels().folder, 4)
    self.assertLen(g.interpolate("z", 2, 3, [1]).images, 6)

  def test_a_label_without_a_checkpoint_is_named(self):
    folder = os.path.join(self.get_temp_dir(), "partial")
    tf.io.gfile.makedirs(folder)
    whole = trained_labels().folder
    for name in ("config.gin", "labels.json"):
      tf.io.gfile.copy(f"{whole}/{name}", f"{folder}/{name}")
    tf.io.gfile.makedirs(f"{folder}/labels")
    os.symlink(labels.folder(whole, 1), labels.folder(folder, 1))
    g = trained.load(folder)
    self.assertLen(g.sample(2, [1]).images, 2)
    with self.assertRaisesRegex(ValueError, "labels/00002' has no checkpoint"):
      g.sample(2, [2])


class IndependenceTest(tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_all_labels_share_one_trace(self):
    inner = trained_labels().experiment._inner_loop
    self.assertEqual(inner._run.experimental_get_tracing_count(), 1)

  def test_no_op_of_a_labels_program_communicates(self):
    inner = trained_labels().experiment._inner_loop
    function = inner._run.get_concrete_function(
      inner._iterator, tf.constant(2), (0,), tf.constant(False)
    )
    types = op_types(function)
    self.assertIn(
      "StatelessWhile" if "StatelessWhile" in types else "While", types
    )
    self.assertEmpty(find_collectives(types))

  def test_the_search_finds_those_of_a_mirrored_step(self):
    label_pools.load(
      label_pools.write_set(os.path.join(self.get_temp_dir(), "x.npz"), SIZES)
    )
    made = Experiment(testing.strategy())
    inner = made.inner_loop(0)
    function = inner._run.get_concrete_function(
      inner._iterator, tf.constant(2), (0,), tf.constant(False)
    )
    self.assertNotEmpty(find_collectives(op_types(function)))

  def test_a_traced_seed_gives_other_numbers_for_each_value(self):
    step = tf.constant(3, tf.int64)

    @tf.function
    def draw(seed):
      return noise.uniform(1000, seed, step, "z", shard=0)

    a, b, again = (draw(tf.constant(x, tf.int32)) for x in (0, 1, 0))
    self.assertAllEqual(a, again)
    self.assertNotAllClose(a, b)
    self.assertLess(abs(np.corrcoef(a, b)[0, 1]), 0.15)
    self.assertBetween(float(tf.reduce_mean(a)), 0.45, 0.55)
    self.assertEqual(draw.experimental_get_tracing_count(), 1)


class WassersteinTest(tf.test.TestCase):
  """The game of a label, on its own nets."""

  def setUp(self):
    super().setUp()
    path = os.path.join(self.get_temp_dir(), "w.npz")
    self.path = label_pools.write_set(path, SIZES)

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def build(self, *more, files=()):
    label_pools.FILES[1:] = files
    self.addCleanup(lambda: label_pools.FILES.__delitem__(slice(1, None)))
    label_pools.load(self.path, "InputFn.label = 1", *more)
    return Experiment(strategies.choose_alone())

  def scores(self, made, reals, fakes):
    """Returns the critic's mean score of real images and of fakes."""
    d = made.step.players["d"].net
    return [
      float(tf.reduce_mean(d(x, None, Mode.EVAL))) for x in (reals, fakes)
    ]

  def test_a_critic_step_raises_the_gap_and_a_step_of_g_its_score(self):
    made = self.build("d/player.penalties = ()")
    game, count = made.step.game, made.step.count
    reals = tf.constant(testing.images(16, made.spec))
    z = tf.constant(testing.z(16, 4))
    batch = Batch(reals, None, z)
    g = made.step.players["g"].net
    for who in "dg":
      fakes = g(z, None, Mode.EVAL)
      before = self.scores(made, reals, fakes)
      drawn = game.draw(batch, Mode.TRAIN)
      with tf.GradientTape() as tape:
        made_fakes = g(z, None, Mode.EVAL)
        d = made.step.players["d"].net
        scores = losses.Scores(
          d(reals, None, Mode.EVAL), d(made_fakes, None, Mode.EVAL)
        )
        loss = getattr(game.loss_at(count)(scores), who)
      del drawn
      weights = made.step.players[who].weights
      for w, grad in zip(weights, tape.gradient(loss, weights)):
        w.assign_sub(1e-3 * grad)
      after = self.scores(made, reals, g(z, None, Mode.EVAL))
      if who == "d":
        self.assertGreater(after[0] - after[1], before[0] - before[1])
      else:
        self.assertGreater(after[1], before[1])

  def test_the_penalty_keeps_the_critics_slope_near_one(self):
    made = self.build("d/optimizers.Adam.learning_rate = 1e-2")
    made.inner_loop(0)(60)
    d = made.step.players["d"].net
    images = tf.constant(testing.images(32, made.spec))
    with tf.GradientTape() as tape:
      tape.watch(images)
      total = tf.reduce_sum(d(images, None, Mode.EVAL))
    slopes = tf.norm(tf.reshape(tape.gradient(total, images), [32, -1]), axis=1)
    self.assertBetween(float(tf.reduce_mean(slopes)), 0.8, 1.2)

  def test_clipped_weights_never_leave_their_bounds(self):
    made = self.build(
      "d/optimizers.RMSProp.learning_rate = 1e-2",
      files=["gin/sync/per_label_clipping.gin"],
    )
    inner = made.inner_loop(0)
    largest = []
    for _ in range(4):
      inner(1)
      weights = made.step.players["d"].weights
      largest.append(max(float(tf.reduce_max(tf.abs(w))) for w in weights))
    self.assertLessEqual(max(largest), np.float32(0.01))
    self.assertAllClose(largest[-1], 0.01)  # The bound is what stops them.


if __name__ == "__main__":
  testing.main()
