"""Samples of a trained G as files: what `tools/sample.py` asks for."""

import dataclasses
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from paragan_tf import trained
from paragan_tf.generator import Classes, Generator, Samples
from paragan_tf.outputs import nearest, pictures, samples
from paragan_tf.outputs.progress import Counter

_NUM, _NUM_ROWS = 64, 8
_FRAMES, _ANIMATION_FRAMES = 8, 24
_NUM_NEAREST = 5


@dataclasses.dataclass(frozen=True)
class Request:
  """What to draw, and where to write it.

  Attributes:
    output: See `pictures.check_path`.
    num: Samples; or rows of an interpolation, or columns of a sweep.
    classes: Ids or names; all by default.
    seed: Of the latent codes.
    truncation: Of the latent codes; by default as in the run.
    truncation_sweep: Truncations, a row each.
    interpolate: `z`, `class`, or not.
    num_frames: Of an interpolation.
    nearest: Where training images are, to show the nearest ones.
  """

  output: str
  num: Optional[int] = None
  classes: Optional[Classes] = None
  seed: int = 0
  truncation: Optional[float] = None
  truncation_sweep: Optional[Sequence[float]] = None
  interpolate: Optional[str] = None
  num_frames: Optional[int] = None
  nearest: Optional[str] = None

  def __post_init__(self):
    pictures.check_path(self.output, bool(self.interpolate))
    given = [
      f"`--{name}`"
      for name in ("truncation_sweep", "interpolate", "nearest")
      if getattr(self, name) is not None
    ]
    if len(given) > 1:
      raise ValueError(
        f"{' and '.join(given)} exclude each other: give one of them."
      )
    if self.truncation_sweep is not None and self.truncation is not None:
      raise ValueError(
        "`--truncation` and `--truncation_sweep` exclude each other: give one "
        "of them."
      )
    if self.nearest is not None and not self.output.endswith(".png"):
      raise ValueError(
        "`--nearest` draws a grid, so `output` must end in .png, got "
        f"'{self.output}': change its ending."
      )

  @property
  def is_animation(self) -> bool:
    """Whether frames follow each other in time."""
    return self.output.lower().endswith((".gif", ".webp"))


def write_samples(
  model_dir: str, request: Request, step: trained.Step = None
) -> None:
  """Loads G, draws, writes, and prints what is where.

  Args:
    model_dir: The folder of a run or of an export.
    request: What to draw.
    step: Which checkpoint, or `best`; the newest by default.
  """
  g = trained.load(model_dir, step)
  found, columns = _draw(g, request)
  frames = None
  if request.is_animation:
    rows = found.images.reshape([-1, columns, *found.images.shape[1:]])
    frames = rows.swapaxes(0, 1)
  path = pictures.write(
    request.output, found.images, columns, found.arrays, frames
  )
  at = "" if g.info.step is None else f" of step {g.info.step:,}"
  print(f"{len(found.images):,} images{at}: {path}", flush=True)


def _draw(g: Generator, request: Request) -> Tuple[Samples, int]:
  """Returns samples, and how many make a row of a grid."""
  given: Dict[str, Any] = dict(classes=request.classes, seed=request.seed)
  if request.truncation_sweep is not None:
    num = _NUM_ROWS if request.num is None else request.num
    return g.sweep(request.truncation_sweep, num, **given), num
  given.update(truncation=request.truncation, progress=Counter("images"))
  if request.interpolate is not None:
    frames = _ANIMATION_FRAMES if request.is_animation else _FRAMES
    frames = frames if request.num_frames is None else request.num_frames
    num = _NUM_ROWS if request.num is None else request.num
    return g.interpolate(request.interpolate, num, frames, **given), frames
  if request.nearest is not None:
    num = _NUM_ROWS if request.num is None else request.num
    return _add_nearest(g, g.sample(num, **given), request.nearest)
  found = g.sample(_NUM if request.num is None else request.num, **given)
  num_classes = len(request.classes or ()) or g.info.num_classes
  return found, samples.columns_for(num_classes, len(found.images))


def _add_nearest(
  g: Generator, found: Samples, source: str
) -> Tuple[Samples, int]:
  """Returns samples, each followed by the training images nearest to it."""
  near = g.find_nearest(
    found.images, source, _NUM_NEAREST, Counter("training images")
  )
  for i, row in enumerate(near.distances):
    listed = ", ".join(f"{distance:.1f}" for distance in row)
    print(f"sample {i}: {listed}")
  print(f"Distances: {nearest.MEASURE}; samples are in the first column.")
  images = np.concatenate([found.images[:, None], near.images], 1)
  columns = images.shape[1]
  flat = images.reshape([-1, *images.shape[2:]])
  return found._replace(images=flat), columns
