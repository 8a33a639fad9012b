"""Nearest training images of samples, by their pixels."""

from typing import Iterable, NamedTuple

import numpy as np

MEASURE = "root mean squared difference of pixels, of 255"


class Nearest(NamedTuple):
  """The nearest images of each sample, nearest first.

  Attributes:
    images: uint8, `[n, k, h, w, c]`.
    distances: See `MEASURE`, `[n, k]`.
  """

  images: np.ndarray
  distances: np.ndarray


def find(
  samples: np.ndarray, batches: Iterable[np.ndarray], num: int
) -> Nearest:
  """Returns the `num` nearest images of each sample.

  Memory does not grow with the number of images.

  Args:
    samples: uint8, `[n, h, w, c]`.
    batches: uint8, `[b, h, w, c]` each; `num` images or more in all.
    num: How many.
  """
  wanted = _flatten(samples)
  images = np.zeros([len(samples), 0, *samples.shape[1:]], np.uint8)
  squares = np.zeros([len(samples), 0])
  for batch in batches:
    # Products of integers below 2**53 in all: exact in float64.
    found = _flatten(batch)
    more = (
      (wanted**2).sum(1)[:, None]
      + (found**2).sum(1)[None]
      - 2.0 * wanted @ found.T
    )
    rows = np.argsort(more, axis=1, kind="stable")[:, :num]
    squares = np.concatenate([squares, np.take_along_axis(more, rows, 1)], 1)
    images = np.concatenate([images, batch[rows]], 1)
    best = np.argsort(squares, axis=1, kind="stable")[:, :num]
    squares = np.take_along_axis(squares, best, 1)
    images = np.take_along_axis(images, best[..., None, None, None], 1)
  return Nearest(images, np.sqrt(squares / wanted.shape[1]))


def _flatten(images: np.ndarray) -> np.ndarray:
  return images.reshape([len(images), -1]).astype(np.float64)
