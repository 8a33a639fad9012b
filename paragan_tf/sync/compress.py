"""Compressors: a tensor -> a short message -> an approximation of the tensor.

    message = compressor.encode(v, seed)           # The seed is two int32.
    q       = compressor.decode(message, v.shape)  # Float32 for any dtype of v.

Each is a contraction, as error feedback needs (arXiv 2010.13359): over seeds,

    E |q - v|^2 <= (1 - delta) |v|^2,    delta = compressor.delta(v.size) > 0

If `v` has a NaN, `q` has entries that are not finite. Shapes are static.
"""

import dataclasses
import math
from typing import NamedTuple, Optional, Sequence

import gin
import tensorflow as tf

from paragan_tf.sync import bitpack
from paragan_tf.sync.bitpack import Seed


class Message(NamedTuple):
  """Everything that is sent for one tensor.

  Attributes:
    words: Packed codes, indices or seeds, int32, `[w]`, where `w` may be 0.
    values: Scales or entries, float32, `[s]`.
  """

  words: tf.Tensor
  values: tf.Tensor


class Compressor:
  """Encodes tensors as messages, and decodes them."""

  def encode(self, v: tf.Tensor, seed: Seed) -> Message:
    """Encodes a tensor of any shape."""
    raise NotImplementedError

  def decode(self, message: Message, shape: Sequence[int]) -> tf.Tensor:
    """Decodes a message; `shape` is that of the encoded tensor. Float32."""
    raise NotImplementedError

  def num_bytes(self, num_elements: int) -> int:
    """Returns the bytes of a message."""
    raise NotImplementedError

  def delta(self, num_elements: int) -> float:
    """Returns a delta that holds for every tensor of `num_elements`."""
    raise NotImplementedError


@gin.register
@dataclasses.dataclass(frozen=True)
class Identity(Compressor):
  """Sends all entries uncompressed, in float32."""

  def encode(self, v, seed):
    """Returns the entries."""
    del seed
    return Message(tf.zeros([0], tf.int32), _flatten(v))

  def decode(self, message, shape):
    """Returns the entries."""
    return tf.reshape(message.values, shape)

  def num_bytes(self, num_elements):
    """Returns 4 per element."""
    return 4 * num_elements

  def delta(self, num_elements):
    """Returns 1, as there is no error."""
    del num_elements
    return 1.0


