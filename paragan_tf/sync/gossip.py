"""Replicas that talk with their neighbors only.

DPOSG (arXiv 1910.12999) is this, with `optimistic.OptimisticSGD` and
`schedule.Simultaneous`; with `OptimisticAdam`, its Adam form:

    each replica:  z = y - eta g_prev         # look ahead: the weights
                   g = F(z)                   # the only gradient, never mixed
                   x = y - eta g
                   y = sum_j W^t[i, j] x_j    # t rounds with neighbors

What a run has learned is the mean over replicas, which mixing leaves as it is.
"""

from typing import Callable, Optional, Sequence, Tuple, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import collectives, pairs
from paragan_tf.sync import bitpack
from paragan_tf.sync.exchange import Exchange, Traffic, size_in_bytes
from paragan_tf.sync.topology import Topology, check_target, ring

_NUM_SUMS = 256
# Message-seconds: at ten steps a second, ten times as many threads.
_MOST_WAITING = 240.0


@gin.register
class Gossip(Exchange):
  """Mixes what is settled with the neighbors' in every step.

  The policies: an average of G (EMA) stays with its replica, as the mean of
  averages is the average of the mean. Moments of optimizers stay too, unless
  `moments` is 'mixed'. Slow weights (`lookahead.Lookahead`) are mixed as the
  weights are, at the cost of as many bytes: else they would pull the replicas
  apart again. Batch-norm statistics and spectral-norm vectors are mixed as
  weights are, unless `statistics` is 'local'.

  It logs half of the mean square by which neighbors differ, its root: before
  mixing; and after it, in the step before, by sums of hashed entries that go
  along, good to about 5 %. Where all are neighbors, that is the distance from
  the mean.

  A ring with one round gives 2 models a step and replica, an all-reduce
  2 (M - 1) / M: what is saved are hops one after the other, and waiting for
  all. So it pays where latency counts.

  Args:
    topology: Makes the graph from the number of replicas; or, as
      `@topology.custom()`, a graph.
    rounds: How often to mix in a step, or 'auto': until `target` is left.
    target: The share of the spread that may be left, for 'auto'.
    statistics: 'mixed' or 'local'.
    moments: 'mixed' or 'local'.
    timeout: Seconds after which a neighbor counts as lost, to find out why a
      run stands still. A process that has ended is noticed without, and with
      it TensorFlow keeps a thread for each message as long.

  Attributes:
    topology: The graph of as many replicas as there are.
  """

  communicates = True
  supports_roles = False
  mean_is_model = True
  log_names = ("distance", "distance_after", "rho", "rounds")

  def __init__(
    self,
    topology: Union[Topology, Callable[[int], Topology]] = ring,
    rounds: Union[int, str] = 1,
    target: float = 0.1,
    statistics: str = "mixed",
    moments: str = "local",
    timeout: Optional[float] = None,
    name: str = "gossip",
  ):
    super().__init__(name=name)
    for what, value in (("statistics", statistics), ("moments", moments)):
      if value not in ("mixed", "local"):
        raise ValueError(f"`{what}` must be 'mixed' or 'local', got {value!r}.")
    if rounds != "auto" and not (isinstance(rounds, int) and rounds >= 1):
      raise ValueError(
        f"`rounds` must be at least 1, or 'auto', got {rounds!r}."
      )
    if rounds == "auto":
      check_target(target)
    if timeout is not None and not timeout > 0.0:
      raise ValueError(f"`timeout` must be above 0 s, got {timeout}.")
    if not (callable(topology) or isinstance(topology, Topology)):
      raise ValueError(
        "`topology` must make a graph, or be one, got "
        f"{topology!r}: write `@topology.ring`, or `@topology.custom()` for a "
        "matrix."
      )
    self._given = topology
    self._rounds = rounds
    self._target = target
    kinds = (("statistics", statistics), ("moments", moments))
    mixed = (kind for kind, way in kinds if way == "mixed")
    self.exchanged_state = (*mixed, "slow_weights")
    self._timeout = timeout
    self._sums: tf.Variable = None
    self.topology = self._made()
    self._check_waiting()

  def init(self, weights: Sequence[tf.Variable], seed: int = 0) -> None:
    """Makes the graph, and the sums that are sent to neighbors."""
    del weights, seed
    self.topology = self._made()
    self._sums = tf.Variable(
      tf.zeros([_NUM_SUMS]), trainable=False, name=f"{self.name}/sums"
    )

  @property
  def rounds(self) -> int:
    """How often a step mixes."""
    if isinstance(self._rounds, int):
      return self._rounds
    return self.topology.rounds_for(self._target)

  def after_update(self, weights, state, phase, counts=None):
    """Mixes; returns how far neighbors were apart."""
    del phase, counts
    graph = self.topology
    if graph.num_workers == 1:
      return {name: tf.zeros([]) for name in self.log_names}
    mixed = [*weights, *state]
    x = _joined(mixed)
    sums = tf.cast(tf.convert_to_tensor(self._sums), x.dtype)
    y, apart = self._round(tf.concat([x, sums], 0), [x.shape[0], _NUM_SUMS])
    x = y[: x.shape[0]]
    for _ in range(self.rounds - 1):
      x, _ = self._round(x, [])
    self._sums.assign(tf.cast(_hashed_sums(x), tf.float32))
    _assign(mixed, x)
    scalars = (*apart, graph.rho, float(self.rounds))
    return {n: tf.cast(s, tf.float32) for n, s in zip(self.log_names, scalars)}

  def can_fuse_with(self, other):
    """Returns whether the other one talks with the same in the same way."""
    return isinstance(other, Gossip) and self._way() == other._way()

  def traffic(self, weights, state, phase):
    """Returns the size of what is mixed, for each neighbor and round."""
    del phase
    size = size_in_bytes([*weights, *state])
    total = self._num_neighbors * (self.rounds * size + 4 * _NUM_SUMS)
    return Traffic(total, total)

  def summary(self) -> str:
    """Returns the graph, and how fast it mixes."""
    graph = self.topology
    return (
      f"Gossip on `{graph.name}` of {graph.num_workers}, rho "
      f"{graph.rho:.4f}, rounds {self.rounds}, which leave "
      f"{graph.rho**self.rounds:.4f}"
    )

  def _round(self, x: tf.Tensor, sizes: Sequence[int]):
    """Mixes once; returns how far neighbors are apart in each part, too."""
    graph, groups = self.topology, self.topology.colors()
    received = pairs.pairwise_exchange([x] * len(groups), groups, self._timeout)
    y = _here(np.diag(graph.matrix), x.dtype) * x
    squares = [tf.zeros([], x.dtype) for _ in sizes]
    for group, other in zip(groups, received):
      weight = _here(_weights(graph, group), x.dtype)
      y += weight * other
      if sizes:
        parts = tf.split(other - x, sizes)
        squares = [
          s + weight * tf.reduce_sum(part**2) / 2
          for s, part in zip(squares, parts)
        ]
    return y, [tf.sqrt(square) for square in squares]

  def _made(self) -> Topology:
    m = collectives.num_replicas()
    if callable(self._given):
      return self._given(m)
    # A net may be made where it does not train, on one replica.
    if m > 1 and m != self._given.num_workers:
      raise ValueError(
        f"`topology` must have as many rows as there are replicas, {m}, got "
        f"{self._given.num_workers}: start as many, or give another matrix."
      )
    return self._given if m > 1 else ring(1)

  def _way(self) -> Tuple:
    return tuple(self.topology.matrix.ravel()), self.rounds

  def _check_waiting(self) -> None:
    if self._timeout is None or self.topology.num_workers == 1:
      return
    most = int(_MOST_WAITING / (self._timeout * self._num_neighbors))
    if self.rounds > most:
      raise ValueError(
        f"`rounds` must be at most {most} with `timeout` {self._timeout:g} s "
        f"and {self._num_neighbors} neighbors, got {self.rounds}: TensorFlow "
        "keeps a thread for each message until its time has passed; take "
        "fewer rounds, a shorter `timeout`, or none."
      )

  @property
  def _num_neighbors(self) -> int:
    graph = self.topology
    return max(len(graph.neighbors(i)) for i in range(graph.num_workers))


