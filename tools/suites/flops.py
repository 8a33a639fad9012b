"""Counts the multiply-adds that a graph runs, from its static shapes."""

from typing import Iterable, Iterator, NamedTuple, Tuple

# In our nets, a convolution that changes the resolution is one strided 4x4
# kernel, and the 1x1 shortcut beside it runs at the lower resolution. Papers
# write a 3x3 and a 1x1 kernel at the higher one. Size -> how much more that is.
_AS_WRITTEN = {1: 4.0, 4: 9.0 / 4.0}


class MultiplyAdds(NamedTuple):
  """Multiply-adds of convolutions and matrix products; each is two FLOPs.

  Attributes:
    executed: What the graph runs.
    as_written: What the nets would run as their papers write them.
  """

  executed: float
  as_written: float

  def plus(self, other: "MultiplyAdds") -> "MultiplyAdds":
    """Returns the sum of both."""
    return MultiplyAdds(*(a + b for a, b in zip(self, other)))


def count_operations(targets: Iterable) -> MultiplyAdds:
  """Counts what runs when the operations `targets` run."""
  executed = as_written = 0.0
  for op in _find_executed(targets):
    amount, factor = _count_operation(op)
    executed += amount
    as_written += amount * factor
  return MultiplyAdds(executed, as_written)


def count_function(function) -> MultiplyAdds:
  """Counts what one call of a concrete function runs."""
  graph = function.graph
  targets = [tensor.op for tensor in graph.outputs]
  return count_operations(targets + list(graph.control_outputs))


def _find_executed(targets: Iterable) -> Iterator:
  """Yields the operations that run when `targets` do.

  TensorFlow prunes an operation that has no side effect and whose value is
  unused, even if another one has a control dependency on it.
  """
  seen = set()
  pending = [(op, True) for op in targets]
  while pending:
    op, is_used = pending.pop()
    runs = is_used or op.op_def.is_stateful
    if (op.name, runs) in seen:
      continue
    seen.add((op.name, runs))
    pending += [(tensor.op, runs) for tensor in op.inputs]
    pending += [(control, False) for control in op.control_inputs]
    if runs:
      yield op


def _count_operation(op) -> Tuple[float, float]:
  """Returns the multiply-adds of `op`, and its factor of `_AS_WRITTEN`."""
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
