"""Which part of every global batch one pipeline gives."""

from typing import Any, Callable, NamedTuple, Sequence, Tuple

import tensorflow as tf

# From images (uint8), labels and places in the run to an element; of a batch or
# of one image.
Finish = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Tuple[Any, ...]]


class Shard(NamedTuple):
  """What a pipeline is asked for.

  Attributes:
    batch_size: Images of an element, for one replica.
    num_shards: Into how many shards the global batch is cut.
    shards: Which ones are given, in turn, one for each replica that the
      pipeline feeds; a shard may be given to several.
    start_step: The step of the first element.
  """

  batch_size: int
  num_shards: int
  shards: Sequence[int]
  start_step: int
