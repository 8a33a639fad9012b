"""A linear classifier on features, for classes that no extractor knows.

It is fitted to labeled real images, and tells whether a sample looks like the
class that it was generated for.
"""

import numpy as np

_RIDGE = 0.5  # Of the number of images; from a sweep on held-out CIFAR-10.


class Probe:
  """Ridge regression from standardized features to one-hot labels.

  Args:
    features: Shape `[n, d]`.
    labels: Class ids, shape `[n]`.
  """

  def __init__(self, features: np.ndarray, labels: np.ndarray):
    features = np.asarray(features, np.float64)
    self._mean = features.mean(0)
    self._deviation = features.std(0) + 1e-6
    x = self._standardize(features)
    y = np.eye(int(np.max(labels)) + 1)[labels]
    penalty = _RIDGE * len(x) * np.eye(x.shape[1])
    penalty[-1, -1] = 0.0  # Not on the bias.
    self._weights = np.linalg.solve(x.T @ x + penalty, x.T @ y)

  def __call__(self, features: np.ndarray) -> np.ndarray:
    """Returns class scores, `[n, num_classes]`."""
    return self._standardize(np.asarray(features, np.float64)) @ self._weights

  def _standardize(self, features: np.ndarray) -> np.ndarray:
    """Returns standardized features with a constant 1 appended."""
    x = (features - self._mean) / self._deviation
    return np.concatenate([x, np.ones([len(x), 1])], 1)
