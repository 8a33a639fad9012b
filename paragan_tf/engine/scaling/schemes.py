"""Ways to train on many workers, as far as their cost depends on them."""

from typing import Dict, NamedTuple, Optional, Tuple

COLLECTIVES = ("all_reduce", "gather", "two_phase", "neighbors", "none")


class Scheme(NamedTuple):
  """How workers train together.

  Attributes:
    name: Of the scheme, as in `SCHEMES`.
    collective: One of `COLLECTIVES`.
    period: Steps from one exchange to the next.
    compute: Which of `Profile.scheme_seconds` a step takes; if it is not there,
      or empty, `Profile.step_seconds`.
    turns: Exchanges, one after the other, of players that take turns.
    separate_state: Whether the nets' statistics are a message of their own.
    roles: Workers of G and of D in a group, where each trains one player.
    image_bytes: Of a fake that G sends to D, with roles.
    rounds: Of messages between neighbors.
  """

  name: str
  collective: str
  period: int = 1
  compute: str = ""
  turns: int = 1
  separate_state: bool = False
  roles: Optional[Tuple[int, int]] = None
  image_bytes: int = 0
  rounds: int = 1


_ALL = (
  Scheme("sync", "all_reduce", turns=2, separate_state=True),
  Scheme("every_other_step", "all_reduce", period=2, turns=2),
  Scheme(
    "gradients_every_other_step",
    "all_reduce",
    period=2,
    turns=2,
    separate_state=True,
  ),
  Scheme("async", "all_reduce", roles=(1, 1), separate_state=True),
  Scheme("paragan", "all_reduce", period=2, roles=(1, 1)),
  Scheme("gossip", "neighbors", compute="gossip"),
  Scheme("quantized", "gather", compute="quantized", separate_state=True),
  Scheme(
    "quantized_two_phase",
    "two_phase",
    compute="quantized",
    separate_state=True,
  ),
  Scheme("per_label", "none"),
)
SCHEMES: Dict[str, Scheme] = {scheme.name: scheme for scheme in _ALL}
