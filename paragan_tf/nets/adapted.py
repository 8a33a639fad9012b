"""A user's own net as a player: a copy that names and owns its variables.

    net = what the class or function makes, or a copy of the instance
    net(zeros), eagerly: makes the variables, shows the shape of the result
    net(zeros), traced:  finds the same variables, shows whether it moves any

A net is a `tf.Module`, a Keras layer or model, or an object with `model_fn`.
It is called with x, with labels if it takes a second argument (or has a second
Keras input), and with `training` if it has such a word; if not, Keras layers
inside follow the mode by themselves. Layers that are made in the call itself,
as in TensorFlow 1, find the variables of the first call.

Losses and constraints that Keras layers carry are ignored. Integer variables,
such as counters, are left to the net: neither averaged nor saved. Initial
values are the net's own, whatever the seed.
"""

import contextlib
import functools
import inspect
import itertools
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set

import tensorflow as tf

from paragan_tf.nets.copying import MAKER, copied, is_network, parts_of
from paragan_tf.types import ImageSpec, Mode, Net

# From x, labels and whether to train to whatever a net returns.
Call = Callable[[tf.Tensor, Optional[tf.Tensor], bool], Any]

_CALLS = itertools.count()
_TRAINING = ("training", "is_training")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_WRITES = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign")


def adapted_g(
  net: Any, z_dim: Optional[int], spec: ImageSpec, seed: int, name: str
) -> Net:
  """Returns G out of a user's net, or of what makes one.

  Eager, under the scope of a strategy; so is `adapted_d`.

  Args:
    net: See the top of this file; an instance stays as it is.
    z_dim: The length of the latent code; `None` asks the net's `z_dim`, then
      its Keras input, and is 128 if neither says.
    spec: What G is to draw.
    seed: Not used.
    name: Begins the names of the variables.
  """
  del seed
  ledger = _Ledger(name)
  net = _own(net, ledger)
  z_dim = _z_dim(net, z_dim)
  shape = [2, spec.resolution, spec.resolution, spec.channels]

  def check(result):
    if not tf.is_tensor(result) or result.shape != shape:
      raise ValueError(
        f"`{name}` must map z of shape [2, {z_dim}] to images of shape "
        f"{shape}, got {_shapes(result)}: change its last layer, or the data."
      )

  g = _built(net, ledger, spec, tf.zeros([2, z_dim]), check)
  g.z_dim = z_dim
  return g


def adapted_d(net: Any, spec: ImageSpec, seed: int, name: str) -> Net:
  """Returns D out of a user's net, or of what makes one.

  Its result is the logits, `[b]` or `[b, 1]`, or a tuple with them at the end.
  """
  del seed
  ledger = _Ledger(name)
  net = _own(net, ledger)

  def check(result):
    logits = _last(result)
    if not tf.is_tensor(logits) or logits.shape not in ([2], [2, 1]):
      raise ValueError(
        f"`{name}` must map 2 images to logits of shape [2] or [2, 1], alone "
        f"or last in a tuple, got {_shapes(result)}: end it with one unit."
      )

  shape = [2, spec.resolution, spec.resolution, spec.channels]
  return _built(net, ledger, spec, tf.zeros(shape), check)


class Adapted(tf.Module):
  """A net that was copied and built.

  Attributes:
    variables: In the order in which they were made.
    trainable_variables: Without those of Keras layers that are frozen.
    uses_batch_statistics: Whether a call moves any variable.
    z_dim: The length of the latent code, if this is G.
  """

  z_dim: int

  def __init__(self, call: Call, net: Any, ledger: "_Ledger", moves: bool):
    super().__init__(name=ledger.name)
    # A closure, so that nothing else of the user's net enters a checkpoint.
    self._call = call
    self._made = [v for v in ledger.made if v.dtype.is_floating]
    frozen = _frozen(net)
    self._weights = [
      v for v in self._made if v.trainable and _key(v) not in frozen
    ]
    self.uses_batch_statistics = moves

  @property
  def variables(self) -> Sequence[tf.Variable]:
    """All variables, in the order in which they were made."""
    return tuple(self._made)

  @property
  def trainable_variables(self) -> Sequence[tf.Variable]:
    """The weights."""
    return tuple(self._weights)

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps one replica's batch; a variable moves in `Mode.TRAIN` only."""
    # Weights too: Keras writes a kernel back when it divides by its norm.
    stays = self.uses_batch_statistics and mode is not Mode.TRAIN
    kept = [tf.identity(v) for v in self._made] if stays else []
    result = _last(self._call(x, labels, mode is not Mode.EVAL))
    for variable, value in zip(self._made, kept):
      variable.assign(value)
    if result.shape.rank == 2:
      result = result[:, 0]
    return tf.cast(result, tf.float32)


