"""Checks of the numbers that a config sets, raised at construction."""

import math
import numbers
from typing import Any, Callable


def check_number(
  name: str,
  value: Any,
  holds: Callable[[float], bool],
  rule: str,
  remedy: str = "",
) -> float:
  """Returns `value` as a float; raises a `ValueError` unless it `holds`.

  Args:
    name: Of the option, for the message.
    value: What was given for it.
    holds: Returns whether a number satisfies the rule.
    rule: What must hold, for the message.
    remedy: What to do instead, for the message.
  """
  if isinstance(value, numbers.Real) and holds(float(value)):
    return float(value)
  end = f": {remedy}." if remedy else "."
  raise ValueError(f"`{name}` must be {rule}, got {value!r}{end}")


def check_positive(name: str, value: Any, remedy: str = "") -> float:
  """Refuses what is not a finite number above 0."""
  return check_number(
    name, value, lambda x: 0 < x < math.inf, "above 0", remedy
  )


def check_not_negative(name: str, value: Any) -> float:
  """Refuses what is not a finite number of at least 0."""
  return check_number(name, value, lambda x: 0 <= x < math.inf, "at least 0")


def check_fraction(name: str, value: Any) -> float:
  """Refuses what is not a number in [0, 1)."""
  return check_number(name, value, lambda x: 0 <= x < 1, "in [0, 1)")
