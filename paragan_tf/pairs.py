"""Pairwise communication: only the two replicas of a pair take part or wait.

Every function runs in replica context, traced. No other file communicates,
except `collectives.py`.

    receive             one way, from any replica to any others
    pairwise_exchange   both ways, between disjoint pairs
    all_to_all          both ways, between all pairs
"""

import math
from typing import List, Optional, Sequence, Tuple, Union

import tensorflow as tf

from paragan_tf import collectives

# Disjoint pairs of replicas, which can communicate at the same time.
Pairs = Sequence[Tuple[int, int]]


def pairwise_exchange(
  values: Sequence[tf.Tensor],
  groups: Sequence[Pairs],
  timeout: Optional[float] = None,
) -> List[tf.Tensor]:
  """Returns the vector of this replica's partner in each group of pairs.

  Each pair communicates by itself: no other replica receives the vectors or
  waits for them. A replica without a partner gets zeros.

  Args:
    values: This replica's vectors, one for each group; those of a group have
      the same size on all replicas.
    groups: Pairs of each group.
    timeout: Seconds after which a partner counts as lost. Without a timeout,
      the end of a partner's process is still noticed; with one, TensorFlow
      keeps a thread for each message until the time has passed.
  """
  replica = collectives.static_replica_id()
  if replica is None:  # On a TPU all replicas run one program.
    both = [[*pairs, *((j, i) for i, j in pairs)] for pairs in groups]
    return [
      collectives.collective_permute(v, pairs) for v, pairs in zip(values, both)
    ]
  received = []
  for value, pairs in zip(values, groups):
    pair = next((pair for pair in pairs if replica in pair), None)
    if pair is None:
      received.append(tf.zeros_like(value))
    else:
      rows = collectives.group_all_gather(value, pair, replica, timeout)
      received.append(rows[1 - sorted(pair).index(replica)])
  return received


def check_timeout(timeout: Optional[float]) -> None:
  """Refuses a `timeout` that is neither `None` nor above 0."""
  if timeout is not None and not timeout > 0.0:
    raise ValueError(f"`timeout` must be above 0 s, got {timeout}.")


def all_to_all(
  values: Union[Sequence[tf.Tensor], tf.Tensor],
  timeout: Optional[float] = None,
) -> Union[List[tf.Tensor], tf.Tensor]:
  """Returns the vectors that all replicas have for this one.

  Each pair of replicas communicates by itself. Entry `r` is the vector of the
  replica whose index and this one's sum to `r`, modulo the number of replicas.
  On a TPU the result is one tensor with a row for each entry.

  Args:
    values: Vectors of the same size, one for each replica, itself included; or
      one tensor with these rows.
    timeout: As in `pairwise_exchange`.
  """
  num = collectives.num_replicas()
  if num == 1:
    return list(values)
  here = collectives.row_index()
  rows = tf.convert_to_tensor(values)
  if collectives.static_replica_id() is None:
    received_rows = collectives.all_to_all(rows)
    return tf.gather(received_rows, (tf.range(num) - here) % num)
  # Group `r` pairs the replicas whose indices sum to `r`, so that `num` groups
  # include every pair once.
  groups = [
    [(i, (r - i) % num) for i in range(num) if i < (r - i) % num]
    for r in range(num)
  ]
  to_partners = [tf.gather(rows, (r - here) % num) for r in range(num)]
  received = pairwise_exchange(to_partners, groups, timeout)
  # In one of the groups a replica is its own partner.
  received = [
    tf.where((r - here) % num == here, own, other)
    for r, (own, other) in enumerate(zip(to_partners, received))
  ]
  return received


