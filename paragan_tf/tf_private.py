"""What TensorFlow does not publish and we need; no other file looks inside.

A version of TensorFlow may drop any of it: `tests/tf_private_test.py` then
names the call.
"""

import contextlib
import functools
import importlib
from typing import Any, ContextManager, Iterator

import tensorflow as tf


def xla_replica_id() -> tf.Tensor:
  """Returns the replica's id by XLA's numbering, an int32 scalar.

  The strategy's numbering may differ, and collectives follow XLA's.
  """
  return _find("tensorflow.compiler.tf2xla.python.xla", "replica_id")()


def store(value: tf.Tensor) -> tf.Tensor:
  """Returns the same; XLA computes it before what uses it, once.

  It has no gradient.
  """
  module = "tensorflow.compiler.tf2xla.python.xla"
  return _find(module, "optimization_barrier")(value)[0]


def num_tpu_shards() -> int:
  """Returns the number of replicas of a TPUEstimator on a TPU, 0 elsewhere.

  `model_fn` is traced for one of them, and TPUEstimator has no strategy.
  """
  context = _find("tensorflow.python.tpu.tpu_function", "get_tpu_context")()
  return context.number_of_shards or 0


def trace_for_tpu_shards(num: int) -> ContextManager[None]:
  """Traces inside as TPUEstimator does for `num` replicas on a TPU.

  It does so on its own; without a TPU, rehearsals and tests need it.
  """
  name = "tpu_shard_context"
  return _find("tensorflow.python.tpu.tpu_function", name)(num)


@contextlib.contextmanager
def without_device_autotuning() -> Iterator[None]:
  """Lets iterators made inside have no autotuning for each device.

  TensorFlow makes a dataset for each device, and the options of the dataset
  that is distributed do not apply to it.
  """
  module = "tensorflow.python.data.ops.multi_device_iterator_ops"
  name = "_create_device_dataset"
  original = _find(module, name)
  options = tf.data.Options()
  options.autotune.enabled = False

  def create(*args, **kwargs):
    return original(*args, **kwargs).with_options(options)

  with _replace(importlib.import_module(module), name, create):
    yield


@contextlib.contextmanager
def multi_worker_on_cpus(count: int) -> Iterator[None]:
  """Lets multi-worker strategies made inside use `count` CPU devices each.

  Without a GPU, TensorFlow places one replica in each process, on its first
  CPU device, and no argument changes that.
  """
  name = "_initialize_local_devices"
  extended = _find(
    "tensorflow.python.distribute.collective_all_reduce_strategy",
    "CollectiveAllReduceExtended",
  )
  original = _find_in(extended, name)

  def local_devices(self, resolver, worker_device):
    devices, kind = original(self, resolver, worker_device)
    if kind == "CPU":
      devices = tuple(f"{worker_device}/device:CPU:{i}" for i in range(count))
    return devices, kind

  with _replace(extended, name, local_devices):
    yield


@contextlib.contextmanager
def joining_within(seconds: float) -> Iterator[None]:
  """Lets multi-worker strategies made inside wait this long for the others.

  By default that is an hour, in which no signal is received.
  """
  context = _find("tensorflow.python.eager.context", "context")()
  name = "configure_coordination_service"
  configure = functools.partial(
    _find_in(context, name),
    cluster_register_timeout_in_ms=max(1000, int(1000 * seconds)),
  )
  with _replace(context, name, configure):
    yield


def is_peer_alive(index: int, seconds: float) -> bool:
  """Returns whether another worker of a multi-worker strategy answers.

  TensorFlow asks it itself, but only where no coordination service does, and
  the latter says of a worker that hangs no more than an address.
  """
  context = _find("tensorflow.python.eager.context", "context")()
  ask = _find_in(context, "check_collective_ops_peer_health")
  try:
    ask(f"/job:worker/replica:0/task:{index}", int(1000 * seconds))
  except tf.errors.OpError:
    return False
  return True


def abort_collectives(reason: str) -> None:
  """Ends operations that wait for other processes, with an error."""
  context = _find("tensorflow.python.eager.context", "context")()
  _find_in(context, "abort_collective_ops")(tf.errors.UNAVAILABLE, reason)


@contextlib.contextmanager
def _replace(owner: Any, name: str, value: Any) -> Iterator[None]:
  original = getattr(owner, name)
  setattr(owner, name, value)
  try:
    yield
  finally:
    setattr(owner, name, original)


def _find(module: str, name: str) -> Any:
  """Returns what a module of TensorFlow has under a name."""
  try:
    return _find_in(importlib.import_module(module), name)
  except ImportError as e:
    raise _missing(module, name) from e


def _find_in(owner: Any, name: str) -> Any:
  try:
    return getattr(owner, name)
  except AttributeError as e:
    raise _missing(owner.__name__, name) from e


def _missing(owner: str, name: str) -> NotImplementedError:
  return NotImplementedError(
    f"`{owner}.{name}` must be in TensorFlow, got TensorFlow {tf.__version__}: "
    "install a version that `requirements.lock` names."
  )
