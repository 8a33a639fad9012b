"""Pairwise communication: only the two replicas of a pair take part or wait.

Every function runs in replica context, traced. No other file communicates,
except `collectives.py`.
"""

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
