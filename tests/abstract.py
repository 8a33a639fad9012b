"""Nets and whole steps at their real size without memory.

    with abstract.sizes():
      net = make_net()
      net(x, labels, mode).shape

Variables are handles in a graph that is never run: they have names and shapes,
can be read, assigned and differentiated by, and no value.
"""

import contextlib
from typing import Iterator, Sequence
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from paragan_tf.nets import layers
from paragan_tf.nets.forward import Forward


@contextlib.contextmanager
def sizes() -> Iterator[None]:
  """Makes nets, and calls them without spectral norm, in a new graph.

  It changes no shape, and has most of the operations.
  """
  with (
    tf.Graph().as_default(),
    variables(),
    mock.patch.object(layers.Weight, "__call__", _kernel),
  ):
    yield


@contextlib.contextmanager
def variables() -> Iterator[None]:
  """Makes variables without a first value, in the graph that is the default."""

  def make(next_creator, **kwargs):
    value = kwargs["initial_value"]
    dtype = kwargs.get("dtype") or getattr(value, "dtype", tf.float32)
    return resource_variable_ops.UninitializedVariable(
      shape=np.shape(value) if np.isscalar(value) else value.shape,
      dtype=dtype,
      trainable=kwargs.get("trainable") is not False,
      name=kwargs["name"],
    )

  def no_init(*args, **kwargs):
    return lambda name, shape: _nothing(shape)

  with contextlib.ExitStack() as stack:
    for name in ("normal_init", "glorot_init", "orthogonal_init"):
      stack.enter_context(mock.patch.object(layers, name, no_init))
    stack.enter_context(mock.patch.object(layers, "unit", lambda x: x))
    stack.enter_context(tf.variable_creator_scope(make))
    yield


def _kernel(self, mode):
  return Forward.of(mode).read(self.w)


def _nothing(shape: Sequence[int]) -> np.ndarray:
  # One number, seen as many: no memory whatever the shape.
  return np.broadcast_to(np.float32(0.0), shape)


def num_weights(net: tf.Module) -> int:
  """Returns how many numbers a net trains."""
  return sum(v.shape.num_elements() for v in net.trainable_variables)
