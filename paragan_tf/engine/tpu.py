"""Finding a Cloud TPU and starting it."""

import socket
from typing import Optional

import tensorflow as tf


def connect(
  tpu: str, zone: Optional[str] = None, project: Optional[str] = None
) -> tf.distribute.cluster_resolver.TPUClusterResolver:
  """Returns the resolver of a TPU that is ready; else says what is wrong."""
  try:
    _check_address(tpu)
    resolver = resolve(tpu, zone, project)
    if tpu != "local":
      tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  # The cloud libraries raise many kinds, all for what is not our doing.
  except Exception as e:
    reason = " ".join(str(e).split())[:200]
    raise ValueError(
      f"`tpu` '{tpu}' cannot be reached ({type(e).__name__}: {reason}): check "
      "its name, `--tpu_zone` and `--gcp_project`, and that it is running; on "
      "a TPU VM give `--tpu=local`."
    ) from e
  return resolver


def resolve(
  tpu: str, zone: Optional[str] = None, project: Optional[str] = None
) -> tf.distribute.cluster_resolver.TPUClusterResolver:
  """Returns the resolver of a TPU by name, address or `local`."""
  return tf.distribute.cluster_resolver.TPUClusterResolver(
    tpu=tpu, zone=zone, project=project
  )


def _check_address(tpu: str) -> None:
  """Knocks at a `grpc://` address, where TensorFlow would wait for minutes."""
  if not tpu.startswith("grpc://"):
    return
  host, _, port = tpu[len("grpc://") :].rpartition(":")
  socket.create_connection((host, int(port)), timeout=10.0).close()
