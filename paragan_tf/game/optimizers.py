"""Optimizers: one replica's gradients become one replica's update.

    optimizer.init(weights)           # Once: makes the slots and the count `t`.
    optimizer.apply(grads, weights)   # Every update, in replica context.
    optimizer.rate()                  # The next update's rate, for the log.

An optimizer never communicates: an exchange does, between the four calls that
make an update. `apply` makes all four, for one replica:

    optimizer.begin(weights)                      # reads restored weights
    updates = optimizer.updates(grads, weights)   # updates the slots only
    optimizer.apply_updates(updates, weights)     # base -= updates
    optimizer.look_ahead(updates, weights)        # where to take the gradient

The *base* weights are what is learned. For most optimizers they are the weights
themselves, and `look_ahead` does nothing. Each optimizer is a pure function of
one weight's tensors,

    u, *slots = adam_update(g, *slots, t, alpha, ...)    # then w <- w - u

in the letters of its paper, and a module that holds the slots. Functions of
`t` are scalars in float64, because `1 - beta2**t` loses digits in float32;
tensors keep the dtype of their weight.
"""

from typing import Callable, Dict, List, Sequence, Tuple, Union

import gin
import tensorflow as tf

from paragan_tf.game.number_checks import check_fraction, check_positive
from paragan_tf.game.slots import (
  MakeSlot,
  SlotSpec,
  make_variable,
  stored_as_vectors,
)

# A rate, or a function from the count of updates done to the next one's rate.
LearningRate = Union[float, Callable[[tf.Tensor], tf.Tensor]]
Tensors = Tuple[tf.Tensor, ...]


class Optimizer(tf.Module):
  """Holds the slots and the count; subclasses implement the update of a weight.

  Attributes:
    slot_names: What is kept for each weight.
    slots: Slot name -> one variable a weight, zero at first.
    t: Count of updates done, int64.
    is_elementwise: Whether each number's update depends on its own gradient and
      slots only.
  """

  slot_names: Tuple[str, ...] = ()
  is_elementwise = False

  def __init__(self, learning_rate: LearningRate, name: str):
    super().__init__(name=name)
    if not callable(learning_rate):
      learning_rate = check_positive("learning_rate", learning_rate)
    self.learning_rate = learning_rate
    self.slots: Dict[str, List[tf.Variable]] = {}
    self.t: tf.Variable = None
    self._num_weights = 0

  @property
  def moments(self) -> Tuple[str, ...]:
    """The slots that `_update` takes, in its order; by default all."""
    return self.slot_names

  @property
  def moment_slots(self) -> List[tf.Variable]:
    """The variables of all moments, which an exchange may mix."""
    return [v for name in self.moments for v in self.slots[name]]

  @property
  def slow_weights(self) -> List[tf.Variable]:
    """Lookahead's slow weights, which are exchanged like the base weights."""
    return []

  def moment_specs(self, weights: Sequence[tf.Variable]) -> List[SlotSpec]:
    """Returns what `moment_slots` will be for `weights`."""
    return [self._spec(name, w) for name in self.moments for w in weights]

  def init(
    self,
    weights: Sequence[tf.Variable],
    make_moment: MakeSlot = make_variable,
  ) -> None:
    """Makes the state that `weights` need; eager, under a strategy's scope.

    Args:
      weights: Of the player.
      make_moment: Makes the slots of moments, if they are stored elsewhere.
    """
    if self.t is not None:
      raise ValueError(
        f"`init` of `{self.name}` must be called once, got a second call; make "
        "one optimizer for each player."
      )
    self._num_weights = len(weights)
    self.t = tf.Variable(
      tf.zeros([], tf.int64), trainable=False, name=f"{self.name}/t"
    )
    for slot in self.slot_names:
      make = make_moment if slot in self.moments else make_variable
      self.slots[slot] = [make(self._spec(slot, w)) for w in weights]

  def rate(self) -> tf.Tensor:
    """Returns the next update's rate, a float64 scalar; replica context."""
    alpha = self.learning_rate
    if callable(alpha):
      alpha = alpha(tf.convert_to_tensor(self.t))
    # The hint keeps a Python float from passing through float32.
    alpha = tf.convert_to_tensor(alpha, dtype_hint=tf.float64)
    return tf.cast(alpha, tf.float64)

  def apply(
    self,
    grads: Sequence[tf.Tensor],
    weights: Sequence[tf.Variable],
    damping: Union[float, tf.Tensor] = 1.0,
  ) -> List[tf.Tensor]:
    """Updates `weights`, in the order of `init`; replica context.

    The rate is multiplied with `damping`. Returns what was subtracted.
    """
    self._check(grads, weights)
    self.begin(weights)
    updates = self.updates(grads, weights, damping)
    self.apply_updates(updates, weights)
    self.look_ahead(updates, weights)
    return updates

  def begin(self, weights: Sequence[tf.Variable]) -> None:
    """Copies `weights` to the base weights before the first update."""
    del weights

  def updates(
    self,
    grads: Sequence[tf.Tensor],
    weights: Sequence[tf.Variable],
    damping: Union[float, tf.Tensor] = 1.0,
  ) -> List[tf.Tensor]:
    """Updates `t` and the slots; returns what to subtract from `base`."""
    self._check(grads, weights)
    alpha = self.rate() * tf.cast(damping, tf.float64)
    updates = []
    t = self.t + 1
    self.t.assign(t)
    t = tf.cast(t, tf.float64)
    for i, (g, w) in enumerate(zip(grads, weights)):
      slots = [self.slots[name][i] for name in self.moments]
      g = tf.convert_to_tensor(g)
      if self.is_elementwise and stored_as_vectors(slots):
        # A moment is then updated where it is; reshaped, it would be copied.
        g, before = tf.reshape(g, [-1]), [slot.read_flat() for slot in slots]
      else:
        before = [tf.convert_to_tensor(slot) for slot in slots]
      u, *values = self._update(g, w, before, t, alpha)
      updates.append(tf.reshape(u, w.shape))
      for slot, value in zip(slots, values):
        if value is not None:
          slot.assign(value)
    return updates

  def base(self, weights: Sequence[tf.Variable]) -> Sequence[tf.Variable]:
    """Returns the base weights: the variables that hold what is learned."""
    return weights

  def apply_updates(
    self, updates: Sequence[tf.Tensor], weights: Sequence[tf.Variable]
  ) -> None:
    """Subtracts the updates from the base weights."""
    for x, u in zip(self.base(weights), updates):
      x.assign_sub(u)

  def look_ahead(
    self, ahead: Sequence[tf.Tensor], weights: Sequence[tf.Variable]
  ) -> None:
    """Sets `weights` to where the next gradient is taken.

    Args:
      ahead: The expected next update of the base weights.
      weights: What the gradient is taken of.
    """
    del ahead, weights

  def _update(self, g, w, slots, t, alpha) -> Tensors:
    """Returns what to subtract from `w`, then the new value of each slot."""
    raise NotImplementedError

  def _spec(self, slot: str, w: tf.Variable) -> SlotSpec:
    name = f"{self.name}/{w.name.split(':')[0]}/{slot}"
    return SlotSpec(name, w.shape, w.dtype)

  def _check(self, grads, weights) -> None:
    if self.t is None:
      raise ValueError(f"`init` of `{self.name}` must come before `apply`.")
    if not len(grads) == len(weights) == self._num_weights:
      raise ValueError(
        f"`grads` and `weights` must be as many as `init` saw, "
        f"{self._num_weights}, got {len(grads)} and {len(weights)}."
      )
    for g, w in zip(grads, weights):
      if g is None:
        raise ValueError(
          f"`grads` must have a gradient for every weight, got None for "
          f"`{w.name}`; let the loss depend on it, or leave it out of "
          "`weights` in both `init` and `apply`."
        )