class _Ledger:
  """Names and keeps the variables of one net.

  Attributes:
    made: The variables, in the order in which they were made.
    first: Their values at that time.
  """

  def __init__(self, name: str):
    self.name = name
    self.made: List[tf.Variable] = []
    self.first: List[Any] = []

  def making(self):
    """Names and keeps what is made inside."""
    return tf.variable_creator_scope(self._make)

  def _make(self, make, **kwargs):
    if _is_counter(kwargs):
      return make(**kwargs)
    kwargs["name"] = f"{len(self.made)}_{_last_name(kwargs)}"
    # Absolute, and numbered: Keras counts its layers over a whole process.
    with tf.name_scope(f"{self.name}/"):
      variable = make(**kwargs)
    self.made.append(variable)
    # A `tf.function` gives a variable its value only at its end.
    self.first.append(variable.numpy() if tf.executing_eagerly() else None)
    return variable

  def restore(self) -> None:
    """Gives every copy of every variable its first value."""
    strategy = tf.distribute.get_strategy()
    for variable, value in zip(self.made, self.first):
      if value is not None:
        for one in strategy.experimental_local_results(variable):
          one.assign(value)

  @contextlib.contextmanager
  def finding(self, variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Hands `variables` out instead of making new ones: all, or none."""
    left, refused = list(variables), []

    def find(make, **kwargs):
      if _is_counter(kwargs):
        return make(**kwargs)
      if not left or not left[0].name.endswith(f"_{_last_name(kwargs)}:0"):
        refused.append(_last_name(kwargs))
        raise ValueError(refused[0])
      return left.pop(0)

    try:
      with tf.variable_creator_scope(find), _fresh_names(bool(left)):
        yield
    except Exception as e:  # Keras would put its own sentences around ours.
      if not refused:
        raise
      self._refuse(refused[0], e)
    if 0 < len(left) < len(variables):
      self._refuse(left[0].name, None)

  def _refuse(self, what: str, cause: Optional[Exception]) -> None:
    raise ValueError(
      f"`{self.name}` must find its variables again, but creates new variables "
      f"on every call, or others when it trains, got `{what}`: make layers in "
      "`__init__`, or all of them in the call, and keep none."
    ) from cause


def _fresh_names(anew: bool):
  # `get_variable` must not meet the names of an earlier call, and replicas
  # after the first are told to reuse what they then would not find.
  if not anew:
    return contextlib.nullcontext()
  v1 = tf.compat.v1
  return v1.variable_scope(f"call{next(_CALLS)}", reuse=v1.AUTO_REUSE)


def _own(net: Any, ledger: _Ledger) -> Any:
  """Returns a net that is nobody else's."""
  with ledger.making():
    net = net() if _makes_nets(net) else copied(net, ledger.name)
  ledger.first = [variable.numpy() for variable in ledger.made]
  return net


def _makes_nets(net: Any) -> bool:
  if inspect.isclass(net) or not callable(net):
    return inspect.isclass(net)
  if isinstance(net, tf.Module) or hasattr(net, "model_fn"):
    return False
  parameters = inspect.signature(net).parameters.values()
  return all(
    p.default is not p.empty or p.kind in _VARIADIC for p in parameters
  )


def _built(
  net: Any,
  ledger: _Ledger,
  spec: ImageSpec,
  x: tf.Tensor,
  check: Callable[[Any], None],
) -> Adapted:
  """Calls the net twice: the first call makes what the second must find."""
  call = _call(net, spec, ledger.name)
  labels = tf.zeros([2], tf.int32) if spec.num_classes else None
  known = len(ledger.made)
  with ledger.making(), tf.GradientTape() as tape:
    try:
      result = call(x, labels, False)
    except Exception as e:
      raise ValueError(
        f"`{ledger.name}` must take a batch of shape {x.shape.as_list()}, but "
        f"its call ends with {type(e).__name__}: {e}"
      ) from e
  check(result)
  held = [p for p in parts_of(net) if isinstance(p, tf.Variable)]
  _check_owner(ledger, [*held, *tape.watched_variables()])
  ledger.restore()
  keys = {_key(variable) for variable in held}
  loose = [v for v in ledger.made[known:] if _key(v) not in keys]

  def find(x, labels, training):
    with ledger.finding(loose):
      return call(x, labels, training)

  moves = _moves(functools.partial(find, x, labels, True))
  return Adapted(find, net, ledger, moves)


def _check_owner(ledger: _Ledger, used: Sequence[tf.Variable]) -> None:
  own = {_key(variable) for variable in ledger.made}
  for variable in used:
    if variable.dtype.is_floating and _key(variable) not in own:
      raise ValueError(
        f"`{ledger.name}` must own its variables, got `{variable.name}`, which "
        f"was not made for it: pass {MAKER}."
      )


def _moves(replica: Callable[[], Any]) -> bool:
  """Says whether the function writes to a variable; it is traced, not run."""
  strategy = tf.distribute.get_strategy()
  run = tf.function(lambda: strategy.run(replica), autograph=False)
  graph = run.get_concrete_function().graph.as_graph_def()
  functions = (function.node_def for function in graph.library.function)
  nodes = itertools.chain(graph.node, *functions)
  return any(node.op.startswith(_WRITES) for node in nodes)


def _call(net: Any, spec: ImageSpec, name: str) -> Call:
  """Returns the net as a function of x, labels and whether to train."""
  if is_network(net):
    return _network_call(net, spec, name)
  fn = getattr(net, "model_fn", net)
  if not callable(fn):
    raise ValueError(
      f"`{name}` must be a `tf.Module`, a Keras model, an object with "
      f"`model_fn`, or {MAKER}, got {net!r}."
    )
  is_layer = isinstance(fn, tf.keras.layers.Layer)
  labels_word, training_word = _words(fn.call if is_layer else fn, name)
  if is_layer and not training_word:
    training_word = "training"  # Every layer hands it on to those inside.

  def call(x, labels, training):
    given = {labels_word: labels, training_word: training}
    given.pop(None, None)
    return fn(x, **given)

  return call if training_word else _in_mode(call)


def _words(fn: Callable, name: str) -> List[Optional[str]]:
  """Returns what a function calls the labels and `training`, if it does."""
  every = inspect.signature(fn).parameters.values()
  training = [p.name for p in every if p.name in _TRAINING]
  known = (*_TRAINING, "mask")
  words = [p for p in every if p.name not in known and p.kind not in _VARIADIC]
  needed = [p for p in words if p.default is p.empty]
  if not words or len(needed) > 2:
    raise ValueError(
      f"`{name}` must take `(x)` or `(x, labels)`, and may take `training`, "
      f"got {inspect.signature(fn)}: give the others in `__init__`."
    )
  # A second argument with a value of its own is something else.
  labels = [p.name for p in words[1:2] if p in needed or p.default is None]
  return [next(iter(found), None) for found in (labels, training)]


def _network_call(net: Any, spec: ImageSpec, name: str) -> Call:
  """Returns the call of a Keras model that knows its inputs."""
  inputs = net.inputs
  if len(inputs) == 1:
    return lambda x, labels, training: net(x, training=training)
  size = inputs[1].shape[-1] if inputs[1].shape.rank > 1 else 0
  fits = inputs[1].shape.rank <= 2 and size in (0, 1, None, spec.num_classes)
  if len(inputs) > 2 or not fits or not spec.num_classes:
    raise ValueError(
      f"`{name}` may have one input beside x, for labels of shape [b], [b, 1] "
      f"or [b, num_classes], got {[tuple(i.shape) for i in inputs]} and "
      f"{spec.num_classes} classes: leave out the others."
    )

  def call(x, labels, training):
    if size is None or size == 1:
      labels = labels[:, None]
    elif size:
      labels = tf.one_hot(labels, size)
    return net([x, labels], training=training)  # Keras casts both.

  return call


def _in_mode(call: Call) -> Call:
  """Tells Keras layers the mode where the net cannot hand it on."""

  def in_mode(x, labels, training):
    with contextlib.ExitStack() as stack:
      with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says to hand `training` on.
        mode = tf.keras.backend.learning_phase_scope(int(training))
        stack.enter_context(mode)
      return call(x, labels, training)

  return in_mode


def _frozen(net: Any) -> Set:
  layers = [p for p in parts_of(net) if isinstance(p, tf.keras.layers.Layer)]
  return {
    _key(variable)
    for layer in layers
    if layer.built and not layer.trainable
    for variable in layer.variables
  }


def _z_dim(net: Any, given: Optional[int]) -> int:
  z_dim = getattr(net, "z_dim", None) if given is None else given
  if z_dim is None:
    z_dim = net.inputs[0].shape[-1] if is_network(net) else 128
  if not isinstance(z_dim, int) or z_dim < 1:
    raise ValueError(f"`z_dim` must be an integer of at least 1, got {z_dim}.")
  return z_dim


def _is_counter(kwargs: Dict[str, Any]) -> bool:
  dtype = kwargs.get("dtype")
  return dtype is not None and not tf.as_dtype(dtype).is_floating


def _key(variable: tf.Variable) -> str:
  # The same for a variable, its copy on the first replica, and the wrapper
  # that Keras puts around it for mixed precision.
  return variable._unique_id


def _last_name(kwargs: Dict[str, Any]) -> str:
  return (kwargs.get("name") or "variable").split("/")[-1].split(":")[0]


def _last(result: Any) -> Any:
  return result[-1] if isinstance(result, (list, tuple)) else result


def _shapes(result: Any) -> Any:
  return tf.nest.map_structure(lambda x: getattr(x, "shape", x), result)
