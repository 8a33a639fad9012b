"""What a suite is asked for, and what it gives."""

from typing import Callable, Dict, NamedTuple, Optional, Tuple


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
