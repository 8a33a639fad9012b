"""Draws samples from a generator, on all replicas of this process."""

import math
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine.processes import Processes
from paragan_tf.types import Mode, Net

# Latent codes are drawn in blocks of this size, whatever the batch: the code of
# a sample depends on its seed and its index alone.
_BLOCK = 256
BATCH_SIZE = 256  # By default, so that all that measure draw the same.


def draw_codes(
  seed: Union[int, tf.Tensor],
  start: Union[int, tf.Tensor],
  num: Union[int, tf.Tensor],
  z_dim: int,
  truncation: Optional[float] = None,
) -> tf.Tensor:
  """Returns latent codes of a seed's sequence, `[num, z_dim]`; may be traced.

  Args:
    seed: Of the sequence.
    start: Index of the first code.
    num: How many.
    z_dim: Length of a code.
    truncation: See `Sampler`.
  """
  start, num = (tf.cast(x, tf.int64) for x in (start, num))
  first = start // _BLOCK
  blocks = tf.map_fn(
    lambda block: _draw_block(seed, block * _BLOCK, z_dim, truncation),
    tf.range(first, (start + num + _BLOCK - 1) // _BLOCK),
    fn_output_signature=tf.TensorSpec([_BLOCK, z_dim]),
  )
  skipped = start - first * _BLOCK
  return tf.reshape(blocks, [-1, z_dim])[skipped : skipped + num]


def _draw_block(seed, start, z_dim: int, truncation) -> tf.Tensor:
  seeds = tf.stack([tf.cast(seed, tf.int64), start])
  shape = [_BLOCK, z_dim]
  if truncation is None:
    return tf.random.stateless_normal(shape, seeds, alg="philox")
  # Exact, by inverting the normal distribution between the bounds.
  upper = 0.5 * (1.0 + math.erf(truncation / math.sqrt(2.0)))
  u = tf.random.stateless_uniform(
    shape, seeds, 1.0 - upper, upper, alg="philox"
  )
  return tf.cast(tf.math.ndtri(tf.cast(u, tf.float64)), tf.float32)


def check_truncation(truncation: Optional[float]) -> None:
  """Raises a `ValueError` unless latent codes can be truncated there."""
  # Not `<= 0`, which NaN is not either.
  if truncation is not None and not truncation > 0:
    raise ValueError(
      f"`truncation` must be above 0, got {truncation}: 1 or 0.5 gives samples "
      "that are more typical and vary less; leave it out for all of them."
    )


class Sampler:
  """Draws samples; the same labels, seed and start give the same images.

  With `truncation`, latent codes are drawn from a normal distribution truncated
  at that many standard deviations (arXiv 1809.11096, section 3.1).
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    g: Net,
    conditional: bool,
    batch_size: int = BATCH_SIZE,
    truncation: Optional[float] = None,
  ):
    check_truncation(truncation)
    self.truncation = truncation
    num = Processes(strategy).num_local_replicas
    self._strategy = strategy
    self._num_replicas = num
    self._g = g
    self.z_dim = g.z_dim  # type: ignore[attr-defined]
    self._conditional = conditional
    self._batch_size = -(-batch_size // num) * num
    self._draw = tf.function(self._draw_on_replicas, autograph=False)

  def __call__(
    self,
    labels: Optional[np.ndarray],
    seed: int,
    start: int = 0,
    z: Optional[np.ndarray] = None,
  ) -> np.ndarray:
    """Returns one image a label, `[n, h, w, c]`, in [-1, 1].

    Args:
      labels: Class ids, `[n]`, or weights of the classes in each sample,
        `[n, num_classes]` in floats. An unconditional G uses only their number,
        and needs none if there is a `z`.
      seed: Seed of the latent codes.
      start: Index of the first sample in the seed's sequence.
      z: Latent codes, `[n, z_dim]`; replace those of the seed.
    """
    if labels is None:
      if z is None or self._conditional:
        raise ValueError("`labels` must be set, got `None`: G is conditional.")
      labels = np.zeros(len(z), np.int32)
    if z is None:
      z = self.codes(len(labels), seed, start)
    size = self._batch_size
    parts = []
    for i in range(0, len(labels), size):
      # Always whole batches: kernels may round in other ways in smaller ones.
      part = np.resize(labels[i : i + size], [size, *labels.shape[1:]])
      part = part.astype(np.float32 if labels.ndim == 2 else np.int32)
      codes = np.resize(z[i : i + size], [size, self.z_dim])
      codes = tf.constant(codes, tf.float32)
      parts.append(self._draw(codes, tf.constant(part)).numpy())
    return np.concatenate(parts)[: len(labels)]

  def codes(self, num: int, seed: int, start: int = 0) -> np.ndarray:
    """Returns latent codes of a seed's sequence, `[num, z_dim]`."""
    return draw_codes(seed, start, num, self.z_dim, self.truncation).numpy()

  def _draw_on_replicas(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns images of a batch; each local replica draws its shard."""

    def replica(z, labels):
      return self.draw_shard(z, labels, self._num_replicas)

    images = self._strategy.run(replica, args=(z, labels))
    return tf.concat(self._strategy.experimental_local_results(images), 0)

  def draw_shard(
    self, z: tf.Tensor, labels: tf.Tensor, num_shards: int
  ) -> tf.Tensor:
    """Returns the images of this replica's shard. Replica context.

    A TPU reads the replica's id at run time, and XLA compiles no slice whose
    bounds are not constant; so the shards are rows of a batch, to gather one.
    """
    shard = collectives.replica_id() % num_shards

    def take(x: tf.Tensor) -> tf.Tensor:
      return tf.gather(tf.reshape(x, [num_shards, -1, *x.shape[1:]]), shard)

    return self._g(
      take(z), take(labels) if self._conditional else None, Mode.EVAL
    )
