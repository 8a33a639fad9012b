"""Adapts a user's own `input_fn() -> tf.data.Dataset`.

Elements are images, or pairs of images and class ids, batched or not; uint8, or
floats in [-1, 1]. Images with channels first, `[b, 3, 32, 32]` say, are
transposed. All processes read the same stream, and each takes its rows of every
global batch, so a run does not depend on the number of replicas. The stream
repeats when it ends.

One image in ten is held out: it is used for metrics, never for training. A hash
of its pixels selects it, so the same images are held out in any order, in every
epoch, and when a run resumes. If images are changed at random (cropped,
flipped), or the set has its own split, let the function take `split`: it is
called with 'train' or 'heldout', and all that it returns is used.
"""

import inspect
from typing import Any, Callable, Dict, Mapping, Optional, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import image_errors, python_ops, step_timing
from paragan_tf.data.batch_shape import is_channels_first
from paragan_tf.data.depth_control import TimedInput
from paragan_tf.data.sources import Images
from paragan_tf.data.step_timing import StepTiming
from paragan_tf.types import ImageSpec

_NUM_TO_MEASURE = 2000
_ONE_IN = 10  # One image in ten is held out.
# Stops at endless streams that have no held-out image.
_MAX_SCANNED = _ONE_IN * _NUM_TO_MEASURE
_TRAIN, _HELDOUT = "train", "heldout"


