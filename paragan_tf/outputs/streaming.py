"""Sums over images that need no memory for each of them, in float64.

Each takes batches of any size, in order, and gives the same result for all
sizes, up to rounding.
"""

from typing import List, Optional, Tuple

import numpy as np

from paragan_tf.outputs.distances import Moments


class MomentSums:
  """Mean and covariance, batch by batch (Chan, Golub and LeVeque, 1983)."""

  def __init__(self) -> None:
    self.count = 0
    self._mean = np.zeros(0)
    self._squares = np.zeros((0, 0))  # Around the mean.

  def add(self, features: np.ndarray) -> None:
    """Adds features, `[b, d]`."""
    x = np.asarray(features, np.float64)
    if not self.count:
      self._mean = np.zeros(x.shape[1])
      self._squares = np.zeros((x.shape[1], x.shape[1]))
    total = self.count + len(x)
    mean = x.mean(axis=0)
    x = x - mean
    shift = mean - self._mean
    self._squares += x.T @ x
    self._squares += np.outer(shift, shift) * (self.count * len(x) / total)
    self._mean += shift * (len(x) / total)
    self.count = total

  def result(self) -> Moments:
    """Returns the moments of all features so far."""
    if self.count < 2:
      raise ValueError(
        f"At least 2 images are needed for a covariance, got {self.count}."
      )
    return Moments(self._mean.copy(), self._squares / (self.count - 1))


class ScoreSums:
  """Inception score (arXiv 1606.03498) of splits of `count` images."""

  def __init__(self, count: int, num_splits: int = 10):
    self._count, self._added = count, 0
    self._num_splits = min(num_splits, count)
    self._sizes = np.zeros(self._num_splits)
    self._negative_entropies = np.zeros(self._num_splits)
    self._probabilities: Optional[np.ndarray] = None

  def add(self, logits: np.ndarray) -> None:
    """Adds the logits of the next images, `[b, num_classes]`."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    p = np.exp(x)
    if self._probabilities is None:
      self._probabilities = np.zeros((self._num_splits, x.shape[1]))
    positions = self._added + np.arange(len(x))
    splits = positions * self._num_splits // self._count
    np.add.at(self._sizes, splits, 1)
    np.add.at(self._negative_entropies, splits, (p * x).sum(axis=1))
    np.add.at(self._probabilities, splits, p)
    self._added += len(x)

  def result(self) -> np.ndarray:
    """Returns the score of each split."""
    assert self._probabilities is not None
    mean = self._probabilities / self._sizes[:, None]
    log = np.log(np.maximum(mean, np.finfo(np.float64).tiny))
    divergence = self._negative_entropies / self._sizes - (mean * log).sum(1)
    return np.exp(divergence)


def inception_score(
  logits: np.ndarray, num_splits: int = 10
) -> Tuple[float, float]:
  """Returns the inception score, and its deviation over splits."""
  sums = ScoreSums(len(logits), num_splits)
  sums.add(logits)
  scores = sums.result()
  return float(scores.mean()), float(scores.std())


class KeptRows:
  """At most `most` rows out of `count`, chosen at random in advance."""

  def __init__(self, count: int, most: int):
    self.rows = np.arange(count)
    if count > most:
      chosen = np.random.RandomState(0).permutation(count)[:most]
      self.rows = np.sort(chosen)
    self._parts: List[np.ndarray] = []
    self._added = 0

  def add(self, values: np.ndarray) -> None:
    """Adds the values of the next rows."""
    first, last = np.searchsorted(
      self.rows, [self._added, self._added + len(values)]
    )
    kept = np.asarray(values)[self.rows[first:last] - self._added]
    self._parts.append(kept.astype(np.float32))
    self._added += len(values)

  def result(self) -> np.ndarray:
    """Returns the values of the rows that were kept."""
    return np.concatenate(self._parts)
