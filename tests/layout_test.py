"""All forms of a convolution compute the same, forward and back."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.hardware import IMAGE_ENDS, RESIZES, Layout
from paragan_tf.nets import layout

PLAIN = Layout("cpu", "apart", "plain", multiple=1)
LAYOUTS = [
  *(Layout("cpu", resizes, "plain", multiple=1) for resizes in RESIZES),
  *(Layout("cpu", "apart", ends, multiple=1) for ends in IMAGE_ENDS),
  Layout("tpu_v3", multiple=8),
  Layout("cpu", "strided", "blocks", multiple=3),
]
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
  (2, 4, 6, 5, 7, 1, "up"),
  (2, 4, 6, 5, 7, 1, "down"),
)


def random(*shape):
  return tf.constant(
    np.random.RandomState(sum(shape)).randn(*shape), tf.float64
  )


def run(chosen, x, w, dy, dx2):
  """Returns the result, its gradients, and the gradients of those."""
  before, after, conv = layout.parts(chosen, w.shape, run.resize)
  conv = layout.aligned(conv, chosen.multiple)
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
      forms = {layout.parts(x, shape, resize)[2] for x in LAYOUTS[:3]}
      self.assertLen(forms, 3)
    to_few = {layout.parts(x, [3, 3, 9, 3], None)[2] for x in LAYOUTS[3:6]}
    self.assertLen(to_few, 3)

  def test_a_product_is_computed_on_whole_multiples(self):
    seen = []

    def product(x, w):
      seen.append((x.shape, w.shape))
      return tf.matmul(x, w)

    x, w = random(3, 20), random(20, 13)
    y = layout.aligned(product, 8)(x, w)
    self.assertEqual(seen, [((8, 24), (24, 16))])
    self.assertAllClose(y, tf.matmul(x, w))

  def test_the_batch_may_be_unknown(self):
    w = random(3, 3, 4, 3)
    for chosen in LAYOUTS:
      _, _, conv = layout.parts(chosen, w.shape, None)
      conv = layout.aligned(conv, chosen.multiple)
      spec = [
        tf.TensorSpec([None, 8, 8, 4], w.dtype),
        tf.TensorSpec(w.shape, w.dtype),
      ]
      traced = tf.function(lambda x, w: conv(x, w), spec)  # noqa: B023
      x = random(5, 8, 8, 4)
      self.assertAllClose(traced(x, w), layout.conv(x, w))

  def test_a_tpu_sees_no_image_with_holes(self):
    # A transposed convolution with a stride would compute with its zeros.
    x, w = random(2, 8, 8, 5), random(3, 3, 5, 5)
    for resize, size in (("up", 16), ("down", 4)):
      dy = random(2, size, size, 5)

      @tf.function
      def back(x, w, dy, resize=resize):
        conv = layout.parts(Layout("tpu_v3"), w.shape, resize)[2]
        with tf.GradientTape() as tape:
          tape.watch([x, w])
          y = conv(x, w)
        return y, *tape.gradient(y, [x, w], dy)

      graph = back.get_concrete_function(x, w, dy).graph
      ops = [op for op in graph.get_operations() if needed(graph, op)]
      backs = [op for op in ops if op.type == "Conv2DBackpropInput"]
      for op in backs:
        self.assertEqual(list(op.get_attr("strides")), [1, 1, 1, 1])


def needed(graph, wanted):
  """Whether an operation is asked for by what a function returns."""
  seen, waiting = set(), [tensor.op for tensor in graph.outputs]
  while waiting:
    op = waiting.pop()
    if op.name not in seen:
      seen.add(op.name)
      waiting += [tensor.op for tensor in op.inputs]
  return wanted.name in seen


if __name__ == "__main__":
  tf.test.main()
