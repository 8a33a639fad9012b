"""Gossip: decentralized averaging of weights with neighbors.

With `optimistic.OptimisticSGD` and `schedule.Simultaneous` it is DPOSG (arXiv
1910.12999); with `OptimisticAdam`, the Adam variant of DPOSG:

    each replica:  z = y - eta g_prev         # look ahead: the weights
                   g = F(z)                   # the only gradient, never mixed
                   x = y - eta g
                   y = sum_j W^t[i, j] x_j    # t rounds with neighbors

The trained model is the mean over replicas, which mixing does not change.
"""

from typing import Callable, Optional, Sequence, Tuple, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import collectives, pairs
from paragan_tf.sync import bitpack
from paragan_tf.sync.exchange import Exchange, Traffic, size_in_bytes
from paragan_tf.sync.topology import Topology, check_target, ring

_SKETCH_SIZE = 256
# Messages per step times `timeout`. TensorFlow keeps a thread for each message
# that long, so at ten steps per second there are ten times as many threads.
_MAX_MESSAGE_SECONDS = 240.0


@gin.register
class Gossip(Exchange):
  """Averages the base weights with the neighbors' at every step.

  State is mixed or stays local. An average of G (EMA) stays local, as the mean
  of the averages is the average of the mean. Moments of optimizers stay local,
  unless `moments` is 'mixed'. Slow weights (`lookahead.Lookahead`) are mixed
  like the weights, and take as many bytes: otherwise they would pull the
  replicas apart again. Batch-norm statistics and spectral-norm vectors are
  mixed like the weights, unless `statistics` is 'local'.

  It logs the root of half the mean square difference from neighbors, as
  `distance` before mixing and `distance_after` after the mixing of the previous
  step. The latter is estimated to about 5 % from count sketches, which are sent
  along with the weights. In a complete graph both are the distance from the
  mean.

  With one round on a ring, a replica sends 2 models per step; with an
  all-reduce, 2 (M - 1) / M. Gossip saves sequential hops and waiting for all
  replicas, so it pays where latency dominates.

  Args:
    topology: A function from the number of replicas to a graph; or a graph,
      such as `@topology.custom()`.
    rounds: Rounds of mixing per step; or 'auto', the fewest for `target`.
    target: Fraction of the spread that may remain, for 'auto'.
    statistics: 'mixed' or 'local'.
    moments: 'mixed' or 'local'.
    timeout: Seconds after which a neighbor counts as lost, to diagnose a run
      that hangs. Without a timeout, the end of a process is still noticed; with
      one, TensorFlow keeps a thread for each message until the time has passed.

  Attributes:
    topology: The graph for the current number of replicas.
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
    for option, value in (("statistics", statistics), ("moments", moments)):
      if value not in ("mixed", "local"):
        raise ValueError(
          f"`{option}` must be 'mixed' or 'local', got {value!r}."
        )
    if rounds != "auto" and not (isinstance(rounds, int) and rounds >= 1):
      raise ValueError(
        f"`rounds` must be at least 1, or 'auto', got {rounds!r}."
      )
    if rounds == "auto":
      check_target(target)
    pairs.check_timeout(timeout)
    if not (callable(topology) or isinstance(topology, Topology)):
      raise ValueError(
        "`topology` must be a graph or a function that returns one, got "
        f"{topology!r}: write `@topology.ring`, or `@topology.custom()` for a "
        "matrix."
      )
    self._topology_or_fn = topology
    self._rounds = rounds
    self._target = target
    policies = (("statistics", statistics), ("moments", moments))
    mixed = (kind for kind, policy in policies if policy == "mixed")
    self.exchanged_state = (*mixed, "slow_weights")
    self._timeout = timeout
    self._sketch: tf.Variable = None
    self.topology = self._make_topology()
    self._check_timeout()

  def init(self, weights: Sequence[tf.Variable], seed: int = 0) -> None:
    """Creates the graph, and the sketch that is sent to neighbors."""
    del weights, seed
    self.topology = self._make_topology()
    self._sketch = tf.Variable(
      tf.zeros([_SKETCH_SIZE]), trainable=False, name=f"{self.name}/sums"
    )

  @property
  def rounds(self) -> int:
    """Rounds of mixing per step."""
    if isinstance(self._rounds, int):
      return self._rounds
    return self.topology.rounds_for(self._target)

  def after_update(self, weights, state, phase, counts=None):
    """Mixes weights and state; returns the distance from neighbors."""
    del phase, counts
    graph = self.topology
    if graph.num_workers == 1:
      return {name: tf.zeros([]) for name in self.log_names}
    mixed = [*weights, *state]
    x = _concat(mixed)
    sketch = tf.cast(tf.convert_to_tensor(self._sketch), x.dtype)
    sizes = [x.shape[0], _SKETCH_SIZE]
    y, distances = self._mix(tf.concat([x, sketch], 0), sizes)
    x = y[: x.shape[0]]
    for _ in range(self.rounds - 1):
      x, _ = self._mix(x, [])
    self._sketch.assign(tf.cast(_count_sketch(x), tf.float32))
    _assign(mixed, x)
    scalars = (*distances, graph.rho, float(self.rounds))
    return {n: tf.cast(s, tf.float32) for n, s in zip(self.log_names, scalars)}

  def can_fuse_with(self, other):
    """Returns whether the other one has the same graph and rounds."""
    return isinstance(other, Gossip) and self._fuse_key() == other._fuse_key()

  def traffic(self, weights, state, phase):
    """Returns the size of weights and state, for each neighbor and round."""
    del phase
    size = size_in_bytes([*weights, *state])
    total = self._num_neighbors * (self.rounds * size + 4 * _SKETCH_SIZE)
    return Traffic(total, total)

  def summary(self) -> str:
    """Returns the graph, and how fast it converges."""
    graph = self.topology
    return (
      f"Gossip on `{graph.name}` of {graph.num_workers}, rho "
      f"{graph.rho:.4f}, rounds {self.rounds}, which leave "
      f"{graph.rho**self.rounds:.4f} of the spread"
    )

  def _mix(self, x: tf.Tensor, sizes: Sequence[int]):
    """Runs one round; returns the result, and distances from neighbors.

    Args:
      x: Vector to mix.
      sizes: Sizes of its parts, each of which has a distance; may be empty.
    """
    graph, groups = self.topology, self.topology.colors()
    received = pairs.pairwise_exchange([x] * len(groups), groups, self._timeout)
    y = _local_entry(np.diag(graph.matrix), x.dtype) * x
    squares = [tf.zeros([], x.dtype) for _ in sizes]
    for group, other in zip(groups, received):
      weight = _local_entry(_partner_weights(graph, group), x.dtype)
      y += weight * other
      if sizes:
        parts = tf.split(other - x, sizes)
        squares = [
          s + weight * tf.reduce_sum(part**2) / 2
          for s, part in zip(squares, parts)
        ]
    return y, [tf.sqrt(square) for square in squares]

  def _make_topology(self) -> Topology:
    m = collectives.num_replicas()
    graph = self._topology_or_fn
    if callable(graph):
      return graph(m)
    # A net may be built on one replica that does not train it.
    if m > 1 and m != graph.num_workers:
      raise ValueError(
        f"`topology` must have as many rows as there are replicas, {m}, got "
        f"{graph.num_workers}: start as many replicas, or set another matrix."
      )
    return graph if m > 1 else ring(1)

  def _fuse_key(self) -> Tuple:
    return tuple(self.topology.matrix.ravel()), self.rounds

  def _check_timeout(self) -> None:
    """Raises an error if the messages would keep too many threads."""
    if self._timeout is None or self.topology.num_workers == 1:
      return
    seconds_per_round = self._timeout * self._num_neighbors
    max_rounds = int(_MAX_MESSAGE_SECONDS / seconds_per_round)
    if self.rounds > max_rounds:
      raise ValueError(
        f"`rounds` must be at most {max_rounds} with `timeout` "
        f"{self._timeout:g} s and {self._num_neighbors} neighbors, got "
        f"{self.rounds}: TensorFlow "
        "keeps a thread for each message until the timeout has passed; take "
        "fewer rounds, a shorter `timeout`, or none."
      )

  @property
  def _num_neighbors(self) -> int:
    graph = self.topology
    return max(len(graph.neighbors(i)) for i in range(graph.num_workers))


def _partner_weights(graph: Topology, group: pairs.Pairs) -> np.ndarray:
  """Returns the weight of each replica's partner, 0 without a partner."""
  weights = np.zeros([graph.num_workers])
  for i, j in group:
    weights[[i, j]] = graph.matrix[i, j]
  return weights


def _local_entry(table: np.ndarray, dtype: tf.DType) -> tf.Tensor:
  """Returns the entry of this replica, in a table of all replicas."""
  return tf.gather(tf.constant(table, dtype), collectives.row_index())


def _concat(variables: Sequence[tf.Variable]) -> tf.Tensor:
  dtype = variables[0].dtype
  return tf.concat([tf.reshape(tf.cast(v, dtype), [-1]) for v in variables], 0)


def _assign(variables: Sequence[tf.Variable], x: tf.Tensor) -> None:
  sizes = [v.shape.num_elements() for v in variables]
  for v, part in zip(variables, tf.split(x, sizes)):
    v.assign(tf.cast(tf.reshape(part, v.shape), v.dtype))


def _count_sketch(x: tf.Tensor) -> tf.Tensor:
  """Returns a short vector that preserves distances, in expectation.

  Each entry of `x` is added to one of the sums, with a random sign.
  """
  signed = tf.where(bitpack.uniform(x.shape[0], [7, 0]) < 0.5, x, -x)
  padded = tf.pad(signed, [[0, -x.shape[0] % _SKETCH_SIZE]])
  return tf.reduce_sum(tf.reshape(padded, [-1, _SKETCH_SIZE]), 0)
