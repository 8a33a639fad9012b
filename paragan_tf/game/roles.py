"""Which replicas play G and which play D, and who feeds whom.

Replicas stand in groups of `g_per_group + d_per_group`, those of G first; with
one of each, even replicas are G and odd ones D. Within a group the larger side
is dealt out to the smaller one:

    3 : 1    g g g d     d is fed by all three
    1 : 2    g d d       both are fed by g, each with fakes of its own
"""

from typing import List, NamedTuple


class Roles(NamedTuple):
  """How the replicas are shared out."""

  g_per_group: int
  d_per_group: int

  @property
  def group(self) -> int:
    """Replicas of one group."""
    return self.g_per_group + self.d_per_group

  @property
  def num_sources(self) -> int:
    """How many replicas of G feed one of D."""
    return max(1, self.g_per_group // self.d_per_group)

  @property
  def num_fed(self) -> int:
    """How many replicas of D one of G feeds."""
    return max(1, self.d_per_group // self.g_per_group)

  def plays(self, replica: int) -> str:
    """Returns `g` or `d`."""
    return "g" if replica % self.group < self.g_per_group else "d"

  def num_playing(self, who: str, num_replicas: int) -> int:
    """Returns how many replicas play `who`."""
    share = self.g_per_group if who == "g" else self.d_per_group
    return num_replicas // self.group * share

  def g_place(self, replica: int) -> int:
    """Returns the place among all that play G, of one or of who feeds it."""
    group, place = divmod(replica, self.group)
    if place >= self.g_per_group:
      place = (place - self.g_per_group) % self.g_per_group
    return group * self.g_per_group + place

  def d_place(self, replica: int) -> int:
    """Returns the place among all that play D, of one or of who it feeds."""
    group, place = divmod(replica, self.group)
    if place < self.g_per_group:
      place = place % self.d_per_group
    else:
      place -= self.g_per_group
    return group * self.d_per_group + place

  def slice_place(self, replica: int) -> int:
    """Returns which of those fed by one G a replica of D is."""
    return max(0, replica % self.group - self.g_per_group) // self.g_per_group

  def sources(self, index: int, num_replicas: int) -> List[int]:
    """Returns for each replica the G that feeds it, the `index`-th of its own.

    A replica of G is its own source.
    """
    rows = []
    for replica in range(num_replicas):
      group, place = divmod(replica, self.group)
      if place < self.g_per_group:
        rows.append(replica)
      else:
        source = (
          place - self.g_per_group
        ) % self.g_per_group + index * self.d_per_group
        rows.append(group * self.group + source)
    return rows
