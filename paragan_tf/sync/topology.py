"""Who talks to whom, and what each counts: mixing matrices.

One round of gossip makes of the workers' values `x_j`, one a row of `X`,

    y_i = sum_j W[i, j] x_j        # Only neighbors count: Y = W X.

W is symmetric and doubly stochastic (arXiv 1910.12999), so that the mean over
workers stays, and `t` rounds bring them together:

    |W^t X - mean| <= rho^t |X - mean|
"""

import dataclasses
import functools
import math
from typing import Iterable, List, Sequence, Set, Tuple

import gin
import numpy as np

Edge = Tuple[int, int]

# Below the differences that matter, above those of rounding.
_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
  """A graph of workers with the weights of its edges.

  Attributes:
    name: What kind of graph it is.
    matrix: W, float64, `[m, m]`; not to be written to.
  """

  name: str
  matrix: np.ndarray

  def __post_init__(self):
    self.matrix.setflags(write=False)

  @property
  def num_workers(self) -> int:
    """How many workers there are, m."""
    return len(self.matrix)

  @functools.cached_property
  def rho(self) -> float:
    """What is left of the spread after a round, at most.

    That is the second largest absolute eigenvalue of W; 0 for one worker.
    """
    sizes = np.sort(np.abs(np.linalg.eigvalsh(self.matrix)))
    return float(sizes[-2]) if len(sizes) > 1 else 0.0

  def neighbors(self, i: int) -> Tuple[int, ...]:
    """Returns whom worker `i` talks to."""
    return tuple(int(j) for j in np.flatnonzero(self.matrix[i]) if j != i)

  def edges(self) -> Tuple[Edge, ...]:
    """Returns every pair `(i, j)` that talks, once, with `i < j`."""
    pairs = np.argwhere(np.triu(self.matrix, 1))
    return tuple((int(i), int(j)) for i, j in pairs)

  def colors(self) -> Tuple[Tuple[Edge, ...], ...]:
    """Returns the edges in groups within which nobody has two.

    The pairs of a group can talk at the same time. Each edge goes to the first
    group that is free, which for workers of `n` neighbors at most makes fewer
    than `2 n` groups; a ring of even length has two.
    """
    groups: List[List[Edge]] = []
    busy: List[Set[int]] = []
    for edge in self.edges():
      free = (c for c, who in enumerate(busy) if who.isdisjoint(edge))
      color = next(free, len(groups))
      if color == len(groups):
        groups.append([])
        busy.append(set())
      groups[color].append(edge)
      busy[color].update(edge)
    return tuple(tuple(group) for group in groups)

  def rounds_for(self, target: float) -> int:
    """Returns the fewest rounds that leave `target` of the spread, or less."""
    check_target(target)
    if self.rho <= target:
      return 1
    rounds = math.floor(math.log(target) / math.log(self.rho))
    # Logarithms are rounded; what counts is the power.
    while self.rho**rounds > target:
      rounds += 1
    return rounds


@gin.register
def ring(m: int) -> Topology:
  """Joins each worker with the one before and the one after it."""
  return _circulant("ring", m, [1])


@gin.register
def complete(m: int) -> Topology:
  """Joins all with all: one round is the mean."""
  return _circulant("complete", m, range(1, m))


@gin.register
def exponential(m: int) -> Topology:
  """Joins workers that are 1, 2, 4, ... places apart, up to half of the way.

  Papers let only one of the two send; here both do, as W is symmetric.
  """
  places = (2**k for k in range(_checked(m).bit_length()))
  return _circulant("exponential", m, [p for p in places if 2 * p <= m])


@gin.register
def torus(m: int) -> Topology:
  """Joins the four sides of a grid as square as can be, which wraps around."""
  rows = max(r for r in range(1, math.isqrt(_checked(m)) + 1) if m % r == 0)
  if rows == 1 and m > 1:
    raise ValueError(
      f"`m`, the number of workers, must not be a prime for a torus, got {m}: "
      f"take {m + 1 if m > 2 else 4} workers, or `ring` or `exponential`."
    )
  grid = np.arange(m).reshape([rows, -1])
  linked = np.zeros([m, m], bool)
  for axis in (0, 1):
    for step in (-1, 1):
      linked[grid, np.roll(grid, step, axis)] = True
  return _even("torus", linked)


@gin.register
def custom(matrix: Sequence[Sequence[float]]) -> Topology:
  """Takes W as it is given, if gossip with it comes to the mean."""
  sizes = [np.size(row) for row in matrix]
  if not sizes or sizes != [len(sizes)] * len(sizes):
    raise ValueError(
      "`matrix` must be square, with a row and a column for each worker, got "
      f"{len(sizes)} rows of {sorted(set(sizes))}: fill in or cut its rows."
    )
  W = np.array(matrix, np.float64).reshape([len(sizes)] * 2)
  _check_entries(W)
  topology = Topology("custom", (W + W.T) / 2.0)  # Both ways, to the last bit.
  if topology.rho > 1.0 - _TOLERANCE:
    raise ValueError(
      "`matrix` must have a `rho` (second largest absolute eigenvalue) below "
      f"1, got {topology.rho:.6g}, with which workers never agree: join all of "
      "them, and let each count itself."
    )
  return topology


def check_target(target: float) -> None:
  """Refuses a share of the spread that no number of rounds leaves."""
  if not 0.0 < target < 1.0:
    raise ValueError(
      "`target`, the share of the spread that may be left, must be in "
      f"(0, 1), got {target}: take .1 for a tenth."
    )


def _check_entries(W: np.ndarray) -> None:
  """Refuses a matrix that does not keep the mean."""
  if not (W >= 0.0).all():
    raise ValueError(
      f"`matrix` must not be negative anywhere, got {W.min()}: take 0 for "
      "workers that do not talk."
    )
  skew = np.abs(W - W.T).max()
  if skew > _TOLERANCE:
    raise ValueError(
      "`matrix` must be symmetric, got entries that differ from those across "
      f"the diagonal by {skew:.6g}: take the mean of both."
    )
  sums = W.sum(1)
  worst = sums[np.abs(sums - 1.0).argmax()]
  if abs(worst - 1.0) > _TOLERANCE:
    raise ValueError(
      "`matrix` must be doubly stochastic, got a row and a column that sum to "
      f"{worst:.6g}: give what is missing from 1 to the diagonal."
    )


def _circulant(name: str, m: int, places: Iterable[int]) -> Topology:
  """Joins workers that are so many places apart on a ring."""
  here = np.arange(_checked(m))
  linked = np.zeros([m, m], bool)
  for place in places:
    linked[here, (here + place) % m] = True
    linked[here, (here - place) % m] = True
  return _even(name, linked)


def _even(name: str, linked: np.ndarray) -> Topology:
  """Lets each worker and its neighbors count the same.

  These are the weights of Metropolis, as in every graph here all workers have
  the same number of neighbors.
  """
  counted = linked | np.eye(len(linked), dtype=bool)
  return Topology(name, counted / counted.sum(1, keepdims=True))


def _checked(m: int) -> int:
  if m < 1:
    raise ValueError(
      f"`m`, the number of workers, must be at least 1, got {m}."
    )
  return m
