"""From a source to batches: `input_fn(params) -> tf.data.Dataset`.

The image at each position of the global batch is a function of (seed, step)
only: every epoch is a new permutation, which is computed, not stored. So a run
resumes at any step without stored iterator state, and sees the same global
batches on any number of replicas.
"""

import dataclasses
import operator
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import index_files, sources, step_timing
from paragan_tf.data.batch_shard import BatchShard
from paragan_tf.data.depth_control import TimedInput
from paragan_tf.data.encoded import WHOLE, EncodedImages, Streaming
from paragan_tf.data.memory import InMemorySet
from paragan_tf.data.step_timing import Pipeline, Reads, StepTiming
from paragan_tf.data.stream import Stream
from paragan_tf.data.transforms import Transform
from paragan_tf.types import ImageSpec

_MAX_REFERENCE = 10000  # Default for sets on disk.
# Decoded batches of each replica, where the depth is of encoded ones, which are
# many times smaller.
_NUM_DECODED = 1


@gin.register
class InputFn(TimedInput):
  """Gives each replica its shard of every global batch.

  Called with `params` as in Estimator; its keys are the fields of
  `BatchShard`, all optional but `batch_size`; `python`, whether the pipeline
  may call Python, which hosts of a TPU cannot; and `control`, by which its
  depth follows step timings.

  Args:
    source: Where images come from: a function, or a text like 'folder:PATH',
      see `sources.from_text`.
    resolution: Height and width of the images.
    conditional: Whether batches have labels; 'auto' if there are two classes or
      more.
    only_labels: The classes to take, by name or number; all if `None`. They are
      renumbered in this order.
    label: The only class to take, by name or number, without labels in batches:
      one run of `gin/sync/per_label.gin`. It may have fewer images than a
      batch: they repeat.
    by_label: Replica `r` of `m` sees only the classes `r`, `r + m`, ..., in an
      order of its own. For experiments with non-identical data per replica.
    transform: How images are transformed; from gin by default.
    streaming: How files are read; from gin by default.
    prefetch: Number of elements that are prefetched for each replica; or
      'step_timing', see `step_timing.py`.
    seed: Of the order, and of random transforms.
    timing: Bounds for 'step_timing'; from gin by default.
  """

  def __init__(
    self,
    source: Union[str, Callable[[], sources.Source]] = sources.fashion,
    resolution: int = 32,
    conditional: Union[bool, str] = True,
    only_labels: Optional[Sequence[Union[str, int]]] = None,
    label: Optional[Union[str, int]] = None,
    by_label: bool = False,
    transform: Optional[Transform] = None,
    streaming: Optional[Streaming] = None,
    prefetch: Union[int, str] = 2,
    seed: int = 0,
    timing: Optional[StepTiming] = None,
  ):
    step_timing.check_prefetch(prefetch, "InputFn.prefetch")
    if not isinstance(resolution, int) or resolution < 4:
      raise ValueError(
        f"`resolution` must be a number, at least 4, got {resolution!r}."
      )
    if not isinstance(source, str) and not callable(source):
      raise ValueError(
        "`source` must be a text as 'folder:PATH', or a function as "
        f"@sources.fashion, got {source!r}."
      )
    with index_files.recording() as self._scans:
      found = sources.load(source)
    if only_labels is not None:
      found = sources.select_classes(found, only_labels)
    if label is not None:
      found = sources.select_classes(found, [label], "label")
      conditional = False
    if conditional == "auto":
      conditional = len(found.label_names) > 1
    if not isinstance(conditional, bool):
      raise ValueError(
        "`conditional` must be True, False or 'auto', got "
        f"{conditional!r}: set `InputFn.conditional`."
      )
    if conditional and not found.label_names:
      raise ValueError(
        f"`conditional` needs labels and '{found.name}' has none: set "
        "`InputFn.conditional = False`."
      )
    if by_label and getattr(found.train, "labels", None) is None:
      raise ValueError(
        f"`by_label` needs labels that are known before, and '{found.name}' "
        "has none, or has them in its files: set `InputFn.by_label = False`."
      )
    self.by_label = by_label
    self.label = label
    self.source = found
    self.seed = seed
    self.prefetch = prefetch
    self.resolution = resolution
    self.conditional = conditional
    self._transform = transform or gin.get_configurable(Transform)()
    self._streaming = streaming or gin.get_configurable(Streaming)()
    is_timed = prefetch == step_timing.NAME
    if is_timed:
      timing = timing or gin.get_configurable(StepTiming)()
    super().__init__(timing if is_timed else None)
    if is_timed:
      self._streaming = dataclasses.replace(self._streaming, reader="graph")
    self._train = self._make_set(found.train)
    self._sets = [self._train]  # All sets that batches come from.

  @property
  def spec(self) -> ImageSpec:
    """The images that G makes and D judges."""
    return ImageSpec(
      resolution=self.resolution,
      channels=self.source.train.channels,
      num_classes=len(self.source.label_names) if self.conditional else 0,
    )

  @property
  def drops_labels(self) -> bool:
    """Whether the source has classes that nobody asked for."""
    return not self.conditional and len(self.source.label_names) > 1

  @property
  def train_set(self) -> Union[InMemorySet, Stream]:
    """The training images: in memory, or a stream of files."""
    return self._train

  @property
  def name(self) -> str:
    """The name of the data set."""
    return self.source.name

  @property
  def split(self) -> str:
    """The reference images of metrics, and their preprocessing."""
    suffix = self._train.preprocessing
    return f"{self.name}/train{suffix and f', {suffix}'}"

  @property
  def num_images(self) -> int:
    """The number of training images."""
    return len(self._train)

  def find_failure(self, step: int = 0) -> Optional[str]:
    """Returns why the input ended, `None` if images are not the reason.

    Args:
      step: Steps that were completed.
    """
    failures = (x.find_failure(step) for x in self._sets)
    return next(filter(None, failures), None)

  def meter(self) -> Dict[str, float]:
    """Returns statistics of all readers for the logs: sums, maximum depth."""
    if self._control is not None:
      return self._control.meter()
    total: Dict[str, float] = {}
    for images in self._sets:
      for name, value in images.meter().items():
        combine = max if name == "input/depth" else operator.add
        total[name] = combine(total.get(name, 0), value)
    return total

  def __call__(self, params: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns endless `(images, labels)`; images float32 in [-1, 1]."""
    total = params.get("num_shards", 1)
    shard = BatchShard(
      params["batch_size"],
      total,
      list(params.get("shards", range(total))),
      params.get("start_step", 0),
    )
    python = params.get("python", True)
    live = self._make_pipeline(params, self._count_reads(shard))
    if self.by_label and total > 1:
      batches = self._dataset_by_label(shard, python, live)
    else:
      batches = self._train.dataset(shard, self._finish, python, live)
    return self._buffer(batches, len(shard.shards), live)

  def _count_reads(self, shard: BatchShard) -> Optional[Reads]:
    """Returns what is read for a step; sizes of whole files are not known."""
    images = self.source.train
    if not isinstance(images, EncodedImages):
      return None
    num = shard.batch_size * len(set(shard.shards))
    known = images.size[images.size != WHOLE]
    return Reads(num, num * float(known.mean()) if len(known) else 0.0)

  def _buffer(
    self, batches: tf.data.Dataset, num_per_step: int, live: Optional[Pipeline]
  ) -> tf.data.Dataset:
    """Returns the same batches, prefetched."""
    # Otherwise a strategy checks at every step whether any replica has data.
    endless = tf.data.experimental.assert_cardinality(
      tf.data.INFINITE_CARDINALITY
    )
    options = tf.data.Options()
    # Parallelism is fixed, so there is nothing to tune; and when an iterator
    # ends, TensorFlow may wait up to a minute for the tuning thread.
    options.autotune.enabled = False
    # TensorFlow's rewrites would add stages that hold up to 16 more elements.
    options.experimental_optimization.apply_default_optimizations = False
    if live is not None and not isinstance(self._train, Stream):
      options.experimental_optimization.inject_prefetch = False
      batches = live.prefetch(batches, num_per_step).apply(endless)
      return batches.with_options(options)
    num = _NUM_DECODED if isinstance(self.prefetch, str) else self.prefetch
    # Last; otherwise TensorFlow adds its own prefetch, which is unbounded.
    batches = batches.apply(endless).prefetch(num * num_per_step)
    if live is not None:
      options.threading.private_threadpool_size = live.pool_size
    return batches.with_options(options)

  def save_index(self, folder: str) -> None:
    """Saves what was found in TFRecord files for the run's next start."""
    index_files.save(folder, self._scans)

  def check_shards(self, num_shards: int) -> None:
    """Raises a `ValueError` if a shard would have no images."""
    if not self.by_label:
      return
    shards = np.asarray(self.source.train.labels) % num_shards
    if len(np.unique(shards)) < num_shards:
      raise ValueError(
        "`by_label` needs a class for each replica, and "
        f"'{self.name}' has {len(self.source.label_names)} for "
        f"{num_shards}: take fewer replicas, or `by_label = False`."
      )

  def _dataset_by_label(
    self, shard: BatchShard, python: bool, live: Optional[Pipeline]
  ) -> tf.data.Dataset:
    """Returns batches of each shard's own classes, in turn."""
    self.check_shards(shard.num_shards)
    shards = np.asarray(self.source.train.labels) % shard.num_shards
    rows = [np.flatnonzero(shards == i) for i in shard.shards]
    single = BatchShard(shard.batch_size, 1, [0], shard.start_step)
    sets = [self._make_set(self.source.train.select(x)) for x in rows]
    self._sets = [self._train, *sets]
    datasets = [x.dataset(single, self._finish, python, live) for x in sets]
    indices = tf.data.Dataset.range(len(datasets)).repeat()
    return tf.data.Dataset.choose_from_datasets(datasets, indices)

  def reference(self, count: Optional[int] = None) -> sources.Images:
    """Returns `count` training images, the reference of metrics.

    By default all of them, of a set on disk at most 10,000.
    """
    on_disk = isinstance(self._train, Stream)
    count = count or (_MAX_REFERENCE if on_disk else self.num_images)
    if count >= self.num_images:
      return self._train.images(np.arange(self.num_images))
    # At random, because the file may be sorted by class.
    rows = np.random.RandomState(0).permutation(self.num_images)[:count]
    return self._train.images(rows)

  def heldout(self, most: Optional[int] = None) -> sources.Images:
    """Returns the held-out images, resized; at most `most`."""
    heldout = self._make_set(self.source.heldout)
    return heldout.images(np.arange(len(heldout))[:most])

  def _make_set(self, images: Union[sources.Images, EncodedImages]):
    if isinstance(images, EncodedImages):
      return Stream(
        images,
        self.resolution,
        self._transform,
        self._streaming,
        self.seed,
        self.spec.num_classes,
      )
    return InMemorySet(images, self.resolution, self._transform, self.seed)

  def _finish(self, images, labels, positions):
    images = self._transform.to_floats(images, self.seed, positions)
    if not self.conditional:
      return (images,)
    return images, labels
