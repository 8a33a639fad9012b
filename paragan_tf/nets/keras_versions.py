"""Keras 2 and Keras 3: what their nets are made of, and how they are called.

Keras 2 is `tf.keras` up to TensorFlow 2.15, and the package tf_keras; Keras 3
is `tf.keras` of later releases, and the package keras. A process may have both.
Neither is imported here: where a net is of one, it is there already.
"""

import contextlib
import sys
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence

import tensorflow as tf

PACKAGES = ("keras", "tf_keras")

# What Keras 3 calls the state of a random seed.
SEED_NAME = "seed_generator_state"

# Keras's own training of a model, which is not used here: of both, 2, and 3.
COMPILED = (
  *("optimizer", "train_function", "test_function", "predict_function"),
  *("compiled_loss", "compiled_metrics"),
  *("_compile_loss", "_compile_metrics", "_loss_tracker"),
  *("_compile_config", "_compiled_trainable_state"),
)


def is_layer(part: Any) -> bool:
  """Returns whether this is a layer or model of any Keras."""
  return any(isinstance(part, keras.layers.Layer) for keras in _loaded())


def is_model(part: Any) -> bool:
  """Returns whether this is a model of any Keras."""
  return any(isinstance(part, keras.Model) for keras in _loaded())


def is_network(part: Any) -> bool:
  """Returns whether this is a Keras model that knows its inputs."""
  # Without them, Keras 2 has `None`, and Keras 3 has no such attribute.
  return is_model(part) and bool(getattr(part, "inputs", None))


def is_of_keras_3(part: Any) -> bool:
  """Returns whether this is a layer, operation or the like of Keras 3."""
  return any(
    isinstance(part, (keras.Operation, keras.Metric, keras.Optimizer))
    for keras in _loaded_3()
  )


def inner_variable(variable: Any) -> tf.Variable:
  """Returns TensorFlow's variable, also of one that Keras 3 has made."""
  return variable.value if _is_variable_3(variable) else variable


def wrap_like(variable: tf.Variable, new: tf.Variable) -> tf.Variable:
  """Wraps a variable as Keras 2 does for mixed precision, if it did another."""
  kind: Any = type(variable)
  return kind(new) if kind.__name__ == "AutoCastVariable" else new


def is_frozen(part: Any) -> bool:
  """Returns whether this is a variable that Keras 3 does not train."""
  return _is_variable_3(part) and not part.trainable


def children_3(part: Any) -> Optional[Sequence[Any]]:
  """Returns what a part of a Keras 3 net consists of, `None` for another."""
  for keras in _loaded_3():
    if isinstance(part, keras.Variable):
      return (part.value,)
    if is_network(part) and isinstance(part, keras.Model):
      return part.layers  # Sequential models keep another one inside.
    stateful = (keras.layers.Layer, keras.Metric, keras.random.SeedGenerator)
    if isinstance(part, stateful):
      return list(state_3(part).values())
  return None


def state_3(part: Any) -> Dict[str, Any]:
  """Returns the attributes of a part of a Keras 3 net, as far as it needs them.

  Without what it was compiled with, nor who uses it, nor what TensorFlow would
  write to a checkpoint.
  """
  state = {k: v for k, v in vars(part).items() if not k.startswith("_self_")}
  state.update((name, None) for name in COMPILED if name in state)
  nodes = ("_inbound_nodes", "_outbound_nodes")
  state.update((name, []) for name in nodes if name in state)
  return state


def clone_model(model: Any, clone_function: Callable[[Any], Any]) -> Any:
  """Makes a model that knows its inputs again, out of other layers."""
  keras = next(k for k in _loaded() if isinstance(model, k.Model))
  if keras in _loaded_2():
    return keras.models.clone_model(model, clone_function=clone_function)
  compiled, model.compiled = model.compiled, False  # Else it compiles again.
  try:
    return keras.models.clone_model(model, clone_function=clone_function)
  finally:
    model.compiled = compiled


def call_in_phase(call: Callable[[], Any], x: tf.Tensor, training: bool) -> Any:
  """Calls a function in which Keras layers follow `training`.

  For a net that cannot pass it on. Under Keras 2 they follow the learning
  phase, under Keras 3 the layer that calls them.

  Args:
    call: Calls the net.
    x: Any tensor.
    training: Whether layers train.
  """
  for keras in _loaded_3():
    if keras.backend.backend() == "tensorflow":
      call = _call_of_layer(keras, call, x, training)
  with contextlib.ExitStack() as stack:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # It says to pass `training` on.
      for keras in _loaded_2():
        phase = keras.backend.learning_phase_scope(int(training))
        stack.enter_context(phase)
    return call()


def check_backend(parts: Sequence[Any], name: str) -> None:
  """Raises `ValueError` if Keras 3 computes with another library."""
  if not any(map(is_layer, parts)):
    return
  for keras in _loaded():
    backend = keras.backend.backend()
    mine = any(isinstance(part, keras.layers.Layer) for part in parts)
    if mine and backend != "tensorflow":
      raise ValueError(
        f"`{name}` must compute with TensorFlow, but Keras is set to "
        f"'{backend}': set `KERAS_BACKEND=tensorflow` before it is imported."
      )


def _is_variable_3(part: Any) -> bool:
  return any(isinstance(part, keras.Variable) for keras in _loaded_3())


def _call_of_layer(
  keras: Any, call: Callable[[], Any], x: tf.Tensor, training: bool
) -> Callable[[], Any]:
  """Returns the call as that of a Keras 3 layer, which `training` is for."""
  errors: List[Exception] = []

  def call_net(_):
    try:
      return call()
    except Exception as e:
      errors.append(e)
      raise

  # Its dtype, so that a policy of the user's does not cast for it.
  layer = keras.layers.Lambda(call_net, dtype="float32", name="net")

  def call_layer():
    try:
      return layer(x, training=training)
    except Exception as e:  # In it, Keras speaks of the layer above.
      raise (errors or [e])[0] from None

  return call_layer


def _loaded() -> List[Any]:
  return [sys.modules[name] for name in PACKAGES if name in sys.modules]


def _loaded_2() -> List[Any]:
  return [keras for keras in _loaded() if keras.__version__.startswith("2.")]


def _loaded_3() -> List[Any]:
  known = _loaded_2()
  return [keras for keras in _loaded() if keras not in known]
