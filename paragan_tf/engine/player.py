"""A player: a net, its optimizer and its exchange, on one replica."""

from typing import (
  Any,
  Callable,
  List,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
  Union,
)

import tensorflow as tf

from paragan_tf.engine import finite as finite_numbers
from paragan_tf.game.constraints import Constraint
from paragan_tf.game.loss_scale import LossScale
from paragan_tf.game.optimizers import Optimizer
from paragan_tf.game.penalties import Penalty
from paragan_tf.game.regularizers import Regularizer
from paragan_tf.sync.exchange import Exchange, predict_updates
from paragan_tf.types import Net


class Player(NamedTuple):
  """G or D.

  Attributes:
    net: What is trained.
    optimizer: How gradients become updates.
    exchange: How its replicas agree.
    clip_norm: Maximum global norm of its gradients, after the exchange.
    regularizer: A function of its weights that is added to its loss.
    penalties: Functions of D's outputs that are added to its loss.
    one_pass: Whether it scores real and fake images in one pass, if it is D.
    loss_scale: What its loss is multiplied by, where float16 needs that.
    jit_compile: Whether XLA compiles the computation of its gradients.
    select_updates: Whether an update that is skipped is computed all the same.
    constraint: What its weights must be after an update, if anything.
  """

  net: Net
  optimizer: Optimizer
  exchange: Exchange
  clip_norm: Optional[float] = None
  regularizer: Optional[Regularizer] = None
  penalties: Tuple[Penalty, ...] = ()
  one_pass: bool = True
  loss_scale: Optional[LossScale] = None
  jit_compile: bool = False
  constraint: Optional[Constraint] = None
  select_updates: bool = False

  @property
  def weights(self) -> List[tf.Variable]:
    """The trainable variables of the net: where gradients are taken."""
    return list(self.net.trainable_variables)

  @property
  def base(self) -> Sequence[tf.Variable]:
    """The base weights: the weights, except with optimistic optimizers."""
    return self.optimizer.base(self.weights)

  @property
  def state(self) -> List[tf.Variable]:
    """Variables that are exchanged beside the weights."""
    state: List[tf.Variable] = []
    if "statistics" in self.exchange.exchanged_state:
      state += [v for v in self.net.variables if not v.trainable]
    if "moments" in self.exchange.exchanged_state:
      state += self.optimizer.moment_slots
    if "slow_weights" in self.exchange.exchanged_state:
      state += self.optimizer.slow_weights
    return state

  def compute(self, fn: Callable[[], Any]) -> Any:
    """Returns what `fn` returns, compiled by XLA if that is asked for."""
    if not self.jit_compile:
      return fn()
    return tf.function(fn, autograph=False, jit_compile=True)()

  def add_regularizer(self, grads: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Returns the gradients with that of the regularizer added."""
    if self.regularizer is None:
      return list(grads)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(self.weights)
      penalty = self.regularizer(self.weights)
    scale = self.loss_scale and self.loss_scale.value()
    more = tape.gradient(
      penalty, self.weights, scale, unconnected_gradients="zero"
    )
    return [g + m for g, m in zip(grads, more)]

  def unscale(
    self, grads: List[tf.Tensor], trains: Union[bool, tf.Tensor]
  ) -> Tuple[List[tf.Tensor], Union[bool, tf.Tensor]]:
    """Returns gradients without the loss scale, and whether to apply them.

    The scale adapts where the player is trained.
    """
    if self.loss_scale is None:
      return grads, finite_numbers.are_finite(grads)
    grads, finite = self.loss_scale.unscale(grads)
    if self.exchange.shares_gradients or trains is not False:
      self.loss_scale.update(finite)
    return grads, finite

  def clip(self, grads: List[tf.Tensor]) -> List[tf.Tensor]:
    """Returns the gradients, their global norm at most `clip_norm`."""
    if self.clip_norm is None:
      return grads
    norm = tf.linalg.global_norm(grads)
    return tf.clip_by_global_norm(grads, self.clip_norm, norm)[0]

  def apply_updates(self, updates: Sequence[tf.Tensor]) -> None:
    """Subtracts updates from the base weights."""
    self.optimizer.apply_updates(updates, self.weights)
    if self.constraint is not None:
      self.constraint(self.base)

  def update_ratio(self, updates: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the norm of updates, relative to that of the weights."""
    norm = tf.linalg.global_norm(self.weights)
    ratio = tf.linalg.global_norm(updates) / tf.maximum(norm, 1e-12)
    return tf.cast(ratio, tf.float32)

  def look_ahead(self, updates: Sequence[tf.Tensor]) -> None:
    """Moves the weights to where the next gradient is taken."""
    ahead = predict_updates(self.exchange, updates)
    weights = self.weights
    self.optimizer.look_ahead(ahead, weights)
    if (
      self.constraint is not None
      and self.optimizer.base(weights) is not weights
    ):
      self.constraint(weights)
