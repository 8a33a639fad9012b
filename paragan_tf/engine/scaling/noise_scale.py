"""The gradient noise scale: the batch beyond which a larger one gains little.

Of a gradient `G` whose examples have the covariance `Sigma`, the mean over a
batch `B` has the expected squared norm `|G|^2 + tr(Sigma) / B` (arXiv
1812.06162, appendix A). So two sizes of batches give both:

    |G|^2     = (B |G_B|^2 - b |G_b|^2) / (B - b)
    tr(Sigma) = (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)
    scale     = tr(Sigma) / |G|^2
"""

from typing import NamedTuple, Sequence

import numpy as np


class Norms(NamedTuple):
  """Mean squared norms of gradients over batches of two sizes."""

  small_batch: int
  big_batch: int
  small: float
  big: float


def squared_norms(grads: Sequence[np.ndarray], small_batch: int) -> Norms:
  """Returns the norms of small batches, and of all of them together.

  Args:
    grads: Mean gradient of each small batch, `[n]`.
    small_batch: Examples in each.
  """
  rows = np.stack(grads).astype(np.float64)
  small = float(np.mean(np.sum(rows**2, 1)))
  big = float(np.sum(np.mean(rows, 0) ** 2))
  return Norms(small_batch, small_batch * len(rows), small, big)


def noise_scale(norms: Sequence[Norms]) -> float:
  """Returns the scale in examples; 0 if noise hides the gradient.

  Both estimates are unbiased, their ratio is not; so they are averaged first.
  """
  if any(not 0 < x.small_batch < x.big_batch for x in norms) or not norms:
    raise ValueError(
      "`norms` must be of a small and a larger batch each, got "
      f"{[(x.small_batch, x.big_batch) for x in norms]}."
    )
  gradient = np.mean(
    [
      (x.big_batch * x.big - x.small_batch * x.small)
      / (x.big_batch - x.small_batch)
      for x in norms
    ]
  )
  trace = np.mean(
    [(x.small - x.big) / (1 / x.small_batch - 1 / x.big_batch) for x in norms]
  )
  if gradient <= 0:
    return 0.0
  return float(max(trace, 0.0) / gradient)
