"""All forms of a convolution compute the same, forward and back.

So do whole nets, whatever the layout is.
"""

import collections
import contextlib
import functools
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.framework import op_callbacks

from paragan_tf import config, experiment
from paragan_tf.game import losses, turns
from paragan_tf.hardware import RESIZES, RGB_CONVS, Layout
from paragan_tf.nets import biggan, layout
from paragan_tf.types import Batch, ImageSpec, Mode

PLAIN = Layout("cpu", "apart", "plain").resolve()
ASKED = [
  *(Layout("cpu", resizes, "plain") for resizes in RESIZES),
  *(Layout("cpu", "apart", ends) for ends in RGB_CONVS),
  Layout("tpu_v3"),
]
LAYOUTS = [asked.resolve() for asked in ASKED]
# Batch, height, width, inputs, outputs, size, resize.
SHAPES = (
  (2, 6, 10, 3, 5, 3, "up"),
  (1, 4, 4, 5, 1, 3, "up"),
  (3, 6, 10, 7, 5, 3, "down"),
  (2, 2, 2, 1, 1, 3, "down"),
  (2, 8, 12, 9, 3, 3, None),
  (1, 6, 7, 9, 4, 3, None),
  (2, 8, 4, 3, 9, 3, None),
  (3, 5, 4, 3, 9, 3, None),
  (3, 5, 7, 6, 11, 3, None),
  (8, 12, 12, 2, 2, 3, "up"),
  (8, 24, 24, 2, 2, 3, "down"),
  (2, 34, 34, 2, 2, 3, "up"),
  (8, 34, 34, 2, 2, 3, "down"),
  (2, 4, 6, 5, 7, 1, "up"),
  (2, 4, 6, 5, 7, 1, "down"),
)


def random(*shape):
  return tf.constant(
    np.random.RandomState(sum(shape)).randn(*shape), tf.float64
  )


def run(chosen, x, w, dy, dx2):
  """Returns the result, its gradients, and the gradients of those."""
  before, after, conv = layout.plan_conv(chosen, w.shape, run.resize)
  with tf.GradientTape() as outer:
    outer.watch([x, w, dy])
    with tf.GradientTape() as tape:
      tape.watch([x, w])
      y = after(conv(before(x), w))
    dx, dw = tape.gradient(y, [x, w], dy)
    # As a gradient penalty asks: something that is not linear in it.
    penalty = tf.reduce_sum(dx2 * tf.square(dx))
  seconds = outer.gradient(penalty, [w, dy])
  return y, dx, dw, *seconds


class FormsTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(*SHAPES)
  def test_they_are_equal(self, b, h, width, inputs, outputs, size, resize):
    run.resize = resize
    scale = {"up": 2, "down": 0.5, None: 1}[resize]
    x, w = random(b, h, width, inputs), random(size, size, inputs, outputs)
    dy = random(b, int(h * scale), int(width * scale), outputs)
    dx2 = random(b, h, width, inputs)
    expected = run(PLAIN, x, w, dy, dx2)
    for chosen in LAYOUTS:
      for one, other in zip(run(chosen, x, w, dy, dx2), expected):
        self.assertAllClose(one, other, rtol=1e-10, atol=1e-10)

  def test_forms_differ_where_they_should(self):
    shape = [3, 3, 5, 5]
    for resize in ("up", "down"):
      forms = {layout.plan_conv(x, shape, resize)[2] for x in LAYOUTS[:3]}
      self.assertLen(forms, 3)
    to_few = {layout.plan_conv(x, [3, 3, 9, 3], None)[2] for x in LAYOUTS[3:6]}
    self.assertLen(to_few, 3)

  @parameterized.parameters(
    ("up", 16, 4),
    ("up", 16, 8),
    ("up", 32, 8),
    ("down", 8, 16),
    ("down", 16, 16),
  )
  def test_few_pixels_are_not_worth_folding(self, resize, batch, side):
    chosen = Layout("tpu_v3").resolve()
    w = random(3, 3, 2, 2)

    @tf.function(autograph=False)
    def back(x):
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = layout.plan_conv(chosen, w.shape, resize)[2](x, w)
      return y, tape.gradient(y, x)

    x = random(batch, side, side, 2)
    graph = back.get_concrete_function(x).graph
    convs = [op for op in list_needed_ops(graph) if "Conv2D" in op.type]
    folded = any(max(op.get_attr("strides")) == 2 for op in convs)
    low = side if resize == "up" else side // 2
    limit = {"up": 2048, "down": 1024}[resize]
    self.assertEqual(folded, batch * low * low >= limit)

  @parameterized.parameters(
    (16, 2, False), (32, 2, True), (32, 130, False), (64, 130, True)
  )
  def test_gradients_of_many_images_are_folded(self, batch, channels, folded):
    x, w = random(batch, 16, 16, channels), random(3, 3, channels, 2)
    dy = random(batch, 8, 8, 2)

    def back(chosen):
      @tf.function(autograph=False)
      def compute(x):
        with tf.GradientTape() as tape:
          tape.watch(x)
          y = layout.plan_conv(chosen, w.shape, "down")[2](x, w)
        return tape.gradient(y, x, dy)

      return compute.get_concrete_function(x)

    found, plain = back(Layout("tpu_v3").resolve()), back(PLAIN)
    strides = [
      max(op.get_attr("strides"))
      for op in list_needed_ops(found.graph)
      if op.type == "Conv2DBackpropInput"
    ]
    self.assertEqual(2 in strides, folded)
    self.assertAllClose(found(x), plain(x), rtol=1e-10, atol=1e-10)

  @parameterized.parameters(("up", 16, 8), ("up", 16, 16), ("down", 16, 32))
  def test_folded_kernels_are_stored_where_there_are_many_pixels(
    self, resize, batch, side
  ):
    low = side if resize == "up" else side // 2
    kinds = []
    for stores in (True, False):
      chosen = Layout("tpu_v3", store_kernels=stores).resolve()

      @tf.function(autograph=False)
      def back(x, w, chosen=chosen):
        with tf.GradientTape() as tape:
          tape.watch([x, w])
          y = layout.plan_conv(chosen, w.shape, resize)[2](x, w)
        return y, tape.gradient(y, [x, w])

      args = random(batch, side, side, 2), random(3, 3, 2, 2)
      graph = back.get_concrete_function(*args).graph
      kinds.append({op.type for op in list_needed_ops(graph)})
    is_stored = batch * low * low >= 2048
    self.assertEqual("XlaOptimizationBarrier" in kinds[0], is_stored)
    self.assertNotIn("XlaOptimizationBarrier", kinds[1])

  @parameterized.parameters(
    (tf.matmul, (6, 40), (40, 5)),
    (layout.conv, (2, 6, 6, 8), (3, 3, 8, 5)),
    (layout._up_folded, (2, 6, 6, 8), (3, 3, 8, 5)),
  )
  def test_a_wide_product_is_exact_of_rounded_numbers(self, product, *shapes):
    x, w = (tf.cast(random(*shape), tf.float32) for shape in shapes)
    x = tf.cast(x, tf.bfloat16)
    rounded = [tf.cast(v, tf.float32) for v in (x, tf.cast(w, tf.bfloat16))]
    dy = None
    found = []
    for form, args in (
      (layout.in_float32(product), (x, w)),
      (product, rounded),
    ):
      with tf.GradientTape() as tape:
        tape.watch(args)
        y = form(*args)
      dy = tf.cast(random(*y.shape), y.dtype) if dy is None else dy
      found.append([y, *tape.gradient(y, args, tf.cast(dy, y.dtype))])
    self.assertEqual([v.dtype.size for v in found[0]], [2, 2, 4])
    for wide, exact in zip(*found):
      expected = tf.cast(exact, tf.bfloat16)
      self.assertAllEqual(tf.cast(wide, tf.bfloat16), expected)
    narrow = product(x, tf.cast(w, tf.bfloat16))
    error = tf.norm(tf.cast(narrow - found[0][0], tf.float32))
    self.assertLess(error / tf.norm(found[1][0]), 0.02)

  def test_a_product_stays_itself_where_the_layout_asks_for_nothing(self):
    plain = PLAIN._replace(float32_products=False)
    self.assertIs(layout.apply_precision(tf.matmul, plain), tf.matmul)
    changed = plain._replace(float32_products=True)
    self.assertIsNot(layout.apply_precision(tf.matmul, changed), tf.matmul)

  def test_float32_products_leave_other_precisions_alone(self):
    for dtype in (tf.float32, tf.float64):
      x, w = (tf.cast(random(3, 3), dtype) for _ in range(2))
      got = layout.in_float32(tf.matmul)(x, w)
      self.assertAllEqual(got, tf.matmul(x, w))

  def test_the_batch_may_be_unknown(self):
    w = random(3, 3, 4, 3)
    for chosen in LAYOUTS:
      _, _, conv = layout.plan_conv(chosen, w.shape, None)
      spec = [
        tf.TensorSpec([None, 8, 8, 4], w.dtype),
        tf.TensorSpec(w.shape, w.dtype),
      ]
      traced = tf.function(  # Of this turn only.
        lambda x, w: conv(x, w),  # noqa: B023
        spec,
        autograph=False,
      )
      x = random(5, 8, 8, 4)
      self.assertAllClose(traced(x, w), layout.conv(x, w))

  def test_a_tpu_sees_no_image_with_holes(self):
    # A transposed convolution with a stride would compute with its zeros.
    x, w = random(2, 64, 64, 5), random(3, 3, 5, 5)
    for resize, size in (("up", 128), ("down", 32)):
      dy = random(2, size, size, 5)

      @tf.function(autograph=False)
      def back(x, w, dy, resize=resize):
        conv = layout.plan_conv(Layout("tpu_v3").resolve(), w.shape, resize)[2]
        with tf.GradientTape() as tape:
          tape.watch([x, w])
          y = conv(x, w)
        return y, *tape.gradient(y, [x, w], dy)

      graph = back.get_concrete_function(x, w, dy).graph
      backs = [
        op for op in list_needed_ops(graph) if op.type == "Conv2DBackpropInput"
      ]
      for op in backs:
        self.assertEqual(list(op.get_attr("strides")), [1, 1, 1, 1])


