"""Every run's whole step is traced at its real size, and no memory is spent.

A run whose header names a slice of a TPU is traced as one of its cores has it:
one program for all of them, in which `tf.cond` chooses the role.
"""

import collections
import contextlib
import pathlib
import re
import resource
from unittest import mock

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment, tf_private
from paragan_tf.game import turns
from paragan_tf.types import Mode
from tests import abstract, plans_test

RUNS = sorted(
  pathlib.Path(__file__).resolve().parent.parent.glob("gin/runs/*.gin")
)
CLASSES = {"tiny_imagenet": 200, "imagenet": 1000, "cifar10": 10, "folder": 3}
IMAGENET = [path for path in RUNS if "imagenet" in path.stem]
# One for each scheme of the small ones; a large one takes up to a minute.
SMALL = ("smoke", "dposg_fashion", "dqgan_fashion")
LARGE = [path for path in RUNS if path.stem not in SMALL]
MAX_GROWTH = 1.5e9


def make_cases(paths):
  """Returns one test case a file."""
  return [(path.stem, path) for path in paths]


def num_cores(path):
  """Returns the cores of the TPU that a run's header names, or `None`."""
  found = re.search(r"TPU\s+(?:# )?v3-(\d+)", path.read_text())
  return int(found[1]) if found else None


def memory():
  """Returns the bytes that this process has now; a peak would never fall."""
  pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
  return int(pages) * resource.getpagesize()


def kinds(graph):
  """Counts the operations of a graph and of its functions by kind."""
  made = graph.as_graph_def()
  nodes = [made.node, *(f.node_def for f in made.library.function)]
  return collections.Counter(node.op for part in nodes for node in part)


