"""Wire format: messages as one vector of int32 words."""

import functools
import math
from typing import Callable, List, NamedTuple, Sequence, Union

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.sync.bitpack import Seed
from paragan_tf.sync.compress import Compressor, Message

# Vectors of the same size: a list, or a tensor with these rows.
Rows = Union[Sequence[tf.Tensor], tf.Tensor]


class CompressedTensor(NamedTuple):
  """A tensor that is compressed separately, and its compressor."""

  value: tf.Tensor
  compressor: Compressor


def pack(message: Message) -> tf.Tensor:
  """Packs a message into one vector, words first."""
  return tf.concat([message.words, tf.bitcast(message.values, tf.int32)], 0)


def decode_message(
  compressor: Compressor, payload: tf.Tensor, size: int, dtype: tf.DType
) -> tf.Tensor:
  """Decodes a packed message into a vector of `size` entries."""
  message = _unpack(compressor, payload, size)
  return tf.cast(compressor.decode(message, [size]), dtype)


def encode(
  tensors: Sequence[CompressedTensor], seeds: Sequence[Seed]
) -> tf.Tensor:
  """Encodes all tensors, and concatenates their packed messages."""
  messages = (
    t.compressor.encode(t.value, seed) for t, seed in zip(tensors, seeds)
  )
  return tf.concat([pack(message) for message in messages], 0)


def decode(
  payload: tf.Tensor, tensors: Sequence[CompressedTensor]
) -> List[tf.Tensor]:
  """Decodes the messages of all tensors, into their shapes and dtypes."""
  sizes = [math.prod(t.value.shape) for t in tensors]
  lengths = [t.compressor.num_bytes(n) // 4 for t, n in zip(tensors, sizes)]
  return [
    tf.cast(
      t.compressor.decode(
        _unpack(t.compressor, words, size), t.value.shape.as_list()
      ),
      t.value.dtype,
    )
    for t, size, words in zip(tensors, sizes, _split(payload, lengths))
  ]


def flatten(values: Sequence[tf.Tensor]) -> tf.Tensor:
  """Concatenates all tensors into one vector."""
  return tf.concat([tf.reshape(value, [-1]) for value in values], 0)


def unflatten(
  vector: tf.Tensor, shapes: Sequence[Sequence[int]]
) -> List[tf.Tensor]:
  """Splits a vector into tensors of the given shapes."""
  parts = _split(vector, [math.prod(shape) for shape in shapes])
  return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def chunks(vector: tf.Tensor, num: int) -> tf.Tensor:
  """Returns a vector as `num` rows of equal length, padded with zeros."""
  padded = tf.pad(vector, [[0, -vector.shape[0] % num]])
  return tf.reshape(padded, [num, -1])


def map_rows(
  fn: Callable[..., tf.Tensor], columns: Sequence[Rows], dtype: tf.DType
) -> Rows:
  """Returns `fn` of each row; there is a row for each replica.

  On a TPU, where all replicas run one program, it is a loop: a program with one
  copy of `fn` for each of a thousand replicas takes hours to compile.

  Args:
    fn: Takes a row of each column, and returns a vector.
    columns: Of as many rows.
    dtype: Of the result.
  """
  if collectives.static_replica_id() is None:
    stacked = [tf.convert_to_tensor(column) for column in columns]
    return tf.map_fn(lambda rows: fn(*rows), stacked, fn_output_signature=dtype)
  num = collectives.num_replicas()
  return [fn(*(column[i] for column in columns)) for i in range(num)]


def sum_rows(rows: Rows) -> tf.Tensor:
  """Returns the sum over all rows."""
  return tf.reduce_sum(rows, 0) if tf.is_tensor(rows) else tf.add_n(rows)


def concat_rows(rows: Rows) -> tf.Tensor:
  """Returns all rows as one vector."""
  return tf.reshape(rows, [-1]) if tf.is_tensor(rows) else tf.concat(rows, 0)


def _split(vector: tf.Tensor, sizes: Sequence[int]) -> List[tf.Tensor]:
  """Returns consecutive parts of a vector; ignores what follows them."""
  starts = [sum(sizes[:i]) for i in range(len(sizes))]
  return [vector[a : a + size] for a, size in zip(starts, sizes)]


def _unpack(compressor: Compressor, words: tf.Tensor, size: int) -> Message:
  num = _num_words(compressor, size)
  return Message(words[:num], tf.bitcast(words[num:], tf.float32))


@functools.cache
def _num_words(compressor: Compressor, size: int) -> int:
  """Returns the number of words of a message, which precede its values."""
  with tf.Graph().as_default():  # Only infers shapes, and computes nothing.
    return compressor.encode(tf.zeros([size]), [0, 0]).words.shape[0]
