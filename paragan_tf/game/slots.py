"""The slots of an optimizer: what they are like, and who makes them."""

from typing import Any, Callable, NamedTuple, Sequence

import tensorflow as tf


class SlotSpec(NamedTuple):
  """Name, shape and type of a slot."""

  name: str
  shape: tf.TensorShape
  dtype: tf.DType


# Makes the variable of a slot, zeros at first.
MakeSlot = Callable[[SlotSpec], tf.Variable]


def make_variable(spec: SlotSpec) -> tf.Variable:
  """Makes a slot that is a variable of its own."""
  zeros = tf.zeros(spec.shape, spec.dtype)
  return tf.Variable(zeros, trainable=False, name=spec.name)


def stored_as_vectors(slots: Sequence[Any]) -> bool:
  """Returns whether all slots can be read as vectors, by `read_flat`."""
  return bool(slots) and all(hasattr(slot, "read_flat") for slot in slots)