@gin.configurable(denylist=["input_fn", "num_classes"])
class AdaptedInput(TimedInput):
  """Gives each replica its shard of every global batch.

  Called like `input_fn.InputFn`. The user's function may take `split`, and
  `params` with `batch_size`, the images to return at a time.

  Args:
    input_fn: The user's function.
    num_classes: Of its labels; 0 if they are not used.
    prefetch: Number of batches that are prefetched for each replica, by default
      as TensorFlow's `AUTOTUNE` decides; or 'step_timing'.
  """

  def __init__(
    self,
    input_fn: Callable[..., tf.data.Dataset],
    num_classes: int = 0,
    prefetch: Union[int, str] = tf.data.AUTOTUNE,
  ):
    step_timing.check_prefetch(prefetch, "AdaptedInput.prefetch")
    if not callable(input_fn):
      raise ValueError(
        "`input_fn` must be a function that returns a `tf.data.Dataset`, got "
        f"{type(input_fn).__name__}: give `lambda: dataset`."
      )
    self._input_fn = input_fn
    self._num_classes = num_classes
    self._parameters = inspect.signature(input_fn).parameters
    self.name = getattr(input_fn, "__name__", "input_fn")
    self.num_images: Optional[int] = None  # Only the user knows.
    self.split = f"{self.name}/{_TRAIN}"
    self.drops_labels = False
    self.spec = self._find_spec()
    self._prefetch = prefetch
    is_timed = prefetch == step_timing.NAME
    super().__init__(gin.get_configurable(StepTiming)() if is_timed else None)

  def __call__(self, params: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns endless `(images, labels)`; images float32 in [-1, 1]."""
    size = params["batch_size"]
    total = params.get("num_shards", 1)
    shards = params.get("shards", range(total))
    rows = [shard * size + i for shard in shards for i in range(size)]
    data = self._examples(_TRAIN, size * total).repeat()
    if not params.get("python", True):
      self._check_no_python(data)
    data = data.batch(size * total, drop_remainder=True)
    data = data.skip(params.get("start_step", 0))
    if rows != list(range(size * total)):
      data = data.map(lambda *batch: tuple(tf.gather(x, rows) for x in batch))
    if size < len(rows):
      data = data.rebatch(size, drop_remainder=True)
    data = data.map(self._normalize)
    live = self._make_pipeline(params)
    if live is None:
      return data.prefetch(self._prefetch)
    options = tf.data.Options()
    # It would be unbounded.
    options.experimental_optimization.inject_prefetch = False
    return live.prefetch(data, len(shards)).with_options(options)

  def _check_no_python(self, data: tf.data.Dataset) -> None:
    found = python_ops.find(data)
    if found:
      raise ValueError(
        f"`{self.name}` must consist of TensorFlow's ops to feed a TPU, whose "
        f"hosts do not run your Python, got {', '.join(sorted(found))} from "
        "`from_generator`, `numpy_function` or `py_function`: write TFRecords "
        "and read them with `tf.data.TFRecordDataset`."
      )

  def find_failure(self, step: int = 0) -> Optional[str]:
    """Returns `None`: only the user's code knows the reason."""
    del step
    return None

  def meter(self) -> Dict[str, float]:
    """Returns the depth if it is measured; the user's pipeline is not."""
    return self._control.meter() if self._control else {}

  def save_index(self, folder: str) -> None:
    """Saves nothing: there is no index."""

  def check_heldout(self) -> None:
    """Raises a `ValueError` if a split has fewer than two images.

    Reads no further than the second image of each split.
    """
    for split in (_TRAIN, _HELDOUT):
      self._check_count(split, sum(1 for _ in self._take(split, 2)))

  def reference(self, count: Optional[int] = None) -> Images:
    """Returns training images, at most `count`."""
    limit = _NUM_TO_MEASURE
    return self._load(_TRAIN, limit if count is None else min(count, limit))

  def heldout(self) -> Images:
    """Returns held-out images."""
    return self._load(_HELDOUT, _NUM_TO_MEASURE)

  def _load(self, split: str, count: int) -> Images:
    """Returns the first images and labels of a split."""
    data = self._take(split, count).batch(256).map(self._normalize)
    batches = list(data.as_numpy_iterator())
    self._check_count(split, sum(len(batch[0]) for batch in batches))
    images, *labels = (np.concatenate(arrays) for arrays in zip(*batches))
    pixels = np.round((images + 1.0) * 127.5).astype(np.uint8)
    return Images(pixels, labels[0] if labels else None)

  def _check_count(self, split: str, count: int) -> None:
    if count < 2:
      what = "train on" if split == _TRAIN else "measure with"
      raise ValueError(
        f"'{self.name}' must give images to train on and others to measure "
        f"with, at least 2 of each, got {count} to {what}: give more, of which "
        f"one in {_ONE_IN} is held out; or let `{self.name}` take `split`, "
        f"'{_TRAIN}' or '{_HELDOUT}', and choose them there."
      )

  def _take(self, split: str, count: int) -> tf.data.Dataset:
    return self._examples(split, 256, _MAX_SCANNED).take(count)

  def _examples(
    self, split: str, batch_size: int, max_scanned: int = -1
  ) -> tf.data.Dataset:
    """Returns unbatched `(image, label)` or `(image,)` of a split.

    Args:
      split: 'train' or 'heldout'.
      batch_size: Passed to the user's function.
      max_scanned: Images of any split to read; all by default.
    """
    data = self._call(batch_size, split)
    data = data.map(lambda *x: x if self._num_classes else x[:1])
    if data.element_spec[0].shape.rank == 4:
      data = data.unbatch()
    if "split" not in self._parameters:
      wanted = split == _HELDOUT
      data = data.take(max_scanned).filter(
        lambda x, *ids: tf.equal(_is_heldout(x), wanted)
      )
    if not self._channels_first:
      return data
    return data.map(lambda x, *ids: (tf.transpose(x, [1, 2, 0]), *ids))

  def _call(self, batch_size: int, split: str = _TRAIN) -> tf.data.Dataset:
    known = {"params": {"batch_size": batch_size}, "split": split}
    data = self._input_fn(
      **{n: x for n, x in known.items() if n in self._parameters}
    )
    if not isinstance(data, tf.data.Dataset):
      raise ValueError(
        f"`{self.name}` must return a `tf.data.Dataset`, got "
        f"{type(data).__name__}."
      )
    return data

  def _find_spec(self) -> ImageSpec:
    found = self._call(1).element_spec
    specs = found if isinstance(found, tuple) else (found,)
    shape = getattr(specs[0], "shape", tf.TensorShape(None))
    sides: list = shape[-3:].as_list() if shape.rank in (3, 4) else [None]
    self._channels_first = is_channels_first([1, *sides])
    if self._channels_first:
      sides = [*sides[1:], sides[0]]
    if None in sides or sides[0] != sides[1]:
      raise ValueError(
        f"`{self.name}` must give square images of a known size, [h, w, c] or "
        f"[b, h, w, c], and maybe labels; got {found}."
      )
    if self._num_classes and len(specs) != 2:
      raise ValueError(
        f"`num_classes` is {self._num_classes}, so `{self.name}` must give "
        f"pairs of images and class ids, got {found}: add them, or leave "
        "`num_classes` out."
      )
    self.drops_labels = len(specs) > 1 and not self._num_classes
    return ImageSpec(int(sides[0]), int(sides[2]), self._num_classes)

  def _normalize(self, images, *labels):
    if images.dtype == tf.uint8:
      images = tf.cast(images, tf.float32) / 127.5 - 1.0
    images = tf.cast(images, tf.float32)
    if not labels:
      return (images,)
    ids = tf.reshape(tf.cast(labels[0], tf.int64), [-1])
    return images, image_errors.assert_labels(ids, self._num_classes)


def _is_heldout(image: tf.Tensor) -> tf.Tensor:
  pixels = tf.io.serialize_tensor(image)
  # Not `==`, which compares identities in graphs of TPUEstimator.
  return tf.equal(tf.strings.to_hash_bucket_fast(pixels, _ONE_IN), 0)
