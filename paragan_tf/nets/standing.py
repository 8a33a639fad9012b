"""Standing statistics: batch norm for evaluation, without moving averages."""

import contextlib
from typing import Iterable, Iterator, Optional, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.nets import norms
from paragan_tf.types import Mode, Net

# Latent codes and labels.
Batches = Iterable[Tuple[tf.Tensor, Optional[tf.Tensor]]]
BATCH_SIZE = 256


def make_batches(codes: np.ndarray, num_classes: int) -> Batches:
  """Yields batches of latent codes `[n, z_dim]`, with random labels."""
  labels = np.random.RandomState(0).randint(
    max(num_classes, 1), size=len(codes)
  )
  for i in range(0, len(codes), BATCH_SIZE):
    rows = slice(i, i + BATCH_SIZE)
    ids = tf.constant(labels[rows], tf.int32) if num_classes else None
    yield tf.constant(codes[rows]), ids


@contextlib.contextmanager
def standing_statistics(g: Net, batches: Batches) -> Iterator[None]:
  """Inside, `Mode.EVAL` uses the mean of the statistics of `batches`.

  These are BigGAN's standing statistics (arXiv 1809.11096, appendix). The
  stored ones are restored afterwards. Eager, one copy of each variable.

  Args:
    g: The net whose batch norms are meant.
    batches: Latent codes and labels of the batches to average over.
  """
  found = norms.batch_norms(g)
  state = [v for norm in found for v in (norm.mean, norm.variance)]
  before = [tf.identity(variable) for variable in state]
  try:
    assign_standing_statistics(g, batches)
    yield
  finally:
    for variable, value in zip(state, before):
      variable.assign(value)


def assign_standing_statistics(g: Net, batches: Batches) -> None:
  """Replaces the stored statistics by the mean of those of `batches`."""
  found = norms.batch_norms(g)
  try:
    for i, (z, labels) in enumerate(batches):
      for norm in found:
        norm.batch_weight = 1.0 / (i + 1)
      g(z, labels, Mode.FROZEN)
  finally:
    for norm in found:
      norm.batch_weight = None