class RunTest(tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def load(self, path):
    """Reads a run; its images are a few black ones with the right labels."""
    config.load([str(path)], [])
    found = [num for name, num in CLASSES.items() if name in path.stem]
    if not found:
      return  # What it trains on is in the package.
    side = gin.query_parameter("input_fn.InputFn.resolution")
    file = f"{self.get_temp_dir()}/few.npz"
    pixels = np.zeros([4, side, side, 3], np.uint8)
    np.savez(file, images=pixels, labels=[0, found[0] - 1, 0, 0])
    bindings = (
      "from paragan_tf.data import sources",
      "InputFn.source = @sources.npz",
      f"sources.npz.path = '{file}'",
      "sources.npz.num_heldout = 2",
    )
    config.load([str(path)], bindings)

  def build(self):
    with abstract.variables():
      return experiment.Experiment(tf.distribute.get_strategy())

  def check_weights(self, path, built):
    """Compares with the sizes that are known for 1,000 classes."""
    name = re.match(r"(.*)_imagenet\d", path.stem)
    if not name:
      return
    players = built.step.players.values()
    found = tuple(abstract.num_weights(side.net) for side in players)
    if name[1] == "biggan":
      expected = plans_test.biggan_by_hand(built.spec.resolution)
    else:
      numbers = {
        nets.__name__.split(".")[-1]: rows
        for nets, rows in plans_test.NUM_WEIGHTS.items()
      }
      expected = numbers[name[1]][built.spec.resolution]
    self.assertEqual(found, expected)
    self.assertEqual(built.spec.num_classes, 1000)

  @contextlib.contextmanager
  def record_shapes(self):
    """Yields the shapes of all fakes that are drawn for training."""
    shapes, draw = [], turns.draw

    def record_draw(*args):
      fakes = draw(*args)
      shapes.append(fakes.images.shape.as_list())
      return fakes

    with mock.patch.object(turns, "draw", record_draw):
      yield shapes

  def check_step(self, path):
    """Traces all phases of a run's step."""
    before, num = memory(), num_cores(path)
    self.load(path)
    with tf_private.trace_for_tpu_shards(num):
      for phase in range(self.check_phase(path, num, 0)):
        if phase:
          self.check_phase(path, num, phase)
    self.assertLess(memory() - before, MAX_GROWTH)

  def check_phase(self, path, num, phase):
    """Traces one phase; returns how many there are."""
    with tf.Graph().as_default() as graph, self.record_shapes() as shapes:
      built = self.build()
      step, spec = built.step, built.spec
      self.check_weights(path, built)
      size = built.images_per_step // step.schedule.num_shards(num or 1)
      side = [spec.resolution, spec.resolution, spec.channels]
      images = tf.compat.v1.placeholder(tf.float32, [size, *side])
      labels = tf.compat.v1.placeholder(tf.int32, [size])
      labels = labels if spec.num_classes else None
      logs = step(images, labels, phase)
    self.assertEqual(sorted(logs), step.log_names)
    for shape in shapes:
      self.assertEqual(shape[1:], side)
    self.check_updates(step, kinds(graph), num, phase)
    self.check_images(path, step, size, shapes)
    return step.cycle

  def check_updates(self, step, ops, num, phase):
    """Compares the number of weight updates and of cross-replica sums."""
    order = [who for r in step.schedule.rounds for turn in r for who in turn]
    num_updated, num_sent = 0, 0
    for who in order:
      net, exchange = step.players[who].net, step.players[who].exchange
      num_updated += len(net.trainable_variables)
      sends = phase % exchange.period == exchange.period - 1
      num_sent += sends * len(net.variables)
    # The count of steps is the one that is added to.
    self.assertEqual(ops["AssignSubVariableOp"], num_updated)
    self.assertEqual(ops["AssignAddVariableOp"], 1)
    if not num:
      self.assertEqual(ops["CrossReplicaSum"], 0)
    else:
      self.assertGreaterEqual(ops["CrossReplicaSum"], num_sent)
      self.assertEqual(bool(ops["CrossReplicaSum"]), bool(num_sent))

  def check_images(self, path, step, size, shapes):
    """Compares the images of a core with what the header says."""
    told = re.search(r"each core has\s+(?:# )?(\d+)", path.read_text())
    if told:
      self.assertEqual(size, int(told[1]))
      self.assertEqual([shape[0] for shape in shapes], [size])


class QuickTest(RunTest, parameterized.TestCase):
  @parameterized.named_parameters(
    *make_cases(path for path in RUNS if path.stem in SMALL)
  )
  def test_the_whole_step_is_traced(self, path):
    self.check_step(path)

  # `LargeTest` traces the others with all that is around them.
  @parameterized.named_parameters(
    *make_cases(
      path
      for path in IMAGENET
      if path.stem in ("sagan_imagenet128", "biggan_imagenet128_tpu")
    )
  )
  def test_the_nets_are_traced(self, path):
    before = memory()
    self.load(path)
    with tf_private.trace_for_tpu_shards(num_cores(path)), abstract.sizes():
      built = experiment.Experiment(tf.distribute.get_strategy())
      g, d = (built.step.players[who].net for who in "gd")
      z = tf.compat.v1.placeholder(tf.float32, [2, g.z_dim])
      labels = tf.compat.v1.placeholder(tf.int32, [2])
      images = g(z, labels, Mode.EVAL)
      logits = d(images, labels, Mode.EVAL)
    side = built.spec.resolution
    self.assertEqual(images.shape.as_list(), [2, side, side, 3])
    self.assertEqual(logits.shape.as_list(), [2])
    self.check_weights(path, built)
    self.assertLess(memory() - before, MAX_GROWTH)

  def test_headers_name_their_slices(self):
    found = {path.stem: num_cores(path) for path in IMAGENET}
    for side in (128, 256, 512, 1024):
      self.assertEqual(found[f"biggan_imagenet{side}_tpu"], side)
    self.assertEqual(found["biggan_deep_imagenet128"], 128)


@pytest.mark.soak
class LargeTest(RunTest, parameterized.TestCase):
  @parameterized.named_parameters(*make_cases(LARGE))
  def test_the_whole_step_is_traced(self, path):
    self.check_step(path)


if __name__ == "__main__":
  tf.test.main()
