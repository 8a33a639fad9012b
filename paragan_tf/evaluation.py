"""Samples and metrics of the moving average of G."""

import contextlib
import copy
from typing import (
  Any,
  Callable,
  Dict,
  Iterator,
  List,
  NamedTuple,
  Optional,
  Sequence,
)

import numpy as np
import tensorflow as tf

from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine.sampling import Sampler
from paragan_tf.nets import standing
from paragan_tf.outputs import (
  extractors,
  measures,
  metrics,
  samples,
  statistics,
)
from paragan_tf.outputs.features import Extractor
from paragan_tf.types import Net

_SAMPLE_SEED, METRIC_SEED, STANDING_SEED = 1, 2, 3


class _Suite(NamedTuple):
  """A suite, and how many samples of which classes it takes."""

  suite: metrics.MetricSuite
  num_samples: int
  labels: Optional[np.ndarray]


class Evaluation:
  """Draws and measures samples.

  Args:
    sampler: Draws from the moving average of G.
    input_fn: The real images that samples are compared with.
    extractor: Which extractor metrics use, as in `extractors.choose`: 'auto',
      'inception', 'mobilenet', ..., or what makes one. `None` measures nothing.
    plain_g: Makes a copy of the moving average of G with plain variables.
    num_standing: Batches of samples to compute standing batch-norm statistics
      from, for metrics; 0 uses the stored ones.
    reference_dir: Folder of statistics of real images, which are computed once;
      they are not kept if `None`.
    only: Which metrics to measure; all that can be if `None`.
  """

  def __init__(
    self,
    sampler: Sampler,
    input_fn: InputFn,
    extractor: extractors.Choice,
    plain_g: Callable[[], Net],
    num_standing: int,
    reference_dir: Optional[str] = None,
    only: Optional[Sequence[str]] = None,
  ):
    if num_standing < 0:
      raise ValueError(f"`num_standing` must be 0 or more, got {num_standing}.")
    self._sampler = sampler
    self._input_fn = input_fn
    self._num_classes = input_fn.spec.num_classes
    self._choice = extractors.choose(extractor, input_fn.spec.channels)
    self._reference_dir = reference_dir
    self._metrics = only
    measures.select(only)  # Refuses unknown names.
    self._plain_g = plain_g
    self._num_standing = num_standing
    self.extractor: Optional[Extractor] = None  # Made when it is needed.
    self._metric_suites: Dict[Any, _Suite] = {}

  @property
  def can_measure(self) -> bool:
    """Whether there is an extractor."""
    return self._choice.make is not None

  def prepare(self) -> None:
    """Makes the extractor, which reads its weights, if there is one."""
    if self.extractor is None and self._choice.make is not None:
      self.extractor = self._choice.make()
      statistics.check_channels(self.extractor, self._input_fn.spec.channels)

  def names(self) -> List[str]:
    """Returns how the metrics are called that may be measured."""
    if self.extractor is None:
      return []
    only = measures.METRICS if self._metrics is None else self._metrics
    return [metrics.name_for(name, self.extractor) for name in only]

  @property
  def note(self) -> str:
    """Why nothing is measured where something was expected, or nothing."""
    return self._choice.note

  def of(self, sampler: Sampler, plain_g: Callable[[], Net]) -> "Evaluation":
    """Returns the evaluation of another G, by the same real images."""
    other = copy.copy(self)
    other._sampler, other._plain_g = sampler, plain_g
    return other

  def grid(self, rows: int = 8) -> np.ndarray:
    """Returns a picture of samples with fixed latent codes, a class a column.

    Few classes have several columns each; unconditional samples have eight.
    """
    num_classes = min(self._num_classes, 10)
    columns = samples.columns_for(num_classes, rows * 8)
    labels = np.resize(np.arange(max(num_classes, 1)), rows * columns)
    return samples.grid(self._sampler(labels, _SAMPLE_SEED), columns)

  def interpolation(self, rows: int = 8, columns: int = 8) -> np.ndarray:
    """Returns a picture whose rows interpolate between a class and the next.

    Each row has one latent code; the weight of the next class rises from left
    to right.
    """
    first = np.arange(rows) % self._num_classes
    classes = np.eye(self._num_classes, dtype=np.float32)
    left, right = classes[first], np.roll(classes, -1, 0)[first]
    weights = np.linspace(0.0, 1.0, columns)[None, :, None]
    labels = left[:, None] + weights * (right - left)[:, None]
    z = np.repeat(self._sampler.codes(rows, _SAMPLE_SEED), columns, 0)
    labels = labels.reshape([rows * columns, -1])
    return samples.grid(self._sampler(labels, _SAMPLE_SEED, z=z), columns)

  def measure(
    self,
    num_samples: Optional[int],
    num_reference: Optional[int] = None,
    progress=None,
    only: Optional[Sequence[str]] = None,
    seed: int = METRIC_SEED,
  ) -> List[metrics.MetricValue]:
    """Returns the metric values of the moving average of G.

    Args:
      num_samples: Number of samples; that of the held-out images if `None`.
      num_reference: Number of images of the training set to compare them with;
        the default of `InputFn.reference` if `None`.
      progress: Called with the images done and their total.
      only: Names of metrics, e.g. 'fid'; all that can be measured by default.
      seed: Of the latent codes.
    """
    counts = (num_samples, num_reference)
    if counts not in self._metric_suites:
      self._metric_suites[counts] = self._make_metric_suite(*counts, progress)
    sampling = metrics.Sampling(
      ema=True,
      truncation=self._sampler.truncation,
      bn_mode=f"standing, {self._num_standing}"
      if self._num_standing
      else "stored",
      seed=seed,
    )
    suite, num_samples, labels = self._metric_suites[counts]
    with self._metric_sampler() as sampler:
      return suite.measure(
        lambda labels, start: sampler(labels, seed, start),
        sampling,
        num_samples,
        labels,
        progress,
        only or self._metrics,
      )

  def check(self, metric: str) -> None:
    """Raises a `ValueError` with the reason if a metric cannot be measured."""
    if self._choice.make is None:
      note = self._choice.note or "set `experiment.Experiment.extractor`."
      raise ValueError(f"`{metric}` cannot be measured: {note}")
    if self._metrics is not None and metric not in self._metrics:
      raise ValueError(
        f"`{metric}` is not measured in this run: add it to "
        f"`experiment.Experiment.metrics`, {tuple(self._metrics)}."
      )
    if (None, None) not in self._metric_suites:
      self._metric_suites[None, None] = self._make_metric_suite(
        None, None, None
      )
    suite, num_samples, labels = self._metric_suites[None, None]
    suite.check([metric], num_samples, labels)

  @contextlib.contextmanager
  def _metric_sampler(self) -> Iterator[Sampler]:
    """Yields the sampler for metrics, with standing statistics if set."""
    if not self._num_standing:
      yield self._sampler
      return
    g, num_classes = self._plain_g(), self._num_classes
    size = standing.BATCH_SIZE
    codes = self._sampler.codes(self._num_standing * size, STANDING_SEED)
    batches = standing.make_batches(codes, num_classes)
    with standing.standing_statistics(g, batches):
      yield Sampler(
        tf.distribute.get_strategy(),
        g,
        bool(num_classes),
        size,
        self._sampler.truncation,
      )

  def _make_metric_suite(
    self, num_samples: Optional[int], num_reference: Optional[int], progress
  ) -> _Suite:
    self.prepare()
    extractor = self.extractor
    assert extractor is not None
    reference = self._input_fn.reference(num_reference)
    heldout = self._input_fn.heldout()
    n = len(heldout.pixels) if num_samples is None else num_samples
    _check_count(n, len(heldout.pixels))
    conditional = bool(self._num_classes)
    labels = None
    if conditional and heldout.labels is not None:
      labels = heldout.labels[:n]
    parts = (
      statistics.ImageSet(
        reference.pixels,
        reference.labels if conditional else None,
        self._input_fn.split,
      ),
      statistics.ImageSet(heldout.pixels[:n], labels, "heldout"),
    )
    total, done, found = sum(len(part.pixels) for part in parts), 0, []
    for part in parts:
      report = progress and (lambda i, _, d=done: progress(d + i, total))
      found.append(
        statistics.cached(self._reference_dir, extractor, part, progress=report)
      )
      done += len(part.pixels)
    suite = metrics.MetricSuite(
      extractor,
      found[0],
      found[1],
      knows_classes=extractor.classes_of == self._input_fn.name,
    )
    return _Suite(suite, n, labels)


def _check_count(n: int, num_heldout: int) -> None:
  if not 2 <= n <= num_heldout:
    raise ValueError(
      "`num_samples` must be at least 2 and at most the number of held-out "
      f"images, {num_heldout}, got {n}."
    )