def sgd_update(g, alpha) -> Tensors:
  """Gradient descent: `u = alpha g`."""
  return (tf.cast(alpha, g.dtype) * g,)


@gin.register
class SGD(Optimizer):
  """Stochastic gradient descent."""

  def __init__(self, learning_rate: LearningRate = 1e-2, name: str = "sgd"):
    super().__init__(learning_rate, name)

  def _update(self, g, w, slots, t, alpha):
    return sgd_update(g, alpha)


def momentum_update(g, v, alpha, mu, nesterov) -> Tensors:
  """Sutskever et al., ICML 2013, eqs. 1-4, with the sign of `v` turned.

  With `nesterov`, the weight is the point ahead, theta - mu v, at which the
  paper takes the gradient.
  """
  step = tf.cast(alpha, g.dtype) * g
  v = mu * v + step
  return (mu * v + step if nesterov else v), v


@gin.register
class Momentum(Optimizer):
  """Gradient descent with classical or Nesterov's momentum."""

  slot_names = ("v",)
  is_elementwise = True

  def __init__(
    self,
    learning_rate: LearningRate = 1e-2,
    momentum: float = 0.9,
    nesterov: bool = False,
    name: str = "momentum",
  ):
    super().__init__(learning_rate, name)
    self.momentum = check_fraction("momentum", momentum)
    self.nesterov = nesterov

  def _update(self, g, w, slots, t, alpha):
    return momentum_update(g, *slots, alpha, self.momentum, self.nesterov)


def rmsprop_update(g, v, alpha, rho, epsilon) -> Tensors:
  """Tieleman & Hinton, 2012, lecture 6.5.

  The lecture has no epsilon; ours is outside the root, as in Adam.
  """
  v = rho * v + (1 - rho) * tf.square(g)
  return tf.cast(alpha, g.dtype) * g / (tf.sqrt(v) + epsilon), v