# What is no form of a convolution, then all that pays on a hardware.
SWITCHES = {
  "weights_as_matrices": {"weights_as_matrices": True},
  "recompute_attention": {"recompute_attention": True},
  "sum_after_product": {"sum_after_product": True},
  "one_pass": {"one_pass": True},
  "join_projections": {"join_projections": True},
  "join_power_iterations": {"join_power_iterations": True},
}
PROFILES = {
  "cpu": {"hardware": "cpu"},
  "tpu_v3": {"hardware": "tpu_v3"},
  "tpu_v3_filled": {"hardware": "tpu_v3", "pad_channels": 8},
}
SPEC = ImageSpec(32, 3, 4)
SMALLEST = 5e-3  # Values below are rounding.


def players():
  """Returns BigGAN's pair as gin lays it out, with weights that all count."""
  makes = {
    "g": functools.partial(
      biggan.Generator, width=2, z_dim=20, shared_dim=6, attention=16
    ),
    "d": functools.partial(biggan.Discriminator, width=2, attention=16),
  }
  found = []
  for who, make in makes.items():
    with gin.config_scope(who):
      player = experiment.player(SPEC, 0, who, net=make)
    net = player.net
    draw = np.random.RandomState(0)
    for v in net.trainable_variables:
      v.assign_add(0.2 * draw.randn(*v.shape))
    for module in net.submodules:
      settle(module)
    found.append(player)
  return found


def settle(module):
  """Puts the vector of a power iteration where it comes to rest.

  Else fakes in a pass of their own, after that of real images, would meet the
  norm half an iteration further on.
  """
  if getattr(module, "u", None) is not None:
    matrix = tf.reshape(module.w, [-1, module.w.shape[-1]])
    module.u.assign(np.linalg.svd(matrix)[2][:1])


@contextlib.contextmanager
def record_ops():
  """Lists the operations that are done eagerly: kind, inputs and results."""
  found = []

  def note(kind, inputs, attrs, outputs, op_name=None, graph=None):
    del attrs, op_name, graph
    found.append((tf.compat.as_str(kind), inputs, outputs))

  op_callbacks.add_op_callback(note)
  try:
    yield found
  finally:
    op_callbacks.remove_op_callback(note)


