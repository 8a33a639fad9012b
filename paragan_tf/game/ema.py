"""An exponential moving average of G's weights, for sampling."""

from typing import Sequence

import gin
import tensorflow as tf

from paragan_tf.game.number_checks import check_fraction, check_not_negative


@gin.register
class Ema(tf.Module):
  """Lets a twin of G follow it: `twin <- decay * twin + (1 - decay) * g`.

  Until `start_step` the twin is a copy. Batch-norm statistics follow too.
  """

  def __init__(
    self,
    g: tf.Module,
    twin: tf.Module,
    decay: float = 0.999,
    start_step: int = 1000,
    name: str = "ema",
  ):
    super().__init__(name=name)
    check_not_negative("start_step", start_step)
    self.decay = check_fraction("decay", decay)
    self.start_step = start_step
    self.twin = twin
    self._pairs = list(zip(twin.variables, g.variables))

  def follow(
    self, weights: Sequence[tf.Variable], base: Sequence[tf.Variable]
  ) -> None:
    """Averages the `base` weights in place of G's `weights`."""
    instead = {w.ref(): x for w, x in zip(weights, base)}
    self._pairs = [(s, instead.get(v.ref(), v)) for s, v in self._pairs]

  def update(self, step: tf.Tensor):
    """Follows G; `step` counts from 0. Replica context."""
    rate = 1.0 - self.decay
    for shadow, variable in self._pairs:
      moved = shadow + rate * (variable - shadow)
      shadow.assign(tf.where(step < self.start_step, variable, moved))
