"""Precision, recall, density and coverage, block by block.

Both pairs ask whether a point lies in a ball around a point of the other set
that reaches to its k-th neighbor in its own set. No matrix of all distances is
made: 10,000 and 10,000 points of 2,048 features take 0.55 GB.
"""

from typing import NamedTuple, Tuple

import numpy as np

from paragan_tf.outputs import distances

K_PRECISION, K_DENSITY = 3, 5  # As in the papers.
_BLOCK = 1000


class Neighbors(NamedTuple):
  """How far samples and real images lie among each other.

  Attributes:
    precision: Share of samples that look real (arXiv 1904.06991).
    recall: Share of real images that are sampled.
    density: As precision, but robust against outliers (arXiv 2002.09797); may
      be above 1.
    coverage: As recall, likewise.
  """

  precision: float
  recall: float
  density: float
  coverage: float


def compare(real: np.ndarray, fake: np.ndarray) -> Neighbors:
  """Compares features of samples, `[m, d]`, with real ones, `[n, d]`.

  Distances are computed in float32 from centered features: their squares are
  right to about 1e-6 of the largest squared norm. Points nearer to the edge of
  a ball than that may count either way.
  """
  needed = K_DENSITY + 1
  if min(len(real), len(fake)) < needed:
    raise ValueError(
      f"At least {needed} real images and {needed} samples are needed for "
      f"their {K_DENSITY} nearest neighbors, got {len(real)} and {len(fake)}."
    )
  real, fake = _center(real, fake)
  near_real, far_real = _radii(real, (K_PRECISION, K_DENSITY))
  (near_fake,) = _radii(fake, (K_PRECISION,))
  is_real, is_sampled = np.zeros(len(fake), bool), np.zeros(len(real), bool)
  is_covered, hits = np.zeros(len(real), bool), 0
  for rows in _blocks(len(real)):
    d = _squared_distances(real[rows], fake)
    is_real |= (d <= near_real[rows, None]).any(axis=0)
    is_sampled[rows] = (d <= near_fake).any(axis=1)
    inside = d <= far_real[rows, None]
    is_covered[rows] = inside.any(axis=1)
    hits += np.count_nonzero(inside)
  return Neighbors(
    precision=float(is_real.mean()),
    recall=float(is_sampled.mean()),
    density=hits / (K_DENSITY * len(fake)),
    coverage=float(is_covered.mean()),
  )


def _center(real: np.ndarray, fake: np.ndarray):
  """Returns both in float32, less the mean of the real ones."""
  for name, x in (("real", real), ("fake", fake)):
    distances.check_finite(name, x)
  mean = np.mean(real, axis=0, dtype=np.float64)
  return tuple((x - mean).astype(np.float32) for x in (real, fake))


def _radii(x: np.ndarray, ks: Tuple[int, ...]) -> Tuple[np.ndarray, ...]:
  """Returns each point's squared distance to its k-th neighbor, for each k."""
  radii = np.empty((len(ks), len(x)), np.float32)
  for rows in _blocks(len(x)):
    d = _squared_distances(x[rows], x)
    d[np.arange(len(d)), np.arange(rows.start, rows.stop)] = np.inf
    # A k-th neighbor is among the first few of one partition.
    nearest = np.partition(d, max(ks) - 1, axis=1)[:, : max(ks)]
    nearest.sort(axis=1)
    radii[:, rows] = nearest[:, [k - 1 for k in ks]].T
  return tuple(radii)


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  d = a @ b.T
  d *= -2.0
  d += np.einsum("ij,ij->i", a, a)[:, None]
  d += np.einsum("ij,ij->i", b, b)
  return np.maximum(d, 0.0, out=d)


def _blocks(count: int):
  return (slice(i, min(i + _BLOCK, count)) for i in range(0, count, _BLOCK))
