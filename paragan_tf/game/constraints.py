"""Constraints on a player's weights, applied after each of its updates."""

from typing import Callable, Sequence

import gin
import tensorflow as tf

from paragan_tf.game.number_checks import check_positive

# Assigns what is allowed to a player's weights. Replica context.
Constraint = Callable[[Sequence[tf.Variable]], None]


@gin.register
def clip_weights(c: float = 0.01) -> Constraint:
  """Keeps every weight in [-c, c]: WGAN's critic (arXiv 1701.07875)."""
  check_positive("c", c)

  def constrain(weights: Sequence[tf.Variable]) -> None:
    for w in weights:
      w.assign(tf.clip_by_value(w, -c, c))

  return constrain
