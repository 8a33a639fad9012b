"""The variables of a user's net: named, kept, and found again.

with store.create():                    # the first call makes the variables
  net(zeros)
with store.reuse(variables, counters):  # later calls find them, and make none
  net(x)
"""

import contextlib
import itertools
from typing import Any, Dict, Iterator, List, Optional, Sequence

import tensorflow as tf

from paragan_tf.nets import keras_versions

_CALLS = itertools.count()
_SEEDS_APART = 1_000_003  # Users count their seeds 1, 2, 3.


class VariableStore:
  """Names and keeps the variables of one net.

  Attributes:
    name: Begins the names of the variables.
    variables: In the order in which they were made.
    initial_values: Their values at that time.
    counters: What is no floating-point number, such as the state of a seed.
  """

  def __init__(self, name: str):
    self.name = name
    self.variables: List[tf.Variable] = []
    self.initial_values: List[Any] = []
    self.counters: List[tf.Variable] = []

  def create(self):
    """Names and keeps the variables that are made inside."""
    return tf.variable_creator_scope(self._create)

  def _create(self, make, **kwargs):
    name = _base_name(kwargs.get("name"))
    if _is_counter(kwargs):
      self.counters.append(make(**{**kwargs, "name": name}))
      return self.counters[-1]
    kwargs["name"] = f"{len(self.variables)}_{name}"
    # Absolute, and numbered: Keras counts its layers over a whole process.
    with tf.name_scope(f"{self.name}/"):
      variable = make(**kwargs)
    self.variables.append(variable)
    # A `tf.function` gives a variable its value only at its end.
    eager = tf.executing_eagerly()
    self.initial_values.append(variable.numpy() if eager else None)
    return variable

  def record_initial_values(self) -> None:
    """Keeps what all variables hold now as their initial values."""
    self.initial_values = [variable.numpy() for variable in self.variables]

  def reset(self) -> None:
    """Gives every copy of every variable its initial value."""
    strategy = tf.distribute.get_strategy()
    for variable, value in zip(self.variables, self.initial_values):
      if value is not None:
        for copy in strategy.experimental_local_results(variable):
          copy.assign(value)

  def vary_seeds(self) -> None:
    """Lets replicas draw different numbers where Keras 3 keeps a seed."""
    strategy = tf.distribute.get_strategy()
    resolver = strategy.cluster_resolver
    for variable in self.counters:
      if _base_name(variable.name) == keras_versions.SEED_NAME:
        copies = strategy.experimental_local_results(variable)
        first = resolver.task_id * len(copies) if resolver else 0
        for i, copy in enumerate(copies, first):
          copy.assign_add([i * _SEEDS_APART, 0])

  @contextlib.contextmanager
  def reuse(
    self, variables: Sequence[tf.Variable], counters: Sequence[tf.Variable]
  ) -> Iterator[None]:
    """Returns these variables instead of making new ones: all, or none."""
    left, counters_left, refused = list(variables), list(counters), []

    def find(make, **kwargs):
      name = _base_name(kwargs.get("name"))
      if _is_counter(kwargs) and counters_left:
        return counters_left.pop(0)
      if _is_counter(kwargs) and name != keras_versions.SEED_NAME:
        return make(**kwargs)
      if not left or not left[0].name.endswith(f"_{name}:0"):
        refused.append(name)
        raise ValueError(refused[0])
      return left.pop(0)

    try:
      with tf.variable_creator_scope(find), _new_variable_scope(bool(left)):
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


def unique_id(variable: Any) -> str:
  """Returns what identifies a variable, whatever is wrapped around it."""
  # The same for a variable, its copy on the first replica, and the wrapper
  # that Keras puts around it: 2 for mixed precision, 3 always.
  return keras_versions.inner_variable(variable)._unique_id


def _new_variable_scope(is_needed: bool):
  # `get_variable` must not meet the names of an earlier call; later replicas
  # run in reuse mode and would not find these variables.
  if not is_needed:
    return contextlib.nullcontext()
  v1 = tf.compat.v1
  return v1.variable_scope(f"call{next(_CALLS)}", reuse=v1.AUTO_REUSE)


def _is_counter(kwargs: Dict[str, Any]) -> bool:
  dtype = kwargs.get("dtype")
  return dtype is not None and not tf.as_dtype(dtype).is_floating


def _base_name(name: Optional[str]) -> str:
  return (name or "variable").split("/")[-1].split(":")[0]
