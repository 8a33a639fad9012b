"""The only file that talks to other replicas.

Every function is for replica context, eager or traced. With one replica
nothing is sent.
"""

from typing import List, Sequence

import tensorflow as tf


def num_replicas() -> int:
  """Returns how many replicas train together."""
  return tf.distribute.get_strategy().num_replicas_in_sync


def replica_id() -> tf.Tensor:
  """Returns which of them this one is, an int32 scalar."""
  context = tf.distribute.get_replica_context()
  return tf.convert_to_tensor(context.replica_id_in_sync_group)


def mean(values: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """Returns the mean of each tensor over all replicas, the same on each."""
  values = list(values)
  if num_replicas() == 1 or not values:
    return values
  context = tf.distribute.get_replica_context()
  # With one replica in a process, a value that comes from outside has no
  # device, and is refused for that.
  values = [tf.identity(value) for value in values]
  return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, values))
