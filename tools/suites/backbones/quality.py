"""What each backbone learns on CIFAR-10 in a given time: `--quality`.

Small nets train one after the other, each in a process of its own, on all
cores. Evaluations before and during training give the Fréchet distance on
MobileNetV2's features and how many of the ten classes a linear probe on them
recognizes. The clock runs only while a backbone trains, and counts half of the
CPU time: the seconds that two otherwise idle cores would need. A backbone is
done when it is at a fifth of its first distance with nine classes recognized.
"""

import functools
from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites.interleave import log_progress
from tools.suites.learner import Learner
from tools.suites.suite import Options, Result
from tools.suites.workers import Worker, close_all

_QUICK_SECONDS, _FULL_SECONDS = 120, 1200
_NUM_EVALUATIONS = 5
_STEPS_AT_ONCE = 20
_NUM_SAMPLES, _NUM_REFERENCE = 5000, 10000
_GAIN, _NUM_RECOGNIZED = 5.0, 9  # The targets; training ends when both are met.
_METRICS = ("fid", "label_agreement", "classes_recognized")
_NETS = ("Generator", "Discriminator")
# One update of each player a step, large learning rates and a short average:
# settings for minutes, not for days.
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


Config = Tuple[str, Sequence[str], Sequence[str]]


class Evaluation(NamedTuple):
  """How good G was after a number of steps and seconds."""

  step: int
  seconds: float
  frechet: float
  agreement: float
  recognized: float


class TimedLearner(Learner):
  """Trains one backbone for a given time."""

  def run(self, until: float) -> Evaluation:
    """Trains until the clock shows so many seconds, then evaluates."""
    while self.seconds < until:
      self.advance(_STEPS_AT_ONCE)
    scores = (value["value"] for value in self._evaluate())
    return Evaluation(self.step, self.seconds, *scores)

  def evaluate_real_images(self) -> List[float]:
    """Returns the scores of real images that were not trained on."""
    return [value["real_score"] for value in self._evaluate()]

  def _evaluate(self):
    return self.measure(_NUM_SAMPLES, _NUM_REFERENCE, _METRICS)


def run(options: Options) -> Result:
  """Trains all backbones; returns a table, the figures and a picture."""
  names = options.select_sides(SIDES)
  seconds = _QUICK_SECONDS if options.quick else _FULL_SECONDS
  evaluations: Dict[str, List[Evaluation]] = {}
  pictures: Dict[str, np.ndarray] = {}
  real_scores: List[float] = []
  for name in names:
    log_progress(f"{name} for {seconds / 60:.0f} minutes.")
    worker = Worker(name, functools.partial(TimedLearner, *_make_config(name)))
    with close_all([worker]):
      evaluations[name] = _train(name, worker, seconds)
      real_scores = worker.call("evaluate_real_images")
      pictures[name] = worker.call("draw_samples")
  return Result(
    format_table(evaluations, real_scores),
    gather(evaluations, real_scores),
    lambda path: draw(path, pictures),
  )


def _train(name: str, worker: Worker, seconds: float) -> List[Evaluation]:
  """Trains and evaluates until the targets are met or the time is over."""
  evaluations: List[Evaluation] = []
  for i in range(_NUM_EVALUATIONS + 1):
    evaluations.append(worker.call("run", seconds * i / _NUM_EVALUATIONS))
    last = evaluations[-1]
    log_progress(f"{name}: {format_evaluation(last)}")
    gain = evaluations[0].frechet / last.frechet
    if gain >= _GAIN and last.recognized >= _NUM_RECOGNIZED:
      break
  return evaluations


def _make_config(name: str) -> Config:
  """Returns the gin file of a backbone, no more files, and bindings."""
  gin_file, bindings = make_small(name)
  return gin_file, (), (*bindings, "Experiment.extractor = 'mobilenet'")


def make_small(name: str) -> Tuple[str, Tuple[str, ...]]:
  """Returns the gin file of a backbone, and what makes it train in minutes."""
  width, more = SIDES[name]
  widths = [f"{name}.{net}.width = {width}" for net in _NETS]
  return f"gin/runs/{name}_cifar10.gin", (*widths, *_SHORT, *more)


def draw(path: str, pictures: Dict[str, np.ndarray]) -> None:
  """Writes the samples of all backbones, side by side, as a PNG."""
  import PIL.Image

  gap = np.full([*next(iter(pictures.values())).shape[:1], 8, 3], 255, np.uint8)
  parts = [x for picture in pictures.values() for x in (gap, picture)][1:]
  PIL.Image.fromarray(np.concatenate(parts, 1)).save(path)


def format_evaluation(one: Evaluation) -> str:
  """Returns an evaluation as a line of text."""
  return (
    f"step {one.step}, {one.seconds:.0f} s, Fréchet distance "
    f"{one.frechet:.1f}, {one.agreement:.0%} of the samples match their "
    f"class, {one.recognized:.0f} classes recognized"
  )


def gather(
  evaluations: Dict[str, List[Evaluation]], real_scores: List[float]
) -> Dict[str, float]:
  """Returns the figures by name."""
  figures: Dict[str, float] = {
    "floor_frechet": real_scores[0],
    "floor_label_agreement": real_scores[1],
  }
  for name, own in evaluations.items():
    first, last = own[0], own[-1]
    figures[f"{name}_frechet_at_first"] = first.frechet
    figures[f"{name}_frechet"] = last.frechet
    figures[f"{name}_gain"] = first.frechet / last.frechet
    figures[f"{name}_label_agreement"] = last.agreement
    figures[f"{name}_classes_recognized"] = last.recognized
    figures[f"{name}_num_steps"] = last.step
    figures[f"{name}_seconds"] = last.seconds
  return figures


def format_table(
  evaluations: Dict[str, List[Evaluation]], real_scores: List[float]
) -> str:
  """Returns the figures as text."""
  lines = [
    f"CIFAR-10, MobileNetV2, {_NUM_SAMPLES} samples, {_NUM_REFERENCE} images; "
    f"real images get {real_scores[0]:.1f} and {real_scores[1]:.0%}",
    f"{'':10}{'minutes':10}{'steps':8}{'distance':20}{'gain':8}"
    f"{'agreement':12}classes",
  ]
  for name, own in evaluations.items():
    first, last = own[0], own[-1]
    distance = f"{first.frechet:.0f} to {last.frechet:.0f}"
    lines.append(
      f"{name:10}{last.seconds / 60:<10.1f}{last.step:<8}{distance:20}"
      f"{first.frechet / last.frechet:<8.1f}{last.agreement:<12.0%}"
      f"{last.recognized:.0f} of 10"
    )
  return "\n".join(lines)
