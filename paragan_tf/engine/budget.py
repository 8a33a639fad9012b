"""How long a run trains: steps, images or seconds, whichever ends first.

    num_steps = count_steps(num_steps, max_images, images_per_step)

    budget = Seconds(max_seconds)
    budget.resume(lines, step)      # seconds used before, from metrics.jsonl
    budget.used += seconds          # of a call of the inner loop
    budget.is_spent                 # whether nothing is left

Seconds are those of training: not of tracing, saving, sampling or measuring.
`pace.py` counts them, and ends training within a step.
"""

from typing import Any, Iterable, Mapping, Optional

SECONDS = "budget_seconds"
# An inner loop takes at most this part of the time left, in case its steps are
# slower than the last ones; so the last inner loops are one step each.
_PART = 0.5


def count_steps(
  num_steps: int, max_images: Optional[int], images_per_step: int
) -> int:
  """Returns the steps of a run that takes at most so many real images."""
  if max_images is None:
    return num_steps
  if max_images < images_per_step:
    raise ValueError(
      f"`max_images` must be at least the {images_per_step} of one step, got "
      f"{max_images}: raise it, or lower `Experiment.batch_size`."
    )
  return min(num_steps, max_images // images_per_step)


class Seconds:
  """A budget of seconds.

  Attributes:
    limit: The budget; `None` if there is none.
    used: How many are used.
  """

  def __init__(self, limit: Optional[float]):
    if limit is not None and not limit > 0:
      raise ValueError(f"`max_seconds` must be above 0, got {limit}.")
    self.limit = limit
    self.used = 0.0

  @property
  def is_spent(self) -> bool:
    """Whether nothing is left."""
    return self.limit is not None and self.used >= self.limit

  @property
  def left(self) -> Optional[float]:
    """Seconds that are left, `None` without a limit."""
    return None if self.limit is None else max(0.0, self.limit - self.used)

  def resume(self, lines: Iterable[Mapping[str, Any]], step: int) -> None:
    """Takes over what was used until a step, from the lines of a record."""
    known = [x for x in lines if SECONDS in x and x["step"] <= step]
    self.used = max((float(x[SECONDS]) for x in known), default=0.0)


def steps_within(seconds: float, step_seconds: float) -> int:
  """Returns how many steps to take when so many seconds are left."""
  if not step_seconds:  # The first step says how long one takes.
    return 1
  return max(1, int(_PART * seconds / step_seconds))
