"""Watches a run for numbers that went wrong and for collapse.

    signals = Signals(step, diversity, ...)     # cheap, at some log points
    reason = watchdog.judge(history)            # pure; `None` while all is well

Three mechanisms, from the cheapest to the most drastic:

    an update that is not finite   is skipped (`engine/finite.py`) and counted;
                                   after `max_skipped` of them the run stops
    collapse or divergence         is reported with the evidence, and the last
                                   checkpoint from before is kept in `good/`
    `on_collapse`                  'warn', 'stop', or 'roll_back', which also
                                   halves both learning rates
"""

from typing import Mapping, NamedTuple, Optional, Sequence

import gin
import numpy as np

from paragan_tf.game.number_checks import check_not_negative

ACTIONS = ("warn", "stop", "roll_back")
_GROWTH_STEPS = 1000


class Signals(NamedTuple):
  """What is known of a run at one step; NaN is what could not be computed.

  Attributes:
    step: The step.
    diversity: How much samples differ, relative to real images.
    saturation: The share of pixels of samples at the ends of their range.
    logit: The largest mean of D's logits, of real or of generated images.
    top_singular_value: The largest of all weights.
    classes: Classes that are recognized among samples, relative to those among
      as many real images.
  """

  step: int
  diversity: float
  saturation: float
  logit: float
  top_singular_value: float
  classes: float = float("nan")


def at_start(step: int, top_singular_value: float) -> Signals:
  """Returns what is known before training goes on."""
  return Signals(step, float("nan"), 0.0, 0.0, top_singular_value)


@gin.configurable
class Watchdog:
  """Decides when a run has gone wrong; a pure function of what it has seen.

  Args:
    every: Steps between two looks, rounded up to log points.
    on_collapse: What to do: 'warn', 'stop', or 'roll_back' to the checkpoint in
      `good/` and halve both learning rates.
    max_skipped: Steps in a row, of windows where most were skipped, after which
      the run stops.
    patience: Looks in a row that must agree.
    grace: Steps in which samples may be alike, noise, or of few classes.
    min_diversity: Below it, samples are all alike.
    max_diversity: Above it, samples are noise.
    max_logit: Above it, D's logits have diverged.
    max_singular_value: Above it, weights have diverged.
    max_growth: So many times larger within 1,000 steps, too.
    min_classes: Below it, most classes are missing.
    max_rollbacks: After so many the run stops.
  """

  def __init__(
    self,
    every: int = 100,
    on_collapse: str = "warn",
    max_skipped: int = 100,
    patience: int = 2,
    grace: int = 500,
    min_diversity: float = 0.05,
    max_diversity: float = 1.6,
    max_logit: float = 1e4,
    max_singular_value: float = 1e3,
    max_growth: float = 100.0,
    min_classes: float = 0.25,
    max_rollbacks: int = 3,
  ):
    if on_collapse not in ACTIONS:
      raise ValueError(
        f"`on_collapse` must be one of {', '.join(ACTIONS)}, got "
        f"{on_collapse!r}."
      )
    for name, value in dict(
      every=every, max_skipped=max_skipped, patience=patience
    ).items():
      if value < 1:
        raise ValueError(f"`Watchdog.{name}` must be at least 1, got {value}.")
    self.every, self.on_collapse = every, on_collapse
    self.max_skipped, self.patience = max_skipped, patience
    self.grace = check_not_negative("grace", grace)
    self.min_diversity, self.min_classes = min_diversity, min_classes
    self.max_diversity, self.max_growth = max_diversity, max_growth
    self.max_logit, self.max_singular_value = max_logit, max_singular_value
    self.max_rollbacks = max_rollbacks

  def find_evidence(self, history: Sequence[Signals]) -> str:
    """Returns what is wrong at the last look, in words; '' if nothing is.

    Args:
      history: All looks so far, the newest last.
    """
    now = history[-1]
    best_diversity = max(np.nan_to_num(x.diversity) for x in history)
    found = []
    is_alike = now.diversity < self.min_diversity
    # At first samples are alike, too: they must have differed, or had time.
    if is_alike and (best_diversity > 0.25 or now.step > self.grace):
      found.append(
        f"samples differ {now.diversity:.2g} times as much as real images "
        f"({best_diversity:.2g} at best)"
      )
    if now.diversity > self.max_diversity and now.step > self.grace:
      found.append(
        f"samples differ {now.diversity:.2g} times as much as real images"
      )
    if now.saturation > 0.995:
      found.append(f"{now.saturation:.1%} of their pixels are black or white")
    if not abs(now.logit) <= self.max_logit:
      found.append(f"D's logits are {now.logit:.2g} in the mean")
    if not now.top_singular_value <= self.max_singular_value:
      found.append(
        f"the largest singular value of a weight is "
        f"{now.top_singular_value:.2g}"
      )
    first = min(
      (x for x in history if now.step - x.step <= _GROWTH_STEPS),
      key=lambda x: np.nan_to_num(x.top_singular_value, nan=np.inf),
    )
    if now.top_singular_value > self.max_growth * first.top_singular_value > 0:
      found.append(
        f"the largest singular value of a weight has grown from "
        f"{first.top_singular_value:.2g} to {now.top_singular_value:.2g} in "
        f"{now.step - first.step} steps"
      )
    if now.classes < self.min_classes and now.step > self.grace:
      found.append(
        f"{now.classes:.0%} of the classes of real images are recognized"
      )
    return "; ".join(found)

  def judge(self, history: Sequence[Signals]) -> Optional[str]:
    """Returns the evidence of a collapse, `None` if there is none.

    Args:
      history: All looks so far, the newest last.
    """
    num = len(history)
    if num < self.patience:
      return None
    ends = range(num - self.patience + 1, num + 1)
    recent = [self.find_evidence(history[:end]) for end in ends]
    return recent[-1] if all(recent) else None


class SkipCounter:
  """Counts skipped steps in windows where most were skipped."""

  def __init__(self, limit: int):
    self._limit = limit
    self.in_a_row = self.total = 0

  def add(self, skipped: Mapping[str, float], num_steps: int) -> bool:
    """Adds a window; returns whether the limit is reached.

    Args:
      skipped: By player, the share of steps whose update was skipped.
      num_steps: Of the window.
    """
    share = max(skipped.values(), default=0.0)
    count = round(share * num_steps)
    self.total += count
    self.in_a_row = self.in_a_row + count if share > 0.5 else 0
    return self.in_a_row >= self._limit


def diversity(images: np.ndarray) -> float:
  """Returns the root mean square distance of images to their mean."""
  images = np.asarray(images, np.float64)
  return float(np.sqrt(np.mean((images - images.mean(0)) ** 2)))


def saturation(images: np.ndarray) -> float:
  """Returns the share of pixels at the ends of [-1, 1]."""
  return float(np.mean(np.abs(images) > 0.999))


def top_singular_value(weight: np.ndarray, num_steps: int = 4) -> float:
  """Returns about the largest singular value, by power iteration."""
  matrix = np.asarray(weight, np.float64).reshape([-1, weight.shape[-1]])
  if not np.all(np.isfinite(matrix)):
    return float("nan")
  v = np.ones([matrix.shape[1]]) + 0.01 * np.arange(matrix.shape[1])
  for _ in range(num_steps):
    v = matrix.T @ (matrix @ (v / max(np.linalg.norm(v), 1e-30)))
  return float(np.sqrt(np.linalg.norm(v)))
