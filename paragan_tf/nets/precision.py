"""A net that computes in another precision than that of its weights.

In float16, gradients need a loss scale (`game/loss_scale.py`).

Layers compute in the precision of their input, so the input is what is cast.
Weights, statistics of norms, spectral norms, the softmax of attention, the head
of D and all losses stay float32.
"""

from typing import Any, Optional

import tensorflow as tf

from paragan_tf.types import Mode, Net, Verdict

PRECISIONS = {
  "float32": tf.float32,
  "bfloat16": tf.bfloat16,
  "float16": tf.float16,
}


class Precise(tf.Module):
  """Calls a net in a precision, and returns float32."""

  def __init__(self, net: Net, dtype: tf.DType):
    super().__init__(name="precise")
    self.net = net
    self.dtype = dtype

  def __getattr__(self, name: str) -> Any:
    # The net's other attributes: `z_dim`, `uses_batch_statistics`, ...
    if name == "net":
      raise AttributeError(name)
    return getattr(self.net, name)

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps one replica's batch."""
    y = self.net(tf.cast(x, self.dtype), labels, mode)
    return tf.cast(y, tf.float32)

  @property
  def judge(self):
    """D's `judge`; an `AttributeError` if the net has none."""
    net_judge = self.net.judge

    def judge(images, labels, mode: Mode) -> Verdict:
      verdict = net_judge(tf.cast(images, self.dtype), labels, mode)
      return Verdict(
        *(x if x is None else tf.cast(x, tf.float32) for x in verdict)
      )

    return judge


def in_precision(net: Net, precision: str) -> Net:
  """Returns a net that computes in a precision."""
  if precision not in PRECISIONS:
    raise ValueError(
      f"`precision` must be auto, {', '.join(PRECISIONS)}, got '{precision}'."
    )
  if precision == "float32":
    return net
  return Precise(net, PRECISIONS[precision])
