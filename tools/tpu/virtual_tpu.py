"""A `TPUStrategy` on cores that do not exist: it traces, and runs nothing.

  strategy = make_strategy(8)
  with tf.Graph().as_default():
    ...                                   # Variables and programs of 8 cores.
  communicating = find_communication(graph)

What a TPU would compile is the traced graph, and its messages are operations in
it. Variables can be made in graphs only, as no device holds them.
"""

from typing import Iterator, List, NamedTuple, Tuple

import tensorflow as tf

# Operations by which the cores of a TPU communicate.
COMMUNICATING = frozenset(
  {
    "AllToAll",
    "CollectiveGatherV2",
    "CollectivePermute",
    "CollectiveReduceV2",
    "CrossReplicaSum",
    "XlaAllReduce",
    "XlaReduceScatter",
  }
)
_BRANCHES = ("Case", "If", "StatelessCase", "StatelessIf")


class Message(NamedTuple):
  """An operation by which cores communicate.

  Attributes:
    kind: The type of operation.
    in_branch: Whether it is inside of a conditional, where some cores would
      wait for others that never come.
  """

  kind: str
  in_branch: bool


class _Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
  """Answers what a strategy asks about a TPU."""

  def __init__(self, num_cores: int):
    self._num_cores = num_cores

  def get_tpu_system_metadata(self):
    """Returns the names of the cores, all on one host."""
    from tensorflow.python.eager import context
    from tensorflow.python.tpu import tpu_system_metadata

    device = "/job:localhost/replica:0/task:0/device:TPU:{}"
    devices = [
      context.LogicalDevice(device.format(i), "TPU")
      for i in range(self._num_cores)
    ]
    return tpu_system_metadata.TPUSystemMetadata(
      self._num_cores, 1, self._num_cores, None, devices
    )


def make_strategy(num_cores: int) -> tf.distribute.TPUStrategy:
  """Returns TensorFlow's own strategy for `num_cores` made-up cores."""
  return tf.distribute.TPUStrategy(_Resolver(num_cores))


class _Batches:
  """An iterator over batches of all cores, as tensors of a graph."""

  def __init__(self, experiment):
    self._strategy = experiment.strategy
    num = self._strategy.num_replicas_in_sync
    size = experiment.images_per_step
    self._size = size // experiment.step.schedule.num_shards(num)
    self._spec = experiment.spec

  def __next__(self):
    shape = [self._size, *[self._spec.resolution] * 2, self._spec.channels]
    distribute = self._strategy.experimental_distribute_values_from_function
    images = distribute(lambda context: tf.zeros(shape))
    return images, distribute(lambda context: tf.zeros(shape[:1], tf.int32))


def make_loop(experiment):
  """Returns the inner loop of an experiment on made-up cores."""
  from paragan_tf.engine import loop

  batches = _Batches(experiment)
  strategy, step = experiment.strategy, experiment.step
  return loop.InnerLoop(strategy, step, batches, experiment.images_per_step)


def trace_loop(experiment):
  """Returns the traced program of the inner loop, whose graph is its `graph`.

  The experiment is on made-up cores, in the current graph.
  """
  inner, batches = make_loop(experiment), _Batches(experiment)
  phases = tuple(range(experiment.step.cycle))

  def run(repeats, is_last):
    return inner.run_phases(batches, repeats, phases, is_last)

  return tf.function(run, autograph=False).get_concrete_function(
    tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool)
  )


def find_communication(graph: tf.Graph) -> List[Message]:
  """Returns the messages of a graph and all functions that it calls."""
  return [
    Message(op.type, in_branch)
    for op, in_branch in _walk(graph)
    if op.type in COMMUNICATING
  ]


def _walk(graph) -> Iterator[Tuple[tf.Operation, bool]]:
  """Yields all operations, and whether they are in a branch."""
  yield from _walk_part(graph, graph, False)


def _walk_part(graph, part, in_branch: bool):
  for op in part.get_operations():
    yield op, in_branch
    for name in _called(op):
      function = graph._get_function(name) or part._get_function(name)
      inner = function.graph
      yield from _walk_part(inner, inner, in_branch or op.type in _BRANCHES)


def _called(op) -> Iterator[str]:
  """Yields the names of the functions that an operation calls."""
  for value in op.node_def.attr.values():
    for function in (value.func, *value.list.func):
      if function.name:
        yield function.name
