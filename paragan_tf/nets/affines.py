"""Where the scale `1 + gamma` and the shift `beta` of a norm come from.

    gamma, beta = affine(cond, mode)    # [c] each, or [b, c]

`cond` is `None`, labels, or a vector, as the affine needs. Its variables are in
the name scope of the norm. An affine that is a product of `rows(cond)` and
`tables(mode)` may be computed together with others, see `fused.py`.
"""

from typing import Any, Callable, Tuple

import tensorflow as tf

from paragan_tf.hardware import resolve_layout
from paragan_tf.nets import layers
from paragan_tf.nets.forward import AnyMode, Forward

Pair = Tuple[tf.Tensor, tf.Tensor]
# From a number of channels to an affine, called as above.
MakeAffine = Callable[[int], Callable[[Any, AnyMode], Pair]]


class Plain(tf.Module):
  """The same for every sample; both start at zero."""

  def __init__(self, channels: int):
    super().__init__()
    self.gamma = tf.Variable(tf.zeros([channels]), name="gamma")
    self.beta = tf.Variable(tf.zeros([channels]), name="beta")

  def __call__(self, cond: Any, mode: AnyMode) -> Pair:
    """Returns `[c]` each."""
    forward = Forward.of(mode)
    return forward.read(self.gamma), forward.read(self.beta)


class ByClass(tf.Module):
  """Looked up by label (arXiv 1707.00683).

  Both start at zero, so every class starts as the plain norm.
  """

  def __init__(self, channels: int, num_classes: int):
    super().__init__()
    self.layout = resolve_layout()
    self.join_projections = self.layout.join_projections
    self.num_classes = num_classes
    shape = [num_classes, channels]
    self.gamma = tf.Variable(tf.zeros(shape), name="gamma")
    self.beta = tf.Variable(tf.zeros(shape), name="beta")

  def __call__(self, cond: tf.Tensor, mode: AnyMode) -> Pair:
    """Maps labels, as in `layers.class_weights`, to `[b, c]` each."""
    rows = self.rows(cond)
    gamma, beta = (tf.matmul(rows, table) for table in self.tables(mode))
    return gamma, beta

  def rows(self, cond: tf.Tensor) -> tf.Tensor:
    """Returns the left side of the product."""
    return layers.class_weights(cond, self.num_classes)

  def tables(self, mode: AnyMode) -> Pair:
    """Returns the right sides for `gamma` and for `beta`."""
    forward = Forward.of(mode)
    return forward.read(self.gamma), forward.read(self.beta)


class ByVector(tf.Module):
  """Two linear maps of a vector, without bias (BigGAN, arXiv 1809.11096)."""

  def __init__(
    self, channels: int, inputs: int, init: layers.Init, spectral: bool
  ):
    super().__init__()
    self.layout = resolve_layout()
    self.join_projections = self.layout.join_projections
    self.gamma, self.beta = (
      layers.Linear(inputs, channels, init, spectral, bias=False, name=name)
      for name in ("gamma", "beta")
    )

  def __call__(self, cond: tf.Tensor, mode: AnyMode) -> Pair:
    """Maps `[b, inputs]` to `[b, c]` each."""
    return self.gamma(cond, mode), self.beta(cond, mode)

  def rows(self, cond: tf.Tensor) -> tf.Tensor:
    """Returns the left side of the product."""
    return cond

  def tables(self, mode: AnyMode) -> Pair:
    """Returns the right sides for `gamma` and for `beta`."""
    return self.gamma.weight(mode), self.beta.weight(mode)


class SelfModulation(tf.Module):
  """Two networks of one hidden layer, out of the latent (arXiv 1810.01365)."""

  def __init__(
    self, channels: int, inputs: int, init: layers.Init, hidden: int = 32
  ):
    super().__init__()
    self.hidden = [
      layers.Linear(inputs, hidden, init, name=f"{name}_hidden")
      for name in ("gamma", "beta")
    ]
    self.out = [
      layers.Linear(hidden, channels, init, name=name)
      for name in ("gamma", "beta")
    ]

  def __call__(self, cond: tf.Tensor, mode: AnyMode) -> Pair:
    """Maps `[b, inputs]` to `[b, c]` each."""
    gamma, beta = (
      out(tf.nn.relu(hidden(cond, mode)), mode)
      for hidden, out in zip(self.hidden, self.out)
    )
    return gamma, beta
