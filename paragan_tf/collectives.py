"""All replicas talk together; with `pairs.py`, the only file that talks.

Every function is for replica context, eager or traced. With one replica
nothing is sent.
"""

import contextlib
import functools
from typing import (
  Any,
  Callable,
  ContextManager,
  Dict,
  Iterator,
  List,
  Optional,
  Sequence,
  Tuple,
  TypeVar,
  Union,
)

import tensorflow as tf

# What a replica's value counts in a mean over all.
Weight = Union[float, tf.Tensor]
# Given a collective without its other arguments and this replica's values;
# returns what the collective does.
Observer = Callable[[Callable, List[tf.Tensor]], List[tf.Tensor]]
_Collective = TypeVar("_Collective", bound=Callable)
# Of all threads: a strategy traces each replica in one of its own.
_observer: Optional[Observer] = None


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
  """Lets `observer` run every `mean` and `receive` that is traced inside.

  For benchmarks, which add operations before and after the message.
  """
  global _observer
  before, _observer = _observer, observer
  try:
    yield
  finally:
    _observer = before


def _observable(collective: _Collective) -> _Collective:
  """Returns `collective`, run by the observer if there is one."""

  @functools.wraps(collective)
  def run(values: Sequence[tf.Tensor], *args: Any, **kwargs: Any):
    if _observer is None:
      return collective(values, *args, **kwargs)
    return _observer(
      lambda values: collective(values, *args, **kwargs), list(values)
    )

  return run  # type: ignore[return-value]


def num_replicas() -> int:
  """Returns how many replicas train together."""
  return _num_shards() or tf.distribute.get_strategy().num_replicas_in_sync


def replica_id() -> tf.Tensor:
  """Returns which of them this one is, an int32 scalar."""
  if _num_shards():
    return _xla_replica_id()
  context = tf.distribute.get_replica_context()
  return tf.convert_to_tensor(context.replica_id_in_sync_group)


def _xla_replica_id() -> tf.Tensor:
  from tensorflow.compiler.tf2xla.python import xla  # Nowhere public.

  return xla.replica_id()


def static_replica_id() -> Optional[int]:
  """Returns it as a number, where it is known while the step is traced."""
  if _num_shards():
    return None
  number = tf.get_static_value(replica_id())
  return None if number is None else int(number)


def place() -> tf.Tensor:
  """Returns this replica's number in rows and pairs, an int32 scalar.

  That is `replica_id`, but where all replicas have one program, on a TPU: its
  compiler counts them by itself, and a strategy's numbers need not be the same.
  """
  if static_replica_id() is None:
    return _xla_replica_id()
  return tf.cast(replica_id(), tf.int32)


def device_kind() -> str:
  """Returns what the replicas run on: `tpu`, `gpu` or `cpu`."""
  strategy = tf.distribute.get_strategy()
  if _num_shards() or isinstance(strategy, tf.distribute.TPUStrategy):
    return "tpu"
  if tf.distribute.has_strategy():
    names = strategy.extended.worker_devices
    return "gpu" if any("GPU:" in name.upper() for name in names) else "cpu"
  return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


def on_core(index: int) -> ContextManager:
  """Places operations on one of the cores of this replica, if it has several.

  That is a TPU driven by TPUEstimator with `num_cores_per_replica`.
  """
  if not _num_shards():
    return contextlib.nullcontext()
  return tf.device(tf.compat.v1.tpu.core(index))


@_observable
def mean(
  values: Sequence[tf.Tensor], weights: Optional[Sequence[Weight]] = None
) -> List[tf.Tensor]:
  """Returns the mean of each tensor over all replicas, the same on each.

  All of them go in one message where the strategy allows it.

  Args:
    values: What this replica gives.
    weights: What each of them counts, 1 by default; over all replicas the
      weights of a value have mean 1.
  """
  values = list(values)
  num = num_replicas()
  if num == 1 or not values:
    return values
  if weights is not None and _are_known(weights) and _copies_suffice():
    context = tf.distribute.get_replica_context()
    return context.merge_call(_weighted, args=(values, _Known(weights)))
  if weights is not None:
    values = [v * tf.cast(w, v.dtype) for v, w in zip(values, weights)]
  if _num_shards():
    return [tf.compat.v1.tpu.cross_replica_sum(value) / num for value in values]
  context = tf.distribute.get_replica_context()
  # With one replica in a process, a value that comes from outside has no
  # device, and is refused for that.
  values = [tf.identity(value) for value in values]
  return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, values))


