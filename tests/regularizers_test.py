"""What weights cost, by hand."""

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import regularizers

KERNEL = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)


class RegularizersTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.weights = [tf.Variable(KERNEL), tf.Variable([5.0, 5.0])]

  def test_l2_counts_kernels_only(self):
    self.assertAllClose(regularizers.l2(0.1)(self.weights), 0.1 * 15.0 / 2)

  def test_orthogonal_counts_products_of_different_filters(self):
    # The columns' product is 1 * 2 + 3 * -1 = -1, twice in the matrix.
    self.assertAllClose(regularizers.orthogonal(0.1)(self.weights), 0.1 * 2.0)

  @parameterized.parameters(([3, 3, 2, 40],), ([40, 5],), ([6, 6],))
  def test_the_smaller_product_gives_the_same(self, shape):
    w = tf.Variable(np.random.RandomState(0).randn(*shape))
    found = []
    for smaller in (True, False):
      gin.bind_parameter("hardware.Layout.gram_on_short_side", smaller)
      with tf.GradientTape() as tape:
        penalty = regularizers.orthogonal(1.0)([w])
      found.append([penalty, tape.gradient(penalty, w)])
    gin.clear_config()
    matrix = np.reshape(w, [-1, shape[-1]])
    products = matrix.T @ matrix
    expected = np.sum((products - np.diag(np.diag(products))) ** 2)
    self.assertAllClose(found[0], found[1])
    self.assertAllClose(found[0][0], expected)

  def test_an_orthogonal_kernel_is_free_whatever_its_size(self):
    weights = [tf.Variable([[3.0, 0.0], [0.0, 2.0]])]
    self.assertAllClose(regularizers.orthogonal(1.0)(weights), 0.0)

  def test_a_scale_of_zero_is_refused(self):
    for make in (regularizers.l2, regularizers.orthogonal):
      with self.assertRaisesRegex(ValueError, "`scale` must be above 0, got 0"):
        make(0.0)


if __name__ == "__main__":
  tf.test.main()
