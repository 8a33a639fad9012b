"""SAGAN's self-attention (arXiv 1805.08318), with BigGAN's pooled keys."""

from typing import Any, Tuple

import tensorflow as tf

from paragan_tf.hardware import resolve_layout
from paragan_tf.nets import layers, layout
from paragan_tf.nets.forward import AnyMode, Forward
from paragan_tf.nets.remat import in_chunks


class SelfAttention(tf.Module):
  """`x + gamma * out(softmax(query key^T) value)`, over all pixels.

  Keys and values are the largest of each 2x2 block, as in BigGAN (arXiv
  1809.11096). `gamma` starts at 0, so that at first each pixel depends on
  itself alone. Computed in several chunks, one after the other, it needs less
  memory, see `remat.in_chunks`. In one chunk, the layout says whether attention
  weights are kept or computed again for the gradient. It also says whether
  queries, keys and values are one product, and how the softmax is computed.
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

    chosen = resolve_layout()
    self.num_chunks = num_chunks
    self.recomputes = num_chunks > 1 or chosen.recompute_attention
    self.attends_once = chosen.sum_after_product
    self.attend = _attend_once if self.attends_once else _attend
    self.joins = chosen.join_projections
    self.product = layout.apply_precision(layout.conv, chosen)
    self.multiply = layout.apply_precision(_multiply, chosen)
    with self.name_scope:
      self.query = conv(channels, channels // 8, "query")
      self.key = conv(channels, channels // 8, "key")
      self.value = conv(channels, channels // 2, "value")
      self.out = conv(channels // 2, channels, "out")
      self.gamma = tf.Variable(0.0, name="gamma")

  def __call__(self, x: tf.Tensor, cond: Any, mode: AnyMode) -> tf.Tensor:
    """Maps `[b, h, w, c]` to the same shape; h and w are even."""
    x = self.query.widths.pad_input(x)
    query, key, value = self._project(x, mode)
    Forward.of(mode).note(self, query, key)
    if self.recomputes:
      y = in_chunks(self.attend, self.num_chunks, query, key, value)
    else:
      y = self.attend(query, key, value)
    y = tf.reshape(y, [-1, *x.shape[1:3], value.shape[-1]])
    gamma = Forward.of(mode).read(self.gamma)
    return x + tf.cast(gamma, x.dtype) * self._project_back(y, mode)

  def _project_back(self, y: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Returns `self.out(y, mode)`.

    A TPU's compiler transposes what a convolution takes, and need not transpose
    what a product takes.
    """
    if not self.attends_once:
      return self.out(y, mode)
    kernel = tf.cast(self.out.kernel(mode)[0, 0], y.dtype)
    result = self.multiply(self.out.widths.pad_input(y), kernel)
    return Forward.of(mode).note(self.out, y, result)

  def _project(
    self, x: tf.Tensor, mode: AnyMode
  ) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns queries, keys and values, `[b, pixels, channels]` each."""
    if not self.joins:
      key, value = _pool(self.key(x, mode)), _pool(self.value(x, mode))
      return _pixels(self.query(x, mode)), _pixels(key), _pixels(value)
    kernels = [c.kernel(mode) for c in (self.query, self.key, self.value)]
    y = self.product(x, tf.concat(kernels, -1))
    size = kernels[0].shape[-1]
    # Queries first: no channels move to other lanes before they are pooled.
    pooled = _pixels(_pool(y))[..., size:]
    return _pixels(y[..., :size]), pooled[..., :size], pooled[..., size:]


def _attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
  """Returns `softmax(query key^T) value`."""
  logits = tf.matmul(query, key, transpose_b=True)
  # Exponentials of half-precision sums would be wrong by percents.
  weights = tf.nn.softmax(tf.cast(logits, tf.float32))
  return tf.matmul(tf.cast(weights, value.dtype), value)


@tf.custom_gradient
def _attend_once(
  query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
) -> tf.Tensor:
  """Returns the same; divides by the sums after the product, not before.

  Both come of one product, as the values have a column of ones. Softmax in its
  usual form makes two more passes over the attention weights, the largest
  tensors of a net, forward and three backward.
  """
  dtype = query.dtype
  # A TPU rounds what it multiplies anyway, and adds in float32.
  q, k, v = (tf.cast(x, tf.float32) for x in (query, key, value))
  logits = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
  e = tf.exp(logits - tf.reduce_max(logits, -1, keepdims=True))
  sums = tf.matmul(e, tf.concat([v, tf.ones_like(v[..., :1])], -1))
  total = sums[..., -1:]
  y = sums[..., :-1] / total

  def grad(dy):
    # Rounded once for both terms of the difference, which may cancel.
    dy = tf.cast(tf.cast(dy, tf.float32) / total, dtype)
    dy = tf.cast(dy, tf.float32)
    change = tf.matmul(dy, v, transpose_b=True)
    change = e * (change - tf.reduce_sum(dy * y, -1, keepdims=True))
    grads = (
      tf.matmul(change, k),
      tf.matmul(change, q, transpose_a=True),
      tf.matmul(e, dy, transpose_a=True),
    )
    return [tf.cast(x, dtype) for x in grads]

  return tf.cast(y, dtype), grad


def _multiply(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """Multiplies the channels of each pixel by a matrix."""
  return tf.einsum("bhwi,io->bhwo", x, w)


def _pixels(x: tf.Tensor) -> tf.Tensor:
  """Maps `[b, h, w, c]` to `[b, h * w, c]`."""
  return tf.reshape(x, [-1, x.shape[1] * x.shape[2], x.shape[3]])


def _pool(x: tf.Tensor) -> tf.Tensor:
  return tf.nn.max_pool2d(x, 2, 2, "VALID")