@gin.register
@dataclasses.dataclass(frozen=True)
class Stochastic(Compressor):
  """Stochastic rounding to a few levels, without bias.

  Each `bucket_size` entries share a scale, their largest absolute value, and
  `s = 2^(bits - 1) - 1` levels on each side of 0. The largest entry is exact.
  An entry between two levels, at a fraction `f` of their distance, has a mean
  square error of `f (1 - f) (scale / s)^2`. Relative to the square of the
  vector, the error is largest if all other entries lie below the first level,
  at the same `f`; over `f`,

      max E |q - v|^2 / |v|^2 = (sqrt(1 + (bucket_size - 1) / s^2) - 1) / 2

  So delta is above 0 for every vector if and only if `bucket_size <= 8 s^2`: 8
  at 2 bits, 72 at 3, 392 at 4, 129,032 at 8. Larger buckets are refused, even
  though some work for entries of similar size: for 4,000 entries with one
  scale, the relative error of 4 bits is 0.04 if they are normal, and 0.5 for
  Student's t with 3 degrees of freedom; that of 2 bits is 1.7 and 7.

  Attributes:
    bits: Bits per code. A word has 32 // bits codes, so 7 bits cost as much as
      8, and 11 to 15 as much as 16.
    bucket_size: Entries per scale, which costs 32 bits.
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
        f"{self.bucket_size}: in larger buckets the rounding error may exceed "
        "the tensor itself, and error feedback diverges; take smaller buckets "
        "or more bits."
      )

  @property
  def _s(self) -> int:
    return 2 ** (self.bits - 1) - 1

  def encode(self, v, seed):
    """Encodes as packed codes and, per bucket, the distance of levels."""
    v = _flatten(v)
    rows = _split_into_buckets(v, self.bucket_size)
    largest = tf.reduce_max(tf.abs(rows), 1, keepdims=True)
    is_finite = tf.reduce_all(tf.math.is_finite(rows), 1, keepdims=True)
    # XLA replaces a division by a constant with a multiplication, which may
    # differ in the last bit; so the divisor is not a constant.
    steps = largest / tf.where(is_finite, float(self._s), float("nan"))
    # The codes of a bucket that is 0 or not finite are 0.
    ratio = tf.math.divide_no_nan(rows, largest)
    x = self._s * tf.where(steps > 0.0, ratio, 0.0)
    x = tf.reshape(x, [-1])[: v.shape[0]]
    below = tf.floor(x)
    up = bitpack.uniform(v.shape[0], seed) < x - below
    codes = tf.cast(below, tf.int32) + tf.cast(up, tf.int32) + self._s
    return Message(bitpack.pack(codes, self.bits), steps[:, 0])

  def decode(self, message, shape):
    """Returns the codes, multiplied by the steps of their buckets."""
    count = math.prod(shape)
    codes = bitpack.unpack(message.words, self.bits, count) - self._s
    steps = _expand_buckets(message.values, self.bucket_size, count)
    return tf.reshape(tf.cast(codes, tf.float32) * steps, shape)

  def num_bytes(self, num_elements):
    """Returns the size of the words and the steps."""
    num_words = bitpack.num_words(num_elements, self.bits)
    return 4 * (num_words + _num_buckets(num_elements, self.bucket_size))

  def delta(self, num_elements):
    """Returns the delta of a full bucket, which has the smallest."""
    others = min(self.bucket_size, num_elements) - 1
    return (3.0 - math.sqrt(1.0 + others / self._s**2)) / 2.0


@gin.register
@dataclasses.dataclass(frozen=True)
class TopK(Compressor):
  """Sends the entries of largest absolute value; the others become 0.

  Attributes:
    share: Fraction of entries to send, rounded up; each costs 8 bytes.
  """

  share: float = 0.01

  def __post_init__(self):
    _check_share(self.share)

  def encode(self, v, seed):
    """Encodes as entries and their indices."""
    del seed
    v = _flatten(v)
    size = tf.where(tf.math.is_nan(v), float("inf"), tf.abs(v))
    indices = tf.math.top_k(size, _k(self.share, v.shape[0]))[1]
    return Message(indices, tf.gather(v, indices))

  def decode(self, message, shape):
    """Returns the entries at their indices, and zeros."""
    return _scatter(message.values, message.words, shape)

  def num_bytes(self, num_elements):
    """Returns 8 per entry that is sent."""
    return 8 * _k(self.share, num_elements)

  def delta(self, num_elements):
    """Returns the share; it is attained if all entries have equal size."""
    return _k(self.share, num_elements) / num_elements


@gin.register
@dataclasses.dataclass(frozen=True)
class RandK(Compressor):
  """Sends random entries; the others become 0.

  They are not scaled up: that would remove the bias, but make delta negative.
  The vector, as a ring with a random start, is divided into `k` segments, and
  one entry is drawn from each. So all entries have the same probability, as
  delta requires, and no sorting is needed. The receiver draws the same indices,
  so only their seed is sent. If any entry is not finite, drawn or not, NaN is
  sent.

  Attributes:
    share: Fraction of entries to send, rounded up; each costs 4 bytes.
  """

  share: float = 0.01

  def __post_init__(self):
    _check_share(self.share)

  def encode(self, v, seed):
    """Encodes as entries and the seed of their indices."""
    v = _flatten(v)
    seed = tf.convert_to_tensor(seed, tf.int32)
    values = tf.gather(v, self._indices(v.shape[0], seed))
    is_finite = tf.reduce_all(tf.math.is_finite(v))
    return Message(seed, tf.where(is_finite, values, float("nan")))

  def decode(self, message, shape):
    """Returns the entries at their indices, and zeros."""
    indices = self._indices(math.prod(shape), message.words)
    return _scatter(message.values, indices, shape)

  def _indices(self, count: int, seed: tf.Tensor) -> tf.Tensor:
    k = _k(self.share, count)
    length, rest = divmod(count, k)  # The first `rest` segments have one more.
    i = tf.range(k, dtype=tf.int32)
    first = i * length + tf.minimum(i, rest)
    draws = bitpack.integers(k + 1, seed)
    within = draws[1:] % (length + tf.cast(i < rest, tf.int32))
    return (draws[0] % count + first + within) % count

  def num_bytes(self, num_elements):
    """Returns 4 per entry that is sent, and 8 for the seed."""
    return 4 * _k(self.share, num_elements) + 8

  def delta(self, num_elements):
    """Returns the share; it is attained by every vector."""
    return _k(self.share, num_elements) / num_elements


@gin.register
@dataclasses.dataclass(frozen=True)
class ScaledSign(Compressor):
  """Sends signs and the mean absolute value (arXiv 1901.09847); 0 counts as +.

  Attributes:
    bucket_size: Entries per mean; by default all of a tensor.
  """

  bucket_size: Optional[int] = None

  def __post_init__(self):
    if self.bucket_size is not None and self.bucket_size < 1:
      raise ValueError(
        "`bucket_size` must be at least 1, or None for all of a tensor, got "
        f"{self.bucket_size}."
      )

  def encode(self, v, seed):
    """Encodes as packed signs and, per bucket, the mean absolute value."""
    del seed
    v = _flatten(v)
    size = self.bucket_size or v.shape[0]
    sums = tf.reduce_sum(_split_into_buckets(tf.abs(v), size), 1)
    counts = tf.reduce_sum(_split_into_buckets(tf.ones_like(v), size), 1)
    signs = tf.cast(v >= 0.0, tf.int32)
    return Message(bitpack.pack(signs, 1), sums / counts)

  def decode(self, message, shape):
    """Returns the means of the buckets, with the signs of the entries."""
    count = math.prod(shape)
    signs = tf.cast(bitpack.unpack(message.words, 1, count), tf.float32)
    means = _expand_buckets(message.values, self.bucket_size or count, count)
    return tf.reshape((2.0 * signs - 1.0) * means, shape)

  def num_bytes(self, num_elements):
    """Returns the size of the signs and the means."""
    size = self.bucket_size or num_elements
    num_words = bitpack.num_words(num_elements, 1)
    return 4 * (num_words + _num_buckets(num_elements, size))

  def delta(self, num_elements):
    """Returns the delta of one entry among zeros; 1 if all sizes are equal."""
    return 1.0 / min(self.bucket_size or num_elements, num_elements)


def _flatten(v: tf.Tensor) -> tf.Tensor:
  return tf.reshape(tf.cast(v, tf.float32), [-1])


def _num_buckets(count: int, size: int) -> int:
  return -(-count // size)


def _split_into_buckets(v: tf.Tensor, size: int) -> tf.Tensor:
  """Returns a row for each bucket; the last one is padded with zeros."""
  size = min(size, v.shape[0])
  num = _num_buckets(v.shape[0], size)
  return tf.reshape(tf.pad(v, [[0, num * size - v.shape[0]]]), [num, size])


def _expand_buckets(values: tf.Tensor, size: int, count: int) -> tf.Tensor:
  """Returns the value of its bucket for each of `count` entries."""
  size = min(size, count)
  shape = [_num_buckets(count, size), size]
  rows = tf.broadcast_to(values[:, tf.newaxis], shape)
  return tf.reshape(rows, [-1])[:count]


def _scatter(
  values: tf.Tensor, indices: tf.Tensor, shape: Sequence[int]
) -> tf.Tensor:
  flat = tf.scatter_nd(indices[:, tf.newaxis], values, [math.prod(shape)])
  return tf.reshape(flat, shape)


def _k(share: float, count: int) -> int:
  # The small number is for products that are rounded to just above an integer.
  return max(1, math.ceil(share * count - 1e-6))


def _check_share(share: float) -> None:
  if not 0.0 < share <= 1.0:
    raise ValueError(
      f"`share` must be in (0, 1], got {share}: take .01 for one entry in 100."
    )
