"""A net that computes in another precision than that of its weights.

Layers compute in the precision of their input, so the input is what is turned.
Weights, statistics of norms, spectral norms, the softmax of attention, the end
of D and all losses stay float32.
"""

import tensorflow as tf

from paragan_tf.nets.wrapped import Wrapped
from paragan_tf.types import Net, Verdict

PRECISIONS = {"float32": tf.float32, "bfloat16": tf.bfloat16}


class Precise(Wrapped):
  """Calls a net in a precision, and gives float32 back."""

  def __init__(self, net: Net, dtype: tf.DType):
    super().__init__(net)
    self.dtype = dtype

  def run(self, fn, x, labels, mode):
    """Turns what goes in, and what comes out."""
    y = fn(tf.cast(x, self.dtype), labels, mode)
    if not isinstance(y, Verdict):
      return tf.cast(y, tf.float32)
    return Verdict(*(p if p is None else tf.cast(p, tf.float32) for p in y))


def in_precision(net: Net, precision: str) -> Net:
  """Returns a net that computes in a precision."""
  if precision not in PRECISIONS:
    raise ValueError(
      f"`precision` must be auto, {', '.join(PRECISIONS)}, got '{precision}'."
    )
  if precision == "float32":
    return net
  return Precise(net, PRECISIONS[precision])
