"""The only file that talks to other replicas.

Every function is for replica context, eager or traced. With one replica
nothing is sent.
"""

from typing import List, Sequence

import tensorflow as tf


def num_replicas() -> int:
  """Returns how many replicas train together."""
  return _num_shards() or tf.distribute.get_strategy().num_replicas_in_sync


def replica_id() -> tf.Tensor:
  """Returns which of them this one is, an int32 scalar."""
  if _num_shards():
    return tf.raw_ops.XlaReplicaId()
  context = tf.distribute.get_replica_context()
  return tf.convert_to_tensor(context.replica_id_in_sync_group)


def mean(values: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """Returns the mean of each tensor over all replicas, the same on each."""
  values = list(values)
  num = num_replicas()
  if num == 1 or not values:
    return values
  if _num_shards():
    return [tf.compat.v1.tpu.cross_replica_sum(value) / num for value in values]
  context = tf.distribute.get_replica_context()
  # With one replica in a process, a value that comes from outside has no
  # device, and is refused for that.
  values = [tf.identity(value) for value in values]
  return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, values))


def _num_shards() -> int:
  """Returns the replicas of a TPUEstimator on a TPU, or 0 elsewhere.

  There is no strategy there, and no public way to ask.
  """
  if tf.distribute.has_strategy():
    return 0
  from tensorflow.python.tpu import tpu_function

  return tpu_function.get_tpu_context().number_of_shards or 0
