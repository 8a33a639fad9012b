"""Lookahead: slow weights that follow a fast inner optimizer."""

from typing import Callable, List, Sequence, Tuple, Union

import gin
import tensorflow as tf

from paragan_tf.game.number_checks import check_number
from paragan_tf.game.optimizers import Optimizer
from paragan_tf.game.slots import MakeSlot, SlotSpec, make_variable


def lookahead_update(theta, phi, alpha) -> tf.Tensor:
  """Zhang et al., arXiv 1907.08610, Algorithm 1: the new slow weights."""
  return phi + alpha * (theta - phi)


@gin.register
class Lookahead(Optimizer):
  """Runs `inner`; every `sync_period` updates the slow weights go part way.

  The inner optimizer keeps its slots at a synchronization. The slow weights
  `phi` start as the weights are when the first update comes, not at `init`, so
  weights that were restored in between count. Where an exchange averages or
  mixes weights, it does the same with the slow ones.

  Args:
    inner: Makes the fast optimizer from a `name`; any of `optimizers`.
    sync_period: Fast updates for one slow update, k of the paper.
    slow_rate: How far the slow weights go, alpha of the paper.
  """

  slot_names = ("phi",)

  def __init__(
    self,
    inner: Callable[..., Optimizer],
    sync_period: int = 5,
    slow_rate: float = 0.5,
    name: str = "lookahead",
  ):
    if not callable(inner):
      raise ValueError(
        f"`inner` must make an optimizer, got {inner!r}; give the class and "
        "no instance of it, in gin `@Adam` and not `@Adam()`."
      )
    if not (isinstance(sync_period, int) and sync_period >= 1):
      raise ValueError(
        f"`sync_period` must be an integer of at least 1, got {sync_period!r}."
      )
    fast = inner(name=f"{name}_inner")
    super().__init__(fast.learning_rate, name)
    self.inner = fast
    self.sync_period = sync_period
    self.slow_rate = check_number(
      "slow_rate", slow_rate, lambda x: 0 < x <= 1, "in (0, 1]"
    )

  @property
  def moments(self) -> Tuple[str, ...]:
    """None: the inner optimizer has them."""
    return ()

  @property
  def moment_slots(self) -> List[tf.Variable]:
    """Those of the inner optimizer."""
    return self.inner.moment_slots

  def moment_specs(self, weights: Sequence[tf.Variable]) -> List[SlotSpec]:
    """Returns those of the inner optimizer."""
    return self.inner.moment_specs(weights)

  @property
  def slow_weights(self) -> List[tf.Variable]:
    """The slow weights, and those of the inner optimizer if it has some."""
    return [*self.slots["phi"], *self.inner.slow_weights]

  def init(
    self,
    weights: Sequence[tf.Variable],
    make_moment: MakeSlot = make_variable,
  ) -> None:
    """Makes the slow weights, and the inner optimizer's state."""
    super().init(weights)
    self.inner.init(weights, make_moment)

  def begin(self, weights: Sequence[tf.Variable]) -> None:
    """Lets the inner optimizer begin."""
    self.inner.begin(weights)

  def updates(
    self,
    grads: Sequence[tf.Tensor],
    weights: Sequence[tf.Variable],
    damping: Union[float, tf.Tensor] = 1.0,
  ) -> List[tf.Tensor]:
    """Returns what the inner optimizer subtracts."""
    self._check(grads, weights)

    def start():
      for phi, theta in zip(self.slots["phi"], self.base(weights)):
        phi.assign(theta)

    t = self.t + 1
    self.t.assign(t)
    # Branches, not `tf.where`: most updates then never touch a slow weight.
    tf.cond(t == 1, start, lambda: None)
    return self.inner.updates(grads, weights, damping)

  def base(self, weights: Sequence[tf.Variable]) -> Sequence[tf.Variable]:
    """Returns the base weights of the inner optimizer."""
    return self.inner.base(weights)

  def apply_updates(
    self, updates: Sequence[tf.Tensor], weights: Sequence[tf.Variable]
  ) -> None:
    """Applies the inner optimizer's updates; synchronizes when due."""

    def sync():
      for phi, theta in zip(self.slots["phi"], self.base(weights)):
        phi.assign(lookahead_update(theta, phi, self.slow_rate))
        theta.assign(phi)

    self.inner.apply_updates(updates, weights)
    due = tf.equal(self.t % self.sync_period, 0)
    tf.cond(due, sync, lambda: None)

  def look_ahead(
    self, ahead: Sequence[tf.Tensor], weights: Sequence[tf.Variable]
  ) -> None:
    """Lets the inner optimizer look ahead."""
    self.inner.look_ahead(ahead, weights)
