"""The shards of every global batch that one pipeline yields."""

from typing import Any, Callable, NamedTuple, Sequence, Tuple

import tensorflow as tf

# Maps images (uint8), labels and positions in the run, of a batch or of one
# image, to an element.
FinishFn = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Tuple[Any, ...]]


class BatchShard(NamedTuple):
  """The shards that a pipeline yields, one element per shard.

  Attributes:
    batch_size: Images of an element, for one replica.
    num_shards: Number of shards of the global batch.
    shards: Indices of the yielded shards, one for each replica that the
      pipeline feeds; several replicas may get the same one.
    start_step: The step of the first element.
  """

  batch_size: int
  num_shards: int
  shards: Sequence[int]
  start_step: int
