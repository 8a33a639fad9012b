"""Collectives over all replicas; no other file communicates, except `pairs.py`.

Every function runs in replica context, eager or traced. With one replica
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

from paragan_tf import tf_private

# Of a replica's value in a mean over all replicas.
Weight = Union[float, tf.Tensor]
# Gets a collective whose other arguments are bound, and this replica's values;
# returns the result of the collective.
Observer = Callable[[Callable, List[tf.Tensor]], List[tf.Tensor]]
_Collective = TypeVar("_Collective", bound=Callable)
# Global, not thread-local: a strategy traces each replica in its own thread.
_observer: Optional[Observer] = None


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
  """Lets `observer` run every `mean`, and every `pairs.receive`, traced here.

  For benchmarks, which add operations before and after a message.
  """
  global _observer
  before, _observer = _observer, observer
  try:
    yield
  finally:
    _observer = before


def observable(collective: _Collective) -> _Collective:
  """Decorates a collective so that the observer, if any, runs it."""

  @functools.wraps(collective)
  def run(values: Sequence[tf.Tensor], *args: Any, **kwargs: Any):
    if _observer is None:
      return collective(values, *args, **kwargs)
    return _observer(
      lambda values: collective(values, *args, **kwargs), list(values)
    )

  return run  # type: ignore[return-value]


def num_replicas() -> int:
  """Returns the number of replicas that train together."""
  return _num_shards() or tf.distribute.get_strategy().num_replicas_in_sync


def replica_id() -> tf.Tensor:
  """Returns the id of this replica, an int32 scalar."""
  if _num_shards():
    return tf_private.xla_replica_id()
  context = tf.distribute.get_replica_context()
  return tf.convert_to_tensor(context.replica_id_in_sync_group)


def static_replica_id() -> Optional[int]:
  """Returns the id as an int; `None` on a TPU, where it is not static."""
  if _num_shards():
    return None
  value = tf.get_static_value(replica_id())
  return None if value is None else int(value)


def row_index() -> tf.Tensor:
  """Returns this replica's index in `all_gather` and in pairs, an int32 scalar.

  It equals `replica_id`, except on a TPU: the compiler numbers replicas itself,
  and its numbers may differ from the strategy's.
  """
  if static_replica_id() is None:
    return tf_private.xla_replica_id()
  return tf.cast(replica_id(), tf.int32)


def device_kind() -> str:
  """Returns the kind of the replicas' devices: `tpu`, `gpu` or `cpu`."""
  strategy = tf.distribute.get_strategy()
  if _num_shards() or isinstance(strategy, tf.distribute.TPUStrategy):
    return "tpu"
  if tf.distribute.has_strategy():
    names = strategy.extended.worker_devices
    return "gpu" if any("GPU:" in name.upper() for name in names) else "cpu"
  return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


def on_core(index: int) -> ContextManager:
  """Places operations on one core of this replica, if it has several.

  That requires TPUEstimator on a TPU, with `num_cores_per_replica`.
  """
  if not _num_shards():
    return contextlib.nullcontext()
  return tf.device(tf.compat.v1.tpu.core(index))


@observable
def mean(
  values: Sequence[tf.Tensor], weights: Optional[Sequence[Weight]] = None
) -> List[tf.Tensor]:
  """Returns the mean of each tensor over all replicas, the same on each.

  All tensors are sent in one message if the strategy supports it.

  Args:
    values: This replica's values.
    weights: This replica's weight for each value, 1 by default; over all
      replicas, the weights of a value have mean 1.
  """
  values = list(values)
  num = num_replicas()
  if num == 1 or not values:
    return values
  if weights is not None and _are_static(weights) and _replicas_share_memory():
    context = tf.distribute.get_replica_context()
    args = (values, _StaticWeights(weights))
    return context.merge_call(_weighted_mean, args=args)
  if weights is not None:
    values = [v * tf.cast(w, v.dtype) for v, w in zip(values, weights)]
  if _num_shards():
    return [tf.compat.v1.tpu.cross_replica_sum(value) / num for value in values]
  context = tf.distribute.get_replica_context()
  # With one replica in a process, a captured value has no device, and
  # `all_reduce` refuses it.
  values = [tf.identity(value) for value in values]
  return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, values))


def check_group_size(size: int) -> None:
  """Raises an error if the replicas cannot be split into groups of `size`."""
  num = num_replicas()
  # A net may be built on one replica that does not train it.
  if num > 1 and num % size:
    raise ValueError(
      f"`group_size` must divide the number of replicas, {num}, got {size}: "
      "take a divisor, or 'all'."
    )


