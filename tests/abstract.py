"""Nets at their real size without memory: variables that are shapes only.

    with abstract.sizes():
      net = make_net()
      net(x, labels, mode).shape

A variable's first value is never computed, and reading one gives a tensor of
its shape that is never run either.
"""

import contextlib
from typing import Any, Iterator, Sequence
from unittest import mock

import numpy as np
import tensorflow as tf

from paragan_tf.nets import layers


class Shape(tf.Variable):
  """A variable with name, shape and nothing else."""

  def __init__(self, initial_value: Any, trainable: bool, name: str):
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    self._given = {
      "shape": tf.TensorShape(np.shape(initial_value)),
      "trainable": trainable,
      "name": f"{scope}/{name}:0",
    }

  shape = property(lambda self: self._given["shape"])
  trainable = property(lambda self: self._given["trainable"])
  name = property(lambda self: self._given["name"])
  dtype = property(lambda self: tf.float32)

  def assign(self, value, *args, **kwargs):
    """Checks the shape."""
    self.shape.assert_is_compatible_with(value.shape)


tf.register_tensor_conversion_function(
  Shape,
  lambda value, *args, **kwargs: tf.raw_ops.Placeholder(
    dtype=tf.float32, shape=value.shape
  ),
)


@contextlib.contextmanager
def sizes() -> Iterator[None]:
  """Makes shapes inside, where variables were asked for, in a new graph."""

  def make(next_creator, **kwargs):
    trainable = kwargs.get("trainable") is not False
    return Shape(kwargs["initial_value"], trainable, kwargs["name"])

  def no_init(*args, **kwargs):
    return lambda name, shape: _nothing(shape)

  with contextlib.ExitStack() as stack:
    for name in ("normal_init", "glorot_init", "orthogonal_init"):
      stack.enter_context(mock.patch.object(layers, name, no_init))
    for name in ("zeros", "ones"):
      stack.enter_context(mock.patch.object(tf, name, _nothing))
    stack.enter_context(mock.patch.object(layers, "_unit", lambda x: x))
    # Spectral norm changes no shape, and has most of the operations.
    stack.enter_context(mock.patch.object(layers.Weight, "__call__", _kernel))
    stack.enter_context(tf.Graph().as_default())
    # The scope belongs to the graph that is the default.
    stack.enter_context(tf.variable_creator_scope(make))
    yield


def _kernel(self, mode):
  return tf.convert_to_tensor(self.w)


def _nothing(shape: Sequence[int]) -> np.ndarray:
  # One number, seen as many: no memory whatever the shape.
  return np.broadcast_to(np.float32(0.0), shape)


def num_weights(net: tf.Module) -> int:
  """Returns how many numbers a net trains."""
  return sum(v.shape.num_elements() for v in net.trainable_variables)
