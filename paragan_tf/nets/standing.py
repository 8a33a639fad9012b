"""Standing statistics: batch norm for evaluation, without moving averages."""

import contextlib
from typing import Iterable, Iterator, List, Optional, Tuple

import tensorflow as tf

from paragan_tf.nets import norms
from paragan_tf.types import Mode, Net


@contextlib.contextmanager
def standing_statistics(
  g: Net, batches: Iterable[Tuple[tf.Tensor, Optional[tf.Tensor]]]
) -> Iterator[None]:
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
    _average(g, found, batches)
    yield
  finally:
    for variable, value in zip(state, before):
      variable.assign(value)


def _average(g: Net, found: List[norms.BatchNorm], batches: Iterable) -> None:
  try:
    for i, (z, labels) in enumerate(batches):
      for norm in found:
        norm.batch_weight = 1.0 / (i + 1)
      g(z, labels, Mode.FROZEN)
  finally:
    for norm in found:
      norm.batch_weight = None