@collectives.observable
def receive(
  values: Sequence[tf.Tensor], sources: Sequence[int]
) -> List[tf.Tensor]:
  """Returns the tensors of another replica.

  Between processes, each source sends one message to each of its targets, and
  no other replica gets it. Messages do not wait for each other, so that no
  order of them can be wrong.

  Args:
    values: This replica's values, of the same shapes on all replicas.
    sources: For each replica, the replica that it receives from; maybe itself.
  """
  values = list(values)
  if collectives.num_replicas() == 1:
    return values
  replica = collectives.static_replica_id()
  if replica is None:  # On a TPU all replicas run one program.
    pairs = [[s, t] for t, s in enumerate(sources) if s != t]
    keeps = tf.constant([s == t for t, s in enumerate(sources)])
    keeps = tf.gather(keeps, collectives.row_index())
    return [
      tf.where(keeps, value, collectives.collective_permute(value, pairs))
      for value in values
    ]
  context = tf.distribute.get_replica_context()
  num_local = len(context.strategy.extended.worker_devices)
  # Copies from device to device. All replicas of a process must take part.
  local_values = context.merge_call(_local_values, args=(values,))
  crossing = [
    (source, target)
    for target, source in enumerate(sources)
    if replica in (source, target)
    and source // num_local != target // num_local
  ]
  if crossing:
    received = _send_and_receive(values, crossing, replica)
    if received is not None:
      return received
  return local_values[sources[replica] % num_local]


def _send_and_receive(
  values: List[tf.Tensor], pairs: Pairs, replica: int
) -> Optional[List[tf.Tensor]]:
  """Sends the values to all targets; returns what this replica gets, if so.

  Args:
    values: To send.
    pairs: Source and target of each message from or to this replica.
    replica: Id of this replica.
  """
  message = tf.concat([_to_words(value) for value in values], 0)
  words = None
  ops = []
  for source, target in pairs:
    first, second = sorted((source, target))
    keys = collectives.next_keys(first, second, replica)
    if replica == source:
      ops.append(
        tf.raw_ops.CollectiveBcastSendV2(
          input=message, group_size=2, group_key=keys[0], instance_key=keys[1]
        )
      )
    else:
      words = tf.raw_ops.CollectiveBcastRecvV2(
        group_size=2,
        group_key=keys[0],
        instance_key=keys[1],
        shape=message.shape,
        T=message.dtype,
      )
      ops.append(words)
  _must_run(ops)
  return None if words is None else _from_words(words, values)


def _must_run(ops: Sequence[tf.Tensor]) -> None:
  """Keeps messages in the graph, also where nothing uses them here.

  TensorFlow does so with stateful operations, but makes an exception of these.
  Without its part of a message, a replica's partner would wait forever.
  """
  if ops:
    with tf.control_dependencies(ops):
      tf.raw_ops.Assert(condition=tf.constant(True), data=[tf.constant("")])


def _to_words(value: tf.Tensor) -> tf.Tensor:
  """Returns the bytes of a tensor as a vector of float32, padded with zeros.

  Collectives do not take all types. Float32 stays on a GPU, unlike int32.
  """
  flat = tf.reshape(value, [-1])
  per_word = max(1, 4 // value.dtype.size)
  padded = tf.pad(flat, [[0, -flat.shape[0] % per_word]])
  shape = [-1, per_word] if per_word > 1 else [-1]
  return tf.reshape(tf.bitcast(tf.reshape(padded, shape), tf.float32), [-1])


def _from_words(words: tf.Tensor, like: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """Returns the tensors of a message, whose shapes and types are known."""
  values, start = [], 0
  for value in like:
    size = math.prod(value.shape) * value.dtype.size
    part = words[start : start + -(-size // 4)]
    start += -(-size // 4)
    if value.dtype.size == 8:
      part = tf.reshape(part, [-1, 2])
    flat = tf.reshape(tf.bitcast(part, value.dtype), [-1])
    values.append(tf.reshape(flat[: math.prod(value.shape)], value.shape))
  return values


def _local_values(strategy, values: Sequence) -> List[List[tf.Tensor]]:
  """Returns the tensors of each local replica. Cross-replica context."""
  parts = [strategy.experimental_local_results(value) for value in values]
  return [list(replica) for replica in zip(*parts)]
