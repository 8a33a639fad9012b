"""Decisions that all processes of a run make together.

Every process runs the same program; only the chief writes. Each method is a
collective operation: all processes must call it, in the same order.
"""

import json
from typing import Any, Callable, Optional, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine.peers import Peers


class Processes:
  """The processes of a strategy; a single one sends nothing.

  Attributes:
    index: Index of this process.
    count: Number of processes.
    num_local_replicas: Number of replicas in each process.
    is_chief: Whether this process writes.
    peers: The other ones, to see whether they live.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    resolver = strategy.cluster_resolver if several else None
    self.index = resolver.task_id if resolver else 0
    self.count = resolver.cluster_spec().num_tasks("worker") if resolver else 1
    self.num_local_replicas = strategy.num_replicas_in_sync // self.count
    self.is_chief = self.index == 0
    self._traced_mean = tf.function(self.mean, autograph=False)
    self.peers = Peers(_list_addresses(resolver), self.index)

  def mean(self, value: tf.Tensor) -> tf.Tensor:
    """Returns the mean over all processes. Traced, cross-replica context."""
    if self.count == 1:
      return value
    mean = self._strategy.run(lambda x: collectives.mean([x])[0], args=(value,))
    return self._strategy.experimental_local_results(mean)[0]

  def mean_of(self, values: Sequence[float]) -> Sequence[float]:
    """Returns the means of some numbers over all processes."""
    if self.count == 1:
      return values
    return self._traced_mean(tf.constant(values, tf.float64)).numpy().tolist()

  def any(self, flag: bool) -> bool:
    """Returns whether `flag` is true in any process."""
    return self._mean(float(flag)) > 0.0

  def same(self, value: float) -> bool:
    """Returns whether `value` is the same in all processes."""
    return not self.any(self._mean(value) != value)

  def wait(self) -> None:
    """Waits until all processes call it: a barrier."""
    self._mean(0.0)

  def check_chief(self, check: Callable[[], None]) -> None:
    """Calls `check` on the chief; a `ValueError` there is raised in all."""
    error: Optional[ValueError] = None
    if self.is_chief:
      try:
        check()
      except ValueError as e:
        error = e
    if self.any(error is not None):
      raise error or ValueError("Worker 0 refused to start; it says why.")

  def on_chief(self, do: Callable[[], Any]) -> Any:
    """Runs `do` on the chief; all processes get its result, or an error.

    Args:
      do: Returns a value that JSON supports, and calls no collective operation.
    """
    if self.count == 1:
      return do()
    if not self.is_chief:
      answer = json.loads(self._broadcast(""))
      if "error" in answer:
        raise RuntimeError(f"The chief failed: {answer['error']}")
      return answer["result"]
    try:
      text = json.dumps({"result": do()})
    except Exception as e:  # The other processes wait for an answer.
      self._broadcast(json.dumps({"error": str(e)}))
      raise
    return json.loads(self._broadcast(text))["result"]

  def _broadcast(self, text: str) -> str:
    """Returns the chief's text; all other processes pass an empty one."""
    sent = np.frombuffer(text.encode(), np.uint8)
    size = round(self.count * self._mean(float(len(sent))))
    padded = tf.constant(np.pad(sent, [0, size - len(sent)]), tf.float64)
    codes = np.round(self.count * self._traced_mean(padded).numpy())
    return codes.astype(np.uint8).tobytes().decode()

  def _mean(self, value: float) -> float:
    if self.count == 1:
      return value
    return float(self._traced_mean(tf.constant(value, tf.float64)))


def _list_addresses(resolver) -> Sequence[str]:
  if resolver is None:
    return ()
  return resolver.cluster_spec().as_dict()["worker"]