def group_mean(values: Sequence[tf.Tensor], size: int) -> List[tf.Tensor]:
  """Returns the mean of each tensor over this replica's group.

  A group is `size` consecutive replicas: 0 to `size - 1`, and so on. Gradients
  flow back to all replicas of the group.
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
  # All replicas receive the sums of all groups, a row for each group. That is
  # cheap, because moments are small.
  group = replica_id() // size
  is_group = tf.one_hot(group, num // size)
  rows = [tf.tensordot(is_group, value, 0) for value in values]
  context = tf.distribute.get_replica_context()
  sums = context.all_reduce(tf.distribute.ReduceOp.SUM, rows)
  return [tf.gather(row, group) / size for row in sums]


def all_gather(value: tf.Tensor, timeout: Optional[float] = None) -> tf.Tensor:
  """Returns the vectors of all replicas, one per row, ordered by `row_index`.

  Args:
    value: This replica's vector, of the same size on all replicas.
    timeout: As in `pairs.pairwise_exchange`.
  """
  num = num_replicas()
  if num == 1:
    return value[tf.newaxis]
  replica = static_replica_id()
  if replica is None:
    # TensorFlow's own all-gather on a TPU is an all-reduce of rows padded with
    # zeros, which sends twice as many bytes.
    return all_to_all(tf.repeat(value[tf.newaxis], num, 0))
  context = tf.distribute.get_replica_context()
  num_local = len(context.strategy.extended.worker_devices)
  if num_local < num and not tf.executing_eagerly():
    # Across processes, the strategy would gather the shapes first.
    return group_all_gather(value, range(num), replica, timeout)
  options = tf.distribute.experimental.CommunicationOptions(
    timeout_seconds=timeout
  )
  return context.all_gather(tf.identity(value)[tf.newaxis], 0, options)


def all_to_all(rows: tf.Tensor) -> tf.Tensor:
  """Sends row `i` to replica `i`; returns a row of each. On a TPU only.

  It is one operation. As permutes, the program would grow with the replicas,
  and for a thousand of them take hours to compile.
  """
  num = num_replicas()
  return tf.raw_ops.AllToAll(
    input=rows,
    group_assignment=[list(range(num))],
    concat_dimension=0,
    split_dimension=0,
    split_count=num,
  )


# How many messages each replica has traced in each group. All members of a
# group trace the same messages, so the numbers identify them.
_num_messages: Dict[Tuple[int, ...], int] = {}
_ordering_tokens: Dict[Tuple[int, ...], tf.Tensor] = {}
# Far above the group keys of `tf.distribute`, which count from 1.
_FIRST_KEY = 1 << 24


def group_all_gather(
  value: tf.Tensor,
  members: Sequence[int],
  replica: int,
  timeout: Optional[float] = None,
) -> tf.Tensor:
  """Returns the vectors of two replicas, or of all, ordered by replica id.

  Other replicas neither take part nor wait. Traced.

  Args:
    value: This replica's vector, of the same size on all members.
    members: Ids of two replicas, or of all.
    replica: Id of this replica.
    timeout: As in `pairs.pairwise_exchange`.
  """
  num, size = num_replicas(), len(members)
  first, second = (0, 0) if size == num else sorted(members)
  group_key, instance_key = next_keys(first, second, replica)
  # Without tokens, or with one token for all gathers, the part of one replica
  # would have to end before the part of the other may start. Gathers over all
  # replicas need no order among themselves, except on devices that require one.
  index = instance_key if size == num and _on_cpus() else 0
  return tf.raw_ops.CollectiveGatherV2(
    input=value[tf.newaxis],
    group_size=size,
    group_key=group_key,
    instance_key=instance_key,
    ordering_token=[_ordering_token(first, second, replica, index)],
    timeout_seconds=timeout or 0.0,
  )


def next_keys(first: int, second: int, replica: int) -> Tuple[int, int]:
  """Returns the keys of a replica's next message in a group of two, or of all.

  Args:
    first: Id of the first of two replicas; 0 for all.
    second: Id of the second one; 0 for all.
    replica: Id of this replica.
  """
  members = first, second, replica
  _num_messages[members] = _num_messages.get(members, 0) + 1
  group_key = _FIRST_KEY + first * num_replicas() + second
  return group_key, _FIRST_KEY + _num_messages[members]


def _ordering_token(*key: int) -> tf.Tensor:
  if key not in _ordering_tokens:
    with tf.init_scope():
      _ordering_tokens[key] = tf.raw_ops.VarHandleOp(
        dtype=tf.float32,
        shape=[],
        shared_name="among_{}_{}_{}_{}".format(*key),
      )
  return _ordering_tokens[key]


class _StaticWeights:
  """Weights of one replica, as Python numbers."""

  def __init__(self, weights: Sequence[Weight]):
    self.weights = weights  # Not a tuple, which `merge_call` would flatten.


def _replicas_share_memory() -> bool:
  """Returns whether all replicas share memory and are traced separately.

  A value to which only one replica contributes then needs no communication.
  """
  if _num_shards() or static_replica_id() is None:
    return False
  extended = tf.distribute.get_strategy().extended
  return _on_cpus() and len(extended.worker_devices) == num_replicas()


def _on_cpus() -> bool:
  devices = tf.distribute.get_strategy().extended.worker_devices
  return all("CPU:" in device.upper() for device in devices)


def _are_static(weights: Sequence[Weight]) -> bool:
  return all(isinstance(weight, (int, float)) for weight in weights)


def _weighted_mean(strategy, values: Sequence, static) -> List[tf.Tensor]:
  """Returns the weighted means; skips weights of 0. Cross-replica context."""
  local = strategy.experimental_local_results
  columns = zip(*(replica.weights for replica in local(static)))
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
  """Sends a tensor from source to target for each of `pairs`.

  A source with several targets sends to one per round. A replica that is no
  target gets zeros.
  """
  rounds: List[List[Sequence[int]]] = []
  for pair in pairs:
    free = (r for r in rounds if all(pair[0] != other[0] for other in r))
    chosen = next(free, None)
    if chosen is None:
      rounds.append(chosen := [])
    chosen.append(pair)
  if not rounds:
    return tf.zeros_like(value)
  parts = [
    tf.raw_ops.CollectivePermute(input=value, source_target_pairs=r)
    for r in rounds
  ]
  return tf.add_n(parts)


def _num_shards() -> int:
  """Returns the number of replicas of a TPUEstimator on a TPU, 0 elsewhere."""
  return 0 if tf.distribute.has_strategy() else tf_private.num_tpu_shards()
