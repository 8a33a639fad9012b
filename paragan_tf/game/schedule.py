"""Who moves when.

A step is a tuple of turns; the players of one turn look at the same point, then
all of them move:

    for turn in schedule.turns:        # e.g. ("d",), ("d",), ("g",)
      moves = [gradient of player for player in turn]
      for player, move in zip(turn, moves): update player
"""

from typing import Tuple

import gin

Turn = Tuple[str, ...]


class Schedule:
  """The turns of one step.

  Attributes:
    turns: Names of the players that move, turn by turn.
    num_batches: How many batches of real images one step takes.
  """

  turns: Tuple[Turn, ...]

  @property
  def num_batches(self) -> int:
    """Every turn of D takes a batch; G's turn looks at the last one."""
    return max(1, sum("d" in turn for turn in self.turns))


@gin.register
class Sequential(Schedule):
  """D moves `num_d_steps` times, then G moves once against the new D."""

  def __init__(self, num_d_steps: int = 1):
    if num_d_steps < 1:
      raise ValueError(f"`num_d_steps` must be at least 1, got {num_d_steps}.")
    self.turns = (("d",),) * num_d_steps + (("g",),)
