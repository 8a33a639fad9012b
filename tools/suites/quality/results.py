"""The results of the suite `quality`, kept in a JSON file as they come.

    results = Results(path, settings)   # reads what is there
    results.add("sngan", 0, points)     # writes it at once
    results.points("sngan", 0)          # empty if it is not there

A file of other settings is refused: values of different protocols have no table
in common.
"""

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from tools import cli

SEEDS = (0, 1, 2)


class Settings(NamedTuple):
  """How all sides are trained and measured.

  Attributes:
    num_steps: Steps of training.
    num_samples: Samples of the FID at the end.
    num_reference: Training images that they are compared with.
    num_curve_samples: Samples of the FID of the curve.
    num_curve_points: How often that is measured, with seed 0 only.
  """

  num_steps: int = 1500
  num_samples: int = 10_000
  num_reference: int = 50_000
  num_curve_samples: int = 1000
  num_curve_points: int = 3


class Point(NamedTuple):
  """A measured value.

  Attributes:
    step: After so many steps,
    seconds: and so many seconds of training.
    num_samples: Which FID it is.
    fid: The value.
    real_fid: What held-out images get, as many as samples.
  """

  step: int
  seconds: float
  num_samples: int
  fid: float
  real_fid: Optional[float] = None


class Results:
  """What is measured so far.

  Args:
    path: The JSON file, which need not exist.
    settings: What its values must have been measured with.
  """

  def __init__(self, path: str, settings: Settings):
    self._path, self.settings = path, settings
    self._points: Dict[str, Dict[str, List[Point]]] = {}
    if os.path.exists(path) and os.path.getsize(path):
      self._read()

  def points(self, side: str, seed: int) -> List[Point]:
    """Returns what was measured of a side with a seed."""
    return self._points.get(side, {}).get(str(seed), [])

  def add(self, side: str, seed: int, points: Sequence[Point]) -> None:
    """Adds the points of a side with a seed, and writes the file."""
    self._points.setdefault(side, {})[str(seed)] = list(points)
    partial = f"{self._path}.partial"
    cli.write_json("json", partial, self.figures())
    os.replace(partial, self._path)

  def finals(self, side: str) -> Dict[int, Point]:
    """Returns the last value of each seed that was measured."""
    found = {seed: self._select(side, seed, True) for seed in SEEDS}
    return {seed: points[-1] for seed, points in found.items() if points}

  def curve(self, side: str, seed: int) -> List[Point]:
    """Returns the values of the curve, which have their own count."""
    return self._select(side, seed, False)

  def _select(self, side: str, seed: int, is_final: bool) -> List[Point]:
    settings = self.settings
    num = settings.num_samples if is_final else settings.num_curve_samples
    return [x for x in self.points(side, seed) if x.num_samples == num]

  def figures(self) -> Dict[str, Any]:
    """Returns all as a dict for JSON."""
    results = {
      side: {
        seed: [point._asdict() for point in points]
        for seed, points in seeds.items()
      }
      for side, seeds in self._points.items()
    }
    return {"settings": self.settings._asdict(), "results": results}

  def _read(self) -> None:
    try:
      with open(self._path, encoding="utf-8") as f:
        found = json.load(f)
      settings = found["settings"]
      self._points = {
        side: {
          seed: [Point(**point) for point in points]
          for seed, points in seeds.items()
        }
        for side, seeds in found["results"].items()
      }
    except (ValueError, KeyError, TypeError, AttributeError) as e:
      raise ValueError(
        f"`--json` '{self._path}' must be a file of this suite, or a new one: "
        "it has no results that can be read."
      ) from e
    if settings != self.settings._asdict():
      raise ValueError(
        f"`--json` '{self._path}' was measured with {settings}, and this call "
        f"has {self.settings._asdict()}: name another file."
      )
