"""Nets that compute in bfloat16: what does, and what does not."""

import contextlib
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.framework import function_def_to_graph

from paragan_tf import config, experiment
from paragan_tf.engine import step
from paragan_tf.game import losses, turns
from paragan_tf.nets import precision
from paragan_tf.types import Mode
from tests import nets_test

# The others are made of the same layers.
NAMES = ("dcgan_grey_32_conditional", "sagan", "remat_biggan")
PAIRS = tuple(case for case in nets_test.SMALL if case[0] in NAMES)


def low(net):
  """Returns the net in bfloat16."""
  return precision.in_precision(net, "bfloat16")


def ops(graph):
  """Yields all operations, those of functions too."""
  definition = graph.as_graph_def()
  yield from definition.node
  for function in definition.library.function:
    yield from function.node_def


def bodies(graph):
  """Yields a graph, and those of the functions that it calls."""
  yield graph
  definition = graph.as_graph_def()
  for function in definition.library.function:
    yield function_def_to_graph.function_def_to_graph(function)


def exact(op):
  """Returns what an operation is that must not be in half precision, if so."""
  products = ("MatMul", "BatchMatMulV2")
  rank = op.outputs[0].shape.rank if op.outputs else None
  if op.type in products and rank and op.outputs[0].shape[-2] == 1:
    joined = "joined " if op.type == "BatchMatMulV2" else ""
    return f"{joined}power iteration"
  if op.type in ("SquaredDifference", "Softmax", "Rsqrt"):
    return op.type
  return "Assign" if op.type.startswith("Assign") else None


class PrecisionTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.named_parameters(*PAIRS)
  def test_products_are_low_and_the_rest_is_not(self, make_pair, spec):
    # On a CPU they would be wide: of the same numbers, in float32.
    with gin.unlock_config():
      gin.bind_parameter("hardware.Layout.wide_products", False)
    g, d, batch = nets_test.shared.__wrapped__(make_pair, spec)
    full, traced = {}, {}
    for name, (one, other) in (("low", (low(g), low(d))), ("full", (g, d))):

      def moves(z, labels, images, one=one, other=other):
        asked = batch._replace(z=z, labels=labels, images=images)
        fakes = turns.draw(one, asked, Mode.WATCH)
        return (
          turns.g_move(fakes, other, asked, losses.hinge),
          turns.d_move(fakes, other, asked, losses.hinge),
        )

      run = tf.function(moves, autograph=False)
      args = (batch.z, batch.labels, batch.images)
      traced[name] = run.get_concrete_function(*args).graph
      full[name] = [one(batch.z, batch.labels, Mode.EVAL)]
      full[name] += [other(batch.images, batch.labels, Mode.EVAL)]
    bfloat16 = tf.bfloat16.as_datatype_enum
    for node in ops(traced["low"]):
      if "Conv2D" in node.op:
        self.assertEqual(node.attr["T"].type, bfloat16, node.name)
      if node.op in ("Softmax", "Rsqrt", "Sqrt"):
        self.assertNotEqual(node.attr["T"].type, bfloat16, node.name)
    kinds = {node.op for node in ops(traced["full"])}
    self.assertIn("Conv2D", kinds)
    for a, b in zip(full["low"], full["full"]):
      self.assertEqual(a.dtype, tf.float32)
      # bfloat16 has 8 bits; what is found is their sum over the layers.
      error = np.linalg.norm(a - b) / np.linalg.norm(b)
      self.assertLess(error, 0.1)
      self.assertGreater(error, 1e-6)

  @contextlib.contextmanager
  def moves(self):
    """Gives the moves that are traced."""
    seen = []

    def watched(move):
      def call(*args, **kwargs):
        seen.append(move(*args, **kwargs))
        return seen[-1]

      return call

    found = {who: watched(move) for who, move in step.MOVES.items()}
    with mock.patch.dict(step.MOVES, found):
      yield seen

  def check_moves(self, moves):
    """Looks at what both players say and learn by."""
    self.assertLen(moves, 2)
    for move in moves:
      scores = [] if move.scores is None else [*move.scores]
      for x in (move.loss, *scores, *move.grads):
        self.assertEqual(x.dtype, tf.float32)
    self.assertTrue(any(move.scores for move in moves))

  @parameterized.named_parameters(
    ("cpu", "cpu", "power iteration"),
    ("tpu_v3", "tpu_v3", "joined power iteration"),
  )
  def test_what_must_be_exact_is_float32_in_the_whole_step(self, kind, power):
    config.load(
      ["gin/runs/benchmark_step.gin", "gin/nets/sagan.gin"],
      [
        "from paragan_tf import hardware",
        f"hardware.Layout.hardware = '{kind}'",
        "player.precision = 'bfloat16'",
        "Experiment.batch_size = 2",
        "sagan.Generator.width = 8",
        "sagan.Discriminator.width = 8",
      ],
    )
    made = experiment.Experiment(tf.distribute.get_strategy())
    for variable in made.step.variables:
      self.assertNotEqual(variable.dtype, tf.bfloat16, variable.name)
    spec = made.input_fn({"batch_size": 2}).element_spec
    run = tf.function(lambda *xs: made.step(*xs, 0), autograph=False)
    with self.moves() as moves:
      graph = run.get_concrete_function(*spec).graph
    self.check_moves(moves)
    seen = set()
    for op in (op for body in bodies(graph) for op in body.get_operations()):
      low = any(x.dtype == tf.bfloat16 for x in [*op.inputs, *op.outputs])
      found = exact(op)
      seen.add(found or (f"low {op.type}" if low else op.type))
      if found:
        self.assertFalse(low, f"{found}: {op.name}")
    self.assertEqual("low Conv2D" in seen, kind == "tpu_v3")
    self.assertContainsSubset(
      {
        power,
        "SquaredDifference",
        "Softmax",
        "Rsqrt",
        "Assign",
        "Conv2D" if kind == "cpu" else "low Conv2D",
        "low BatchMatMulV2",
      },
      seen,
    )

  def test_gradients_are_those_of_float32_weights(self):
    g, d, batch = nets_test.shared(nets_test.sngan_pair, nets_test.GREY32)
    moves = []
    for one, other in ((low(g), low(d)), (g, d)):
      fakes = turns.draw(one, batch, Mode.WATCH)
      moves.append(turns.g_move(fakes, other, batch, losses.hinge).grads)
    num_compared = 0
    for a, b in zip(*moves):
      self.assertEqual(a.dtype, tf.float32)
      if np.linalg.norm(b) > 1e-2:
        cosine = np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)
        self.assertGreater(cosine, 0.95)
        num_compared += 1
    self.assertGreater(num_compared, len(moves[0]) / 3)

  def test_each_player_has_its_own_by_gin_scope(self):
    config.load(
      ["gin/runs/fashion.gin"], ["d/experiment.player.precision = 'bfloat16'"]
    )
    made = experiment.Experiment(tf.distribute.OneDeviceStrategy("/cpu:0"))
    g, d = (made.step.players[who].net for who in "gd")
    self.assertNotIsInstance(g, precision.Precise)
    self.assertEqual(d.dtype, tf.bfloat16)
    self.assertIn("dcgan in bfloat16", made.summary())
    logs = made.inner_loop(0)(1)
    self.assertTrue(np.isfinite(logs["d/loss"]))

  def test_auto_is_the_precision_of_the_hardware(self):
    config.load(
      ["gin/runs/fashion.gin"],
      [
        "experiment.player.precision = 'auto'",
        "from paragan_tf import hardware",
        "d/hardware.Layout.hardware = 'tpu_v3'",
      ],
    )
    made = experiment.Experiment(tf.distribute.OneDeviceStrategy("/cpu:0"))
    g, d = (made.step.players[who].net for who in "gd")
    self.assertNotIsInstance(g, precision.Precise)
    self.assertEqual(d.dtype, tf.bfloat16)

  def test_an_unknown_precision_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`precision` must be .* 'half'"):
      precision.in_precision(None, "half")


if __name__ == "__main__":
  tf.test.main()
