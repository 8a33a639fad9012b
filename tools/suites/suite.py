"""The interface of a suite: its options and its result."""

from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Tuple


class Options(NamedTuple):
  """How to measure.

  Attributes:
    quick: Whether to finish in a few minutes, with more noise.
    quality: Whether to measure what is learned, where a suite can.
    only: The sides to measure; empty for all.
    json: The file of the figures: a suite that takes hours keeps there what it
      has measured, and goes on from it.
  """

  quick: bool = False
  quality: bool = False
  only: Tuple[str, ...] = ()
  json: Optional[str] = None

  def select_sides(self, names: Iterable[str]) -> Tuple[str, ...]:
    """Returns which of `names` to measure."""
    names = tuple(names)
    for name in self.only:
      if name not in names:
        raise ValueError(
          f"`--only` must name some of {', '.join(names)}, got '{name}'."
        )
    return self.only or names


class Result(NamedTuple):
  """What a suite has measured.

  Attributes:
    table: The figures as text, for people.
    figures: The figures by name, for programs.
    draw: Writes a plot as a PNG to a path, if the suite has one.
  """

  table: str
  figures: Dict[str, Any]
  draw: Optional[Callable[[str], None]] = None


Suite = Callable[[Options], Result]
