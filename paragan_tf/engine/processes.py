"""What the processes of one run decide together.

Every process runs the same program; the chief alone writes. Each method is a
meeting: all processes must call it, in the same order.
"""

import json
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from paragan_tf import collectives


class Processes:
  """The processes of one strategy; alone, nothing is sent.

  Attributes:
    index: Which one this is.
    count: How many there are.
    num_local_replicas: How many replicas each has.
    is_chief: Whether this one writes.
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

  def mean(self, value: tf.Tensor) -> tf.Tensor:
    """Returns the mean over all processes. Traced, cross-replica context."""
    if self.count == 1:
      return value
    mean = self._strategy.run(lambda x: collectives.mean([x])[0], args=(value,))
    return self._strategy.experimental_local_results(mean)[0]

  def any(self, flag: bool) -> bool:
    """Returns whether any process says so."""
    return self._mean(float(flag)) > 0.0

  def same(self, value: float) -> bool:
    """Returns whether all processes gave the same value."""
    return not self.any(self._mean(value) != value)

  def wait(self) -> None:
    """Returns when all have come here."""
    self._mean(0.0)

  def on_chief(self, do: Callable[[], Any]) -> Any:
    """Lets the chief do something; all get its result, or an error.

    Args:
      do: Returns something that JSON can hold, and does not meet the others.
    """
    if self.count == 1:
      return do()
    if not self.is_chief:
      answer = json.loads(self._from_chief(""))
      if "error" in answer:
        raise RuntimeError(f"The chief failed: {answer['error']}")
      return answer["result"]
    try:
      text = json.dumps({"result": do()})
    except Exception as e:  # The others are waiting.
      self._from_chief(json.dumps({"error": str(e)}))
      raise
    return json.loads(self._from_chief(text))["result"]

  def _from_chief(self, text: str) -> str:
    """Returns what the chief gives, where all others give nothing."""
    given = np.frombuffer(text.encode(), np.uint8)
    size = round(self.count * self._mean(float(len(given))))
    padded = tf.constant(np.pad(given, [0, size - len(given)]), tf.float64)
    codes = np.round(self.count * self._traced_mean(padded).numpy())
    return codes.astype(np.uint8).tobytes().decode()

  def _mean(self, value: float) -> float:
    if self.count == 1:
      return value
    return float(self._traced_mean(tf.constant(value, tf.float64)))
