"""Batch, group, layer and instance norm; `affines.py` has scale and shift.

A net takes a class as its argument `norm`, in gin `@norms.BatchNorm`, and calls
`norm(channels, num_classes, affine=..., name=...)`.
"""

from typing import Any, Callable, List, Optional, Tuple, Union

import gin
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.hardware import resolve_layout
from paragan_tf.nets import affines, layout
from paragan_tf.nets.forward import AnyMode, Forward
from paragan_tf.types import Mode, Net


class Norm(tf.Module):
  """Normalizes, then scales by `1 + gamma` and adds `beta`.

  `affine` computes both. Without it, they are looked up by label if there are
  classes, and are the same for all samples if there are none.
  """

  def __init__(
    self,
    channels: int,
    num_classes: int,
    affine: Optional[affines.MakeAffine],
    epsilon: float,
    name: str,
  ):
    super().__init__(name=name)
    self.channels, self.epsilon = channels, epsilon
    self.affine: Any
    with self.name_scope:
      if affine is not None:
        self.affine = affine(channels)
      elif num_classes:
        self.affine = affines.ByClass(channels, num_classes)
      else:
        self.affine = affines.Plain(channels)

  @property
  def gamma(self) -> Any:
    """The variable or layer that `gamma` comes from."""
    return self.affine.gamma

  @property
  def beta(self) -> Any:
    """The variable or layer that `beta` comes from."""
    return self.affine.beta

  def __call__(self, x: tf.Tensor, cond: Any, mode: AnyMode) -> tf.Tensor:
    """Maps `[b, h, w, c]` to the same shape; `cond` is for the affine."""
    forward = Forward.of(mode)
    width = x.shape[-1]
    # Padding is zero, and so it stays: its shift is zero.
    mean, variance = (
      layout.pad_channels(part, width) for part in self._statistics(x, forward)
    )
    pair = forward.result_for(self.affine) or self.affine(cond, forward)
    gamma, beta = (
      layout.pad_channels(tf.cast(part, tf.float32), width) for part in pair
    )
    if gamma.shape.rank == 2 and mean.shape.rank == 4:
      gamma, beta = gamma[:, None, None], beta[:, None, None]
    # One multiply and one add per element: the rest is per channel.
    scale = tf.math.rsqrt(variance + self.epsilon) * (1.0 + gamma)
    shift = beta - mean * scale
    if scale.shape.rank == 2:
      scale, shift = scale[:, None, None], shift[:, None, None]
    y = x * tf.cast(scale, x.dtype) + tf.cast(shift, x.dtype)
    return forward.note(self, x, y)

  def _statistics(
    self, x: tf.Tensor, forward: Forward
  ) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance in float32, `[c]` each, or `[b, 1, 1, c]`.

    They need not be padded.
    """
    raise NotImplementedError


# Makes the norms of a net; see above.
MakeNorm = Callable[..., Norm]


@gin.configurable
class BatchNorm(Norm):
  """Each channel over the batch and all pixels.

  With `group_size`, the moments are those of the batches of that many
  neighboring replicas, or of `"all"`; `cross_replica` is short for all. The
  gradient flows through the all-reduce.
  """

  def __init__(
    self,
    channels: int,
    num_classes: int = 0,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    cross_replica: bool = False,
    group_size: Union[int, str, None] = None,
    affine: Optional[affines.MakeAffine] = None,
    name: str = "norm",
  ):
    super().__init__(channels, num_classes, affine, epsilon, name)
    if not 0.0 <= momentum < 1.0:
      raise ValueError(f"`momentum` must be in [0, 1), got {momentum}.")
    self.momentum = momentum
    self.in_one_pass = resolve_layout().moments_in_one_pass
    self.group_size = _group_size(cross_replica, group_size)
    with self.name_scope:
      self.mean = tf.Variable(
        tf.zeros([channels]), trainable=False, name="mean"
      )
      self.variance = tf.Variable(
        tf.ones([channels]), trainable=False, name="variance"
      )
    # The weight of a batch in a mean over batches, see `standing.py`.
    self.batch_weight: Optional[float] = None

  def _statistics(self, x, forward):
    if forward.mode is Mode.EVAL:
      return forward.read(self.mean), forward.read(self.variance)
    mean, variance = self._moments(x)
    weight = self.batch_weight
    if forward.mode is Mode.TRAIN:
      weight = 1.0 - self.momentum
    if weight is not None:
      _update_average(self.mean, mean, weight, forward)
      _update_average(self.variance, variance, weight, forward)
    return mean, variance

  def _moments(self, x: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    wide = tf.cast(x, tf.float32)
    if self.in_one_pass and x.dtype.size < wide.dtype.size:
      mean, squares = (
        self._mean_over_group(tf.reduce_mean(part, [0, 1, 2]))
        for part in (wide, tf.square(wide))
      )
      return mean, tf.nn.relu(squares - tf.square(mean))
    if self.group_size == 1 or collectives.num_replicas() == 1:
      return tf.nn.moments(wide, [0, 1, 2])
    # Two passes over the data: E[x^2] - E[x]^2 cancels where the mean is large.
    mean = self._mean_over_group(tf.reduce_mean(wide, [0, 1, 2]))
    distance = tf.math.squared_difference(wide, mean)
    return mean, self._mean_over_group(tf.reduce_mean(distance, [0, 1, 2]))

  def _mean_over_group(self, value: tf.Tensor) -> tf.Tensor:
    if self.group_size == 1:
      return value
    if self.group_size == 0:
      return collectives.mean([value])[0]
    return collectives.group_mean([value], self.group_size)[0]


@gin.configurable
class GroupNorm(Norm):
  """Each group of channels of each sample (arXiv 1803.08494)."""

  def __init__(
    self,
    channels: int,
    num_classes: int = 0,
    groups: int = 32,
    epsilon: float = 1e-5,
    affine: Optional[affines.MakeAffine] = None,
    name: str = "norm",
  ):
    super().__init__(channels, num_classes, affine, epsilon, name)
    if groups < 1 or channels % groups:
      raise ValueError(
        f"`groups` of a `GroupNorm` must divide the {channels} channels of "
        f"its layer, got {groups}: change `groups` or the net's `width`."
      )
    self.groups = groups

  def _statistics(self, x, forward):
    x = tf.cast(layout.cut_channels(x, self.channels), tf.float32)
    size = self.channels // self.groups
    groups = tf.reshape(x, [-1, *x.shape[1:3], self.groups, size])
    moments = tf.nn.moments(groups, [1, 2, 4])
    mean, variance = (tf.repeat(m, size, 1)[:, None, None] for m in moments)
    return mean, variance


@gin.configurable
class LayerNorm(GroupNorm):
  """Each sample over all of its pixels and channels (arXiv 1607.06450)."""

  def __init__(
    self,
    channels: int,
    num_classes: int = 0,
    epsilon: float = 1e-5,
    affine: Optional[affines.MakeAffine] = None,
    name: str = "norm",
  ):
    super().__init__(channels, num_classes, 1, epsilon, affine, name)


@gin.configurable
class InstanceNorm(GroupNorm):
  """Each channel of each sample over its pixels (arXiv 1607.08022)."""

  def __init__(
    self,
    channels: int,
    num_classes: int = 0,
    epsilon: float = 1e-5,
    affine: Optional[affines.MakeAffine] = None,
    name: str = "norm",
  ):
    super().__init__(channels, num_classes, channels, epsilon, affine, name)


def batch_norms(net: Net) -> List[BatchNorm]:
  """Returns the batch norms inside a net."""
  modules = getattr(net, "submodules", ())
  return [module for module in modules if isinstance(module, BatchNorm)]


def _update_average(
  variable: tf.Variable, value: tf.Tensor, weight: float, forward: Forward
) -> None:
  old = forward.read(variable)
  value = layout.cut_channels(value, old.shape[-1])
  new = old - weight * (old - value)
  # A step with numbers that are not finite is skipped, and leaves nothing.
  forward.assign_state(variable, tf.where(tf.math.is_finite(new), new, old))


def _group_size(cross_replica: bool, group_size: Union[int, str, None]) -> int:
  """Returns the replicas of a group, 0 for all."""
  if group_size is None:
    return 0 if cross_replica else 1
  if group_size in ("all", 0):
    return 0
  if isinstance(group_size, str) or group_size < 1 or cross_replica:
    raise ValueError(
      "`group_size` of a `BatchNorm` must be 'all', None or at least 1, and "
      "`cross_replica` False where it is a number, "
      f"got {group_size!r} and {cross_replica}."
    )
  collectives.check_group_size(group_size)
  return group_size
