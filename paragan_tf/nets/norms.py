"""Batch norm, plain and class-conditional."""

from typing import Optional, Tuple

import gin
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.types import Mode


@gin.configurable
class BatchNorm(tf.Module):
  """Normalizes each channel, then scales by `1 + gamma` and adds `beta`.

  With classes, `gamma` and `beta` are looked up by label (arXiv 1707.00683);
  they start at zero, so every class starts as the plain norm. `cross_replica`
  takes the moments over all replicas' batches; its gradient flows through the
  exchange.
  """

  def __init__(
    self,
    channels: int,
    num_classes: int = 0,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    cross_replica: bool = False,
    name: str = "norm",
  ):
    super().__init__(name=name)
    if not 0.0 <= momentum < 1.0:
      raise ValueError(f"`momentum` must be in [0, 1), got {momentum}.")
    self.momentum = momentum
    self.epsilon = epsilon
    self.cross_replica = cross_replica
    self.num_classes = num_classes
    shape = [num_classes, channels] if num_classes else [channels]
    with self.name_scope:
      self.gamma = tf.Variable(tf.zeros(shape), name="gamma")
      self.beta = tf.Variable(tf.zeros(shape), name="beta")
      self.mean = tf.Variable(
        tf.zeros([channels]), trainable=False, name="mean"
      )
      self.variance = tf.Variable(
        tf.ones([channels]), trainable=False, name="variance"
      )

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps `[b, h, w, c]` to the same shape."""
    if mode is Mode.EVAL:
      mean, variance = self.mean, self.variance
    else:
      mean, variance = self._moments(x)
    if mode is Mode.TURN:
      self._follow(self.mean, mean)
      self._follow(self.variance, variance)
    inverse = tf.math.rsqrt(variance + self.epsilon)
    gamma, beta = self._affine(labels)
    # One multiply and one add an element: the rest is per channel.
    scale = inverse * (1.0 + gamma)
    shift = beta - mean * scale
    if self.num_classes:
      scale, shift = scale[:, None, None], shift[:, None, None]
    return x * scale + shift

  def _affine(self, labels: Optional[tf.Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
    if not self.num_classes:
      return tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
    one_hot = tf.one_hot(labels, self.num_classes)
    return tf.matmul(one_hot, self.gamma), tf.matmul(one_hot, self.beta)

  def _moments(self, x: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    if not self.cross_replica or collectives.num_replicas() == 1:
      return tf.nn.moments(x, [0, 1, 2])
    (mean,) = collectives.mean([tf.reduce_mean(x, [0, 1, 2])])
    distance = tf.math.squared_difference(x, mean)
    (variance,) = collectives.mean([tf.reduce_mean(distance, [0, 1, 2])])
    return mean, variance

  def _follow(self, variable: tf.Variable, value: tf.Tensor):
    variable.assign_sub((1.0 - self.momentum) * (variable - value))
