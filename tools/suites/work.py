"""How many multiply-adds a graph runs, from its static shapes."""

from typing import Iterable, Iterator, NamedTuple

# In our nets, a convolution that changes the resolution is one strided 4x4
# kernel, and the 1x1 shortcut beside it runs at the lower resolution. Papers
# write a 3x3 and a 1x1 kernel at the higher one. Size -> how much more that is.
_AS_WRITTEN = {1: 4.0, 4: 9.0 / 4.0}


class Work(NamedTuple):
  """Multiply-adds of convolutions and matrix products.

  Attributes:
    executed: What the graph runs.
    as_written: What the nets would run as their papers write them.
  """

  executed: float
  as_written: float

  def plus(self, other: "Work") -> "Work":
    """Returns the work of both."""
    return Work(*(a + b for a, b in zip(self, other)))


def count(targets: Iterable) -> Work:
  """Returns the work of running the operations `targets`."""
  executed = as_written = 0.0
  for op in _executed(targets):
    amount, factor = _multiply_adds(op)
    executed += amount
    as_written += amount * factor
  return Work(executed, as_written)


def count_function(function) -> Work:
  """Returns the work of one call of a concrete function."""
  graph = function.graph
  return count([t.op for t in graph.outputs] + list(graph.control_outputs))


def _executed(targets: Iterable) -> Iterator:
  """Yields the operations that run when `targets` do.

  TensorFlow leaves out what has no effect and whose value nobody takes, even if
  others wait for it.
  """
  seen = set()
  waiting = [(op, True) for op in targets]
  while waiting:
    op, value_taken = waiting.pop()
    runs = value_taken or op.op_def.is_stateful
    if (op.name, runs) in seen:
      continue
    seen.add((op.name, runs))
    waiting += [(tensor.op, runs) for tensor in op.inputs]
    waiting += [(waited_for, False) for waited_for in op.control_inputs]
    if runs:
      yield op


def _multiply_adds(op):
  """Returns the multiply-adds of `op`, and the factor of `_AS_WRITTEN`."""
  if op.type == "MatMul":
    inner = op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1]
    return op.outputs[0].shape.num_elements() * inner, 1.0
  if op.type == "BatchMatMulV2":  # Of attention.
    inner = op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1]
    return op.outputs[0].shape.num_elements() * inner, 1.0
  if op.type == "Conv2D":
    y, kernel = op.outputs[0], op.inputs[1]
  elif op.type == "Conv2DBackpropInput":
    y, kernel = op.inputs[2], op.inputs[1]
  elif op.type == "Conv2DBackpropFilter":
    y, kernel = op.inputs[2], op.outputs[0]
  else:
    return 0, 1.0
  inputs = kernel.shape[:-1].num_elements()
  factor = _AS_WRITTEN.get(kernel.shape[0], 1.0)
  return y.shape.num_elements() * inputs, factor
