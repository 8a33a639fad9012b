"""From a source to batches: `input_fn(params) -> tf.data.Dataset`.

The image at each place of the global batch is a function of (seed, step) only:
every epoch is a fresh permutation, and the place in it is computed, not kept.
So a run resumes at any step without stored iterator state, and sees the same
global batches on any number of replicas.
"""

import operator
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import sources
from paragan_tf.data.batch_shard import Shard
from paragan_tf.data.encoded import Encoded, Streaming
from paragan_tf.data.memory import Memory
from paragan_tf.data.stream import Stream
from paragan_tf.data.transforms import Transform
from paragan_tf.types import ImageSpec

_MOST_REFERENCE = 10000  # Of a set on disk, unless more are asked for.


@gin.register
class InputFn:
  """Gives each replica its shard of every global batch.

  Called with `params` in Estimator's way; the keys are those of `Share`, all
  optional but `batch_size`.

  Args:
    source: Where images come from: a function, or a text as 'folder:PATH', see
      `sources.from_text`.
    resolution: Of the images that are given.
    conditional: Whether labels are given.
    only_labels: The classes to take, by name or number; all if `None`. They are
      numbered anew, in this order.
    by_label: Replica `r` of `m` sees only the classes `r`, `r + m`, ...; each
      has an order of its own. For what replicas do that see different data.
    transform: What is done with each image; by default as gin has it.
    streaming: How files are read; likewise.
    prefetch: Elements for each replica that are kept ready.
    seed: Of the order, and of what is random in `transform`.
  """

  def __init__(
    self,
    source: Union[str, Callable[[], sources.Source]] = sources.fashion,
    resolution: int = 32,
    conditional: bool = True,
    only_labels: Optional[Sequence[Union[str, int]]] = None,
    by_label: bool = False,
    transform: Optional[Transform] = None,
    streaming: Optional[Streaming] = None,
    prefetch: int = 2,
    seed: int = 0,
  ):
    if not isinstance(resolution, int) or resolution < 4:
      raise ValueError(
        f"`resolution` must be a number, at least 4, got {resolution!r}."
      )
    if not isinstance(source, str) and not callable(source):
      raise ValueError(
        "`source` must be a text as 'folder:PATH', or a function as "
        f"@sources.fashion, got {source!r}."
      )
    found = sources.from_text(source) if isinstance(source, str) else source()
    if only_labels is not None:
      found = sources.only(found, only_labels)
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
    self.source = found
    self.seed = seed
    self.prefetch = prefetch
    self.resolution = resolution
    self.conditional = conditional
    self._transform = transform or gin.get_configurable(Transform)()
    self._streaming = streaming or gin.get_configurable(Streaming)()
    self._train = self._set(found.train)
    self._sets = [self._train]  # All that batches were made of.

  @property
  def spec(self) -> ImageSpec:
    """What the nets must make and judge."""
    return ImageSpec(
      resolution=self.resolution,
      channels=self.source.train.channels,
      num_classes=len(self.source.label_names) if self.conditional else 0,
    )

  @property
  def name(self) -> str:
    """What the data is called."""
    return self.source.name

  @property
  def split(self) -> str:
    """What the images to measure against are, and how they were changed."""
    change = self._train.change
    return f"{self.name}/train{change and f', {change}'}"

  @property
  def num_images(self) -> int:
    """How many there are to train on."""
    return len(self._train)

  def find_failure(self) -> Optional[str]:
    """Returns why no more batches come, `None` if it is not for the images."""
    found = (part.find_failure() for part in self._sets)
    return next(filter(None, found), None)

  def meter(self) -> Dict[str, float]:
    """Returns what readers do now, for the logs; of the depths, the most."""
    total: Dict[str, float] = {}
    for part in self._sets:
      for name, value in part.meter().items():
        join = max if name == "input/depth" else operator.add
        total[name] = join(total.get(name, 0), value)
    return total

  def __call__(self, params: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns endless `(images, labels)`; images float32 in [-1, 1]."""
    total = params.get("num_shards", 1)
    shard = Shard(
      params["batch_size"],
      total,
      list(params.get("shards", range(total))),
      params.get("start_step", 0),
    )
    if self.by_label and total > 1:
      batches = self._dataset_by_label(shard)
    else:
      batches = self._train.dataset(shard, self._finished)
    # Else a strategy asks all replicas at every step whether one ran dry.
    endless = tf.data.experimental.assert_cardinality(
      tf.data.INFINITE_CARDINALITY
    )
    # Last, or TensorFlow adds a prefetch of its own that grows without bound.
    batches = batches.apply(endless).prefetch(self.prefetch * len(shard.shards))
    options = tf.data.Options()
    # Parallelism is fixed, so there is nothing to tune; and TensorFlow may wait
    # for the thread that tunes, up to a minute, when an iterator ends.
    options.autotune.enabled = False
    return batches.with_options(options)

  def check_shards(self, num_shards: int) -> None:
    """Says in a `ValueError` if some shard would have no images."""
    if not self.by_label:
      return
    places = np.asarray(self.source.train.labels) % num_shards
    if len(np.unique(places)) < num_shards:
      raise ValueError(
        "`by_label` needs a class for each replica, and "
        f"'{self.name}' has {len(self.source.label_names)} for "
        f"{num_shards}: take fewer replicas, or `by_label = False`."
      )

  def _dataset_by_label(self, shard: Shard) -> tf.data.Dataset:
    """Returns batches of some classes for each shard, in turn."""
    self.check_shards(shard.num_shards)
    places = np.asarray(self.source.train.labels) % shard.num_shards
    found = [np.flatnonzero(places == i) for i in shard.shards]
    own = Shard(shard.batch_size, 1, [0], shard.start_step)
    parts = [self._set(self.source.train.part(rows)) for rows in found]
    self._sets = [self._train, *parts]
    sets = [part.dataset(own, self._finished) for part in parts]
    turns = tf.data.Dataset.range(len(sets)).repeat()
    return tf.data.Dataset.choose_from_datasets(sets, turns)

  def reference(self, count: Optional[int] = None) -> sources.Images:
    """Returns training images to measure against, `count` of them.

    All if it is `None`; of a set on disk, at most 10,000 then.
    """
    on_disk = isinstance(self._train, Stream)
    most = count or (_MOST_REFERENCE if on_disk else self.num_images)
    if most >= self.num_images:
      return self._train.images(np.arange(self.num_images))
    # Anywhere in the file, which may be sorted by class.
    rows = np.random.RandomState(0).permutation(self.num_images)[:most]
    return self._train.images(rows)

  def heldout(self, most: Optional[int] = None) -> sources.Images:
    """Returns the images kept to measure with, at the resolution."""
    heldout = self._set(self.source.heldout)
    return heldout.images(np.arange(len(heldout))[:most])

  def _set(self, images: Union[sources.Images, Encoded]):
    if isinstance(images, Encoded):
      return Stream(
        images,
        self.resolution,
        self._transform,
        self._streaming,
        self.seed,
        self.spec.num_classes,
      )
    return Memory(images, self.resolution, self._transform, self.seed)

  def _finished(self, images, labels, places):
    images = self._transform.floats(images, self.seed, places)
    if not self.conditional:
      return (images,)
    return images, labels
