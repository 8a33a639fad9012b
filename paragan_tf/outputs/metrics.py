"""Metrics of samples, each with the protocol it was measured under.

    real = statistics.cached(folder, extractor, ImageSet(pixels, labels))
    suite = MetricSuite(extractor, real, heldout)
    values = suite.measure(sample_fn, sampling, labels=labels)

Every value has its protocol and a `real_score`: the value of held-out real
images in place of samples. Values with different protocols are never compared.
Only metrics of the Inception network of FID have the plain names of the
literature; the names of all others end in their extractor.
"""

import dataclasses
import importlib
from typing import (
  Any,
  Callable,
  Dict,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
)

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import measures, records, statistics
from paragan_tf.outputs.features import Extractor
from paragan_tf.outputs.measures import Measured, Pair
from paragan_tf.outputs.probe import Probe
from paragan_tf.outputs.statistics import Progress, Statistics

# From labels `[n]` (int32) and the index of the first sample to images in
# [-1, 1], `[n, h, w, c]`.
SampleFn = Callable[[np.ndarray, int], Any]

# What `fid` and `inception_score` are called on features of other networks.
OTHER_NAMES = {
  "fid": "frechet",
  "intra_fid": "intra_frechet",
  "inception_score": "classifier_score",
}


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How samples are drawn; only the caller of a suite knows it.

  All are `None` for images that come from files: `FROM_FILES`.

  Attributes:
    ema: Whether G's weights are the moving average.
    truncation: Bound on the latent codes, or `None` for no bound.
    bn_mode: Which statistics batch norm uses, e.g. "stored" or "batch".
    seed: Seed of the latent codes.
  """

  ema: Optional[bool] = None
  truncation: Optional[float] = None
  bn_mode: Optional[str] = None
  seed: Optional[int] = None


FROM_FILES = Sampling()


@dataclasses.dataclass(frozen=True)
class Protocol:
  """The conditions a metric value was measured under.

  The step and the versions of packages are recorded beside a value and not
  here, so that the values of a run are one curve.
  """

  extractor: str
  extractor_sha256: str
  resizer: str
  num_samples: int
  num_reference: Optional[int]
  reference_split: str
  ema: Optional[bool]
  truncation: Optional[float]
  bn_mode: Optional[str]
  seed: Optional[int]
  # Not in the records of older versions:
  reference_sha256: Optional[str] = None
  options: Optional[str] = None


_ADDED = {"reference_sha256", "options"}


class MetricValue(NamedTuple):
  """A measured value.

  Attributes:
    name: What was measured.
    value: Its value.
    protocol: How it was measured.
    real_score: What held-out real images get in place of samples, or `None`.
    deviation: Standard deviation over subsets or splits, if it has them.
    per_class: The value of each class, if it is their mean.
    versions: Of the packages that computed it.
  """

  name: str
  value: float
  protocol: Protocol
  real_score: Optional[float] = None
  deviation: Optional[float] = None
  per_class: Optional[Dict[str, float]] = None
  versions: Optional[Dict[str, str]] = None

  def to_json(self) -> Dict[str, Any]:
    """Returns a dict for metrics.jsonl."""
    fields = {**self._asdict(), "protocol": dataclasses.asdict(self.protocol)}
    optional = ("deviation", "per_class", "versions")
    return {
      key: value
      for key, value in fields.items()
      if value is not None or key not in optional
    }

  @classmethod
  def from_json(cls, fields: Mapping[str, Any]) -> "MetricValue":
    """Returns the value of a dict from `to_json`; ignores other keys."""
    known = {field.name for field in dataclasses.fields(Protocol)}
    found = set(fields.get("protocol") or ())
    if not known - _ADDED <= found <= known:
      raise ValueError(
        f"`protocol` must have the fields {sorted(known)}, got {sorted(found)}:"
        " measure again with this version."
      )
    return cls(
      fields["name"],
      fields["value"],
      Protocol(**fields["protocol"]),
      records.real_score(fields),
      *(fields.get(key) for key in ("deviation", "per_class", "versions")),
    )


def compare(a: MetricValue, b: MetricValue) -> float:
  """Returns `a.value - b.value`; refuses different protocols."""
  mine = {"name": a.name, **dataclasses.asdict(a.protocol)}
  theirs = {"name": b.name, **dataclasses.asdict(b.protocol)}
  differences = [
    f"`{field}`: {mine[field]!r} and {theirs[field]!r}"
    for field in mine
    if mine[field] != theirs[field]
  ]
  if differences:
    raise ValueError(
      "Metric values must have the same protocol to be compared; these differ "
      f"in {', '.join(differences)}: measure both in the same way."
    )
  return a.value - b.value


def format_values(values: Sequence[MetricValue]) -> str:
  """Returns a table of values, with what real images get."""
  width = max(len(value.name) for value in values)
  rows = []
  for x in values:
    deviation = "" if x.deviation is None else f" ± {x.deviation:.4f}"
    real = "" if x.real_score is None else f"  (real {x.real_score:.4f})"
    rows.append(f"{x.name:{width}} {x.value:.4f}{deviation}{real}")
  return "\n".join(rows)


def name_for(metric: str, extractor: Extractor) -> str:
  """Returns the honest name of a metric that an extractor's features give."""
  if getattr(extractor, "is_fid", False):
    return metric
  return f"{OTHER_NAMES.get(metric, metric)}_{extractor.name}"


