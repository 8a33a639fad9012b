"""How good the samples are, and under which conditions that was measured.

    values = measure(sample_fn, extractor, reference_images, heldout_images,
                     heldout_labels, sampling)

Every value carries its protocol, and its floor: what real images get that
nobody trained on. Values with different protocols are never compared.
"""

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import numpy as np

from paragan_tf.outputs.features import Extractor, Features

# From labels `[n]` (int32) and the index of the first sample to images in
# [-1, 1], `[n, h, w, c]`.
SampleFn = Callable[[np.ndarray, int], Any]
# Called with the number of images done and their total.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How the samples are drawn, as far as only the caller knows.

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
  """One measured number.

  Attributes:
    name: What was measured.
    value: The number.
    protocol: How it was measured.
    floor: What held-out real images get in place of samples, or `None`.
  """

  name: str
  value: float
  protocol: Protocol
  floor: Optional[float] = None

  def to_json(self) -> Dict[str, Any]:
    """Returns a dict of what JSON knows, for metrics.jsonl."""
    return {**self._asdict(), "protocol": dataclasses.asdict(self.protocol)}

  @classmethod
  def from_json(cls, fields: Mapping[str, Any]) -> "MetricValue":
    """Reads what `to_json` returned; keys beside its own are left out."""
    known = {field.name for field in dataclasses.fields(Protocol)}
    found = set(fields.get("protocol") or ())
    if known != found:
      raise ValueError(
        f"`protocol` must have the fields {sorted(known)}, got {sorted(found)}:"
        " measure again with this version."
      )
    protocol = Protocol(**fields["protocol"])
    return cls(fields["name"], fields["value"], protocol, fields.get("floor"))


def compare(a: MetricValue, b: MetricValue) -> float:
  """Returns `a.value - b.value` if both were measured in the same way."""
  mine = {"name": a.name, **dataclasses.asdict(a.protocol)}
  theirs = {"name": b.name, **dataclasses.asdict(b.protocol)}
  differences = [
    f"`{field}`: {mine[field]!r} and {theirs[field]!r}"
    for field in mine
    if mine[field] != theirs[field]
  ]
  if differences:
    raise ValueError(
      "Metric values must have one protocol to be compared; these differ in "
      f"{', '.join(differences)}: measure both in the same way."
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
  # half of seven digits, and a set gets a distance to itself. With the roots
  # r_a^T r_a = A and r_b^T r_b = B, taken from the features themselves, the
  # trace of (A B)^1/2 is the sum of the singular values of r_a r_b^T.
  a, b = _as_features("a", a), _as_features("b", b)
  if a.shape[1] != b.shape[1]:
    raise ValueError(
      "`a` and `b` must have as many features, "
      f"got {a.shape[1]} and {b.shape[1]}: use one extractor for both."
    )
  r_a, r_b = _covariance_root(a), _covariance_root(b)
  shared = np.linalg.svd(r_a @ r_b.T, compute_uv=False).sum()
  spread = (r_a**2).sum() + (r_b**2).sum() - 2 * shared
  shift = ((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum()
  return float(shift + max(spread, 0.0))


def label_agreement(logits: np.ndarray, labels: np.ndarray) -> float:
  """Returns the share of samples classified as the label asked for.

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


def measure(
  sample_fn: SampleFn,
  extractor: Extractor,
  reference_images: np.ndarray,
  heldout_images: np.ndarray,
  heldout_labels: Optional[np.ndarray],
  sampling: Sampling,
  reference_split: str = "train",
  num_samples: Optional[int] = None,
  batch_size: int = 256,
  progress: Optional[Progress] = None,
  knows_classes: bool = True,
) -> List[MetricValue]:
  """Measures "frechet" and "label_agreement", each with its floor.

  Asks for one sample for each held-out image, with that image's label, so that
  samples and held-out images are as many, with the same labels. Runs eagerly.

  Args:
    sample_fn: Draws samples; called for `batch_size` at a time, the last time
      for what is left.
    extractor: Describes images.
    reference_images: Real images that were trained on, in [-1, 1].
    heldout_images: Real images that were not, in random order.
    heldout_labels: Class ids of `heldout_images`. If `None`, `sample_fn` gets
      zeros and "label_agreement" is left out.
    sampling: How `sample_fn` samples, for the protocol.
    reference_split: Name of `reference_images`, for the protocol.
    num_samples: How many of `heldout_images` to use, the first ones; all if
      `None`.
    batch_size: How many images are sampled and described at once.
    progress: Called after every batch.
    knows_classes: Whether the extractor's classes are those of the labels; if
      not, "label_agreement" is left out.
  """
  n = len(heldout_images) if num_samples is None else num_samples
  _check_counts(n, heldout_images, heldout_labels)
  labels = np.zeros(n, np.int32)
  if heldout_labels is not None:
    labels = np.asarray(heldout_labels[:n], np.int32)
  total = len(reference_images) + 2 * n
  done = 0

  def describe(images_fn, count):
    nonlocal done
    parts = []
    for i in range(0, count, batch_size):
      j = min(i + batch_size, count)
      images = np.asarray(images_fn(i, j), np.float32)
      _check_batch(images, j - i)
      parts.append(extractor(images))
      done += j - i
      if progress is not None:
        progress(done, total)
    return Features(*(np.concatenate(part) for part in zip(*parts)))

  reference = describe(
    lambda i, j: reference_images[i:j], len(reference_images)
  )
  heldout = describe(lambda i, j: heldout_images[i:j], n)
  samples = describe(lambda i, j: sample_fn(labels[i:j], i), n)
  protocol = Protocol(
    extractor=extractor.name,
    extractor_sha256=extractor.sha256,
    resizer=extractor.resizer,
    num_samples=n,
    num_reference=len(reference_images),
    reference_split=reference_split,
    **dataclasses.asdict(sampling),
  )
  values = [
    MetricValue(
      "frechet",
      frechet_distance(samples.features, reference.features),
      protocol,
      frechet_distance(heldout.features, reference.features),
    )
  ]
  if heldout_labels is not None and knows_classes:
    values.append(
      MetricValue(
        "label_agreement",
        label_agreement(samples.logits, labels),
        protocol,
        label_agreement(heldout.logits, labels),
      )
    )
  return values


def _check_counts(
  n: int, images: np.ndarray, labels: Optional[np.ndarray]
) -> None:
  if labels is not None and len(images) != len(labels):
    raise ValueError(
      "`heldout_images` and `heldout_labels` must be as many, "
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
