"""One side of the game, on one replica."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf.game.optimizers import Optimizer
from paragan_tf.game.penalties import Penalty
from paragan_tf.game.regularizers import Regularizer
from paragan_tf.sync.exchange import Exchange
from paragan_tf.types import Net


class Player(NamedTuple):
  """One side of the game.

  Attributes:
    net: What it learns.
    optimizer: How it moves.
    exchange: How its replicas agree.
    clip_norm: The largest norm of its whole gradient, after the exchange.
    regularizer: What it pays for its weights beside its loss.
    penalties: What it pays for how it moves.
  """

  net: Net
  optimizer: Optimizer
  exchange: Exchange
  clip_norm: Optional[float] = None
  regularizer: Optional[Regularizer] = None
  penalties: Tuple[Penalty, ...] = ()

  @property
  def weights(self) -> List[tf.Variable]:
    """What it learns, where the gradient is taken."""
    return list(self.net.trainable_variables)

  @property
  def settled(self) -> Sequence[tf.Variable]:
    """What it has learned: the weights, but for optimistic optimizers."""
    return self.optimizer.settled(self.weights)

  @property
  def state(self) -> List[tf.Variable]:
    """What is exchanged beside that."""
    state: List[tf.Variable] = []
    if self.exchange.takes_statistics:
      state += [v for v in self.net.variables if not v.trainable]
    if self.exchange.takes_moments:
      slots, moments = self.optimizer.slots, self.optimizer.moments
      state += [v for name in moments for v in slots[name]]
    return state

  def regularized(self, grads: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Adds the gradient of what the weights cost."""
    if self.regularizer is None:
      return list(grads)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(self.weights)
      penalty = self.regularizer(self.weights)
    more = tape.gradient(penalty, self.weights, unconnected_gradients="zero")
    return [g + m for g, m in zip(grads, more)]

  def clipped(self, grads: List[tf.Tensor]) -> List[tf.Tensor]:
    """Returns the gradient with a norm of `clip_norm` at most."""
    if self.clip_norm is None:
      return grads
    norm = tf.linalg.global_norm(grads)
    return tf.clip_by_global_norm(grads, self.clip_norm, norm)[0]

  def move(self, updates: Sequence[tf.Tensor]) -> tf.Tensor:
    """Moves what is settled; returns how far, in parts of the weights' norm."""
    self.optimizer.apply_updates(updates, self.weights)
    norm = tf.linalg.global_norm(self.weights)
    ratio = tf.linalg.global_norm(updates) / tf.maximum(norm, 1e-12)
    return tf.cast(ratio, tf.float32)

  def look_ahead(self, updates: Sequence[tf.Tensor]) -> None:
    """Sets the weights to where the next gradient is taken."""
    self.optimizer.look_ahead(self.exchange.ahead(updates), self.weights)