def _weights(graph: Topology, group: pairs.Pairs) -> np.ndarray:
  """Returns what each replica's partner counts, 0 without one."""
  weights = np.zeros([graph.num_workers])
  for i, j in group:
    weights[[i, j]] = graph.matrix[i, j]
  return weights


def _here(table: np.ndarray, dtype: tf.DType) -> tf.Tensor:
  return tf.gather(tf.constant(table, dtype), collectives.place())


def _joined(variables: Sequence[tf.Variable]) -> tf.Tensor:
  dtype = variables[0].dtype
  return tf.concat([tf.reshape(tf.cast(v, dtype), [-1]) for v in variables], 0)


def _assign(variables: Sequence[tf.Variable], x: tf.Tensor) -> None:
  sizes = [v.shape.num_elements() for v in variables]
  for v, part in zip(variables, tf.split(x, sizes)):
    v.assign(tf.cast(tf.reshape(part, v.shape), v.dtype))


def _hashed_sums(x: tf.Tensor) -> tf.Tensor:
  """Returns few numbers that are as far apart as `x` are, in the mean.

  Each entry goes into one of them, with a sign drawn for it (a count sketch).
  """
  signed = tf.where(bitpack.uniform(x.shape[0], [7, 0]) < 0.5, x, -x)
  filled = tf.pad(signed, [[0, -x.shape[0] % _NUM_SUMS]])
  return tf.reduce_sum(tf.reshape(filled, [-1, _NUM_SUMS]), 0)
