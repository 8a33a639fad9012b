"""Distances between two sets of features, and scores of logits, in float64.

Pure functions of NumPy arrays; features have shape `[n, d]`.
"""

from typing import NamedTuple, Tuple

import numpy as np


class Moments(NamedTuple):
  """Mean `[d]` and unbiased covariance `[d, d]` of features."""

  mean: np.ndarray
  covariance: np.ndarray


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
  """Returns the Fréchet distance between Gaussians fitted to two sets.

  |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^1/2) for the covariances A and B,
  arXiv:1706.08500.

  Args:
    a: Features, shape `[n, d]`.
    b: Features, shape `[m, d]`.
  """
  a, b = as_features("a", a), as_features("b", b)
  _check_widths(a.shape[1], b.shape[1])
  means = a.mean(axis=0), b.mean(axis=0)
  return _frechet(*means, _root_of_features(a), _root_of_features(b))


def frechet_from_moments(a: Moments, b: Moments) -> float:
  """Returns the same from means and covariances, which may be singular."""
  _check_widths(len(a.mean), len(b.mean))
  roots = _root_of_covariance(a.covariance), _root_of_covariance(b.covariance)
  return _frechet(a.mean, b.mean, *roots)


def _frechet(mean_a, mean_b, root_a, root_b) -> float:
  # The usual way takes the root of A B, whose rounding errors are the square
  # roots of those of A and B: a set's distance to itself is then not 0. With
  # roots r_a^T r_a = A and r_b^T r_b = B the trace of (A B)^1/2 is the sum of
  # the singular values of r_a r_b^T.
  shared = np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
  spread = (root_a**2).sum() + (root_b**2).sum() - 2 * shared
  shift = ((mean_a - mean_b) ** 2).sum()
  return float(shift + max(spread, 0.0))


def _root_of_features(x: np.ndarray) -> np.ndarray:
  """Returns `r` such that `r.T @ r` is the covariance of `x`, `[n, d]`."""
  _, r = np.linalg.qr((x - x.mean(axis=0)) / np.sqrt(len(x) - 1))
  return r


def _root_of_covariance(covariance: np.ndarray) -> np.ndarray:
  """Returns `r` such that `r.T @ r` is `covariance`.

  Directions without variance are left out: rounding gives them some, and the
  root of it would be large.
  """
  variances, axes = np.linalg.eigh(covariance)
  kept = variances > len(variances) * np.finfo(np.float64).eps * variances[-1]
  return np.sqrt(variances[kept])[:, None] * axes[:, kept].T


def kernel_distance(
  a: np.ndarray,
  b: np.ndarray,
  subset_size: int = 1000,
  num_subsets: int = 100,
  seed: int = 0,
) -> Tuple[float, float]:
  """Returns KID, and its deviation over subsets (arXiv 1801.01401).

  It is the unbiased squared maximum mean discrepancy with the kernel
  (x y / d + 1)^3, averaged over random subsets of both sets.
  """
  a, b = as_features("a", a), as_features("b", b)
  _check_widths(a.shape[1], b.shape[1])
  size = min(subset_size, len(a), len(b))
  rng = np.random.RandomState(seed)
  estimates = [
    _squared_mmd(
      a[rng.choice(len(a), size, replace=False)],
      b[rng.choice(len(b), size, replace=False)],
    )
    for _ in range(num_subsets)
  ]
  return float(np.mean(estimates)), float(np.std(estimates))


def _squared_mmd(x: np.ndarray, y: np.ndarray) -> float:
  n, d = x.shape

  def kernel(u, v):
    k = u @ v.T / d + 1.0
    return k * k * k  # Many times as fast as `k**3`.

  xx, yy = kernel(x, x), kernel(y, y)
  within = xx.sum() - np.trace(xx) + yy.sum() - np.trace(yy)
  return within / (n * (n - 1)) - 2 * kernel(x, y).mean()


def monge_distance(
  a: np.ndarray, b: np.ndarray, num_directions: int = 1000, seed: int = 2605
) -> float:
  """Returns MIND, a sliced Wasserstein distance (arXiv 2605.06797).

  3 d times the mean, over random directions, of the squared Wasserstein-2
  distance of the projections, which sorting gives. The larger set is reduced
  to the size of the other, at random.
  """
  a, b = as_features("a", a), as_features("b", b)
  _check_widths(a.shape[1], b.shape[1])
  rng = np.random.RandomState(seed)
  n, d = min(len(a), len(b)), a.shape[1]
  a, b = (_draw(x, n, rng) for x in (a, b))
  u = rng.normal(size=(num_directions, d))
  u /= np.linalg.norm(u, axis=1, keepdims=True)
  costs = []
  for i in range(0, num_directions, 100):  # To bound the memory.
    p, q = (np.sort(x @ u[i : i + 100].T, axis=0) for x in (a, b))
    costs.append(np.mean((p - q) ** 2, axis=0))
  return float(3 * d * np.mean(np.concatenate(costs)))


def _draw(x: np.ndarray, n: int, rng: np.random.RandomState) -> np.ndarray:
  """Returns `n` rows at random, or `x` itself if it has no more."""
  return x if len(x) == n else x[rng.choice(len(x), n, replace=False)]


def label_agreement(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the fraction of samples that are classified as their label.

  Args:
    logits: Class scores, shape `[n, num_classes]`.
    labels: Class ids, shape `[n]`.
  """
  logits, labels = np.asarray(logits), np.asarray(labels)
  if logits.ndim != 2 or labels.shape != logits.shape[:1]:
    raise ValueError(
      "`logits` and `labels` must have shapes [n, num_classes] and [n], got "
      f"{logits.shape} and {labels.shape}."
    )
  return float(np.mean(np.argmax(logits, axis=-1) == labels))


def count_recognized(logits: np.ndarray, labels: np.ndarray) -> int:
  """Returns the number of classes that are recognized better than by chance.

  A class counts if the fraction of its samples that are classified correctly is
  more than two standard errors above one over the number of classes.

  Args:
    logits: Class scores, shape `[n, num_classes]`.
    labels: Class ids, shape `[n]`.
  """
  num_classes = np.shape(logits)[1]
  chance = 1.0 / num_classes
  count = 0
  for c in np.unique(labels):
    members = labels == c
    error = np.sqrt(chance * (1 - chance) / members.sum())
    agreement = label_agreement(logits[members], labels[members])
    count += agreement > chance + 2 * error
  return count


def as_features(name: str, x: np.ndarray) -> np.ndarray:
  """Returns features in float64; refuses those that are no numbers."""
  x = np.asarray(x, np.float64)
  if x.ndim != 2 or len(x) < 2:
    raise ValueError(
      f"`{name}` must have shape [n, d] with n at least 2, got {x.shape}."
    )
  check_finite(name, x)
  return x


def check_finite(name: str, x: np.ndarray) -> None:
  """Refuses features of which some are NaN or infinite."""
  if not np.all(np.isfinite(x)):
    bad = int(np.sum(~np.all(np.isfinite(x), axis=1)))
    raise ValueError(
      f"`{name}` must be finite, {bad} of {len(x)} rows are not: "
      "look for NaN in the images, G may have diverged."
    )


def _check_widths(a: int, b: int) -> None:
  if a != b:
    raise ValueError(
      "`a` and `b` must have the same number of features, "
      f"got {a} and {b}: use one extractor for both."
    )
