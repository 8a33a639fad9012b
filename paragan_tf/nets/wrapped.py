"""A net around another one, which it stands for."""

from typing import Any, Optional

import tensorflow as tf

from paragan_tf.types import Mode, Net, Verdict


class Wrapped(tf.Module):
  """Does as the net inside does; a subclass changes how that is called."""

  def __init__(self, net: Net):
    super().__init__(name=type(self).__name__.lower())
    self.net = net

  def __getattr__(self, name: str) -> Any:
    # What the net has beside its calls: `z_dim`, `uses_batch_statistics`, ...
    if name == "net":
      raise AttributeError(name)
    return getattr(self.net, name)

  def run(self, fn, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode):
    """Calls `fn`, which is the net or its `judge`."""
    return fn(x, labels, mode)

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps one replica's batch."""
    return self.run(self.net, x, labels, mode)

  @property
  def judge(self):
    """All that D says, if the net can say more than logits."""
    full = self.net.judge

    def judge(images, labels, mode: Mode) -> Verdict:
      return self.run(full, images, labels, mode)

    return judge
