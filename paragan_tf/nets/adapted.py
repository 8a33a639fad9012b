"""A user's own net as a player: a copy that names and owns its variables.

    net = what the class or function makes, or a copy of the instance
    net(zeros), eagerly: makes the variables, shows the shape of the result
    net(zeros), traced:  finds the same variables, shows whether it writes any

A net is a `tf.Module`, a Keras layer or model, or an object with `model_fn`;
`calling.py` says which arguments it gets. Layers that are made in the call
itself, as in TensorFlow 1, find the variables of the first call.

Losses and constraints of Keras layers are ignored. Integer variables, such as
counters and the seeds of Keras 3, are left to the net: they are neither
averaged nor saved. Initial values are the net's own, whatever the seed.
"""

import functools
import itertools
from typing import Any, Callable, Optional, Sequence, Set, Tuple

import tensorflow as tf

from paragan_tf.nets import calling, channels_last, keras_versions
from paragan_tf.nets.copying import MAKER, copy_net, parts_of
from paragan_tf.nets.variable_store import VariableStore, unique_id
from paragan_tf.types import ImageSpec, Mode, Net

_WRITES = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign")


def adapt_g(
  net: Any, z_dim: Optional[int], spec: ImageSpec, seed: int, name: str
) -> Net:
  """Makes G out of a user's net, or of what makes one.

  Eager, under the scope of a strategy; so is `adapt_d`.

  Args:
    net: See the top of this file; an instance stays as it is.
    z_dim: The length of the latent code; `None` asks the net's `z_dim`, then
      its Keras input, and is 128 if neither says.
    spec: The images that G is to generate.
    seed: Not used.
    name: Begins the names of the variables.
  """
  del seed
  store = VariableStore(name)
  net = _make_or_copy(net, store)
  z_dim = _z_dim(net, z_dim)
  shape = [2, spec.resolution, spec.resolution, spec.channels]

  def check(result):
    if not tf.is_tensor(result) or result.shape != shape:
      raise ValueError(
        f"`{name}` must map z of shape [2, {z_dim}] to images of shape "
        f"{shape}, got {_shapes(result)}: change its last layer, or the data."
      )

  g = _build(net, store, spec, tf.zeros([2, z_dim]), check)
  g.z_dim = z_dim
  return g


def adapt_d(net: Any, spec: ImageSpec, seed: int, name: str) -> Net:
  """Makes D out of a user's net, or of what makes one.

  Its result is the logits, `[b]` or `[b, 1]`, or a tuple with them at the end.
  """
  del seed
  store = VariableStore(name)
  net = _make_or_copy(net, store)

  def check(result):
    logits = _last(result)
    if not tf.is_tensor(logits) or logits.shape not in ([2], [2, 1]):
      raise ValueError(
        f"`{name}` must map 2 images to logits of shape [2] or [2, 1], alone "
        f"or last in a tuple, got {_shapes(result)}: end it with one unit."
      )

  shape = [2, spec.resolution, spec.resolution, spec.channels]
  return _build(net, store, spec, tf.zeros(shape), check)


class Adapted(tf.Module):
  """A net that was copied and built.

  Attributes:
    variables: In the order in which they were made.
    trainable_variables: Without those of Keras layers that are frozen.
    uses_batch_statistics: Whether a call writes any variable.
    z_dim: The length of the latent code, if this is G.
  """

  z_dim: int

  def __init__(
    self,
    call: calling.Call,
    net: Any,
    store: VariableStore,
    writes: bool,
    converted: channels_last.Converted,
  ):
    super().__init__(name=store.name)
    # A closure, so that nothing else of the user's net enters a checkpoint.
    self._call = call
    self._made = [v for v in store.variables if v.dtype.is_floating]
    # In a function, as no run saves them; an export needs those that it reads.
    self._list_counters = lambda: tuple(store.counters)
    frozen = _frozen_ids(net)
    self._weights = [
      v for v in self._made if v.trainable and unique_id(v) not in frozen
    ]
    self.uses_batch_statistics = writes
    self._list_converted = lambda: dict(converted)

  @property
  def variables(self) -> Sequence[tf.Variable]:
    """All variables, in the order in which they were made."""
    return tuple(self._made)

  @property
  def counters(self) -> Sequence[tf.Variable]:
    """What else the net has made: integers, which nothing saves."""
    return self._list_counters()

  @property
  def converted(self) -> channels_last.Converted:
    """What layers with channels first compute, with channels last."""
    return self._list_converted()

  @property
  def trainable_variables(self) -> Sequence[tf.Variable]:
    """The weights."""
    return tuple(self._weights)

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps one replica's batch; variables change in `Mode.TRAIN` only."""
    # Weights too: Keras writes a kernel back when it divides by its norm.
    restores = self.uses_batch_statistics and mode is not Mode.TRAIN
    before = [tf.identity(v) for v in self._made] if restores else []
    result = _last(self._call(x, labels, mode is not Mode.EVAL))
    for variable, value in zip(self._made, before):
      variable.assign(value)
    if result.shape.rank == 2:
      result = result[:, 0]
    return tf.cast(result, tf.float32)


