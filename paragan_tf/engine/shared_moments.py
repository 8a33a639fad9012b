"""Memory that the moments of both players' optimizers share.

Where a replica trains G or D and never both, its memory need not hold the
moments of both:

    largest moment of G, largest moment of D    -> one buffer
    second of G, second of D                    -> one buffer
    ...

A replica of G sees its moments in the buffers, a replica of D its own. All
replicas have the same variables, as one program for all of them requires.
"""

import itertools
from typing import Dict, List, Mapping, Optional, Sequence

import tensorflow as tf

from paragan_tf.engine.player import Player
from paragan_tf.game.slots import SlotSpec


class MomentView:
  """A moment in a buffer; used like a variable.

  Attributes:
    name: That the variable would have.
    shape: Of the moment.
    dtype: Of the moment.
  """

  def __init__(self, spec: SlotSpec, buffer: tf.Variable):
    self.name, self.shape, self.dtype = spec
    self.buffer = buffer

  def read_flat(self) -> tf.Tensor:
    """Returns the moment as a vector, as it is stored."""
    return self.buffer.read_value()[: self.shape.num_elements()]

  def read_value(self) -> tf.Tensor:
    """Returns the moment."""
    return tf.reshape(self.read_flat(), self.shape)

  def numpy(self):
    """Returns the moment as an array."""
    return self.read_value().numpy()

  def assign(self, value: tf.Tensor) -> None:
    """Sets the moment."""
    flat = tf.reshape(tf.convert_to_tensor(value, self.dtype), [-1])
    rest = self.buffer.shape[0] - self.shape.num_elements()
    self.buffer.assign(tf.pad(flat, [[0, rest]]))

  def in_buffer(self, buffer: tf.Variable) -> "MomentView":
    """Returns the same moment in another copy of the buffer."""
    return MomentView(SlotSpec(self.name, self.shape, self.dtype), buffer)


def _to_tensor(
  view: MomentView,
  dtype: Optional[tf.DType] = None,
  name: Optional[str] = None,
  as_ref: bool = False,
):
  del name, as_ref
  if dtype is not None and dtype != view.dtype:
    return NotImplemented
  return view.read_value()


tf.register_tensor_conversion_function(MomentView, _to_tensor)


class SharedMoments(tf.Module):
  """The buffers, and the view of each moment by its name.

  Attributes:
    views: Of each player.
  """

  def __init__(self, specs: Mapping[str, Sequence[SlotSpec]]):
    """Makes the buffers, under a strategy's scope.

    Args:
      specs: Of the moments of "g" and "d".
    """
    super().__init__(name="moments")
    self.views: Dict[str, List[MomentView]] = {who: [] for who in specs}
    self.buffers: List[tf.Variable] = []
    ranked = [_rank(who, specs[who]) for who in specs]
    for index, group in enumerate(itertools.zip_longest(*ranked)):
      pairs = [pair for pair in group if pair is not None]
      size = max(spec.shape.num_elements() for _, spec in pairs)
      buffer = tf.Variable(
        tf.zeros([size], pairs[0][1].dtype),
        trainable=False,
        name=f"moments/{index}",
      )
      self.buffers.append(buffer)
      for who, spec in pairs:
        self.views[who].append(MomentView(spec, buffer))

  def make_moment(self, spec: SlotSpec) -> MomentView:
    """Returns the view of a moment."""
    views = itertools.chain(*self.views.values())
    return next(view for view in views if view.name == spec.name)


def share_moments(
  players: Mapping[str, Player], is_split: bool
) -> Optional[SharedMoments]:
  """Returns buffers for moments where a replica needs those of one player.

  That is where it trains one of them (`is_split`) and updates only that one:
  with shared gradients all replicas update both.
  """
  if not is_split or any(p.exchange.shares_gradients for p in players.values()):
    return None
  specs = {
    who: player.optimizer.moment_specs(player.weights)
    for who, player in players.items()
  }
  dtypes = {spec.dtype for both in specs.values() for spec in both}
  return SharedMoments(specs) if len(dtypes) == 1 else None


def _rank(who: str, specs: Sequence[SlotSpec]):
  ranked = sorted(specs, key=lambda spec: -spec.shape.num_elements())
  return [(who, spec) for spec in ranked]