class MetricSuite:
  """Compares samples with real images, by the features of an extractor.

  Runs eagerly. What real images get is computed once.

  Args:
    extractor: Computes features of images.
    reference: Statistics of real images of the training set.
    heldout: Statistics of real images that are not in it, for the real score;
      as many as samples, or the scores differ for that reason alone.
    knows_classes: Whether the extractor has the classes of the labels. If not,
      a probe is fitted to the reference, if it has labels.
    batch_size: Number of images that are sampled and measured at once.
  """

  def __init__(
    self,
    extractor: Extractor,
    reference: Statistics,
    heldout: Optional[Statistics] = None,
    knows_classes: bool = True,
    batch_size: int = 256,
  ):
    self._extractor, self._batch_size = extractor, batch_size
    self._reference, self._heldout = reference, heldout
    _check_reference(extractor, reference)
    self._has_logits = getattr(
      extractor, "has_logits", reference.logits is not None
    )
    knows_classes = knows_classes and self._has_logits
    self._probe: Optional[Probe] = None
    features, labels = reference.features, reference.labels
    if not knows_classes and features is not None and labels is not None:
      self._probe = Probe(features, labels)
    self._knows_classes = knows_classes or self._probe is not None
    self._real_scores: Dict[str, Measured] = {}

  def measure(
    self,
    sample_fn: SampleFn,
    sampling: Sampling,
    num_samples: Optional[int] = None,
    labels: Optional[np.ndarray] = None,
    progress: Optional[Progress] = None,
    only: Optional[Sequence[str]] = None,
  ) -> List[MetricValue]:
    """Returns metric values of samples, each with its `real_score`.

    Args:
      sample_fn: Draws samples; called for `batch_size` at a time, at last for
        the rest.
      sampling: How `sample_fn` samples, for the protocol.
      num_samples: How many, if there are no `labels`; by default as many as
        held-out images. `sample_fn` gets zeros then.
      labels: Class ids to sample, `[n]`.
      progress: Called after every batch.
      only: Names from `measures.METRICS`; all that can be measured by default.
    """
    ids = self._class_ids(num_samples, labels)
    self._plan(only, len(ids), labels)  # Refuses before the long work begins.
    samples = statistics.gather(
      self._extractor,
      lambda i, j: sample_fn(ids[i:j], i),
      len(ids),
      labels,
      self._batch_size,
      progress,
    )
    return self.compare(samples, sampling, only)

  def compare(
    self,
    samples: Statistics,
    sampling: Sampling = FROM_FILES,
    only: Optional[Sequence[str]] = None,
  ) -> List[MetricValue]:
    """Returns metric values of a set whose statistics are known."""
    values = []
    for group in self._plan(only, samples.num_images or 0, samples.labels):
      for name, found in group.measure(self._pair(samples)).items():
        if only is None or name in only:
          values.append(self._value(name, group, found, samples, sampling))
    return values

  def check(
    self,
    only: Sequence[str],
    num_samples: int,
    labels: Optional[np.ndarray] = None,
  ) -> None:
    """Raises a `ValueError` if what is requested cannot be measured."""
    self._plan(only, num_samples, labels)

  def _class_ids(self, num_samples, labels) -> np.ndarray:
    if labels is not None:
      return np.asarray(labels, np.int32)
    if num_samples is None:
      num_samples = self._heldout.num_images if self._heldout else None
    if num_samples is None:
      raise ValueError("`num_samples` must be set where no image is held out.")
    return np.zeros(num_samples, np.int32)

  def _plan(
    self,
    only: Optional[Sequence[str]],
    count: int,
    labels: Optional[np.ndarray],
  ) -> List[measures.Group]:
    """Returns what to measure; refuses what was requested and cannot be."""
    groups = []
    for group in measures.select(only):
      reason = self._reason_against(group, count, labels)
      if reason is None:
        groups.append(group)
      elif only is not None:
        name = next(name for name in group.names if name in only)
        raise ValueError(f"`{name}` cannot be measured: {reason}")
    return groups

  def _reason_against(
    self, group: measures.Group, count: int, labels: Optional[np.ndarray]
  ) -> Optional[str]:
    real = self._reference
    if group.needs_features and real.features is None:
      return "the reference has only `mu` and `sigma`; give it as images."
    if group.needs_logits and not self._has_logits:
      return (
        f"the extractor `{self._extractor.name}` has no logits; take one that "
        "has, e.g. 'mobilenet'."
      )
    if group.needs_labels and labels is None:
      return "the samples have no labels."
    if group.needs_classes and not self._knows_classes:
      return "the extractor has other classes, and the reference no labels."
    if group.reason_against is None:
      return None
    return group.reason_against(real, count, labels)

  def _pair(self, samples: Statistics) -> Pair:
    return Pair(samples, self._reference, self._probe)

  def _real_score(self, name: str, group: measures.Group) -> Optional[float]:
    real = self._heldout
    if real is None:
      return None
    if self._reason_against(group, real.num_images or 0, real.labels):
      return None
    if name not in self._real_scores:
      self._real_scores.update(group.measure(self._pair(real)))
    return self._real_scores[name].value

  def _value(
    self,
    name: str,
    group: measures.Group,
    found: Measured,
    samples: Statistics,
    sampling: Sampling,
  ) -> MetricValue:
    origin = self._reference.origin
    with_probe = self._probe is not None and group.needs_classes
    protocol = Protocol(
      extractor=self._extractor.name + (" with a probe" if with_probe else ""),
      extractor_sha256=self._extractor.sha256,
      resizer=self._extractor.resizer,
      num_samples=samples.num_images or 0,
      num_reference=self._reference.num_images,
      reference_split=origin.split if origin else "",
      reference_sha256=origin.data_sha256 if origin else None,
      options=found.options,
      **dataclasses.asdict(sampling),
    )
    return MetricValue(
      name_for(name, self._extractor),
      found.value,
      protocol,
      self._real_score(name, group),
      found.deviation,
      found.per_class,
      versions(),
    )


def versions() -> Dict[str, str]:
  """Returns the versions of what computes values."""
  ours = importlib.import_module("paragan_tf").__version__
  return {
    "paragan_tf": ours,
    "tensorflow": tf.__version__,
    "numpy": np.__version__,
  }


def _check_reference(extractor: Extractor, reference: Statistics) -> None:
  """Refuses a reference whose features are not those of the extractor."""
  origin = reference.origin
  if origin is not None and origin.extractor_sha256:
    mine = extractor.name, extractor.sha256, extractor.resizer
    theirs = origin.extractor, origin.extractor_sha256, origin.resizer
    if mine != theirs:
      raise ValueError(
        "The reference must have the features of the extractor, "
        f"{_join(mine)}, got those of {_join(theirs)}: compute it again."
      )
  width = getattr(extractor, "num_features", None)
  found = len(reference.moments.mean)
  if width is not None and width != found:
    raise ValueError(
      f"The reference must have the {width} features of `{extractor.name}`, "
      f"got {found}: it was made with another network."
    )


def _join(parts: Tuple[str, str, str]) -> str:
  return f"`{parts[0]}` ({parts[1][:8]}; {parts[2]})"
