"""What weights cost, by hand."""

import numpy as np
import tensorflow as tf

from paragan_tf.game import regularizers

KERNEL = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)


class RegularizersTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.weights = [tf.Variable(KERNEL), tf.Variable([5.0, 5.0])]

  def test_l2_counts_kernels_only(self):
    self.assertAllClose(regularizers.l2(0.1)(self.weights), 0.1 * 15.0 / 2)

  def test_orthogonal_counts_products_of_different_filters(self):
    # The columns' product is 1 * 2 + 3 * -1 = -1, twice in the matrix.
    self.assertAllClose(regularizers.orthogonal(0.1)(self.weights), 0.1 * 2.0)

  def test_an_orthogonal_kernel_is_free_whatever_its_size(self):
    weights = [tf.Variable([[3.0, 0.0], [0.0, 2.0]])]
    self.assertAllClose(regularizers.orthogonal(1.0)(weights), 0.0)

  def test_a_scale_of_zero_is_refused(self):
    for make in (regularizers.l2, regularizers.orthogonal):
      with self.assertRaisesRegex(ValueError, "`scale` must be above 0, got 0"):
        make(0.0)


if __name__ == "__main__":
  tf.test.main()
