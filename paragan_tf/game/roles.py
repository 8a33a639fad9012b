"""Which replicas play G and which play D, and who feeds whom.

Replicas stand in groups of `g_share + d_share`, those of G first; with one of
each, even replicas are G and odd ones D. Within a group the larger side is
dealt out to the smaller one:

    3 : 1    g g g d     d is fed by all three
    1 : 2    g d d       both are fed by g, each with fakes of its own
"""

from typing import List, NamedTuple


class Roles(NamedTuple):
  """How the replicas are shared out."""

  g_share: int
  d_share: int

  @property
  def group(self) -> int:
    """Replicas of one group."""
    return self.g_share + self.d_share

  @property
  def num_sources(self) -> int:
    """How many replicas of G feed one of D."""
    return max(1, self.g_share // self.d_share)

  @property
  def num_fed(self) -> int:
    """How many replicas of D one of G feeds."""
    return max(1, self.d_share // self.g_share)

  def plays(self, replica: int) -> str:
    """Returns `g` or `d`."""
    return "g" if replica % self.group < self.g_share else "d"

  def num_playing(self, who: str, num_replicas: int) -> int:
    """Returns how many replicas play `who`."""
    share = self.g_share if who == "g" else self.d_share
    return num_replicas // self.group * share

  def g_place(self, replica: int) -> int:
    """Returns the place among all that play G, of one or of who feeds it."""
    group, place = divmod(replica, self.group)
    if place >= self.g_share:
      place = (place - self.g_share) % self.g_share
    return group * self.g_share + place

  def d_place(self, replica: int) -> int:
    """Returns the place among all that play D, of one or of who it feeds."""
    group, place = divmod(replica, self.group)
    if place < self.g_share:
      place = place % self.d_share
    else:
      place -= self.g_share
    return group * self.d_share + place

  def slice_place(self, replica: int) -> int:
    """Returns which of those fed by one G a replica of D is."""
    return max(0, replica % self.group - self.g_share) // self.g_share

  def sources(self, index: int, num_replicas: int) -> List[int]:
    """Returns for each replica the G that feeds it, the `index`-th of its own.

    A replica of G is its own source.
    """
    rows = []
    for replica in range(num_replicas):
      group, place = divmod(replica, self.group)
      if place < self.g_share:
        rows.append(replica)
      else:
        source = (place - self.g_share) % self.g_share + index * self.d_share
        rows.append(group * self.group + source)
    return rows
