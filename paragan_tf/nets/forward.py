"""One forward pass of a net, as its layers see it.

    forward = fused.begin(net, mode)    # a net makes it from the mode
    y = layer(x, forward)               # layers pass it on to layers inside
    w = forward.read(variable)          # and reach their variables through it

A layer takes a plain `Mode` as well: a pass in which nothing is precomputed.
"""

import dataclasses
from typing import Any, Callable, Mapping, Optional, Union

import tensorflow as tf

from paragan_tf.types import Mode

# What layers are called with.
AnyMode = Union[Mode, "Forward"]


@dataclasses.dataclass(frozen=True)
class Forward:
  """How the layers of a net read, assign and compute in one pass.

  Attributes:
    mode: How the net is called.
    precomputed: What was computed for layers in advance, by the layer's id.
    values: What variables hold in this pass, by the variable's id. Variables
      that are not in it hold what they hold now.
    assigns_state: Whether state is updated; not so when a pass is repeated for
      its gradient.
    observer: Called with each layer, its input and its result.
  """

  mode: Mode
  precomputed: Mapping[int, Any] = dataclasses.field(default_factory=dict)
  values: Mapping[int, tf.Tensor] = dataclasses.field(default_factory=dict)
  assigns_state: bool = True
  observer: Optional[Callable[[tf.Module, tf.Tensor, tf.Tensor], None]] = None

  @classmethod
  def of(cls, mode: AnyMode) -> "Forward":
    """Returns the pass that a layer is called in."""
    return cls(mode) if isinstance(mode, Mode) else mode

  def read(self, variable: tf.Variable) -> tf.Tensor:
    """Returns the value of a layer's variable."""
    value = self.values.get(id(variable))
    return tf.convert_to_tensor(variable) if value is None else value

  def assign_state(self, variable: tf.Variable, value: tf.Tensor) -> None:
    """Gives a layer's state its next value."""
    if self.assigns_state:
      variable.assign(value)

  def note(self, layer: tf.Module, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns what a layer has made of x, after telling the observer."""
    if self.observer is not None:
      self.observer(layer, x, y)
    return y

  def result_for(self, layer: tf.Module) -> Any:
    """Returns what was precomputed for a layer, or `None`."""
    return self.precomputed.get(id(layer))

  def with_precomputed(self, results: Mapping[int, Any]) -> "Forward":
    """Returns this pass with more results, by the layer's id."""
    return dataclasses.replace(
      self, precomputed={**self.precomputed, **results}
    )
