"""Chooses the devices of a run, and places its variables on them."""

import contextlib
import dataclasses
import os
from typing import List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from paragan_tf import tf_private
from paragan_tf.engine import cluster, tpu

_MAX_REPLICAS = 256


class Choice(NamedTuple):
  """A strategy, and why it was chosen.

  Attributes:
    strategy: Of this process.
    reason: One line for the user: the devices, and why.
    tpu: The TPU that TPUEstimator trains on, if any.
  """

  strategy: tf.distribute.Strategy
  reason: str
  tpu: Optional[tf.distribute.cluster_resolver.ClusterResolver] = None


@dataclasses.dataclass(frozen=True)
class DeviceOptions:
  """The devices that a user requests; by default those of the machine.

  Attributes:
    num_cpu_replicas: Splits the CPU of each process into this many logical
      devices, each with a replica.
    tpu: Name or `grpc://` address of a Cloud TPU, or `local` on a TPU VM.
    tpu_zone: Its zone, if it is not this machine's.
    gcp_project: Its project, if it is not this machine's.
    use_tpu: Requires a TPU.
    join_timeout: Seconds to wait for the other processes.
  """

  num_cpu_replicas: int = 0
  tpu: Optional[str] = None
  tpu_zone: Optional[str] = None
  gcp_project: Optional[str] = None
  use_tpu: bool = False
  join_timeout: float = 300.0

  def __post_init__(self):
    if not 0 <= self.num_cpu_replicas <= _MAX_REPLICAS:
      raise ValueError(
        f"`num_cpu_replicas` must be from 0 to {_MAX_REPLICAS}, got "
        f"{self.num_cpu_replicas}: more than a few share each core."
      )
    if not self.join_timeout >= 0:
      raise ValueError(
        f"`join_timeout` must be 0 seconds or more, got {self.join_timeout}."
      )
    if self.use_tpu and not self.tpu:
      raise ValueError(
        "`use_tpu` needs a TPU and none is named: set `--tpu=NAME`, or "
        "`--tpu=local` on a TPU VM."
      )
    if self.tpu == "" or (self.tpu is None and self.tpu_zone is not None):
      raise ValueError(
        "`tpu` must be a name, and none is given: set `--tpu=NAME`, or leave "
        "it and `--tpu_zone` out."
      )
    if self.tpu and self.num_cpu_replicas:
      raise ValueError(
        f"`tpu` '{self.tpu}' and `num_cpu_replicas` {self.num_cpu_replicas} "
        "exclude each other: set one of them."
      )


def choose(options: Optional[DeviceOptions] = None) -> Choice:
  """Returns the strategy of this process; call it before creating tensors."""
  options = options or DeviceOptions()
  _keep_freed_memory()
  if options.tpu:
    return Choice(
      tf.distribute.TPUStrategy(
        tpu.connect(
          options.tpu,
          options.tpu_zone,
          options.gcp_project,
        )
      ),
      f"TPU '{options.tpu}', as asked",
    )
  processes = cluster.from_environment()
  if processes and len(processes.addresses) > 1:
    return _several_processes(processes, options)
  return _one_process(options.num_cpu_replicas)


def choose_alone(num_devices: int = 1) -> tf.distribute.Strategy:
  """Returns the strategy of a process that communicates with no other one.

  It reads no address of other processes. One device has TensorFlow's default
  strategy, which has nothing to send; more have a replica each.
  """
  if num_devices > 1:
    is_on_gpus = bool(tf.config.list_physical_devices("GPU"))
    _keep_freed_memory()
    return _one_process(0 if is_on_gpus else num_devices).strategy
  _keep_freed_memory()
  return tf.distribute.get_strategy()


def for_estimator(options: DeviceOptions) -> Choice:
  """Returns the strategy of the host that TPUEstimator's program runs on."""
  processes = cluster.from_environment()
  if options.num_cpu_replicas > 1 or (
    processes and len(processes.addresses) > 1
  ):
    raise ValueError(
      "TPUEstimator trains on a TPU or on one CPU device, got several replicas "
      "or processes: set `--engine=strategy`, or `--tpu`."
    )
  _keep_freed_memory()
  host = tf.distribute.OneDeviceStrategy("/cpu:0")
  if not options.tpu:
    return Choice(host, "the CPU by TPUEstimator: no TPU is requested")
  found = tpu.find(options.tpu, options.tpu_zone, options.gcp_project)
  return Choice(host, f"TPU '{options.tpu}' by TPUEstimator, as asked", found)


