"""Rematerialization: the gradient of a block computes its activations again.

    y = block(x)                  # keeps x, not the activations inside
    dy -> block(x) again -> dx    # with the same weights and the same state

The second pass reads the values that the first one read, and assigns nothing.
"""

import dataclasses
from typing import Any, Callable, List

import tensorflow as tf

from paragan_tf.nets.forward import AnyMode, Forward


def remat(
  block: tf.Module, x: tf.Tensor, cond: Any, mode: AnyMode
) -> tf.Tensor:
  """Returns `block(x, cond, mode)`; its gradient computes that once more.

  Args:
    block: Called with a `Forward`, through which it reaches its variables.
    x: A tensor of floats.
    cond: A tensor or `None`.
    mode: State is assigned in the first pass only.
  """
  forward = Forward.of(mode)
  values = {id(v): forward.read(v) for v in block.variables}
  keys = [id(w) for w in block.trainable_variables]
  cond = None if cond is None else tf.convert_to_tensor(cond)
  # Class ids have no gradient.
  is_vector = cond is not None and cond.dtype.is_floating
  vectors = [cond] if is_vector else []

  def run(x, *rest, assigns_state):
    # The gradient flows to the arguments, so these are what the block reads.
    weights = dict(zip(keys, rest[len(vectors) :]))
    inside = dataclasses.replace(
      forward,
      precomputed={},
      values={**values, **weights},
      assigns_state=assigns_state,
    )
    return block(x, rest[0] if is_vector else cond, inside)

  @tf.custom_gradient
  def call(*tensors):
    y = run(*tensors, assigns_state=forward.assigns_state)

    def grad(dy):
      again = [_after(tensors[0], dy), *tensors[1:]]
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(again)
        y = run(*again, assigns_state=False)
      dx, *others = tape.gradient(y, again, dy, unconnected_gradients="zero")
      # The gradient of the block before waits until this block's weights have
      # theirs, which need what was computed again.
      return _after(dx, *others), *others

    return y, grad

  return call(x, *vectors, *(values[key] for key in keys))


def in_chunks(
  fn: Callable[..., tf.Tensor], num: int, x: tf.Tensor, *rest: tf.Tensor
) -> tf.Tensor:
  """Returns `fn(x, *rest)`, one chunk of x's second axis after the other.

  The gradient computes each chunk once more, so that only one of them is in
  memory at a time. `fn` must map the entries of that axis independently.
  """

  @tf.custom_gradient
  def call(x, *rest):
    ys: List[tf.Tensor] = []
    for chunk in tf.split(x, num, 1):
      ys.append(fn(_after(chunk, *ys[-1:]), *rest))

    def grad(dy):
      dxs: List[tf.Tensor] = []
      sums: List[tf.Tensor] = [tf.zeros_like(value) for value in rest]
      for chunk, dchunk in zip(tf.split(x, num, 1), tf.split(dy, num, 1)):
        done = [*dxs[-1:], *sums] if dxs else [dchunk]
        again = [_after(chunk, *done), *rest]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
          tape.watch(again)
          y = fn(*again)
        dx, *drest = tape.gradient(y, again, dchunk)
        dxs.append(dx)
        sums = [total + d for total, d in zip(sums, drest)]
      return tf.concat(dxs, 1), *sums

    return tf.concat(ys, 1), grad

  return call(x, *rest)


def _after(x: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
  """Returns x, which can only be computed after the others.

  Otherwise a compiler finds the same expressions in both passes, computes them
  once and keeps them. XLA drops control dependencies, so x gets a zero added
  that is computed from each of the others.
  """
  if not others:
    return x
  corners = [tf.reshape(other, [-1])[0] for other in others]
  zeros = [tf.cast(tf.minimum(tf.abs(c), 0), x.dtype) for c in corners]
  return x + tf.stop_gradient(tf.add_n(zeros))
