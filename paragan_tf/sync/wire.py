"""Messages as they go over the wire: one vector of int32 words."""

import functools
import math
from typing import List, NamedTuple, Sequence

import tensorflow as tf

from paragan_tf.sync.bitpack import Seed
from paragan_tf.sync.compress import Compressor, Message


class Part(NamedTuple):
  """What is compressed by itself, and how."""

  value: tf.Tensor
  compressor: Compressor


def packed(message: Message) -> tf.Tensor:
  """Returns a message in one vector, words first."""
  return tf.concat([message.words, tf.bitcast(message.values, tf.int32)], 0)


def opened(
  compressor: Compressor, payload: tf.Tensor, size: int, dtype: tf.DType
) -> tf.Tensor:
  """Returns the vector that a packed message stands for."""
  message = _message(compressor, payload, size)
  return tf.cast(compressor.decode(message, [size]), dtype)


def encoded(parts: Sequence[Part], seeds: Sequence[Seed]) -> tf.Tensor:
  """Returns the messages of all parts, one after the other."""
  messages = (
    part.compressor.encode(part.value, seed) for part, seed in zip(parts, seeds)
  )
  return tf.concat([packed(message) for message in messages], 0)


def decoded(payload: tf.Tensor, parts: Sequence[Part]) -> List[tf.Tensor]:
  """Returns what the messages stand for, in the dtypes of the parts."""
  sizes = [math.prod(part.value.shape) for part in parts]
  lengths = [p.compressor.num_bytes(n) // 4 for p, n in zip(parts, sizes)]
  return [
    tf.cast(
      part.compressor.decode(
        _message(part.compressor, words, size), part.value.shape.as_list()
      ),
      part.value.dtype,
    )
    for part, size, words in zip(parts, sizes, _cut(payload, lengths))
  ]


def flat(values: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns all tensors in one vector."""
  return tf.concat([tf.reshape(value, [-1]) for value in values], 0)


def unflat(
  vector: tf.Tensor, shapes: Sequence[Sequence[int]]
) -> List[tf.Tensor]:
  """Returns the tensors that were made one vector."""
  parts = _cut(vector, [math.prod(shape) for shape in shapes])
  return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def chunks(vector: tf.Tensor, num: int) -> tf.Tensor:
  """Returns `num` rows; the last ones are filled up with zeros."""
  filled = tf.pad(vector, [[0, -vector.shape[0] % num]])
  return tf.reshape(filled, [num, -1])


def _cut(vector: tf.Tensor, sizes: Sequence[int]) -> List[tf.Tensor]:
  """Returns the first parts of a vector."""
  starts = [sum(sizes[:i]) for i in range(len(sizes))]
  return [vector[a : a + size] for a, size in zip(starts, sizes)]


def _message(compressor: Compressor, words: tf.Tensor, size: int) -> Message:
  num = _num_words(compressor, size)
  return Message(words[:num], tf.bitcast(words[num:], tf.float32))


@functools.cache
def _num_words(compressor: Compressor, size: int) -> int:
  """Returns how many words a message has before its values."""
  with tf.Graph().as_default():  # For shapes: nothing is computed.
    return compressor.encode(tf.zeros([size]), [0, 0]).words.shape[0]
