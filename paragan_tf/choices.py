"""Losses and optimizers that are arguments, by name or as callables."""

import functools
import inspect
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

import gin

from paragan_tf.experiment import player
from paragan_tf.game import layerwise, losses, optimistic, optimizers

# The name of a loss, or a function from `Scores` to `Losses`.
LossChoice = Union[str, losses.LossFn, None]
# The name of an optimizer, or what makes one from a `name`.
OptimizerChoice = Union[str, Callable[..., optimizers.Optimizer], None]

LOSSES: Mapping[str, losses.LossFn] = {
  fn.__name__: fn
  for fn in (
    losses.hinge,
    losses.non_saturating,
    losses.wasserstein,
    losses.least_squares,
    losses.relativistic,
  )
}
OPTIMIZERS: Mapping[str, Callable[..., optimizers.Optimizer]] = {
  kind.__name__.lower(): kind
  for kind in (
    optimizers.SGD,
    optimizers.Momentum,
    optimizers.RMSProp,
    optimizers.Adam,
    optimizers.AdaBelief,
    optimizers.RAdam,
    layerwise.LARS,
    layerwise.LAMB,
    optimistic.OptimisticSGD,
    optimistic.OptimisticAdam,
  )
}


def find_loss(choice: LossChoice) -> Optional[losses.LossFn]:
  """Returns the loss of a name; `None` leaves it to gin."""
  if isinstance(choice, str):
    return _look_up("loss", choice, LOSSES)
  if choice is not None and not callable(choice):
    raise ValueError(
      f"`loss` must be one of {', '.join(LOSSES)}, or a function from `Scores` "
      f"to `Losses`, got {choice!r}."
    )
  return choice


def find_optimizers(
  choices: Mapping[str, Tuple[OptimizerChoice, Any]],
) -> Dict[str, Callable[..., optimizers.Optimizer]]:
  """Returns what makes the optimizers of players that do not leave it to gin.

  Args:
    choices: By player the optimizer and the learning rate; see `_find`.
  """
  found = {who: _find(who, *chosen) for who, chosen in choices.items()}
  return {who: make for who, make in found.items() if make is not None}


def _find(
  who: str, choice: OptimizerChoice, learning_rate: Any
) -> Optional[Callable[..., optimizers.Optimizer]]:
  """Returns what makes the optimizer of a player; `None` if gin says it.

  What gin binds for an optimizer that is named here holds, too.

  Args:
    who: `g` or `d`.
    choice: A name, or what makes an optimizer from a `name`.
    learning_rate: A number, or a function of the count of updates; `None` takes
      that of gin, or of the optimizer.
  """
  make: Callable[..., optimizers.Optimizer]
  if choice is None and learning_rate is None:
    return None
  if isinstance(choice, str):
    kind = _look_up(f"{who}_optimizer", choice.lower(), OPTIMIZERS)
    make = gin.get_configurable(kind)
  elif choice is None:
    make = _find_bound(who)
  elif isinstance(choice, optimizers.Optimizer) or not callable(choice):
    raise ValueError(
      f"`{who}_optimizer` must be one of {', '.join(OPTIMIZERS)}, or a class "
      "or function that makes an optimizer from a `name`, got an instance of "
      f"{type(choice).__name__}: give its name, and `{who}_learning_rate`; or "
      "`functools.partial(Adam, beta1=0.5)`."
    )
  else:
    make = choice
  if learning_rate is None:
    return make
  return functools.partial(make, learning_rate=learning_rate)


def _find_bound(who: str) -> Callable[..., optimizers.Optimizer]:
  """Returns what gin binds, by default what the player's default is."""
  with gin.config_scope(who):
    bound = gin.get_bindings(player).get("optimizer")
  return gin.get_configurable(optimizers.Adam) if bound is None else bound


def describe(**choices: Any) -> Dict[str, str]:
  """Returns the choices that were made, as a config records them.

  Functions are recorded by their names: a change inside is not noticed.
  """
  return {
    name: _describe(choice)
    for name, choice in choices.items()
    if choice is not None
  }


def _describe(choice: Any) -> str:
  if isinstance(choice, str):
    return choice.lower()
  if isinstance(choice, functools.partial):
    given = {k: _describe(v) for k, v in sorted(choice.keywords.items())}
    parts = [_describe(x) for x in choice.args]
    parts += [f"{k}={v}" for k, v in given.items()]
    return f"{_describe(choice.func)}({', '.join(parts)})"
  if callable(choice):
    kind = choice if hasattr(choice, "__qualname__") else type(choice)
    return f"{kind.__module__}.{kind.__qualname__}"
  return repr(choice)


def describe_source(net: Any) -> str:
  """Returns the code of a net's class or function, or its name."""
  kind = net if hasattr(net, "__qualname__") else type(net)
  try:
    return inspect.getsource(kind)
  except (OSError, TypeError):  # Typed in, or not Python.
    return f"{kind.__module__}.{kind.__qualname__}"


def _look_up(name: str, choice: str, known: Mapping[str, Any]) -> Any:
  if choice not in known:
    raise ValueError(
      f"`{name}` must be one of {', '.join(known)}, or a function, got "
      f"'{choice}'."
    )
  return known[choice]
