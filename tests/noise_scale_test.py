"""The gradient noise scale, on a quadratic whose scale is known."""

import numpy as np
from absl.testing import absltest, parameterized

from paragan_tf.engine.scaling import noise_scale
from paragan_tf.engine.scaling.noise_scale import Norms


class NoiseScaleTest(parameterized.TestCase):
  def sample(self, gradient, deviation, small, num, repeats, seed=0):
    """Returns norms of `|w - x|^2 / 2`, x normal: its gradient is w - x."""
    draw = np.random.RandomState(seed)
    found = []
    for _ in range(repeats):
      examples = gradient + deviation * draw.randn(num, small, len(gradient))
      found.append(noise_scale.squared_norms(examples.mean(1), small))
    return found

  @parameterized.parameters((1.0, 4.0), (2.0, 1.0), (0.5, 3.0))
  def test_it_is_that_of_a_known_quadratic(self, size, deviation):
    gradient = np.full([100], size)
    expected = deviation**2 / size**2  # tr(Sigma) / |G|^2, both times 100.
    norms = self.sample(gradient, deviation, small=8, num=8, repeats=20)
    found = noise_scale.noise_scale(norms)
    np.testing.assert_allclose(found, expected, rtol=0.15)

  def test_its_estimates_do_not_depend_on_the_batches(self):
    gradient = np.ones([100])
    found = [
      noise_scale.noise_scale(self.sample(gradient, 5.0, small, num, 40))
      for small, num in ((2, 32), (16, 4), (8, 2))
    ]
    np.testing.assert_allclose(found, 25.0, rtol=0.2)

  def test_by_hand(self):
    # |G|^2 = (8 * 3 - 2 * 6) / 6 = 2, tr(Sigma) = (6 - 3) / (1/2 - 1/8) = 8.
    norms = [Norms(small_batch=2, big_batch=8, small=6.0, big=3.0)]
    self.assertAlmostEqual(noise_scale.noise_scale(norms), 4.0)

  def test_norms_by_hand(self):
    grads = [np.array([1.0, 0.0]), np.array([0.0, 2.0])]
    norms = noise_scale.squared_norms(grads, 4)
    self.assertEqual(norms, Norms(4, 8, 2.5, 1.25))

  def test_noise_that_hides_the_gradient_has_no_scale(self):
    self.assertEqual(noise_scale.noise_scale([Norms(2, 8, 8.0, 1.0)]), 0.0)

  @parameterized.parameters(([],), ([Norms(8, 8, 1.0, 1.0)],))
  def test_one_size_of_batches_is_refused(self, norms):
    with self.assertRaisesRegex(ValueError, "a small and a larger batch"):
      noise_scale.noise_scale(norms)


if __name__ == "__main__":
  absltest.main()
