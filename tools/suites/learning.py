"""What each backbone learns on CIFAR-10 in a given time: suite `backbones`.

Small nets, one process each, one after the other, on all cores. The Frechet
distance on MobileNetV2's features and how many of the ten classes a linear
probe on them recognizes, before and while G learns. The clock runs while it
trains only, and counts the time of the cores, half of it: so many seconds of
two cores that do nothing else. Who is at a fifth of the first distance, with
nine classes recognized, is done.
"""

import functools
import time
from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.ours import load
from tools.suites.rounds import say
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, closing

_QUICK_SECONDS, _FULL_SECONDS = 120, 1200
_NUM_CORES, _NUM_LOOKS = 2, 5
_STEPS_AT_ONCE = 20
_NUM_SAMPLES, _NUM_REFERENCE = 5000, 10000
_GAIN, _NUM_RECOGNIZED = 5.0, 9  # The aims, after which nothing is left to do.
_NETS = ("Generator", "Discriminator")
# One turn of each, large rates and a short memory: for minutes, not for days.
_SHORT = (
  "Experiment.batch_size = 32",
  "Experiment.augment = None",
  "Experiment.ema = @Ema",
  "InputFn.conditional = True",
  "Sequential.num_d_steps = 1",
  "Sequential.g_batch_size = None",
  "Sequential.reuse_fakes = True",
  "Ema.decay = 0.995",
  "Ema.start_step = 0",
  "g/Adam.learning_rate = 5e-4",
)
_FAST_D = ("d/Adam.learning_rate = 1e-3",)
# Name: the width of both nets, and more gin bindings. BigGAN has four times its
# width in channels, the others as many.
SIDES: Dict[str, Tuple[int, Sequence[str]]] = {
  "sngan": (32, _FAST_D),
  "sagan": (32, _FAST_D),
  "biggan": (8, _FAST_D),
  "wgan_gp": (32, _FAST_D),
}


class Look(NamedTuple):
  """How good G was at a step."""

  step: int
  seconds: float
  frechet: float
  agreement: float
  recognized: float


class Learner:
  """One backbone that learns."""

  def __init__(self, gin_file: str, bindings: Sequence[str]):
    run = load(bindings, (), gin_file)
    self._experiment = run.Experiment(run.strategies.choose().strategy)
    self._inner_loop = self._experiment.inner_loop(0)
    self._step, self._seconds = 0, 0.0

  def run(self, until: float) -> Look:
    """Trains until so many seconds of two cores are over, then looks."""
    while self._seconds < until:
      started = time.process_time()
      self._inner_loop(_STEPS_AT_ONCE)
      self._seconds += (time.process_time() - started) / _NUM_CORES
      self._step += _STEPS_AT_ONCE
    values = self._experiment.evaluation.measure(_NUM_SAMPLES, _NUM_REFERENCE)
    return Look(self._step, self._seconds, *(value.value for value in values))

  def floor(self) -> List[float]:
    """Returns what real images get that were not trained on."""
    values = self._experiment.evaluation.measure(_NUM_SAMPLES, _NUM_REFERENCE)
    return [value.real_score for value in values]

  def picture(self) -> np.ndarray:
    """Returns samples, a class a column."""
    return np.asarray(self._experiment.evaluation.grid())


def run(options: Options) -> Result:
  """Trains all; returns a table to read, the figures and a picture."""
  names = options.asked(SIDES)
  seconds = _QUICK_SECONDS if options.quick else _FULL_SECONDS
  looks: Dict[str, List[Look]] = {}
  pictures: Dict[str, np.ndarray] = {}
  floor: List[float] = []
  for name in names:
    say(f"{name} for {seconds / 60:.0f} minutes.")
    worker = Worker(name, functools.partial(Learner, *_config(name)))
    with closing([worker]):
      looks[name] = _watched(name, worker, seconds)
      floor = worker.ask("floor")
      pictures[name] = worker.ask("picture")
  return Result(
    table(looks, floor), gather(looks, floor), lambda path: draw(path, pictures)
  )


def _watched(name: str, worker: Worker, seconds: float) -> List[Look]:
  """Looks from time to time, until the aims are reached or time is over."""
  looks: List[Look] = []
  for i in range(_NUM_LOOKS + 1):
    looks.append(worker.ask("run", seconds * i / _NUM_LOOKS))
    say(f"{name}: {line(looks[-1])}")
    gain = looks[0].frechet / looks[-1].frechet
    if gain >= _GAIN and looks[-1].recognized >= _NUM_RECOGNIZED:
      break
  return looks


def _config(name: str) -> Tuple[str, Sequence[str]]:
  """Returns the gin file and the bindings of a backbone."""
  width, more = SIDES[name]
  widths = [f"{name}.{net}.width = {width}" for net in _NETS]
  return f"gin/runs/{name}_cifar10.gin", (*widths, *_SHORT, *more)


def draw(path: str, pictures: Dict[str, np.ndarray]) -> None:
  """Writes the samples of all, side by side."""
  import PIL.Image

  gap = np.full([*next(iter(pictures.values())).shape[:1], 8, 3], 255, np.uint8)
  parts = [x for picture in pictures.values() for x in (gap, picture)][1:]
  PIL.Image.fromarray(np.concatenate(parts, 1)).save(path)


def line(look: Look) -> str:
  """Returns a look in words."""
  return (
    f"step {look.step}, {look.seconds:.0f} s, Frechet distance "
    f"{look.frechet:.1f}, {look.agreement:.0%} of the samples look like their "
    f"class, {look.recognized:.0f} classes recognized"
  )


def gather(looks: Dict[str, List[Look]], floor: List[float]):
  """Returns the flat figures."""
  figures: Dict[str, float] = {
    "floor_frechet": floor[0],
    "floor_label_agreement": floor[1],
  }
  for name, seen in looks.items():
    first, last = seen[0], seen[-1]
    figures[f"{name}_frechet_at_first"] = first.frechet
    figures[f"{name}_frechet"] = last.frechet
    figures[f"{name}_gain"] = first.frechet / last.frechet
    figures[f"{name}_label_agreement"] = last.agreement
    figures[f"{name}_classes_recognized"] = last.recognized
    figures[f"{name}_num_steps"] = last.step
    figures[f"{name}_seconds"] = last.seconds
  return figures


def table(looks: Dict[str, List[Look]], floor: List[float]) -> str:
  """Returns the figures as lines."""
  lines = [
    f"CIFAR-10, MobileNetV2, {_NUM_SAMPLES} samples, {_NUM_REFERENCE} images; "
    f"real images get {floor[0]:.1f} and {floor[1]:.0%}",
    f"{'':10}{'minutes':10}{'steps':8}{'distance':20}{'gain':8}"
    f"{'agreement':12}classes",
  ]
  for name, seen in looks.items():
    first, last = seen[0], seen[-1]
    distance = f"{first.frechet:.0f} to {last.frechet:.0f}"
    lines.append(
      f"{name:10}{last.seconds / 60:<10.1f}{last.step:<8}{distance:20}"
      f"{first.frechet / last.frechet:<8.1f}{last.agreement:<12.0%}"
      f"{last.recognized:.0f} of 10"
    )
  return "\n".join(lines)
