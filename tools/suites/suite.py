"""What a suite is asked for, and what it gives."""

from typing import Callable, Dict, Iterable, NamedTuple, Optional, Tuple


class Options(NamedTuple):
  """How to measure.

  Attributes:
    quick: In a few minutes, with more noise.
    quality: What is learned, where a suite measures that too.
    only: The sides that are asked for; all, if none is named.
  """

  quick: bool = False
  quality: bool = False
  only: Tuple[str, ...] = ()

  def asked(self, names: Iterable[str]) -> Tuple[str, ...]:
    """Returns the sides to measure, of all `names`."""
    names = tuple(names)
    for name in self.only:
      if name not in names:
        raise ValueError(
          f"`--only` must name some of {', '.join(names)}, got '{name}'."
        )
    return self.only or names


class Result(NamedTuple):
  """What came out.

  Attributes:
    table: For people.
    figures: For programs, by name.
    draw: Writes a picture as a PNG to a path, if there is one.
  """

  table: str
  figures: Dict[str, float]
  draw: Optional[Callable[[str], None]] = None


Suite = Callable[[Options], Result]
