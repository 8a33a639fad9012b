"""Who moves when.

A step is a tuple of rounds, a round a tuple of turns. A round draws latent
codes and looks at one batch of real images and one of fakes; the players of one
turn look at the same point, then all of them move:

    for turns in schedule.rounds:      # e.g. (("d",),), (("d",), ("g",))
      fakes = g(z)
      for turn in turns:
        moves = [gradient of player for player in turn]
        for player, move in zip(turn, moves): update player
"""

from typing import Tuple

import gin

Turn = Tuple[str, ...]
Round = Tuple[Turn, ...]


def moves(player: str, turns: Round) -> bool:
  """Returns whether a player has a turn in a round."""
  return any(player in turn for turn in turns)


class Schedule:
  """The rounds of one step.

  Attributes:
    rounds: Names of the players that move, turn by turn, round by round.
  """

  rounds: Tuple[Round, ...]

  @property
  def num_batches(self) -> int:
    """How many batches of real images a step takes: one a round with D."""
    return max(1, sum(moves("d", turns) for turns in self.rounds))


@gin.register
class Sequential(Schedule):
  """D moves `num_d_steps` times, then G moves once against the new D.

  With `reuse_fakes` G answers on the fakes that D has just been trained on;
  its forward pass is then needed once, and kept in memory through D's turn.
  Without it G draws fakes of its own.
  """

  def __init__(self, num_d_steps: int = 1, reuse_fakes: bool = True):
    if num_d_steps < 1:
      raise ValueError(f"`num_d_steps` must be at least 1, got {num_d_steps}.")
    d_rounds: Tuple[Round, ...] = ((("d",),),) * (num_d_steps - 1)
    if reuse_fakes:
      self.rounds = (*d_rounds, (("d",), ("g",)))
    else:
      self.rounds = (*d_rounds, (("d",),), (("g",),))
