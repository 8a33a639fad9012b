"""Where the scale `1 + gamma` and the shift `beta` of a norm come from.

    gamma, beta = affine(cond, mode)    # [c] each, or [b, c]

`cond` is what the affine asks for: nothing, labels, or a vector. The variables
have no scope of their own: they belong to the norm. Those that are a product of
`rows(cond)` and `tables(mode)` may be computed with others, see `fused.py`.
"""

from typing import Any, Callable, Tuple

import tensorflow as tf

from paragan_tf.hardware import Layout
from paragan_tf.nets import layers
from paragan_tf.nets.remat import read
from paragan_tf.types import Mode

Pair = Tuple[tf.Tensor, tf.Tensor]
# From a number of channels to what is called as above.
MakeAffine = Callable[[int], Callable[[Any, Mode], Pair]]


class Plain(tf.Module):
  """The same for every sample; both start at zero."""

  def __init__(self, channels: int):
    super().__init__()
    self.gamma = tf.Variable(tf.zeros([channels]), name="gamma")
    self.beta = tf.Variable(tf.zeros([channels]), name="beta")

  def __call__(self, cond: Any, mode: Mode) -> Pair:
    """Returns `[c]` each."""
    return read(self.gamma), read(self.beta)


class ByClass(tf.Module):
  """Looked up by label (arXiv 1707.00683).

  Both start at zero, so every class starts as the plain norm.
  """

  def __init__(self, channels: int, num_classes: int):
    super().__init__()
    self.joined = Layout().join_projections
    self.num_classes = num_classes
    shape = [num_classes, channels]
    self.gamma = tf.Variable(tf.zeros(shape), name="gamma")
    self.beta = tf.Variable(tf.zeros(shape), name="beta")

  def __call__(self, cond: tf.Tensor, mode: Mode) -> Pair:
    """Maps labels, as in `layers.class_weights`, to `[b, c]` each."""
    rows = self.rows(cond)
    gamma, beta = (tf.matmul(rows, table) for table in self.tables(mode))
    return gamma, beta

  def rows(self, cond: tf.Tensor) -> tf.Tensor:
    """Returns what the tables are multiplied by."""
    return layers.class_weights(cond, self.num_classes)

  def tables(self, mode: Mode) -> Pair:
    """Returns what gives `gamma` and what gives `beta`."""
    return read(self.gamma), read(self.beta)


class ByVector(tf.Module):
  """Two linear maps of a vector, without bias (BigGAN, arXiv 1809.11096)."""

  def __init__(
    self, channels: int, inputs: int, init: layers.Init, spectral: bool
  ):
    super().__init__()
    self.joined = Layout().join_projections
    self.gamma, self.beta = (
      layers.Linear(inputs, channels, init, spectral, bias=False, name=name)
      for name in ("gamma", "beta")
    )

  def __call__(self, cond: tf.Tensor, mode: Mode) -> Pair:
    """Maps `[b, inputs]` to `[b, c]` each."""
    return self.gamma(cond, mode), self.beta(cond, mode)

  def rows(self, cond: tf.Tensor) -> tf.Tensor:
    """Returns what the tables are multiplied by."""
    return cond

  def tables(self, mode: Mode) -> Pair:
    """Returns what gives `gamma` and what gives `beta`."""
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

  def __call__(self, cond: tf.Tensor, mode: Mode) -> Pair:
    """Maps `[b, inputs]` to `[b, c]` each."""
    gamma, beta = (
      out(tf.nn.relu(hidden(cond, mode)), mode)
      for hidden, out in zip(self.hidden, self.out)
    )
    return gamma, beta
