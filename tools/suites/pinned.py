"""Training processes that are pinned to one core each, and clusters of them."""

import contextlib
import json
import os
import socket
from typing import List, Sequence

from tools.suites.ours import Ours
from tools.suites.workers import Environment

LOCAL_BATCH_SIZE = 64
_WARM_UP_STEPS = 2


class PinnedProcess(Ours):
  """Our step in a process that runs on one core, with all its threads.

  TensorFlow counts the cores that it may use, so it starts one thread for
  operations; the threads for messages share the core.

  Args:
    core: The core.
    num_processes: How many train together; the global batch grows with them.
    files: Gin files over the config of the benchmark.
    bindings: Gin bindings over those.
  """

  def __init__(
    self,
    core: int,
    num_processes: int,
    files: Sequence[str] = (),
    bindings: Sequence[str] = (),
  ):
    os.sched_setaffinity(0, {core})
    batch_size = f"Experiment.batch_size = {num_processes * LOCAL_BATCH_SIZE}"
    super().__init__((batch_size, *bindings), files)
    self._local_batch = self._experiment.images_per_step // num_processes
    self.run(_WARM_UP_STEPS)

  def get_images_per_step(self) -> int:
    """Returns the images of one step that this process trains on."""
    return self._local_batch


def make_cluster_environments(count: int) -> List[Environment]:
  """Returns the environments of `count` processes that form one cluster."""
  with contextlib.ExitStack() as stack:
    servers = [
      stack.enter_context(socket.create_server(("127.0.0.1", 0)))
      for _ in range(count)
    ]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in servers]
  return [
    {
      "TF_CONFIG": json.dumps(
        {
          "cluster": {"worker": addresses},
          "task": {"type": "worker", "index": index},
        }
      )
    }
    for index in range(count)
  ]
