"""Compressors: one tensor -> a short message -> nearly the same tensor.

    message = compressor.encode(v, seed)           # Two int32 as seed.
    q       = compressor.decode(message, v.shape)  # Float32, whatever v was.

Each is a contraction, as error feedback needs (arXiv 2010.13359): over seeds,

    E |q - v|^2 <= (1 - delta) |v|^2,    delta = compressor.delta(v.size) > 0

A `v` with a NaN in it never decodes to finite numbers only. Shapes are static.
"""

import dataclasses
import math
from typing import NamedTuple, Optional, Sequence

import gin
import tensorflow as tf

from paragan_tf.sync import bitpack
from paragan_tf.sync.bitpack import Seed


class Message(NamedTuple):
  """What goes over the wire, and nothing else does.

  Attributes:
    words: Packed codes, indices or seeds, int32, `[w]`, with `w` of 0 or more.
    values: Scales or entries, float32, `[s]`.
  """

  words: tf.Tensor
  values: tf.Tensor


class Compressor:
  """Makes messages of tensors and tensors of messages."""

  def encode(self, v: tf.Tensor, seed: Seed) -> Message:
    """Returns the message of a tensor."""
    raise NotImplementedError

  def decode(self, message: Message, shape: Sequence[int]) -> tf.Tensor:
    """Returns the tensor of a message, float32, of the shape encoded."""
    raise NotImplementedError

  def num_bytes(self, num_elements: int) -> int:
    """Returns the size of a message."""
    raise NotImplementedError

  def delta(self, num_elements: int) -> float:
    """Returns the delta that holds for every tensor of a size."""
    raise NotImplementedError


@gin.register
@dataclasses.dataclass(frozen=True)
class Identity(Compressor):
  """Sends all as it is, in float32."""

  def encode(self, v, seed):
    """Returns the entries."""
    del seed
    return Message(tf.zeros([0], tf.int32), _flat(v))

  def decode(self, message, shape):
    """Returns the entries."""
    return tf.reshape(message.values, shape)

  def num_bytes(self, num_elements):
    """Returns 4 an element."""
    return 4 * num_elements

  def delta(self, num_elements):
    """Returns 1: nothing is lost."""
    del num_elements
    return 1.0


