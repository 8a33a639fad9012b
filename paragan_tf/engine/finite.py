"""Skips updates whose numbers went wrong: NaN or infinite.

    grads = mark(grads, loss)          # NaN where the loss is not finite
    grads = mean over replicas         # not finite if one of them is not
    finite = are_finite(grads)         # the same on all that share gradients
    update weights, slots and t        # only if finite

Where every number is finite, nothing is changed by a single bit.
"""

from typing import Callable, Dict, List, Mapping, Sequence

import tensorflow as tf

from paragan_tf import tf_private

SKIPPED = "skipped"


def mark(grads: Sequence[tf.Tensor], loss: tf.Tensor) -> List[tf.Tensor]:
  """Returns gradients, the smallest of them NaN if the loss is not finite.

  So one message tells the other replicas both.
  """
  sizes = [grad.shape.num_elements() for grad in grads]
  smallest = sizes.index(min(sizes))
  marked = list(grads)
  grad = marked[smallest]
  nan = tf.constant(float("nan"), grad.dtype)
  marked[smallest] = tf.where(tf.math.is_finite(loss), grad, nan)
  return marked


def are_finite(grads: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns whether all gradients, and the sum of their squares, are finite.

  That is one operation for each tensor, which the norm of gradients shares.
  """
  squares = [tf.cast(tf.nn.l2_loss(grad), tf.float32) for grad in grads]
  return tf.math.is_finite(tf.add_n(squares))


def store(grads: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """Returns gradients that are computed once, before they are applied.

  All of them are known before the first update, as it depends on all. A TPU's
  compiler would compute them again for it, or half of the update before it.
  """
  return [
    tf_private.store(grad) if grad.shape.rank > 1 else grad for grad in grads
  ]


def change_if(
  condition: tf.Tensor,
  change: Callable[[], Sequence[tf.Tensor]],
  variables: Sequence[tf.Variable],
) -> List[tf.Tensor]:
  """Changes variables, and assigns what they were before where it must not.

  Returns:
    What `change` returns, or zeros.
  """
  before = [variable.read_value() for variable in variables]
  results = change()
  for variable, value in zip(variables, before):
    variable.assign(tf.where(condition, variable.read_value(), value))
  return [tf.where(condition, x, tf.zeros_like(x)) for x in results]


def or_zero(value: tf.Tensor) -> tf.Tensor:
  """Returns a scalar to log, 0 if it is not finite."""
  return tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))


def merge(logs: Dict[str, tf.Tensor], more: Mapping[str, tf.Tensor]) -> None:
  """Adds the logs of a turn; a step is skipped if one of its updates is."""
  for name, value in more.items():
    if name in logs and name.endswith(f"/{SKIPPED}"):
      value = tf.maximum(logs[name], value)
    logs[name] = value


def correct(logs: Mapping[str, float]) -> Dict[str, float]:
  """Returns logs whose losses are means of the steps that were not skipped."""
  found = dict(logs)
  for who in "dg":
    counted = 1.0 - found.get(f"{who}/{SKIPPED}", 0.0)
    if counted < 1.0 and f"{who}/loss" in found:
      loss = found[f"{who}/loss"]
      found[f"{who}/loss"] = loss / counted if counted > 0 else float("nan")
  return found
