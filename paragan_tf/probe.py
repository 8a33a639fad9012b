"""Looks at a run while it trains: few samples, D's logits, the weights.

    signals = Probe(experiment)(step)

It takes about as long as a step, and communicates with nobody.
"""

from typing import Any, List, Optional

import numpy as np
import tensorflow as tf

from paragan_tf import watchdog
from paragan_tf.engine import strategies
from paragan_tf.experiment import Experiment
from paragan_tf.types import Mode

_NUM, _SEED = 64, 4
_NUM_WEIGHTS, _MAX_ELEMENTS = 8, 1 << 21  # Of those whose norm is computed.


class Probe:
  """Draws a few samples of G as it trains, and lets D judge them.

  Args:
    experiment: What trains.
  """

  def __init__(self, experiment: Experiment):
    self._experiment = experiment
    self._look = tf.function(self._on_replicas, autograph=False)
    # At most as many at once as a replica trains on: memory is made for those.
    num_replicas = experiment.strategy.num_replicas_in_sync
    self._size = min(_NUM, max(1, experiment.batch_size // num_replicas))
    self._num = _NUM // self._size * self._size
    self._real: List[tf.Tensor] = []
    self._real_diversity = self._real_classes = float("nan")

  def __call__(self, step: int) -> watchdog.Signals:
    """Returns what is seen at a step; NaN where nothing can be said."""
    if not self._real:
      self._read_real()
    given = [self._codes(), self._labels(), *self._real]
    parts = [
      self._look(*(x if x is None else x[i : i + self._size] for x in given))
      for i in range(0, self._num, self._size)
    ]
    local = self._experiment.strategy.experimental_local_results
    fakes, *logits = (
      np.concatenate([x.numpy() for x in values]).astype(np.float64)
      for values in zip(*(local(part)[0] for part in parts))
    )
    return watchdog.Signals(
      step,
      watchdog.diversity(fakes) / max(self._real_diversity, 1e-6),
      watchdog.saturation(fakes),
      float(max(abs(np.mean(x)) for x in logits)),
      self.top_singular_value(),
      self._count_classes(fakes) / self._real_classes,
    )

  def _read_real(self) -> None:
    params = {"batch_size": self._num, "python": self._experiment.python_input}
    batch = next(iter(self._experiment.input_fn(params)))
    self._real = list(batch)
    images = batch[0].numpy()
    self._real_diversity = watchdog.diversity(images)
    self._real_classes = self._count_classes(images)

  def _codes(self) -> tf.Tensor:
    return tf.constant(self._experiment.sampler.codes(self._num, _SEED))

  def _labels(self) -> Optional[tf.Tensor]:
    num_classes = self._experiment.spec.num_classes
    return tf.range(self._num) % num_classes if num_classes else None

  def _on_replicas(self, z, labels, images, ids=None) -> Any:
    players = self._experiment.step.players

    def replica(z, labels, images, ids):
      d = players["d"].net
      fakes = players["g"].net(z, labels, Mode.EVAL)
      return fakes, d(fakes, labels, Mode.EVAL), d(images, ids, Mode.EVAL)

    if ids is not None:
      ids = tf.cast(ids, tf.int32)
    run = self._experiment.strategy.run
    return run(replica, args=(z, labels, images, ids))

  def _count_classes(self, images: np.ndarray) -> float:
    """Returns how many classes are recognized, NaN if nothing knows them."""
    extractor = self._experiment.evaluation.extractor
    known = getattr(extractor, "classes_of", "")
    if extractor is None or known != self._experiment.input_fn.name:
      return float("nan")
    logits = extractor(np.asarray(images, np.float32)).logits
    return float(len(set(np.argmax(np.asarray(logits), -1).tolist())))

  def top_singular_value(self) -> float:
    """Returns the largest one of some weights of both players."""
    weights = [
      weight
      for player in self._experiment.step.players.values()
      for weight in player.weights
      if weight.shape.rank > 1 and weight.shape.num_elements() <= _MAX_ELEMENTS
    ]
    weights.sort(key=lambda x: -x.shape.num_elements())
    strategy = self._experiment.strategy
    values = (strategies.copies(strategy, x)[0] for x in weights[:_NUM_WEIGHTS])
    found = [watchdog.top_singular_value(x.numpy()) for x in values]
    return max(found, default=0.0, key=lambda x: np.nan_to_num(x, nan=np.inf))
