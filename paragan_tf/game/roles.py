"""Which replicas train G, which train D, and which G sends fakes to which D.

Replicas form groups of `g_per_group + d_per_group`, those of G first; with one
of each, even replicas train G and odd ones D. Within a group, the replicas of
the larger role are divided among those of the smaller one:

    3 : 1    g g g d     d receives fakes from all three
    1 : 2    g d d       each d receives different fakes of g
"""

from typing import List, NamedTuple


class Roles(NamedTuple):
  """Number of replicas of G and of D in each group."""

  g_per_group: int
  d_per_group: int

  @property
  def group_size(self) -> int:
    """Number of replicas in a group."""
    return self.g_per_group + self.d_per_group

  @property
  def num_sources(self) -> int:
    """Number of replicas of G that send fakes to one of D."""
    return max(1, self.g_per_group // self.d_per_group)

  @property
  def num_targets(self) -> int:
    """Number of replicas of D that one of G sends fakes to."""
    return max(1, self.d_per_group // self.g_per_group)

  def role_of(self, replica: int) -> str:
    """Returns the player that a replica trains: `g` or `d`."""
    return "g" if replica % self.group_size < self.g_per_group else "d"

  def num_playing(self, who: str, num_replicas: int) -> int:
    """Returns the number of replicas that train `who`."""
    per_group = self.g_per_group if who == "g" else self.d_per_group
    return num_replicas // self.group_size * per_group

  def g_index(self, replica: int) -> int:
    """Returns the index of a replica among those of G.

    For a replica of D it is the index of its first source.
    """
    group, index = divmod(replica, self.group_size)
    if index >= self.g_per_group:
      index = (index - self.g_per_group) % self.g_per_group
    return group * self.g_per_group + index

  def d_index(self, replica: int) -> int:
    """Returns the index of a replica among those of D.

    For a replica of G it is the index of its first target.
    """
    group, index = divmod(replica, self.group_size)
    if index < self.g_per_group:
      index = index % self.d_per_group
    else:
      index -= self.g_per_group
    return group * self.d_per_group + index

  def slice_index(self, replica: int) -> int:
    """Returns which slice of its source's fakes a replica of D takes."""
    index = max(0, replica % self.group_size - self.g_per_group)
    return index // self.g_per_group

  def sources(self, index: int, num_replicas: int) -> List[int]:
    """Returns for each replica its `index`-th source; G is its own source."""
    sources = []
    for replica in range(num_replicas):
      group, member = divmod(replica, self.group_size)
      if member < self.g_per_group:
        sources.append(replica)
      else:
        first = (member - self.g_per_group) % self.g_per_group
        source = first + index * self.d_per_group
        sources.append(group * self.group_size + source)
    return sources
