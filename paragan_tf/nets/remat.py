"""Rematerialization: a block's activations are computed anew for its gradient.

    y = block(x)                  # keeps x and forgets what lies between
    dy -> block(x) again -> dx    # from the same weights and the same state

Layers read their variables by `read` and move their state by `move`, so that
the second pass sees what the first one saw, and moves nothing.
"""

import threading
from typing import Any, Dict, Optional

import tensorflow as tf

from paragan_tf.types import Mode


class _Pass(threading.local):
  """What the layers of one thread, that is of one replica, read and move.

  Attributes:
    seen: The value of each variable by its id, or `None` outside of a block
      that is rematerialized.
    moves: Whether state moves on.
  """

  seen: Optional[Dict[int, tf.Tensor]] = None
  moves = True


_PASS = _Pass()


def read(variable: tf.Variable) -> tf.Tensor:
  """Returns the value of a layer's variable."""
  if _PASS.seen is None:
    return tf.convert_to_tensor(variable)
  if id(variable) not in _PASS.seen:
    _PASS.seen[id(variable)] = tf.convert_to_tensor(variable)
  return _PASS.seen[id(variable)]


def move(variable: tf.Variable, value: tf.Tensor) -> None:
  """Gives a layer's state its next value."""
  if _PASS.moves:
    variable.assign(value)


def remat(block: tf.Module, x: tf.Tensor, cond: Any, mode: Mode) -> tf.Tensor:
  """Returns `block(x, cond, mode)`; its gradient computes that once more.

  Args:
    block: What computes it; its variables are read and moved as above.
    x: A tensor of floats.
    cond: A tensor or `None`.
    mode: State moves in the first pass only.
  """
  weights = [tf.convert_to_tensor(w) for w in block.trainable_variables]
  cond = None if cond is None else tf.convert_to_tensor(cond)
  # Class ids have no gradient.
  is_vector = cond is not None and cond.dtype.is_floating
  vectors = [cond] if is_vector else []

  def run(x, *rest, seen, moves):
    known = zip(block.trainable_variables, rest[len(vectors) :])
    seen.update({id(variable): value for variable, value in known})
    return _run(block, x, rest[0] if is_vector else cond, mode, seen, moves)

  @tf.custom_gradient
  def call(*tensors):
    first: Dict[int, tf.Tensor] = {}
    y = run(*tensors, seen=first, moves=True)

    def grad(dy):
      again = [_after(dy, tensors[0]), *tensors[1:]]
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(again)
        y = run(*again, seen=dict(first), moves=False)
      return tape.gradient(y, again, dy, unconnected_gradients="zero")

    return y, grad

  return call(x, *vectors, *weights)


def _run(block, x, cond, mode, seen, moves) -> tf.Tensor:
  before = _PASS.seen, _PASS.moves
  _PASS.seen, _PASS.moves = seen, moves
  try:
    return block(x, cond, mode)
  finally:
    _PASS.seen, _PASS.moves = before


def _after(dy: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """Returns x, known no sooner than dy.

  Otherwise a compiler finds the same sums in both passes, makes them once and
  keeps them. XLA drops control dependencies, so the zero comes out of dy.
  """
  corner = tf.stop_gradient(tf.reshape(dy, [-1])[0])
  return x + tf.cast(tf.minimum(tf.abs(corner), 0.0), x.dtype)