def compute_moves():
  """Returns both moves with all that they leave, and operations by kind."""
  g_player, d_player = players()
  g, d = g_player.net, d_player.net
  terms = turns.LossTerms(one_pass=d_player.one_pass)
  draw = np.random.RandomState(1)
  batch = Batch(
    tf.constant(np.tanh(draw.randn(3, 32, 32, 3)), tf.float32),
    tf.constant([0, 3, 1]),
    tf.constant(draw.randn(3, 20), tf.float32),
  )
  # Eagerly: to trace it takes several times as long.
  with record_ops() as ops:
    fakes = turns.draw(g, batch, Mode.TRAIN)
    one = turns.g_move(fakes, d, batch, losses.wasserstein)
    other = turns.d_move(fakes, d, batch, losses.wasserstein, terms)
  results = [fakes.images, one.loss, *one.grads, other.loss, *other.grads]
  state = [v for net in (g, d) for v in net.variables if not v.trainable]
  found = [np.array(x) for x in [*results, *other.scores, *state]]
  return found, collections.Counter(kind for kind, _, _ in ops)


@functools.lru_cache(None)
def plain_moves():
  """Returns those without any layout."""
  config.load(["gin/layout/off.gin"], [])
  return compute_moves()


class NetsTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def check(self, files, options):
    gin.clear_config()
    expected, before = plain_moves()
    gin.clear_config()
    config.load(files, ["from paragan_tf import hardware"])
    with gin.unlock_config():
      for name, value in options.items():
        gin.bind_parameter(f"hardware.Layout.{name}", value)
    found, after = compute_moves()
    self.assertLen(found, len(expected))
    for one, other in zip(found, expected):
      scale = max(SMALLEST, np.abs(other).max())
      self.assertAllClose(one / scale, other / scale, rtol=1e-3, atol=1e-3)
    # Else the switch would not have been heard.
    self.assertNotEqual(after, before)

  @parameterized.named_parameters(*SWITCHES.items())
  def test_each_option_leaves_the_moves_as_they_are(self, options):
    self.check(["gin/layout/off.gin"], options)

  @parameterized.named_parameters(*PROFILES.items())
  def test_each_profile_leaves_the_moves_as_they_are(self, options):
    self.check([], options)

  def test_all_that_is_compared_counts(self):
    gin.clear_config()
    found, _ = plain_moves()
    # A bias before a batch norm has no gradient but rounding.
    num = sum(np.abs(x).max() > SMALLEST for x in found)
    self.assertGreater(num, 0.9 * len(found))


class TracingTest(tf.test.TestCase):
  def test_a_step_is_traced_without_asking_gin_for_the_layout(self):
    self.addCleanup(gin.clear_config)
    config.load(
      [
        "gin/runs/benchmark_step.gin",
        "gin/nets/sagan.gin",
        "gin/layout/off.gin",
      ],
      [
        "from paragan_tf.game import regularizers",
        "player.regularizer = @regularizers.orthogonal()",
        "Experiment.batch_size = 2",
        "sagan.Generator.width = 8",
        "sagan.Discriminator.width = 8",
      ],
    )
    made = experiment.Experiment(tf.distribute.get_strategy())
    spec = made.input_fn({"batch_size": made.images_per_step}).element_spec

    def trace():
      step = tf.function(lambda x, y: made.step(x, y, 0), autograph=False)
      graph = step.get_concrete_function(*spec).graph
      return collections.Counter(op.type for op in graph.get_operations())

    d = made.step.players["d"].net
    with mock.patch.object(Layout, "__post_init__") as ask:
      with mock.patch.object(d, "judge", wraps=d.judge) as judge:
        expected = trace()
      sizes = {call.args[0].shape[0] for call in judge.mock_calls}
      self.assertEqual(sizes, {2})  # Real and fake images in passes apart.
      ask.assert_not_called()
      Layout()
      ask.assert_called_once()
    gin.clear_config()
    self.assertEqual(trace(), expected)


def list_needed_ops(graph):
  """Returns the operations that are asked for by what a function returns."""
  seen, waiting = {}, [tensor.op for tensor in graph.outputs]
  while waiting:
    op = waiting.pop()
    if op.name not in seen:
      seen[op.name] = op
      waiting += [tensor.op for tensor in op.inputs]
  return list(seen.values())


if __name__ == "__main__":
  tf.test.main()
