"""A user's own `input_fn`, made to fit: `input_fn() -> tf.data.Dataset`.

Elements are images, or pairs of images and class ids, batched or not; uint8, or
floats in [-1, 1]; with channels first, `[b, 3, 32, 32]` say, they are turned.
All processes read the same stream, and each takes its rows of every global
batch, so that a run does not depend on how many replicas share it. The stream
begins anew when it ends.
"""

import inspect
from typing import Any, Callable, Dict, Mapping, Optional

import numpy as np
import tensorflow as tf

from paragan_tf.data import flaws
from paragan_tf.data.layout import is_channels_first
from paragan_tf.data.sources import Images
from paragan_tf.types import ImageSpec

_NUM_TO_MEASURE = 2000


class AdaptedInput:
  """Gives each replica its share of every global batch.

  Called as `input_fn.InputFn` is. The user's function may take `params`, with
  `batch_size`, the images that it is asked for at a time.
  """

  def __init__(self, input_fn: Callable[..., tf.data.Dataset], num_classes=0):
    if not callable(input_fn):
      raise ValueError(
        "`input_fn` must be a function that returns a `tf.data.Dataset`, got "
        f"{type(input_fn).__name__}: give `lambda: dataset`."
      )
    self._input_fn = input_fn
    self._num_classes = num_classes
    self.name = getattr(input_fn, "__name__", "input_fn")
    self.num_images: Optional[int] = None  # Only the user knows.
    self.split = f"{self.name}/train"
    self.spec = self._spec()

  def __call__(self, params: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns endless `(images, labels)`; images float32 in [-1, 1]."""
    size = params["batch_size"]
    total = params.get("num_shards", 1)
    shares = params.get("shards", range(total))
    rows = [share * size + i for share in shares for i in range(size)]
    data = self._examples(size * total).repeat()
    data = data.batch(size * total, drop_remainder=True)
    data = data.skip(params.get("start_step", 0))
    if rows != list(range(size * total)):
      data = data.map(lambda *batch: tuple(tf.gather(x, rows) for x in batch))
    if size < len(rows):
      data = data.rebatch(size, drop_remainder=True)
    return data.map(self._cleaned).prefetch(tf.data.AUTOTUNE)

  def find_failure(self) -> Optional[str]:
    """Returns nothing: only the user knows what fails."""
    return None

  def meter(self) -> Dict[str, float]:
    """Returns nothing: readers, if any, are the user's."""
    return {}

  def reference(self, count: Optional[int] = None) -> Images:
    """Returns images to measure against, at most `count`."""
    first = self._first()
    half = len(first.pixels) // 2
    return _part(first, slice(half if count is None else min(count, half)))

  def heldout(self) -> Images:
    """Returns as many others."""
    first = self._first()
    return _part(first, slice(len(first.pixels) // 2, None))

  def _first(self) -> Images:
    """Returns the first images and labels of the stream."""
    data = self._examples(256).take(2 * _NUM_TO_MEASURE).batch(256)
    parts = list(data.map(self._cleaned).as_numpy_iterator())
    images, *labels = (np.concatenate(part) for part in zip(*parts))
    pixels = np.round((images + 1.0) * 127.5).astype(np.uint8)
    return Images(pixels, labels[0] if labels else None)

  def _examples(self, batch_size: int) -> tf.data.Dataset:
    """Returns the user's stream as `(image, label)` or `(image,)`, singly."""
    data = self._call(batch_size)
    data = data.map(lambda *x: x if self._num_classes else x[:1])
    if data.element_spec[0].shape.rank == 4:
      data = data.unbatch()
    if not self._channels_first:
      return data
    return data.map(lambda x, *ids: (tf.transpose(x, [1, 2, 0]), *ids))

  def _call(self, batch_size: int) -> tf.data.Dataset:
    takes_params = "params" in inspect.signature(self._input_fn).parameters
    args = ({"batch_size": batch_size},) if takes_params else ()
    data = self._input_fn(*args)
    if not isinstance(data, tf.data.Dataset):
      raise ValueError(
        f"`{self.name}` must return a `tf.data.Dataset`, got "
        f"{type(data).__name__}."
      )
    return data

  def _spec(self) -> ImageSpec:
    found = self._call(1).element_spec
    parts = found if isinstance(found, tuple) else (found,)
    shape = getattr(parts[0], "shape", tf.TensorShape(None))
    sides: list = shape[-3:].as_list() if shape.rank in (3, 4) else [None]
    self._channels_first = is_channels_first([1, *sides])
    if self._channels_first:
      sides = [*sides[1:], sides[0]]
    if None in sides or sides[0] != sides[1]:
      raise ValueError(
        f"`{self.name}` must give square images of a known size, [h, w, c] or "
        f"[b, h, w, c], and maybe labels; got {found}."
      )
    if self._num_classes and len(parts) != 2:
      raise ValueError(
        f"`num_classes` is {self._num_classes}, so `{self.name}` must give "
        f"pairs of images and class ids, got {found}: add them, or leave "
        "`num_classes` out."
      )
    return ImageSpec(int(sides[0]), int(sides[2]), self._num_classes)

  def _cleaned(self, images, *labels):
    if images.dtype == tf.uint8:
      images = tf.cast(images, tf.float32) / 127.5 - 1.0
    images = tf.cast(images, tf.float32)
    if not labels:
      return (images,)
    ids = tf.reshape(tf.cast(labels[0], tf.int64), [-1])
    return images, flaws.checked_labels(ids, self._num_classes)


def _part(images: Images, rows: slice) -> Images:
  labels = None if images.labels is None else images.labels[rows]
  return Images(images.pixels[rows], labels)
