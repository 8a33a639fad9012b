"""What a suite can measure: names, what they need, and how.

A group is measured in one go: precision, recall, density and coverage share
their distances.
"""

from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from paragan_tf.outputs import distances, neighbors
from paragan_tf.outputs.probe import Probe
from paragan_tf.outputs.statistics import MAX_FEATURES, Statistics

_KID_SUBSETS, _KID_SIZE = 100, 1000
_MIND_DIRECTIONS = 1000
MIN_PER_CLASS = 50


class Measured(NamedTuple):
  """A value, and what was chosen to measure it."""

  value: float
  options: Optional[str] = None
  deviation: Optional[float] = None
  per_class: Optional[Dict[str, float]] = None


class Pair(NamedTuple):
  """Samples, what they are compared with, and a probe for their classes."""

  samples: Statistics
  real: Statistics
  probe: Optional[Probe]


# From real images, and the number of samples and their labels, to why they are
# too few, or `None`.
Reason = Callable[[Statistics, int, Optional[np.ndarray]], Optional[str]]


class Group(NamedTuple):
  """Metrics that are measured together, and what they need."""

  names: Tuple[str, ...]
  measure: Callable[[Pair], Dict[str, Measured]]
  needs_features: bool = False
  needs_logits: bool = False
  needs_labels: bool = False
  needs_classes: bool = False
  reason_against: Optional[Reason] = None


def _frechet(pair: Pair) -> Dict[str, Measured]:
  value = distances.frechet_from_moments(
    pair.samples.moments, pair.real.moments
  )
  return {"fid": Measured(value)}


def _kernel(pair: Pair) -> Dict[str, Measured]:
  a, b = _features(pair)
  size = min(_KID_SIZE, len(a), len(b))
  value, deviation = distances.kernel_distance(a, b, size, _KID_SUBSETS)
  options = f"{_KID_SUBSETS} subsets of {size}"
  return {"kid": Measured(value, options, deviation)}


def _neighbors(pair: Pair) -> Dict[str, Measured]:
  fake, real = _features(pair)
  found = neighbors.compare(real, fake)
  counts = f"{len(fake)} of {len(real)} features"
  k = {"precision": neighbors.K_PRECISION, "recall": neighbors.K_PRECISION}
  return {
    name: Measured(value, f"k={k.get(name, neighbors.K_DENSITY)}, {counts}")
    for name, value in found._asdict().items()
  }


def _monge(pair: Pair) -> Dict[str, Measured]:
  a, b = _features(pair)
  value = distances.monge_distance(a, b, _MIND_DIRECTIONS)
  options = f"{_MIND_DIRECTIONS} directions, {min(len(a), len(b))} features"
  return {"mind": Measured(value, options)}


def _per_class(pair: Pair) -> Dict[str, Measured]:
  a, b = _features(pair)
  real_labels, labels = pair.real.labels, pair.samples.labels
  assert real_labels is not None and labels is not None
  found = {
    str(c): distances.frechet_distance(a[labels == c], b[real_labels == c])
    for c in np.unique(labels)
    if min((labels == c).sum(), (real_labels == c).sum()) >= MIN_PER_CLASS
  }
  options = f"{len(found)} classes, {len(a)} and {len(b)} features"
  mean = float(np.mean(list(found.values())))
  return {"intra_fid": Measured(mean, options, per_class=found)}


def _scores(pair: Pair) -> Dict[str, Measured]:
  scores = pair.samples.split_scores
  assert scores is not None
  return {
    "inception_score": Measured(
      float(scores.mean()), f"{len(scores)} splits", float(scores.std())
    )
  }


def _classes(pair: Pair) -> Dict[str, Measured]:
  samples = pair.samples
  logits, labels = samples.logits, samples.labels
  if pair.probe is not None:
    assert samples.features is not None
    logits = pair.probe(samples.features)
  assert logits is not None and labels is not None
  return {
    "label_agreement": Measured(distances.label_agreement(logits, labels)),
    "classes_recognized": Measured(distances.count_recognized(logits, labels)),
  }


def _too_few(real: Statistics, count: int, labels) -> Optional[str]:
  del labels
  needed = neighbors.K_DENSITY + 1
  assert real.features is not None
  if min(len(real.features), count) >= needed:
    return None
  return (
    f"at least {needed} real images and samples are needed, got "
    f"{len(real.features)} and {count}."
  )


def _too_few_of_a_class(real: Statistics, count: int, labels) -> Optional[str]:
  if real.labels is None:
    return "the reference has no labels."
  share = min(1.0, MAX_FEATURES / count)  # Of samples whose features are kept.
  most = [np.bincount(x).max() for x in (real.labels, labels)]
  if min(most[0], most[1] * share) >= MIN_PER_CLASS:
    return None
  return (
    f"at least {MIN_PER_CLASS} images of a class are needed, the reference has "
    f"up to {most[0]}, the samples up to {int(most[1] * share)}."
  )


def _features(pair: Pair) -> Tuple[np.ndarray, np.ndarray]:
  assert pair.samples.features is not None and pair.real.features is not None
  return pair.samples.features, pair.real.features


GROUPS = (
  Group(("fid",), _frechet),
  Group(("kid",), _kernel, needs_features=True),
  Group(
    neighbors.Neighbors._fields,
    _neighbors,
    needs_features=True,
    reason_against=_too_few,
  ),
  Group(("mind",), _monge, needs_features=True),
  Group(
    ("intra_fid",),
    _per_class,
    needs_features=True,
    needs_labels=True,
    reason_against=_too_few_of_a_class,
  ),
  Group(("inception_score",), _scores, needs_logits=True),
  Group(
    ("label_agreement", "classes_recognized"),
    _classes,
    needs_labels=True,
    needs_classes=True,
  ),
)
METRICS = tuple(name for group in GROUPS for name in group.names)


def select(names: Optional[Sequence[str]]) -> Tuple[Group, ...]:
  """Returns the groups with these metrics, all if `None`."""
  for name in names or ():
    if name not in METRICS:
      raise ValueError(
        f"A metric must be one of {', '.join(METRICS)}, got '{name}'."
      )
  if names is None:
    return GROUPS
  return tuple(g for g in GROUPS if set(g.names) & set(names))
