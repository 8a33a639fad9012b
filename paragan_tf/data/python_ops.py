"""Finds the ops by which a dataset calls Python, which TPU hosts cannot run."""

from typing import Set

import tensorflow as tf

KINDS = frozenset(["PyFunc", "PyFuncStateless", "EagerPyFunc"])


def find(dataset: tf.data.Dataset) -> Set[str]:
  """Returns the kinds of such ops in a dataset, of those in `KINDS`."""
  found: Set[str] = set()
  datasets = [dataset]
  # Not by its serialized graph, which would hold the user's arrays, too.
  while datasets:
    one = datasets.pop()
    datasets += one._inputs()
    for wrapped in one._functions():
      found |= find_in_graph(wrapped.function.graph.as_graph_def())
  return found


def find_in_graph(graph_def: tf.compat.v1.GraphDef) -> Set[str]:
  """Returns the kinds of such ops in a graph and in its functions."""
  nodes = list(graph_def.node)
  for function in graph_def.library.function:
    nodes += function.node_def
  return {node.op for node in nodes} & KINDS
