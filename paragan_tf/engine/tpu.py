"""Finds a Cloud TPU and initializes it."""

import contextlib
import socket
from typing import Optional

import tensorflow as tf


def find(
  tpu: str, zone: Optional[str] = None, project: Optional[str] = None
) -> tf.distribute.cluster_resolver.TPUClusterResolver:
  """Returns the resolver of a TPU after checking that it can be reached."""
  with _explain_errors(tpu):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
      tpu=tpu, zone=zone, project=project
    )
    if tpu == "local":
      if not tf.config.list_physical_devices("TPU"):
        raise OSError("this machine has no TPU")
    else:
      _check_connection(resolver.master())
  return resolver


def connect(
  tpu: str, zone: Optional[str] = None, project: Optional[str] = None
) -> tf.distribute.cluster_resolver.TPUClusterResolver:
  """Returns the resolver of a TPU that is initialized, for a `TPUStrategy`."""
  resolver = find(tpu, zone, project)
  with _explain_errors(tpu):
    if tpu != "local":
      tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  return resolver


@contextlib.contextmanager
def _explain_errors(tpu: str):
  """Turns any error into a `ValueError` with a remedy."""
  try:
    yield
  # The cloud libraries raise many kinds of errors, none of them a bug here.
  except Exception as e:
    reason = " ".join(str(e).split())[:200]
    raise ValueError(
      f"`tpu` '{tpu}' cannot be reached ({reason}): check its name, "
      "`--tpu_zone` and `--gcp_project`, and that it is running; on a TPU VM "
      "set `--tpu=local`."
    ) from e


def _check_connection(address: str) -> None:
  """Raises within seconds, where TensorFlow would wait for minutes."""
  host, _, port = address.split("//")[-1].rpartition(":")
  socket.create_connection((host, int(port)), timeout=10.0).close()
