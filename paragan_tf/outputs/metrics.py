"""Metrics of samples, each with the protocol it was measured under.

    suite = MetricSuite(extractor, reference_images, heldout_images, ...)
    values = suite.measure(sample_fn, sampling)

Every value has its protocol and a `real_score`: the value of held-out real
images in place of samples. Values with different protocols are never compared.
"""

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import numpy as np

from paragan_tf.outputs import records
from paragan_tf.outputs.features import Extractor, Features
from paragan_tf.outputs.probe import Probe

# From labels `[n]` (int32) and the index of the first sample to images in
# [-1, 1], `[n, h, w, c]`.
SampleFn = Callable[[np.ndarray, int], Any]
# Called with the number of images done and their total.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How samples are drawn; only the caller of a suite knows it.

  Attributes:
    ema: Whether G's weights are the moving average.
    truncation: Bound on the latent codes, or `None` for no bound.
    bn_mode: Which statistics batch norm uses, e.g. "stored" or "batch".
    seed: Seed of the latent codes.
  """

  ema: bool
  truncation: Optional[float]
  bn_mode: str
  seed: int


@dataclasses.dataclass(frozen=True)
class Protocol:
  """The conditions a metric value was measured under."""

  extractor: str
  extractor_sha256: str
  resizer: str
  num_samples: int
  num_reference: int
  reference_split: str
  ema: bool
  truncation: Optional[float]
  bn_mode: str
  seed: int


class MetricValue(NamedTuple):
  """A measured value.

  Attributes:
    name: What was measured.
    value: Its value.
    protocol: How it was measured.
    real_score: What held-out real images get in place of samples, or `None`.
  """

  name: str
  value: float
  protocol: Protocol
  real_score: Optional[float] = None

  def to_json(self) -> Dict[str, Any]:
    """Returns a dict for metrics.jsonl."""
    return {**self._asdict(), "protocol": dataclasses.asdict(self.protocol)}

  @classmethod
  def from_json(cls, fields: Mapping[str, Any]) -> "MetricValue":
    """Returns the value of a dict from `to_json`; ignores other keys."""
    known = {field.name for field in dataclasses.fields(Protocol)}
    found = set(fields.get("protocol") or ())
    if known != found:
      raise ValueError(
        f"`protocol` must have the fields {sorted(known)}, got {sorted(found)}:"
        " measure again with this version."
      )
    protocol = Protocol(**fields["protocol"])
    return cls(
      fields["name"], fields["value"], protocol, records.real_score(fields)
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


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
  """Returns the Fréchet distance between Gaussians fitted to two sets.

  |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^1/2) for the covariances A and B,
  arXiv:1706.08500.

  Args:
    a: Features, shape `[n, d]`.
    b: Features, shape `[m, d]`.
  """
  # TF-GAN takes the root of the covariances in float32: small eigenvalues lose
  # half of seven digits, and a set's distance to itself is not 0. With roots
  # r_a^T r_a = A and r_b^T r_b = B, computed from the features directly, the
  # trace of (A B)^1/2 is the sum of the singular values of r_a r_b^T.
  a, b = _as_features("a", a), _as_features("b", b)
  if a.shape[1] != b.shape[1]:
    raise ValueError(
      "`a` and `b` must have the same number of features, "
      f"got {a.shape[1]} and {b.shape[1]}: use one extractor for both."
    )
  r_a, r_b = _covariance_root(a), _covariance_root(b)
  shared = np.linalg.svd(r_a @ r_b.T, compute_uv=False).sum()
  spread = (r_a**2).sum() + (r_b**2).sum() - 2 * shared
  shift = ((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum()
  return float(shift + max(spread, 0.0))


def label_agreement(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the fraction of samples that are classified as their label.

  Args:
    logits: Class scores, shape `[n, num_classes]`.
    labels: Class ids, shape `[n]`.
  """
  logits, labels = np.asarray(logits), np.asarray(labels)
  if logits.ndim != 2 or labels.shape != logits.shape[:1]:
    raise ValueError(
      "`logits` and `labels` must have shapes [n, num_classes] and [n], got "
      f"{logits.shape} and {labels.shape}."
    )
  return float(np.mean(np.argmax(logits, axis=-1) == labels))


def count_recognized(logits: np.ndarray, labels: np.ndarray) -> int:
  """Returns the number of classes that are recognized better than by chance.

  A class counts if the fraction of its samples that are classified correctly is
  more than two standard errors above one over the number of classes.

  Args:
    logits: Class scores, shape `[n, num_classes]`.
    labels: Class ids, shape `[n]`.
  """
  num_classes = np.shape(logits)[1]
  chance = 1.0 / num_classes
  count = 0
  for c in np.unique(labels):
    members = labels == c
    error = np.sqrt(chance * (1 - chance) / members.sum())
    agreement = label_agreement(logits[members], labels[members])
    count += agreement > chance + 2 * error
  return count


