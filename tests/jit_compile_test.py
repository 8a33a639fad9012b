"""Players whose gradients XLA compiles come to the same values."""

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import checks, config, experiment, tf_private
from paragan_tf.engine import strategies
from tests import run_test, testing

SNGAN = (
  "gin/runs/benchmark_step.gin",
  [
    "sngan.Generator.width = 2",
    "sngan.Generator.z_dim = 4",
    "sngan.Discriminator.width = 2",
    "experiment.Experiment.batch_size = 8",
    "experiment.Experiment.extractor = None",
    # Adam would magnify the rounding of gradients that are nearly 0.
    "experiment.player.optimizer = @optimizers.SGD",
    "optimizers.SGD.learning_rate = 0.05",
  ],
)


def linear(*more):
  """Returns a tiny run of linear nets."""
  lines = [*run_test.TINY, *run_test.LINEAR, SGD, *more]
  return "gin/runs/fashion.gin", lines


SGD = "experiment.player.optimizer = @optimizers.SGD"
DCGAN = "gin/runs/fashion.gin", [*run_test.TINY, SGD]
DRAWS = linear(
  "from paragan_tf.game import augment",
  "from paragan_tf.game import penalties",
  "experiment.Experiment.augment = @augment.DiffAugment",
  "d/experiment.player.penalties = [@penalties.Dragan()]",
)
ASYNC = linear(*run_test.ASYNC)
FLOAT16 = linear("experiment.player.precision = 'float16'")
COMPILED = "experiment.player.jit_compile = True"
NUM_STEPS = 4


def one_device():
  return tf.distribute.OneDeviceStrategy("/cpu:0")


def count_calls(graph):
  """Returns how many functions are called, at any depth, and are compiled."""
  definition = graph.as_graph_def()
  nodes = [*definition.node]
  for function in definition.library.function:
    nodes += function.node_def
  calls = [node for node in nodes if "PartitionedCall" in node.op]
  return len(calls), sum(node.attr["_XlaMustCompile"].b for node in calls)


class JitCompileTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def make(self, make_strategy, run, *more):
    """Returns a tiny experiment, and its inner loop."""
    file, lines = run
    config.load([file], [*lines, *more])
    built = experiment.Experiment(make_strategy())
    return built, built.inner_loop(0)

  def values(self, built):
    """Returns all copies of all variables, by name."""
    return {
      variable.name: np.stack(strategies.copies(built.strategy, variable))
      for variable in built.step.variables
    }

  @parameterized.named_parameters(
    ("dcgan", one_device, DCGAN, 1e-4),
    ("linear_on_four", testing.strategy, linear(), 1e-6),
    ("async_on_four", testing.strategy, ASYNC, 1e-6),
    ("float16", one_device, FLOAT16, 1e-4),
  )
  def test_values_are_those_of_plain_ops(self, make_strategy, run, atol):
    self.check_values(make_strategy, run, atol)

  @parameterized.named_parameters(
    ("sngan", one_device, SNGAN),
    ("sngan_on_four", testing.strategy, SNGAN),
    ("draws_on_four", testing.strategy, DRAWS),
    ("async_on_one", one_device, ASYNC),
  )
  @pytest.mark.soak
  def test_values_of_more_nets_are_those_of_plain_ops(self, make_strategy, run):
    self.check_values(make_strategy, run)

  def check_values(self, make_strategy, run, atol=1e-4):
    """A compiled run comes to the values of one that is not."""
    found = []
    for more in ((), (COMPILED,)):
      built, loop = self.make(make_strategy, run, *more)
      first = self.values(built)
      loop(NUM_STEPS)
      found.append(self.values(built))
    plain, compiled = found
    self.assertEqual(plain.keys(), compiled.keys())
    for name, value in plain.items():
      self.assertAllClose(compiled[name], value, rtol=0, atol=atol, msg=name)
    # Statistics and vectors of norms are updated, too.
    moved = {name for name in first if (first[name] != compiled[name]).any()}
    state = [name for name in first if name.endswith(("/mean:0", "weight/u:0"))]
    row = {"d/linear/weight/u:0"}  # It has no other direction to turn to.
    trained = [x for x in state if x.startswith(("g/", "d/"))]
    self.assertContainsSubset(set(trained) - row, moved)

  @parameterized.parameters(
    # By player: draws and G's gradient, with D's and G's backward pass; D's.
    ((), 0),
    (("g/",), 3),
    (("d/",), 1),
    (("g/", "d/"), 4),
  )
  def test_each_player_is_compiled_if_asked(self, scopes, num):
    lines = [f"{scope}{COMPILED}" for scope in scopes]
    built, loop = self.make(one_device, linear(), *lines)
    traced = loop._run.get_concrete_function(
      loop._iterator, tf.constant(1, tf.int32), (0,), tf.constant(True)
    )
    num_calls, num_compiled = count_calls(traced.graph)
    self.assertEqual(num_compiled, num)
    # Without, there is no function that plain ops would not have.
    self.assertEqual(num_calls > 0, bool(scopes))
    del built

  @parameterized.parameters("g", "d")
  def test_norms_that_communicate_are_refused(self, who):
    lines = (f"{who}/{COMPILED}", "norms.BatchNorm.cross_replica = True")
    imported = "from paragan_tf.nets import norms"
    with self.assertRaisesRegex(
      ValueError, f"`jit_compile` of `{who}` .* norms of `g` .*`norms.BatchNorm"
    ):
      self.make(testing.strategy, SNGAN, imported, *lines)
    self.make(one_device, SNGAN, imported, *lines)

  def test_a_tpu_compiles_by_itself(self):
    with (
      tf_private.trace_for_tpu_shards(8),
      self.assertRaisesRegex(ValueError, "`jit_compile` of `d` .* on a TPU"),
    ):
      checks.check_jit_compile({}, "d")


if __name__ == "__main__":
  testing.main()