@gin.register
@dataclasses.dataclass(frozen=True)
class Stochastic(Compressor):
  """Rounds at random to a few levels, so that the mean is right.

  Each `bucket_size` entries share a scale, the largest of them, and `s` levels
  on each side of 0, `s = 2^(bits - 1) - 1`. The largest is hit exactly, and
  another between two levels, at a share `f` of the way, errs by
  `f (1 - f) (scale / s)^2` in the mean square. Per square of the vector that is
  worst if the others lie below the first level, all at the same `f`; over `f`,

      max E |q - v|^2 / |v|^2 = (sqrt(1 + (bucket_size - 1) / s^2) - 1) / 2

  So delta is above 0 for any vector at all if `bucket_size <= 8 s^2`, and not
  otherwise: 8 at 2 bits, 72 at 3, 392 at 4, 129,032 at 8. Larger ones are
  refused, though they do well on vectors that are even enough: of 4,000 entries
  with one scale, 4 bits lose 4 % of normal ones and half of those of a Student
  t with 3 degrees; 2 bits, 1.7 and 7 times of what there is.

  Attributes:
    bits: Bits of a code. A word has 32 // bits codes, so that 7 bits cost as
      much as 8, and 11 to 15 as much as 16.
    bucket_size: Entries to a scale, which costs 32 bits.
  """

  bits: int = 8
  bucket_size: int = 256

  def __post_init__(self):
    if not 2 <= self.bits <= 16:
      raise ValueError(
        f"`bits` must be in 2 to 16, got {self.bits}: take `ScaledSign` for 1, "
        "`Identity` for 32."
      )
    most = 8 * self._s**2
    if not 1 <= self.bucket_size <= most:
      raise ValueError(
        f"`bucket_size` must be in 1 to {most} for `bits` of {self.bits}, got "
        f"{self.bucket_size}: in larger ones rounding may err by more than "
        "there is, and error feedback diverges; take smaller buckets or more "
        "bits."
      )

  @property
  def _s(self) -> int:
    return 2 ** (self.bits - 1) - 1

  def encode(self, v, seed):
    """Returns packed codes and, for each bucket, the step between levels."""
    v = _flat(v)
    rows = _in_buckets(v, self.bucket_size)
    largest = tf.reduce_max(tf.abs(rows), 1, keepdims=True)
    is_finite = tf.reduce_all(tf.math.is_finite(rows), 1, keepdims=True)
    # By a constant XLA would not divide but multiply, and be off by a bit.
    steps = largest / tf.where(is_finite, float(self._s), float("nan"))
    # A bucket that is 0 or not finite has codes of 0.
    ratio = tf.math.divide_no_nan(rows, largest)
    x = self._s * tf.where(steps > 0.0, ratio, 0.0)
    x = tf.reshape(x, [-1])[: v.shape[0]]
    below = tf.floor(x)
    up = bitpack.uniform(v.shape[0], seed) < x - below
    codes = tf.cast(below, tf.int32) + tf.cast(up, tf.int32) + self._s
    return Message(bitpack.packed(codes, self.bits), steps[:, 0])

  def decode(self, message, shape):
    """Returns codes times steps."""
    count = math.prod(shape)
    codes = bitpack.unpacked(message.words, self.bits, count) - self._s
    steps = _of_buckets(message.values, self.bucket_size, count)
    return tf.reshape(tf.cast(codes, tf.float32) * steps, shape)

  def num_bytes(self, num_elements):
    """Returns the size of the words and the steps."""
    num_words = bitpack.num_words(num_elements, self.bits)
    return 4 * (num_words + _num_buckets(num_elements, self.bucket_size))

  def delta(self, num_elements):
    """Returns it for the fullest bucket."""
    others = min(self.bucket_size, num_elements) - 1
    return (3.0 - math.sqrt(1.0 + others / self._s**2)) / 2.0


@gin.register
@dataclasses.dataclass(frozen=True)
class TopK(Compressor):
  """Sends the entries that are largest in size, and 0 for the others.

  Attributes:
    share: Which part is sent, rounded up; an entry costs 8 bytes.
  """

  share: float = 0.01

  def __post_init__(self):
    _check_share(self.share)

  def encode(self, v, seed):
    """Returns entries and their places."""
    del seed
    v = _flat(v)
    size = tf.where(tf.math.is_nan(v), float("inf"), tf.abs(v))
    places = tf.math.top_k(size, _k(self.share, v.shape[0]))[1]
    return Message(places, tf.gather(v, places))

  def decode(self, message, shape):
    """Returns the entries at their places."""
    return _spread(message.values, message.words, shape)

  def num_bytes(self, num_elements):
    """Returns 8 an entry."""
    return 8 * _k(self.share, num_elements)

  def delta(self, num_elements):
    """Returns the share, met if all are equal in size."""
    return _k(self.share, num_elements) / num_elements


@gin.register
@dataclasses.dataclass(frozen=True)
class RandK(Compressor):
  """Sends entries drawn at random, and 0 for the others.

  They are not scaled up, with which the mean would be right but delta below 0.
  One is drawn from each of `k` stretches of the vector, bent to a ring that
  starts anywhere: each entry is as likely as with any `k` of all, which is
  what delta needs, and nothing must be sorted. The receiver draws the same
  places, so that only their seed is sent. If anything is not finite, drawn or
  not, NaN is sent.

  Attributes:
    share: Which part is sent, rounded up; an entry costs 4 bytes.
  """

  share: float = 0.01

  def __post_init__(self):
    _check_share(self.share)

  def encode(self, v, seed):
    """Returns entries and the seed of their places."""
    v = _flat(v)
    seed = tf.convert_to_tensor(seed, tf.int32)
    values = tf.gather(v, self._places(v.shape[0], seed))
    is_finite = tf.reduce_all(tf.math.is_finite(v))
    return Message(seed, tf.where(is_finite, values, float("nan")))

  def decode(self, message, shape):
    """Returns the entries at their places."""
    places = self._places(math.prod(shape), message.words)
    return _spread(message.values, places, shape)

  def _places(self, count: int, seed: tf.Tensor) -> tf.Tensor:
    k = _k(self.share, count)
    length, rest = divmod(count, k)  # The first `rest` are one longer.
    i = tf.range(k, dtype=tf.int32)
    first = i * length + tf.minimum(i, rest)
    draws = bitpack.integers(k + 1, seed)
    within = draws[1:] % (length + tf.cast(i < rest, tf.int32))
    return (draws[0] % count + first + within) % count

  def num_bytes(self, num_elements):
    """Returns 4 an entry and 8 for the seed."""
    return 4 * _k(self.share, num_elements) + 8

  def delta(self, num_elements):
    """Returns the share, met by every vector."""
    return _k(self.share, num_elements) / num_elements


