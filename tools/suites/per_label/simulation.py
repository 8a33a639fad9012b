"""A pool of up to 2,000 workers, simulated with what was measured here.

A worker starts once, then trains one label after the other; before each label
but its first it needs a little time. No worker waits for another one, so a run
of the pool is that of its longest worker: the sum of its labels.

The sizes of ImageNet's labels stand in for its list, which is not at hand: 895
labels of 1,300 images, the others from 732 up, 1.281 million in all.
"""

import heapq
from typing import Dict, List, Sequence

import numpy as np

from paragan_tf import label_queue

_NUM_LABELS, _NUM_LARGEST = 1000, 895
_SMALLEST, _LARGEST, _TOTAL = 732, 1300, 1_281_167
_WORKERS = (1, 8, 64, 250, 500, 1000, 2000)
_HOURS = (1.0, 8.0)


def imagenet_sizes() -> List[int]:
  """Returns a number of images for each of 1,000 labels."""
  num_small = _NUM_LABELS - _NUM_LARGEST
  mean = (_TOTAL - _NUM_LARGEST * _LARGEST) / num_small
  # The mean of u^p for u from 0 to 1 is 1 / (p + 1).
  power = (_LARGEST - _SMALLEST) / (mean - _SMALLEST) - 1.0
  u = np.linspace(0.0, 1.0, num_small) ** power
  small = np.rint(_SMALLEST + (_LARGEST - _SMALLEST) * u).astype(int)
  return [*small.tolist(), *[_LARGEST] * _NUM_LARGEST]


def simulate(
  seconds: Sequence[float], num_workers: int, start: float, further: float
) -> float:
  """Returns when the last worker ends.

  Args:
    seconds: Of training each label, in the order in which they are taken.
    num_workers: That take labels at the same time.
    start: Seconds until a worker trains its first label.
    further: Seconds before each further label.
  """
  free = [start] * min(num_workers, len(seconds))
  heapq.heapify(free)
  end = 0.0
  for i, training in enumerate(seconds):
    began = heapq.heappop(free) + (further if i >= num_workers else 0.0)
    end = max(end, began + training)
    heapq.heappush(free, began + training)
  return end


def efficiency(
  seconds: Sequence[float], num_workers: int, start: float, further: float
) -> float:
  """Returns the part of the workers' time that is spent training."""
  end = simulate(seconds, num_workers, start, further)
  return sum(seconds) / (num_workers * end)


def run(start: float, further: float) -> Dict[str, float]:
  """Returns efficiencies of weak and strong scaling.

  `weak`: a label for each worker, as the authors scale it. `strong`: the 1,000
  labels of ImageNet on fewer workers. With a budget of seconds all labels take
  as long; with one of epochs as long as they have images.
  """
  sizes = imagenet_sizes()
  ordered = [sizes[i] for i in label_queue.order(dict(enumerate(sizes)))]
  figures: Dict[str, float] = {}
  for hours in _HOURS:
    budget = hours * 3600.0
    by_images = [budget * size / np.mean(sizes) for size in ordered]
    for num in _WORKERS:
      key = f"simulated.{hours:g}h.workers{num}"
      figures[f"{key}.weak_seconds"] = efficiency(
        [budget] * num, num, start, further
      )
      spread = by_images[:: max(1, _NUM_LABELS // num)] * 2
      weak = sorted(spread[:num], reverse=True)
      figures[f"{key}.weak_epochs"] = efficiency(weak, num, start, further)
      if num <= _NUM_LABELS:
        figures[f"{key}.strong_seconds"] = efficiency(
          [budget] * _NUM_LABELS, num, start, further
        )
        figures[f"{key}.strong_epochs"] = efficiency(
          by_images, num, start, further
        )
  return figures


def format_table(figures: Dict[str, float]) -> str:
  """Returns the simulated efficiencies in columns."""
  kinds = ("weak_seconds", "weak_epochs", "strong_seconds", "strong_epochs")
  lines = ["workers  hours  " + "  ".join(x.ljust(14) for x in kinds)]
  for hours in _HOURS:
    for num in _WORKERS:
      key = f"simulated.{hours:g}h.workers{num}"
      cells = [figures.get(f"{key}.{kind}") for kind in kinds]
      shown = ["-" if x is None else f"{x:.4f}" for x in cells]
      row = "  ".join(x.ljust(14) for x in shown)
      lines.append(f"{num:7,}  {hours:5g}  {row}".rstrip())
  return "\n".join(lines)