def check_group_size(size: int) -> None:
  """Refuses groups of neighbors that would not come out even."""
  num = num_replicas()
  # A net may be made where it does not train, on one replica.
  if num > 1 and num % size:
    raise ValueError(
      f"`group_size` must divide the number of replicas, {num}, got {size}: "
      "take a divisor, or 'all'."
    )


def group_mean(values: Sequence[tf.Tensor], size: int) -> List[tf.Tensor]:
  """Returns the mean of each tensor over this replica's group.

  Groups are `size` neighbors: 0 to `size - 1`, and so on. The gradient flows
  back to all of the group.
  """
  values = list(values)
  num = num_replicas()
  if num == 1 or size == 1 or not values:
    return values
  check_group_size(size)
  if _num_shards():
    groups = [list(range(i, i + size)) for i in range(0, num, size)]
    return [
      tf.compat.v1.tpu.cross_replica_sum(value, groups) / size
      for value in values
    ]
  # Every group's sum goes to all, in a row of its own: moments are small.
  here = replica_id() // size
  mine = tf.one_hot(here, num // size)
  rows = [tf.tensordot(mine, value, 0) for value in values]
  context = tf.distribute.get_replica_context()
  sums = context.all_reduce(tf.distribute.ReduceOp.SUM, rows)
  return [tf.gather(row, here) / size for row in sums]


@_observable
def receive(
  values: Sequence[tf.Tensor], sources: Sequence[int]
) -> List[tf.Tensor]:
  """Returns the tensors that another replica gave.

  Args:
    values: What this replica gives.
    sources: For each replica, the one that it receives from.
  """
  values = list(values)
  if num_replicas() == 1:
    return values
  here = static_replica_id()
  if here is None:  # On a TPU all replicas have one program.
    pairs = [[source, target] for target, source in enumerate(sources)]
    return [collective_permute(value, pairs) for value in values]
  context = tf.distribute.get_replica_context()
  count = len(context.strategy.extended.worker_devices)
  # All processes must choose alike, so all replicas are asked.
  if all(source // count == r // count for r, source in enumerate(sources)):
    # A copy from device to device, of what is taken only.
    given = context.merge_call(_listed, args=(values,))
    return given[sources[here] % count]
  gathered = context.all_gather(values, axis=0)
  rows = [value.shape[0] for value in values]
  first = sources[here]
  return [x[first * n : (first + 1) * n] for x, n in zip(gathered, rows)]


def all_gather(value: tf.Tensor, timeout: Optional[float] = None) -> tf.Tensor:
  """Returns the vectors of all replicas, a row for each, in order of `place`.

  Args:
    value: What this replica gives, of the same size on all.
    timeout: As in `pairs.pairwise_exchange`.
  """
  num = num_replicas()
  if num == 1:
    return value[tf.newaxis]
  here = static_replica_id()
  if here is None:
    return _all_gather_by_shifts(value, num)
  context = tf.distribute.get_replica_context()
  local = len(context.strategy.extended.worker_devices)
  if local < num and not tf.executing_eagerly():
    # Over a wire, the strategy would gather the shapes first.
    return group_all_gather(value, range(num), here, timeout)
  options = tf.distribute.experimental.CommunicationOptions(
    timeout_seconds=timeout
  )
  return context.all_gather(tf.identity(value)[tf.newaxis], 0, options)


def _all_gather_by_shifts(value: tf.Tensor, num: int) -> tf.Tensor:
  """Returns the same where all replicas have one program.

  TensorFlow would sum up rows that are zero but for one, over all replicas:
  twice as much as is to be said.
  """
  shifted = [value]
  for k in range(1, num):
    shifted.append(
      collective_permute(value, [[(i + k) % num, i] for i in range(num)])
    )
  rows = (tf.range(num) - place()) % num
  return tf.gather(tf.stack(shifted), rows)


# How often each replica has asked the others of a group, while traced: all of
# the group count alike.
_num_asked: Dict[Tuple[int, ...], int] = {}
_tokens: Dict[Tuple[int, ...], tf.Tensor] = {}
# Far from the group keys that `tf.distribute` counts from 1.
_FIRST_KEY = 1 << 24


def group_all_gather(
  value: tf.Tensor,
  members: Sequence[int],
  here: int,
  timeout: Optional[float] = None,
) -> tf.Tensor:
  """Returns the vectors of two replicas, or of all, in order of their numbers.

  Nobody else hears or waits. Traced.

  Args:
    value: What this replica gives, of the same size for all of them.
    members: Who talks: two of the replicas, or all.
    here: Which of them this one is.
    timeout: As in `pairs.pairwise_exchange`.
  """
  num, size = num_replicas(), len(members)
  first, second = (0, 0) if size == num else sorted(members)
  count = _num_asked[first, second, here] = (
    _num_asked.get((first, second, here), 0) + 1
  )
  return tf.raw_ops.CollectiveGatherV2(
    input=value[tf.newaxis],
    group_size=size,
    group_key=_FIRST_KEY + first * num + second,
    instance_key=_FIRST_KEY + count,
    # With none, or with one for all, one replica's part would have to end
    # before the other's may start. What all say need not wait for what they
    # said before, but where the device wants one order.
    ordering_token=[
      _token(first, second, here, count if size == num and _on_cpus() else 0)
    ],
    timeout_seconds=timeout or 0.0,
  )


def _token(*key: int) -> tf.Tensor:
  if key not in _tokens:
    with tf.init_scope():
      _tokens[key] = tf.raw_ops.VarHandleOp(
        dtype=tf.float32,
        shape=[],
        shared_name="among_{}_{}_{}_{}".format(*key),
      )
  return _tokens[key]


class _Known:
  """Weights of one replica, known while the step is traced."""

  def __init__(self, weights: Sequence[Weight]):
    self.weights = weights  # Not a tuple, which a strategy would take apart.


def _copies_suffice() -> bool:
  """Returns whether all replicas share one memory and are traced apart.

  What one replica alone counts in is then handed on as it is.
  """
  if _num_shards() or static_replica_id() is None:
    return False
  extended = tf.distribute.get_strategy().extended
  return _on_cpus() and len(extended.worker_devices) == num_replicas()


def _on_cpus() -> bool:
  devices = tf.distribute.get_strategy().extended.worker_devices
  return all("CPU:" in device.upper() for device in devices)


def _are_known(weights: Sequence[Weight]) -> bool:
  return all(isinstance(weight, (int, float)) for weight in weights)


def _weighted(strategy, values: Sequence, known) -> List[tf.Tensor]:
  """Returns the means over those who count. Cross-replica context."""
  local = strategy.experimental_local_results
  columns = zip(*(replica.weights for replica in local(known)))
  means = []
  for value, weights in zip(values, columns):
    parts = [
      v if w == len(weights) else (w / len(weights)) * v
      for v, w in zip(local(value), weights)
      if w
    ]
    means.append(parts[0] if len(parts) == 1 else tf.add_n(parts))
  return means


def collective_permute(
  value: tf.Tensor, pairs: Sequence[Sequence[int]]
) -> tf.Tensor:
  """Sends along `pairs`; a source that feeds several sends to each in turn.

  Who receives nothing gets zeros.
  """
  rounds: List[List[Sequence[int]]] = []
  for pair in pairs:
    fitting = (r for r in rounds if all(pair[0] != other[0] for other in r))
    into = next(fitting, None)
    if into is None:
      rounds.append(into := [])
    into.append(pair)
  if not rounds:
    return tf.zeros_like(value)
  parts = [
    tf.raw_ops.CollectivePermute(input=value, source_target_pairs=r)
    for r in rounds
  ]
  return tf.add_n(parts)


def _listed(strategy, values: Sequence) -> List[List[tf.Tensor]]:
  """Returns the tensors of each local replica. Cross-replica context."""
  parts = [strategy.experimental_local_results(value) for value in values]
  return [list(replica) for replica in zip(*parts)]


def _num_shards() -> int:
  """Returns the replicas of a TPUEstimator on a TPU, or 0 elsewhere.

  There is no strategy there, and no public way to ask.
  """
  if tf.distribute.has_strategy():
    return 0
  from tensorflow.python.tpu import tpu_function

  return tpu_function.get_tpu_context().number_of_shards or 0