@gin.register
@dataclasses.dataclass(frozen=True)
class ScaledSign(Compressor):
  """Sends signs, and the mean of the sizes (arXiv 1901.09847); 0 counts as +.

  Attributes:
    bucket_size: Entries to a mean; by default all of a tensor.
  """

  bucket_size: Optional[int] = None

  def __post_init__(self):
    if self.bucket_size is not None and self.bucket_size < 1:
      raise ValueError(
        "`bucket_size` must be at least 1, or None for all of a tensor, got "
        f"{self.bucket_size}."
      )

  def encode(self, v, seed):
    """Returns packed signs and, for each bucket, the mean size."""
    del seed
    v = _flat(v)
    size = self.bucket_size or v.shape[0]
    sums = tf.reduce_sum(_in_buckets(tf.abs(v), size), 1)
    counts = tf.reduce_sum(_in_buckets(tf.ones_like(v), size), 1)
    signs = tf.cast(v >= 0.0, tf.int32)
    return Message(bitpack.packed(signs, 1), sums / counts)

  def decode(self, message, shape):
    """Returns means with their signs."""
    count = math.prod(shape)
    signs = tf.cast(bitpack.unpacked(message.words, 1, count), tf.float32)
    means = _of_buckets(message.values, self.bucket_size or count, count)
    return tf.reshape((2.0 * signs - 1.0) * means, shape)

  def num_bytes(self, num_elements):
    """Returns the size of the signs and the means."""
    size = self.bucket_size or num_elements
    num_words = bitpack.num_words(num_elements, 1)
    return 4 * (num_words + _num_buckets(num_elements, size))

  def delta(self, num_elements):
    """Returns it for a single entry among zeros; of even ones it is near 1."""
    return 1.0 / min(self.bucket_size or num_elements, num_elements)


def _flat(v: tf.Tensor) -> tf.Tensor:
  return tf.reshape(tf.cast(v, tf.float32), [-1])


def _num_buckets(count: int, size: int) -> int:
  return -(-count // size)


def _in_buckets(v: tf.Tensor, size: int) -> tf.Tensor:
  """Returns a row for each bucket; the last one is filled up with zeros."""
  size = min(size, v.shape[0])
  num = _num_buckets(v.shape[0], size)
  return tf.reshape(tf.pad(v, [[0, num * size - v.shape[0]]]), [num, size])


def _of_buckets(values: tf.Tensor, size: int, count: int) -> tf.Tensor:
  """Returns for each of `count` entries the value of its bucket."""
  size = min(size, count)
  shape = [_num_buckets(count, size), size]
  rows = tf.broadcast_to(values[:, tf.newaxis], shape)
  return tf.reshape(rows, [-1])[:count]


def _spread(
  values: tf.Tensor, places: tf.Tensor, shape: Sequence[int]
) -> tf.Tensor:
  flat = tf.scatter_nd(places[:, tf.newaxis], values, [math.prod(shape)])
  return tf.reshape(flat, shape)


def _k(share: float, count: int) -> int:
  # The small number is for products that come out just above an integer.
  return max(1, math.ceil(share * count - 1e-6))


def _check_share(share: float) -> None:
  if not 0.0 < share <= 1.0:
    raise ValueError(
      f"`share` must be in (0, 1], got {share}: take .01 for one entry in 100."
    )
