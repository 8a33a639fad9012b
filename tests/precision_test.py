"""Nets that compute in half precision: what does, and what does not."""

import contextlib
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment
from paragan_tf.engine import placement
from paragan_tf.game import losses, turns
from paragan_tf.nets import precision
from paragan_tf.types import Mode
from tests import layout_test, nets_test

# The others are made of the same layers.
PAIRS = (
  ("dcgan", nets_test.dcgan_pair, "bfloat16"),
  ("remat_biggan", nets_test.remat_biggan_pair, "bfloat16"),
  ("biggan_in_float16", nets_test.remat_biggan_pair, "float16"),
)


def low(net, kind="bfloat16"):
  """Returns the net in half precision."""
  return precision.in_precision(net, kind)


def is_low(*tensors):
  return any(x.dtype in (tf.bfloat16, tf.float16) for x in tensors)


def exact(kind, outputs):
  """Returns what an operation is that must not be in half precision, if so."""
  products = ("MatMul", "BatchMatMulV2")
  rank = outputs[0].shape.rank if outputs else None
  if kind in products and rank and outputs[0].shape[-2] == 1:
    joined = "joined " if kind == "BatchMatMulV2" else ""
    return f"{joined}power iteration"
  if kind in ("SquaredDifference", "Softmax", "Exp", "Rsqrt"):
    return kind
  return "Assign" if kind.startswith("Assign") else None


class PrecisionTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.named_parameters(*PAIRS)
  def test_products_are_low_and_the_rest_is_not(self, make_pair, kind):
    dtype = tf.as_dtype(kind)
    # On a CPU they would be wide: of the same numbers, in float32.
    with gin.unlock_config():
      gin.bind_parameter("hardware.Layout.float32_products", False)
    g, d, batch = nets_test.perturb(nets_test.make(make_pair, nets_test.GREY32))
    with layout_test.record_ops() as ops:
      fakes = turns.draw(low(g, kind), batch, Mode.FROZEN)
      turns.g_move(fakes, low(d, kind), batch, losses.hinge)
      turns.d_move(fakes, low(d, kind), batch, losses.hinge)
    seen = set()
    for op, inputs, outputs in ops:
      seen.add(op)
      if "Conv2D" in op:
        self.assertEqual(outputs[0].dtype, dtype, op)
      if op in ("Softmax", "Rsqrt", "Sqrt"):
        self.assertFalse(is_low(*inputs), op)
    self.assertContainsSubset({"Conv2D", "Conv2DBackpropFilter"}, seen)
    for net, x in ((g, batch.z), (d, batch.images)):
      a, b = (one(x, batch.labels, Mode.EVAL) for one in (low(net, kind), net))
      self.assertEqual(a.dtype, tf.float32)
      # bfloat16 has 8 bits, float16 11; what is found is their sum over the
      # layers.
      error = np.linalg.norm(a - b) / np.linalg.norm(b)
      self.assertLess(error, {"bfloat16": 0.1, "float16": 0.0125}[kind])
      self.assertGreater(error, 1e-6)

  @contextlib.contextmanager
  def record_moves(self):
    """Yields a list of the moves that are computed."""
    seen = []

    def record(move):
      def call(*args, **kwargs):
        seen.append(move(*args, **kwargs))
        return seen[-1]

      return call

    found = {who: record(move) for who, move in placement.MOVES.items()}
    with mock.patch.dict(placement.MOVES, found):
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
    ("cpu", "cpu", "power iteration", "bfloat16"),
    ("tpu_v3", "tpu_v3", "joined power iteration", "bfloat16"),
    ("gpu_v100", "gpu_v100", "power iteration", "float16"),
  )
  def test_what_must_be_exact_is_float32_in_the_whole_step(
    self, kind, power, dtype
  ):
    config.load(
      ["gin/runs/benchmark_step.gin", "gin/nets/sagan.gin"],
      [
        "from paragan_tf import hardware",
        f"hardware.Layout.hardware = '{kind}'",
        f"player.precision = '{dtype}'",
        "Experiment.batch_size = 2",
        "sagan.Generator.width = 8",
        "sagan.Discriminator.width = 8",
      ],
    )
    made = experiment.Experiment(tf.distribute.get_strategy())
    for variable in made.step.variables:
      self.assertFalse(is_low(variable), variable.name)
    images, labels = next(iter(made.input_fn({"batch_size": 2})))
    with self.record_moves() as moves, layout_test.record_ops() as ops:
      made.step(images, labels, 0)
    self.check_moves(moves)
    seen = set()
    for op, inputs, outputs in ops:
      found, low = exact(op, outputs), is_low(*inputs, *outputs)
      seen.add(found or (f"low {op}" if low else op))
      if found:
        self.assertFalse(low, found)
    self.assertEqual("low Conv2D" in seen, kind != "cpu")
    self.assertContainsSubset(
      {
        power,
        # A TPU takes both moments in one pass.
        "Square" if kind == "tpu_v3" else "SquaredDifference",
        "Exp" if kind == "tpu_v3" else "Softmax",
        "Rsqrt",
        "Assign",
        "Conv2D" if kind == "cpu" else "low Conv2D",
        "low BatchMatMulV2",
      },
      seen,
    )

  def test_gradients_are_those_of_float32_weights(self):
    g, d, batch = nets_test.get_pair(nets_test.sngan_pair, nets_test.GREY32)
    moves = []
    for one, other in ((low(g), low(d)), (g, d)):
      fakes = turns.draw(one, batch, Mode.FROZEN)
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
    logs = made.step(*next(iter(made.input_fn({"batch_size": 4}))), 0)
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