def _make_or_copy(net: Any, store: VariableStore) -> Any:
  """Returns a new net, or a copy of the instance."""
  keras_versions.check_backend(parts_of(net), store.name)
  with store.create():
    net = net() if calling.makes_nets(net) else copy_net(net, store.name)
  keras_versions.check_backend(parts_of(net), store.name)
  store.record_initial_values()
  return net


def _build(
  net: Any,
  store: VariableStore,
  spec: ImageSpec,
  x: tf.Tensor,
  check: Callable[[Any], None],
) -> Adapted:
  """Calls the net twice: the first call makes what the second must find."""
  call, converted = _make_call(net, spec, store.name, x)
  labels = tf.zeros([2], tf.int32) if spec.num_classes else None
  num_known, num_counters = len(store.variables), len(store.counters)
  with store.create(), tf.GradientTape() as tape:
    try:
      result = call(x, labels, False)
    except Exception as e:
      raise ValueError(
        f"`{store.name}` must take a batch of shape {x.shape.as_list()}, but "
        f"its call ends with {type(e).__name__}: {e}{channels_last.explain(e)}"
      ) from e
  check(result)
  held = [p for p in parts_of(net) if isinstance(p, tf.Variable)]
  _check_owner(store, [*held, *tape.watched_variables()])
  store.reset()
  store.vary_seeds()
  held_ids = set(map(unique_id, held))
  made_in_call, counters = (
    [v for v in made if unique_id(v) not in held_ids]
    for made in (store.variables[num_known:], store.counters[num_counters:])
  )

  def call_again(x, labels, training):
    with store.reuse(made_in_call, counters):
      return call(x, labels, training)

  writes = _writes_variables(functools.partial(call_again, x, labels, True))
  return Adapted(call_again, net, store, writes, converted)


def _make_call(
  net: Any, spec: ImageSpec, name: str, x: tf.Tensor
) -> Tuple[calling.Call, channels_last.Converted]:
  """Returns the call of a net, and its layers with channels first.

  They compute with channels last, and images have channels last outside.
  """
  converted = channels_last.convert(parts_of(net))
  call = calling.make_call(net, spec, name)
  if x.shape.rank == 2:
    return channels_last.take_channels_last(call, spec), converted
  if channels_last.expects_channels_first(net, spec, converted):
    call = channels_last.give_channels_first(call)
  return call, converted


def _check_owner(store: VariableStore, used: Sequence[tf.Variable]) -> None:
  own = {unique_id(variable) for variable in store.variables}
  for variable in used:
    if variable.dtype.is_floating and unique_id(variable) not in own:
      raise ValueError(
        f"`{store.name}` must own its variables, got `{variable.name}`, which "
        f"was not made for it: pass {MAKER}."
      )


def _writes_variables(replica: Callable[[], Any]) -> bool:
  """Returns whether a function writes a variable that is not a counter.

  It is traced, not run.
  """

  # Named, because a TPU's strategy names its program after it.
  @tf.function(autograph=False)
  def call_on_replicas():
    tf.distribute.get_strategy().run(replica)

  graph = call_on_replicas.get_concrete_function().graph.as_graph_def()
  functions = (function.node_def for function in graph.library.function)
  nodes = itertools.chain(graph.node, *functions)
  writes = (node.attr for node in nodes if node.op.startswith(_WRITES))
  types = (attr["dtype"].type or attr["T"].type for attr in writes)
  return any(tf.as_dtype(dtype).is_floating for dtype in types)


def _frozen_ids(net: Any) -> Set[str]:
  """Returns the ids of the variables that Keras does not train."""
  parts = parts_of(net)
  frozen = [part for part in parts if keras_versions.is_frozen(part)]
  for layer in filter(keras_versions.is_layer, parts):
    if layer.built and not layer.trainable:
      frozen.extend(layer.variables)
  return set(map(unique_id, frozen))


def _z_dim(net: Any, asked: Optional[int]) -> int:
  z_dim = getattr(net, "z_dim", None) if asked is None else asked
  if z_dim is None:
    z_dim = 128
    if keras_versions.is_network(net):
      z_dim = net.inputs[0].shape[-1]
  if not isinstance(z_dim, int) or z_dim < 1:
    raise ValueError(f"`z_dim` must be an integer of at least 1, got {z_dim}.")
  return z_dim


def _last(result: Any) -> Any:
  return result[-1] if isinstance(result, (list, tuple)) else result


def _shapes(result: Any) -> Any:
  return tf.nest.map_structure(lambda x: getattr(x, "shape", x), result)
