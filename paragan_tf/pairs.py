"""Replicas talk in pairs, which nobody else hears or waits for.

Every function is for replica context, traced. With `collectives.py`, the only
file that talks.
"""

from typing import List, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf import collectives

# Replicas that talk with each other, none of them in two pairs.
Pairs = Sequence[Tuple[int, int]]


def pairwise_exchange(
  values: Sequence[tf.Tensor],
  groups: Sequence[Pairs],
  timeout: Optional[float] = None,
) -> List[tf.Tensor]:
  """Returns what this replica's partner in each group of pairs gave.

  A pair talks by itself: what it says reaches nobody else, and nobody else is
  waited for. Zeros come where a replica has no partner.

  Args:
    values: What this replica gives, a vector for each group, in every group of
      the same size on all replicas.
    groups: Who talks with whom.
    timeout: Seconds after which a partner counts as lost. Without, one whose
      process ends is noticed all the same; with, TensorFlow keeps a thread for
      each message until the time has passed.
  """
  here = collectives.static_replica_id()
  if here is None:  # On a TPU all replicas have one program.
    both = [[*pairs, *((j, i) for i, j in pairs)] for pairs in groups]
    return [
      collectives.collective_permute(v, pairs) for v, pairs in zip(values, both)
    ]
  received = []
  for value, pairs in zip(values, groups):
    pair = next((pair for pair in pairs if here in pair), None)
    if pair is None:
      received.append(tf.zeros_like(value))
    else:
      rows = collectives.group_all_gather(value, pair, here, timeout)
      received.append(rows[1 - sorted(pair).index(here)])
  return received


def all_to_all(
  values: Sequence[tf.Tensor], timeout: Optional[float] = None
) -> List[tf.Tensor]:
  """Returns what all replicas gave for this one, each one vector of a size.

  Every two of them talk by themselves.

  Args:
    values: What this replica gives to each, itself included.
    timeout: As in `pairwise_exchange`.
  """
  num = collectives.num_replicas()
  if num == 1:
    return list(values)
  here = collectives.place()
  rows = tf.stack(values)
  # In round `r`, who sum up to it talk; all have, after `num` rounds.
  rounds = [
    [(i, (r - i) % num) for i in range(num) if i < (r - i) % num]
    for r in range(num)
  ]
  others = [tf.gather(rows, (r - here) % num) for r in range(num)]
  received = pairwise_exchange(others, rounds, timeout)
  # In one of the rounds a replica would talk with itself.
  received = [
    tf.where((r - here) % num == here, own, other)
    for r, (own, other) in enumerate(zip(others, received))
  ]
  return received
