"""SAGAN's self-attention (arXiv 1805.08318), with BigGAN's pooled keys."""

from typing import Any

import tensorflow as tf

from paragan_tf.hardware import resolve_layout
from paragan_tf.nets import layers
from paragan_tf.nets.forward import AnyMode, Forward
from paragan_tf.nets.remat import in_chunks


class SelfAttention(tf.Module):
  """`x + gamma * out(softmax(query key^T) value)`, over all pixels.

  Keys and values are the largest of each 2x2 block, as in BigGAN (arXiv
  1809.11096). `gamma` starts at 0, so that at first each pixel depends on
  itself alone. Computed in several chunks, one after the other, it needs less
  memory, see `remat.in_chunks`. In one chunk, the layout says whether attention
  weights are kept or computed again for the gradient.
  """

  def __init__(
    self,
    channels: int,
    init: layers.Init,
    spectral: bool,
    num_chunks: int = 1,
    name: str = "attention",
  ):
    super().__init__(name=name)
    if channels % 8:
      raise ValueError(
        "`width` of a net must give attention a number of channels that 8 "
        f"divides, got {channels}: change `width`, or set `attention` to None."
      )

    def conv(inputs, outputs, name):
      return layers.Conv(
        inputs,
        outputs,
        init,
        size=1,
        spectral=spectral,
        bias=False,
        name=name,
      )

    self.num_chunks = num_chunks
    self.recomputes = num_chunks > 1 or resolve_layout().recompute_attention
    with self.name_scope:
      self.query = conv(channels, channels // 8, "query")
      self.key = conv(channels, channels // 8, "key")
      self.value = conv(channels, channels // 2, "value")
      self.out = conv(channels // 2, channels, "out")
      self.gamma = tf.Variable(0.0, name="gamma")

  def __call__(self, x: tf.Tensor, cond: Any, mode: AnyMode) -> tf.Tensor:
    """Maps `[b, h, w, c]` to the same shape; h and w are even."""
    query = _pixels(self.query(x, mode))
    key = _pixels(_pool(self.key(x, mode)))
    value = _pixels(_pool(self.value(x, mode)))
    if self.recomputes:
      y = in_chunks(_attend, self.num_chunks, query, key, value)
    else:
      y = _attend(query, key, value)
    y = tf.reshape(y, [-1, *x.shape[1:3], value.shape[-1]])
    gamma = Forward.of(mode).read(self.gamma)
    return x + tf.cast(gamma, x.dtype) * self.out(y, mode)


def _attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
  """Returns `softmax(query key^T) value`."""
  logits = tf.matmul(query, key, transpose_b=True)
  # Exponentials of half-precision sums would be wrong by percents.
  weights = tf.nn.softmax(tf.cast(logits, tf.float32))
  return tf.matmul(tf.cast(weights, value.dtype), value)


def _pixels(x: tf.Tensor) -> tf.Tensor:
  """Maps `[b, h, w, c]` to `[b, h * w, c]`."""
  return tf.reshape(x, [-1, x.shape[1] * x.shape[2], x.shape[3]])


def _pool(x: tf.Tensor) -> tf.Tensor:
  return tf.nn.max_pool2d(x, 2, 2, "VALID")