class MetricSuite:
  """Compares samples with real images, by the features of an extractor.

  Draws one sample for each held-out image, with that image's label, so that
  there are as many samples as held-out images, with the same labels. Runs
  eagerly. The features of real images are computed once, at construction.

  Args:
    extractor: Computes features of images.
    reference_images: Real images of the training set: uint8, or floats in
      [-1, 1].
    heldout_images: Real images that are not in it, in random order.
    heldout_labels: Class ids of `heldout_images`. If `None`, `sample_fn` gets
      zeros and only "frechet" is measured.
    reference_labels: Class ids of `reference_images`, for a `Probe` if the
      extractor has other classes.
    reference_split: Name of `reference_images`, for the protocol.
    num_samples: Number of `heldout_images` to use, the first ones; all if
      `None`.
    batch_size: Number of images that are sampled and measured at once.
    progress: Called after every batch of real images.
    knows_classes: Whether the extractor has the classes of the labels.
  """

  def __init__(
    self,
    extractor: Extractor,
    reference_images: np.ndarray,
    heldout_images: np.ndarray,
    heldout_labels: Optional[np.ndarray] = None,
    reference_labels: Optional[np.ndarray] = None,
    reference_split: str = "train",
    num_samples: Optional[int] = None,
    batch_size: int = 256,
    progress: Optional[Progress] = None,
    knows_classes: bool = True,
  ):
    n = len(heldout_images) if num_samples is None else num_samples
    _check_counts(n, heldout_images, heldout_labels)
    self._extractor, self._batch_size = extractor, batch_size
    self._split = reference_split
    self._labels = np.zeros(n, np.int32)
    if heldout_labels is not None:
      self._labels = np.asarray(heldout_labels[:n], np.int32)
    m = len(reference_images)

    def report(done: int) -> None:
      if progress is not None:
        progress(done, m + n)

    self._reference = self._features(
      lambda i, j: reference_images[i:j], m, lambda k, _: report(k)
    )
    self._heldout = self._features(
      lambda i, j: heldout_images[i:j], n, lambda k, _: report(m + k)
    )
    self._probe: Optional[Probe] = None
    if not knows_classes and reference_labels is not None:
      self._probe = Probe(self._reference.features, reference_labels)
    self._classes = heldout_labels is not None and (
      knows_classes or self._probe is not None
    )

  def measure(
    self,
    sample_fn: SampleFn,
    sampling: Sampling,
    progress: Optional[Progress] = None,
  ) -> List[MetricValue]:
    """Returns metric values of samples, each with its `real_score`.

    These are "frechet", the distance, and with labels "label_agreement" and
    "classes_recognized".

    Args:
      sample_fn: Draws samples; called for `batch_size` at a time, at last for
        the rest.
      sampling: How `sample_fn` samples, for the protocol.
      progress: Called after every batch.
    """
    samples = self._features(
      lambda i, j: sample_fn(self._labels[i:j], i), len(self._labels), progress
    )
    values = [
      self._value(
        "frechet",
        lambda x: frechet_distance(x.features, self._reference.features),
        samples,
        sampling,
      )
    ]
    label_metrics = (
      ("label_agreement", label_agreement),
      ("classes_recognized", count_recognized),
    )
    for name, metric in label_metrics if self._classes else ():
      values.append(
        self._value(
          name,
          lambda x, metric=metric: metric(self._logits(x), self._labels),
          samples,
          sampling,
        )
      )
    return values

  def _value(self, name: str, fn, samples: Features, sampling: Sampling):
    with_probe = self._probe is not None and name != "frechet"
    protocol = Protocol(
      extractor=self._extractor.name + (" with a probe" if with_probe else ""),
      extractor_sha256=self._extractor.sha256,
      resizer=self._extractor.resizer,
      num_samples=len(self._labels),
      num_reference=len(self._reference.features),
      reference_split=self._split,
      **dataclasses.asdict(sampling),
    )
    return MetricValue(name, fn(samples), protocol, fn(self._heldout))

  def _logits(self, x: Features) -> np.ndarray:
    return x.logits if self._probe is None else self._probe(x.features)

  def _features(
    self, images_fn, count: int, progress: Optional[Progress]
  ) -> Features:
    """Returns the features of `images_fn(i, j)`, batch by batch."""
    parts = []
    for i in range(0, count, self._batch_size):
      j = min(i + self._batch_size, count)
      images = _to_floats(images_fn(i, j))
      _check_batch(images, j - i)
      parts.append(self._extractor(images))
      if progress is not None:
        progress(j, count)
    return Features(*(np.concatenate(part) for part in zip(*parts)))


def _to_floats(images: Any) -> np.ndarray:
  images = np.asarray(images)
  if images.dtype == np.uint8:
    return images.astype(np.float32) / 127.5 - 1.0
  return images.astype(np.float32)


def _check_counts(
  n: int, images: np.ndarray, labels: Optional[np.ndarray]
) -> None:
  if labels is not None and len(images) != len(labels):
    raise ValueError(
      "`heldout_images` and `heldout_labels` must have the same length, "
      f"got {len(images)} and {len(labels)}."
    )
  if not 2 <= n <= len(images):
    raise ValueError(
      "`num_samples` must be at least 2 and at most the number of "
      f"`heldout_images`, {len(images)}, got {n}."
    )


def _check_batch(images: np.ndarray, count: int) -> None:
  if images.ndim != 4 or len(images) != count:
    raise ValueError(
      f"Images must have shape [{count}, h, w, c], got {images.shape}: "
      "`sample_fn` returns one image for each label."
    )


def _covariance_root(x: np.ndarray) -> np.ndarray:
  """Returns `r` such that `r.T @ r` is the covariance of `x`, `[n, d]`."""
  _, r = np.linalg.qr((x - x.mean(axis=0)) / np.sqrt(len(x) - 1))
  return r


def _as_features(name: str, x: np.ndarray) -> np.ndarray:
  x = np.asarray(x, np.float64)
  if x.ndim != 2 or len(x) < 2:
    raise ValueError(
      f"`{name}` must have shape [n, d] with n at least 2, got {x.shape}."
    )
  if not np.all(np.isfinite(x)):
    bad = int(np.sum(~np.all(np.isfinite(x), axis=1)))
    raise ValueError(
      f"`{name}` must be finite, {bad} of {len(x)} rows are not: "
      "look for NaN in the images, G may have diverged."
    )
  return x
