"""Communication graphs and their mixing matrices.

One round of gossip replaces the workers' values `x_j`, the rows of `X`, by

    y_i = sum_j W[i, j] x_j        # W[i, j] is 0 except for neighbors: Y = W X.

W is symmetric and doubly stochastic (arXiv 1910.12999), so a round keeps the
mean over workers, and `t` rounds shrink the spread around it:

    |W^t X - mean| <= rho^t |X - mean|
"""

import dataclasses
import functools
import math
from typing import Iterable, List, Sequence, Set, Tuple

import gin
import numpy as np

Edge = Tuple[int, int]

# Above rounding errors, and below differences that matter.
_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
  """A graph of workers with the weights of its edges.

  Attributes:
    name: Kind of graph.
    matrix: W, float64, `[m, m]`, read-only.
  """

  name: str
  matrix: np.ndarray

  def __post_init__(self):
    self.matrix.setflags(write=False)

  @property
  def num_workers(self) -> int:
    """Number of workers, m."""
    return len(self.matrix)

  @functools.cached_property
  def rho(self) -> float:
    """Maximum fraction of the spread that remains after a round.

    It is the second largest absolute eigenvalue of W; 0 for one worker.
    """
    eigenvalues = np.sort(np.abs(np.linalg.eigvalsh(self.matrix)))
    return float(eigenvalues[-2]) if len(eigenvalues) > 1 else 0.0

  def neighbors(self, i: int) -> Tuple[int, ...]:
    """Returns the neighbors of worker `i`."""
    return tuple(int(j) for j in np.flatnonzero(self.matrix[i]) if j != i)

  def edges(self) -> Tuple[Edge, ...]:
    """Returns each edge once, as `(i, j)` with `i < j`."""
    pairs = np.argwhere(np.triu(self.matrix, 1))
    return tuple((int(i), int(j)) for i, j in pairs)

  def colors(self) -> Tuple[Tuple[Edge, ...], ...]:
    """Returns an edge coloring: groups of edges without a common worker.

    The pairs of a group can communicate at the same time. The coloring is
    greedy: with at most `n` neighbors per worker, it has fewer than `2 n`
    groups. A ring of even length has two.
    """
    groups: List[List[Edge]] = []
    busy: List[Set[int]] = []
    for edge in self.edges():
      free = (c for c, workers in enumerate(busy) if workers.isdisjoint(edge))
      color = next(free, len(groups))
      if color == len(groups):
        groups.append([])
        busy.append(set())
      groups[color].append(edge)
      busy[color].update(edge)
    return tuple(tuple(group) for group in groups)

  def rounds_for(self, target: float) -> int:
    """Returns the fewest rounds that leave at most `target` of the spread."""
    check_target(target)
    if self.rho <= target:
      return 1
    rounds = math.floor(math.log(target) / math.log(self.rho))
    # The logarithms are rounded, so the power itself is checked.
    while self.rho**rounds > target:
      rounds += 1
    return rounds


@gin.register
def ring(m: int) -> Topology:
  """Connects each worker to the previous and the next one."""
  return _circulant("ring", m, [1])


@gin.register
def complete(m: int) -> Topology:
  """Connects all workers to each other: one round computes the mean."""
  return _circulant("complete", m, range(1, m))


@gin.register
def exponential(m: int) -> Topology:
  """Connects workers at distances 1, 2, 4, ... on a ring, up to half of it.

  The graph in the literature is directed; this one is not, as W is symmetric.
  """
  _check_num_workers(m)
  distances = (2**k for k in range(m.bit_length()))
  return _circulant("exponential", m, [d for d in distances if 2 * d <= m])


@gin.register
def torus(m: int) -> Topology:
  """Connects the neighbors in a grid that is nearly square and wraps around."""
  _check_num_workers(m)
  rows = max(r for r in range(1, math.isqrt(m) + 1) if m % r == 0)
  if rows == 1 and m > 1:
    raise ValueError(
      f"`m`, the number of workers, must not be a prime for a torus, got {m}: "
      f"take {m + 1 if m > 2 else 4} workers, or `ring` or `exponential`."
    )
  grid = np.arange(m).reshape([rows, -1])
  adjacency = np.zeros([m, m], bool)
  for axis in (0, 1):
    for step in (-1, 1):
      adjacency[grid, np.roll(grid, step, axis)] = True
  return _with_equal_weights("torus", adjacency)


@gin.register
def custom(matrix: Sequence[Sequence[float]]) -> Topology:
  """Uses the given W, if gossip with it converges to the mean."""
  sizes = [np.size(row) for row in matrix]
  if not sizes or sizes != [len(sizes)] * len(sizes):
    raise ValueError(
      "`matrix` must be square, with a row and a column for each worker, got "
      f"{len(sizes)} rows of {sorted(set(sizes))}: fill in or cut its rows."
    )
  W = np.array(matrix, np.float64).reshape([len(sizes)] * 2)
  _check_entries(W)
  topology = Topology("custom", (W + W.T) / 2.0)  # Symmetric to the last bit.
  if topology.rho > 1.0 - _TOLERANCE:
    raise ValueError(
      "`matrix` must have a `rho` (second largest absolute eigenvalue) below "
      f"1, got {topology.rho:.6g}, with which workers never agree: connect all "
      "of them, and make the diagonal positive."
    )
  return topology


def check_target(target: float) -> None:
  """Raises an error if `target` is not in (0, 1)."""
  if not 0.0 < target < 1.0:
    raise ValueError(
      "`target`, the fraction of the spread that may remain, must be in "
      f"(0, 1), got {target}: take .1 for a tenth."
    )


def _check_entries(W: np.ndarray) -> None:
  """Raises an error if a round with W would not keep the mean."""
  if not (W >= 0.0).all():
    raise ValueError(
      f"`matrix` must not have negative entries, got {W.min()}: take 0 for "
      "workers that are not neighbors."
    )
  asymmetry = np.abs(W - W.T).max()
  if asymmetry > _TOLERANCE:
    raise ValueError(
      "`matrix` must be symmetric, got entries that differ from those of its "
      f"transpose by {asymmetry:.6g}: take the mean of both."
    )
  sums = W.sum(1)
  worst = sums[np.abs(sums - 1.0).argmax()]
  if abs(worst - 1.0) > _TOLERANCE:
    raise ValueError(
      "`matrix` must be doubly stochastic, got a row and a column that sum to "
      f"{worst:.6g}: add the difference from 1 to the diagonal."
    )


def _circulant(name: str, m: int, distances: Iterable[int]) -> Topology:
  """Connects workers at the given distances on a ring."""
  _check_num_workers(m)
  workers = np.arange(m)
  adjacency = np.zeros([m, m], bool)
  for distance in distances:
    adjacency[workers, (workers + distance) % m] = True
    adjacency[workers, (workers - distance) % m] = True
  return _with_equal_weights(name, adjacency)


def _with_equal_weights(name: str, adjacency: np.ndarray) -> Topology:
  """Returns a graph where a worker and its neighbors have equal weights.

  These are Metropolis weights, as in every graph here all workers have the same
  number of neighbors.
  """
  has_weight = adjacency | np.eye(len(adjacency), dtype=bool)
  return Topology(name, has_weight / has_weight.sum(1, keepdims=True))


def _check_num_workers(m: int) -> None:
  if m < 1:
    raise ValueError(
      f"`m`, the number of workers, must be at least 1, got {m}."
    )