@contextlib.contextmanager
def scope(strategy: tf.distribute.Strategy):
  """Makes every variable created inside replica-local.

  A mirrored variable that is assigned different values would silently keep
  them, and its assignment waits for all replicas. Here each replica owns its
  copy, and only an exchange makes copies agree.
  """

  def replica_local(make, **kwargs):
    kwargs["trainable"] = kwargs.get("trainable") is not False
    kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
    kwargs["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return make(**kwargs)

  with strategy.scope(), tf.variable_creator_scope(replica_local):
    yield


def copies(
  strategy: tf.distribute.Strategy, variable: tf.Variable
) -> Tuple[tf.Variable, ...]:
  """Returns the plain variable of each local replica."""
  return strategy.experimental_local_results(variable)


def iterate(dataset: tf.distribute.DistributedDataset):
  """Returns an iterator that can be deleted without a delay.

  TensorFlow creates a dataset for each device, whose autotuning thread has
  nothing to tune and sleeps for up to a minute; deleting the iterator waits for
  it.
  """
  with tf_private.without_device_autotuning():
    return iter(dataset)


def _one_process(num_cpu_replicas: int) -> Choice:
  gpus = tf.config.list_physical_devices("GPU")
  if num_cpu_replicas > 1:
    return Choice(
      tf.distribute.MirroredStrategy(split_cpu(num_cpu_replicas)),
      f"{num_cpu_replicas} logical CPU devices, as asked",
    )
  if len(gpus) > 1 and not num_cpu_replicas:
    # By name, as TensorFlow's default may silently be something else.
    return Choice(
      tf.distribute.MirroredStrategy(
        cross_device_ops=tf.distribute.NcclAllReduce()
      ),
      f"{len(gpus)} GPUs found here{_name_gpus(gpus)}, by NCCL",
    )
  device, found = "/cpu:0", "the CPU: no GPU found"
  if num_cpu_replicas:
    found = "the CPU, as asked"
  elif gpus:
    device, found = "/gpu:0", f"the only GPU{_name_gpus(gpus)}"
  return Choice(tf.distribute.OneDeviceStrategy(device), f"one device, {found}")


def _several_processes(
  processes: cluster.Cluster, options: DeviceOptions
) -> Choice:
  gpus = tf.config.list_physical_devices("GPU")
  if options.num_cpu_replicas:
    gpus = []
  devices = split_cpu(max(1, options.num_cpu_replicas))
  cluster.wait_for_all(processes, options.join_timeout)
  resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec({"worker": list(processes.addresses)}),
    task_type="worker",
    task_id=processes.process_index,
    num_accelerators={"GPU": len(gpus)},
    rpc_layer="grpc",
  )
  with (
    tf_private.multi_worker_on_cpus(len(devices)),
    tf_private.joining_within(options.join_timeout),
  ):
    strategy = _join(resolver, len(gpus), options.join_timeout)
  kind = f"{len(devices)} CPU device(s)"
  if gpus:
    kind = f"{len(gpus)} GPU(s){_name_gpus(gpus)} by NCCL"
  return Choice(
    strategy,
    f"{kind} in each of {len(processes.addresses)} processes, this one is "
    f"worker {processes.process_index}, by {processes.found_in}",
  )


def _join(resolver, num_gpus: int, seconds: float) -> tf.distribute.Strategy:
  """Returns the strategy of all processes, once all have made it."""
  try:
    return tf.distribute.MultiWorkerMirroredStrategy(
      resolver, _communication_options(num_gpus)
    )
  except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as e:
    raise ValueError(
      f"Not all workers joined within {seconds:g} s, though all were there: "
      "one has ended since, or two addresses are one machine; start all again."
    ) from e


def _communication_options(
  num_gpus: int,
) -> tf.distribute.experimental.CommunicationOptions:
  """Returns how processes with so many GPUs each communicate."""
  kinds = tf.distribute.experimental.CommunicationImplementation
  return tf.distribute.experimental.CommunicationOptions(
    implementation=kinds.NCCL if num_gpus else kinds.AUTO
  )


def _name_gpus(gpus: Sequence[tf.config.PhysicalDevice]) -> str:
  """Returns the names of GPUs in brackets, nothing where none is known."""
  details = (tf.config.experimental.get_device_details(gpu) for gpu in gpus)
  names = [x["device_name"] for x in details if x.get("device_name")]
  return f" ({', '.join(dict.fromkeys(names))})" if names else ""


def _keep_freed_memory():
  # TensorFlow's default CPU allocator returns large tensors to the system, so
  # every step has page faults. The pooled one keeps them, and elementwise
  # operations are two to four times as fast. Read when the runtime starts.
  os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")


def split_cpu(count: int) -> List[str]:
  """Splits the CPU into logical devices, unless it is; returns their names.

  Call it before creating tensors.
  """
  cpu = tf.config.list_physical_devices("CPU")[0]
  split = tf.config.get_logical_device_configuration(cpu)
  if count > 1 and (split is None or len(split) < count):
    tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
  return [f"/cpu:{i}" for i in range(count)]
