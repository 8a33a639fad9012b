"""Drawing from a generator, shared among the replicas of this process."""

import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine.processes import Processes
from paragan_tf.types import Mode, Net


class Sampler:
  """Draws samples; the same labels, seed and start give the same images."""

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    g: Net,
    conditional: bool,
    batch_size: int = 256,
  ):
    num = Processes(strategy).num_local_replicas
    self._strategy = strategy
    self._num_replicas = num
    self._g = g
    self._z_dim = g.z_dim  # type: ignore[attr-defined]
    self._conditional = conditional
    self._batch_size = -(-batch_size // num) * num
    self._draw = tf.function(self._shared, autograph=False)

  def __call__(
    self, labels: np.ndarray, seed: int, start: int = 0
  ) -> np.ndarray:
    """Returns one image a label, `[n, h, w, c]`, in [-1, 1].

    Args:
      labels: Class ids, `[n]`; only their number counts if unconditional.
      seed: Which latent codes.
      start: The place of the first sample in the seed's sequence.
    """
    size = self._batch_size
    parts = []
    for i in range(0, len(labels), size):
      z = tf.random.stateless_normal(
        [size, self._z_dim], [seed, start + i], alg="philox"
      )
      part = np.resize(labels[i : i + size], [size]).astype(np.int32)
      parts.append(self._draw(z, tf.constant(part)).numpy())
    return np.concatenate(parts)[: len(labels)]

  def _shared(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    share = self._batch_size // self._num_replicas

    def replica(z, labels):
      first = collectives.replica_id() % self._num_replicas * share
      z = tf.ensure_shape(z[first : first + share], [share, z.shape[1]])
      labels = labels[first : first + share] if self._conditional else None
      return self._g(z, labels, Mode.EVAL)

    images = self._strategy.run(replica, args=(z, labels))
    return tf.concat(self._strategy.experimental_local_results(images), 0)
