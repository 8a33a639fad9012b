"""The graph that TPUEstimator runs on a TPU, built without one.

    with made_up_tpu(num_hosts=2) as tpu:
      estimator = experiment.estimator(folder, tpu)
      graph, spec = build(estimator, input_fn, "train")

While it builds, TPUEstimator asks a TPU for its hosts and cores only. With
made-up answers its own code builds the whole graph: `model_fn` in a loop that
is replicated to all cores, infeed, outfeed and hooks. Nothing is run.
"""

import contextlib
from typing import Callable, Iterator, List, NamedTuple, Set
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.tpu import tpu_system_metadata

_CORES_PER_HOST = 8  # TPU v3: four chips of two cores.
_INSIDE = "_tpu_replicate"  # An attribute of operations that cores run.
_ADDRESS = "192.0.2.1:8470"  # Reserved for documentation: nobody is there.


class Built(NamedTuple):
  """A graph, and the `EstimatorSpec` in it."""

  graph: tf.Graph
  spec: tf.estimator.EstimatorSpec


@contextlib.contextmanager
def made_up_tpu(num_hosts: int = 1) -> Iterator:
  """Yields the cluster resolver of a TPU that answers with its size only."""
  metadata = _make_metadata(num_hosts)
  with mock.patch.object(
    tpu_system_metadata,
    "_query_tpu_system_metadata",
    lambda *args, **kwargs: metadata,
  ):
    yield tf.distribute.cluster_resolver.SimpleClusterResolver(
      tf.train.ClusterSpec({"worker": [_ADDRESS] * num_hosts}),
      master=f"grpc://{_ADDRESS}",
    )


def _make_metadata(num_hosts: int) -> tpu_system_metadata.TPUSystemMetadata:
  devices = []
  for host in range(num_hosts):
    kinds = ["CPU:0", *(f"TPU:{i}" for i in range(_CORES_PER_HOST))]
    for kind in kinds:
      name = f"/job:worker/replica:0/task:{host}/device:{kind}"
      devices.append(session._DeviceAttributes(name, kind[:3], 0, 0))
  # A host has 2 x 2 chips, and hosts are in a row.
  mesh = [2, 2 * num_hosts, 1, 2]
  cores = np.array(list(np.ndindex(num_hosts, 2, 2, 1, 2)))
  coordinates = cores[:, 1:] + cores[:, :1] * [0, 2, 0, 0]
  topology = tf.tpu.experimental.Topology(
    mesh_shape=mesh,
    device_coordinates=coordinates.reshape([num_hosts, _CORES_PER_HOST, 4]),
  )
  num_cores = num_hosts * _CORES_PER_HOST
  return tpu_system_metadata.TPUSystemMetadata(
    num_cores, num_hosts, _CORES_PER_HOST, topology, devices
  )


def build(estimator, input_fn: Callable, mode: str) -> Built:
  """Builds as `train`, `evaluate` or `predict` do before they open a session.

  Args:
    estimator: For a `made_up_tpu`.
    input_fn: `input_fn(params)`.
    mode: A `tf.estimator.ModeKeys`.
  """
  estimator._rendezvous[mode] = None  # For the errors of threads.
  with tf.Graph().as_default() as graph, graph.device(estimator._device_fn):
    estimator._create_and_assert_global_step(graph)
    if mode == tf.estimator.ModeKeys.PREDICT:
      features, _ = estimator._get_features_from_input_fn(input_fn, mode)
      labels = None
    else:
      features, labels, _ = estimator._get_features_and_labels_from_input_fn(
        input_fn, mode
      )
    spec = estimator._call_model_fn(features, labels, mode, estimator.config)
  return Built(graph, spec)


def find_initialized_inside(graph: tf.Graph) -> List[str]:
  """Returns variables whose initializers need an operation of the cores."""
  with graph.as_default():
    variables = [
      *tf.compat.v1.global_variables(),
      *tf.compat.v1.local_variables(),
    ]
  return [v.op.name for v in variables if _needs_cores(v.initializer)]


def _needs_cores(operation: tf.Operation) -> bool:
  seen: Set[str] = set()
  left = [operation]
  while left:
    one = left.pop()
    if one.name in seen:
      continue
    seen.add(one.name)
    if _INSIDE in one.node_def.attr or one._get_control_flow_context():
      return True
    left += [tensor.op for tensor in one.inputs]
    left += one.control_inputs
  return False


def list_inside(graph: tf.Graph) -> List[tf.compat.v1.NodeDef]:
  """Returns the operations that cores run, with those of their functions."""
  made = graph.as_graph_def()
  functions = {f.signature.name: f.node_def for f in made.library.function}
  inside, left = [], [node for node in made.node if _INSIDE in node.attr]
  while left:
    node = left.pop()
    inside.append(node)
    for value in node.attr.values():
      called = [value.func.name, *(f.name for f in value.list.func)]
      left += [n for name in called for n in functions.get(name, ())]
  return inside