@gin.register
class RMSProp(Optimizer):
  """Divides by a running root mean square of the gradient."""

  slot_names = ("v",)
  is_elementwise = True

  def __init__(
    self,
    learning_rate: LearningRate = 5e-5,
    decay: float = 0.9,
    epsilon: float = 1e-8,
    name: str = "rmsprop",
  ):
    super().__init__(learning_rate, name)
    self.decay = check_fraction("decay", decay)
    self.epsilon = check_positive("epsilon", epsilon)

  def _update(self, g, w, slots, t, alpha):
    return rmsprop_update(g, *slots, alpha, self.decay, self.epsilon)


def adam_update(g, m, v, t, alpha, beta1, beta2, epsilon) -> Tensors:
  """Kingma & Ba, arXiv 1412.6980, Algorithm 1."""
  m = beta1 * m + (1 - beta1) * g if beta1 else g
  v = beta2 * v + (1 - beta2) * tf.square(g)
  return _bias_corrected_step(m, v, t, alpha, beta1, beta2, epsilon), m, v


def _bias_corrected_step(m, v, t, alpha, beta1, beta2, epsilon) -> tf.Tensor:
  """Returns alpha m_hat / (sqrt(v_hat) + epsilon), the hats in the scalars."""
  c = tf.sqrt(1 - beta2**t)
  alpha = tf.cast(alpha * c / (1 - beta1**t), m.dtype)
  return alpha * m / (tf.sqrt(v) + tf.cast(epsilon * c, m.dtype))


@gin.register
class Adam(Optimizer):
  """Adam; `beta1` is 0 by default, as is common for GANs."""

  slot_names: Tuple[str, ...] = ("m", "v")
  is_elementwise = True
  update_fn: Callable[..., Tensors] = staticmethod(adam_update)

  def __init__(
    self,
    learning_rate: LearningRate = 2e-4,
    beta1: float = 0.0,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "adam",
  ):
    super().__init__(learning_rate, name)
    self.beta1 = check_fraction("beta1", beta1)
    self.beta2 = check_fraction("beta2", beta2)
    self.epsilon = check_positive("epsilon", epsilon)

  def _update(self, g, w, slots, t, alpha):
    u, m, v = self.update_fn(
      g, *slots, t, alpha, self.beta1, self.beta2, self.epsilon
    )
    # Without momentum `m` is the gradient, and nothing reads it.
    return u, m if self.beta1 else None, v


def adabelief_update(g, m, s, t, alpha, beta1, beta2, epsilon) -> Tensors:
  """Zhuang et al., arXiv 2010.07468, Algorithm 2; `s` accumulates epsilon."""
  m = beta1 * m + (1 - beta1) * g
  s = beta2 * s + (1 - beta2) * tf.math.squared_difference(g, m) + epsilon
  return _bias_corrected_step(m, s, t, alpha, beta1, beta2, epsilon), m, s


@gin.register
class AdaBelief(Adam):
  """AdaBelief: divides by the gradient's deviation from its moving average.

  Refuses `beta1` 0: every gradient is then as expected, `s` holds nothing but
  epsilon, and what is left is gradient descent.
  """

  slot_names = ("m", "s")
  update_fn = staticmethod(adabelief_update)

  def __init__(
    self,
    learning_rate: LearningRate = 2e-4,
    beta1: float = 0.5,
    beta2: float = 0.999,
    epsilon: float = 1e-12,
    name: str = "adabelief",
  ):
    super().__init__(learning_rate, beta1, beta2, epsilon, name)
    check_positive("beta1", beta1)


def radam_update(g, m, v, t, alpha, beta1, beta2, epsilon) -> Tensors:
  """Liu et al., arXiv 1908.03265, Algorithm 2, with Adam's epsilon added.

  `v` decays by beta2; the 1 / beta2 of the printed line is a known misprint.
  """
  m = beta1 * m + (1 - beta1) * g
  v = beta2 * v + (1 - beta2) * tf.square(g)
  rho_inf = 2 / (1 - beta2) - 1
  rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
  tractable = rho > 4
  rho = tf.maximum(rho, 4)  # Keeps the root real where it is not used.
  r = tf.sqrt(
    (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
  )
  adaptive = _bias_corrected_step(m, v, t, alpha * r, beta1, beta2, epsilon)
  plain = tf.cast(alpha / (1 - beta1**t), g.dtype) * m
  return tf.where(tractable, adaptive, plain), m, v


@gin.register
class RAdam(Adam):
  """Rectified Adam: no adaptive step until the variance can be estimated."""

  update_fn = staticmethod(radam_update)

  def __init__(
    self,
    learning_rate: LearningRate = 2e-4,
    beta1: float = 0.0,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "radam",
  ):
    super().__init__(learning_rate, beta1, beta2, epsilon, name)
