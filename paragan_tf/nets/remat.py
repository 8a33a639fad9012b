"""Rematerialization: a block's activations are computed anew for its gradient.

    y = block(x)                  # keeps x and forgets what lies between
    dy -> block(x) again -> dx    # from the same weights and the same state

Layers read their variables by `read` and move their state by `move`, so that
the second pass sees what the first one saw, and moves nothing.
"""

import threading
from typing import Any, Callable, Dict, List, Optional

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
      again = [_after(tensors[0], dy), *tensors[1:]]
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(again)
        y = run(*again, seen=dict(first), moves=False)
      dx, *others = tape.gradient(y, again, dy, unconnected_gradients="zero")
      # The block before this one waits until this one's weights are done:
      # they need what was computed anew.
      return _after(dx, *others), *others

    return y, grad

  return call(x, *vectors, *weights)


def in_parts(
  fn: Callable[..., tf.Tensor], num: int, x: tf.Tensor, *rest: tf.Tensor
) -> tf.Tensor:
  """Returns `fn(x, *rest)`, one part of x's second axis after the other.

  The gradient computes each part once more, so that no more than one of them
  is ever held. `fn` must treat the entries of that axis alike and alone.
  """

  @tf.custom_gradient
  def call(x, *rest):
    ys: List[tf.Tensor] = []
    for part in tf.split(x, num, 1):
      ys.append(fn(_after(part, *ys[-1:]), *rest))

    def grad(dy):
      dxs: List[tf.Tensor] = []
      sums: List[tf.Tensor] = [tf.zeros_like(value) for value in rest]
      for part, dpart in zip(tf.split(x, num, 1), tf.split(dy, num, 1)):
        done = [*dxs[-1:], *sums] if dxs else [dpart]
        again = [_after(part, *done), *rest]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
          tape.watch(again)
          y = fn(*again)
        dx, *drest = tape.gradient(y, again, dpart)
        dxs.append(dx)
        sums = [total + d for total, d in zip(sums, drest)]
      return tf.concat(dxs, 1), *sums

    return tf.concat(ys, 1), grad

  return call(x, *rest)


def _run(block, x, cond, mode, seen, moves) -> tf.Tensor:
  before = _PASS.seen, _PASS.moves
  _PASS.seen, _PASS.moves = seen, moves
  try:
    return block(x, cond, mode)
  finally:
    _PASS.seen, _PASS.moves = before


def _after(x: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
  """Returns x, known no sooner than the others.

  Otherwise a compiler finds the same sums in both passes, makes them once and
  keeps them. XLA drops control dependencies, so a zero comes out of each.
  """
  if not others:
    return x
  corners = [tf.reshape(other, [-1])[0] for other in others]
  zeros = [tf.cast(tf.minimum(tf.abs(c), 0), x.dtype) for c in corners]
  return x + tf.stop_gradient(tf.add_n(zeros))
