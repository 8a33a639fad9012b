"""The processes that train together: finds them and waits for them.

Their addresses come from `TF_CONFIG` or from the variables of a SLURM step.
"""

import contextlib
import json
import os
import socket
import time
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

_EXAMPLE = (
  '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
  '"task": {"type": "worker", "index": 0}}'
)
_SLURM_PORT = 8888
_MAX_PROCESSES, _MAX_PORT = 4096, 65535
_FENCED = "PARAGAN_WORKERS_FENCED"


class Cluster(NamedTuple):
  """All processes of a run, and the index of this one.

  Attributes:
    addresses: `host:port` of each process; the first one is the chief.
    process_index: Index of this process.
    found_in: Where the addresses were found, for messages.
  """

  addresses: Sequence[str]
  process_index: int
  found_in: str


def from_environment(
  environment: Mapping[str, str] = os.environ,
) -> Optional[Cluster]:
  """Returns the cluster that the environment describes, or `None`."""
  if environment.get("TF_CONFIG"):
    return _from_tf_config(environment["TF_CONFIG"])
  num_tasks = environment.get("SLURM_STEP_NUM_TASKS") or "1"
  if not num_tasks.isdecimal():
    raise ValueError(
      f"`SLURM_STEP_NUM_TASKS` must be a number, got '{num_tasks[:50]}': start "
      "with `srun`, or unset it."
    )
  if int(num_tasks) > 1:
    return _from_slurm()
  return None


def wait_for_all(cluster: Cluster, seconds: float) -> None:
  """Waits until every process can be reached; raises with those that cannot.

  TensorFlow itself would wait silently. Meanwhile this process listens on its
  own address, which is free again for TensorFlow when all others have answered.
  """
  deadline = time.monotonic() + seconds
  with _listen(cluster.addresses[cluster.process_index]):
    missing = [
      a for i, a in enumerate(cluster.addresses) if i != cluster.process_index
    ]
    while missing:
      missing = [address for address in missing if not _is_reachable(address)]
      if missing and time.monotonic() > deadline:
        raise ValueError(
          f"Worker(s) at {', '.join(missing)} did not join within "
          f"{seconds:g} s: start them, or correct the addresses in "
          f"{cluster.found_in}; `--join_timeout` sets how long to wait."
        )
      if missing:
        time.sleep(0.1)


def find_open_ports(
  environment: Mapping[str, str] = os.environ,
) -> Optional[str]:
  """Returns a warning for the chief of processes whose ports are open."""
  cluster = from_environment(environment)
  if cluster is None or len(cluster.addresses) < 2 or cluster.process_index:
    return None
  if environment.get(_FENCED):  # The launcher keeps everyone else out.
    return None
  return (
    "Warning: TensorFlow's worker ports ask for no password and listen on "
    "every interface: train on a closed network only, see docs/security.md."
  )


def _from_tf_config(text: str) -> Cluster:
  try:
    config = json.loads(text)
  except (ValueError, RecursionError) as e:
    raise ValueError(
      f"`TF_CONFIG` must be JSON such as {_EXAMPLE}, got '{text[:200]}' ({e})."
    ) from e
  jobs = _section(config, "cluster")
  if not jobs:  # Set by a platform, for one machine.
    return Cluster(["localhost"], 0, "`TF_CONFIG`")
  unknown = sorted(set(jobs) - {"chief", "worker"})
  if unknown:
    raise ValueError(
      "`TF_CONFIG` may have the jobs `chief` and `worker`, got "
      f"`{unknown[0]}`: all processes train; remove this job."
    )
  task = _section(config, "task")
  kind, index = task.get("type"), task.get("index")
  chiefs, workers = _addresses(jobs, "chief"), _addresses(jobs, "worker")
  _check_distinct([*chiefs, *workers])
  sizes = {"chief": len(chiefs), "worker": len(workers)}
  if type(index) is not int or not 0 <= index < sizes.get(str(kind), 0):
    raise ValueError(
      "`TF_CONFIG` must have this process's `task`, which is in its cluster, "
      f"such as {_EXAMPLE}; got task {json.dumps(task)}."
    )
  before = len(chiefs) if kind == "worker" else 0
  return Cluster([*chiefs, *workers], before + index, "`TF_CONFIG`")


def _section(config: Any, key: str) -> Mapping[str, Any]:
  section = config.get(key, {}) if isinstance(config, dict) else None
  if not isinstance(section, dict):
    raise ValueError(
      f"`TF_CONFIG` must have a `{key}` such as {_EXAMPLE}, got "
      f"{json.dumps(config)[:200]}."
    )
  return section


def _addresses(jobs: Mapping[str, Any], job: str) -> List[str]:
  addresses = jobs.get(job, [])
  if not isinstance(addresses, list) or len(addresses) > _MAX_PROCESSES:
    raise ValueError(
      f"`{job}` in `TF_CONFIG` must be a list of at most {_MAX_PROCESSES:,} "
      f"addresses, such as {_EXAMPLE}, got {json.dumps(addresses)[:200]}."
    )
  for address in addresses:
    host, _, port = str(address).rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5
    if not (host and is_port and 0 < int(port) <= _MAX_PORT):
      raise ValueError(
        "An address in `TF_CONFIG` must be 'host:port', with a port from 1 to "
        f"{_MAX_PORT}, got '{str(address)[:200]}'."
      )
  return [str(address) for address in addresses]


def _check_distinct(addresses: Sequence[str]) -> None:
  seen = set()
  for address in addresses:
    if address in seen:
      raise ValueError(
        f"Addresses in `TF_CONFIG` must differ, got '{address}' twice: each "
        "process needs one of its own."
      )
    seen.add(address)


def _from_slurm() -> Cluster:
  try:
    # The resolver counts GPUs to distribute them, and fails without any; SLURM
    # distributes them itself (`--gpus-per-task`).
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
      port_base=_SLURM_PORT,
      gpus_per_node=1 << 16,
      gpus_per_task=1,
      auto_set_gpu=False,
    )
    addresses = resolver.cluster_spec().as_dict()["worker"]
  except (RuntimeError, ValueError) as e:
    raise ValueError(
      f"The variables of the SLURM step cannot be read ({e}): start with "
      "`srun`, or set `TF_CONFIG`."
    ) from e
  return Cluster(addresses, resolver.task_id, "the SLURM step's variables")


@contextlib.contextmanager
def _listen(address: str):
  """Accepts connections on this process's address."""
  port = int(address.rpartition(":")[2])
  try:
    with socket.create_server(("", port), backlog=1024):
      yield
  except OSError as e:
    raise ValueError(
      f"This process cannot listen on its own address {address} "
      f"({e.strerror}): choose a free port."
    ) from e


def _is_reachable(address: str) -> bool:
  host, _, port = address.rpartition(":")
  try:
    socket.create_connection((host, int(port)), timeout=1.0).close()
  except OSError:
    return False
  return True
