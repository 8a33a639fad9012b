"""Batches out of an encoded set: read ahead, cut, decode, batch.

PrefetchBuffer(blocks) -> generator of bytes -> decode, in parallel -> batches

What is there is handed to TensorFlow several batches at once: to come and go
takes Python as long as it takes to decode an image or two.
"""

import collections
import os
import weakref
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.data import flaws, prefetch_buffer, reading
from paragan_tf.data.batch_shard import Finish, Shard
from paragan_tf.data.encoded import Blocks, Encoded, Streaming, needs
from paragan_tf.data.order import Order
from paragan_tf.data.sources import Images
from paragan_tf.data.transforms import Transform

_MOST_AT_ONCE = 128  # Images that are handed to TensorFlow.
_NUM_REMEMBERED = 64  # Of these chunks; more are never under way.


class Stream:
  """A set on disk, for `InputFn`; `change` is what was done with the images.

  Where labels are in the records, those that are no class of `num_classes` end
  the stream; with 0 they are not looked at.
  """

  def __init__(
    self,
    images: Encoded,
    resolution: int,
    transform: Transform,
    streaming: Streaming,
    seed: int,
    num_classes: int = 0,
  ):
    self._failure: Optional[str] = None
    self.change = transform.words
    self._images = images
    self._resolution = resolution
    self._transform = transform
    self._streaming = streaming
    self._seed = seed
    self._num_classes = num_classes
    self._handed: Deque[np.ndarray] = collections.deque(maxlen=_NUM_REMEMBERED)
    self._blocks = Blocks(images, streaming)
    self._running: List[weakref.ref] = []

  def __len__(self) -> int:
    return len(self._images)

  def dataset(self, shard: Shard, finish: Finish) -> tf.data.Dataset:
    """Returns what `finish` makes of images, labels and places, endlessly."""
    order = Order(
      self._blocks.of_row,
      shard.batch_size * shard.num_shards,
      self._seed,
      self._streaming.window,
      self._streaming.num_lanes,
    )
    needed = lambda: needs(order, self._blocks.of_row, shard)  # noqa: E731
    return self._decoded(needed, shard.batch_size, finish)

  def images(self, rows: np.ndarray) -> Images:
    """Returns some images, decoded, in memory."""
    # By place, so that each block is read once, and no more than these need.
    order = np.argsort(rows, kind="stable")
    part = Stream(
      self._images.part(rows[order]),
      self._resolution,
      self._transform,
      self._streaming,
      self._seed,
      self._num_classes,
    )
    return part._all().part(np.argsort(order))

  def _all(self) -> Images:
    """Returns all images in their order."""
    of_row = self._blocks.of_row
    num_uses = np.bincount(of_row)

    def needed():
      for row in np.arange(len(self)):
        block, place = int(of_row[row]), np.array([row])
        yield prefetch_buffer.Need(
          (place, place), [(0, block)], [int(num_uses[block])]
        )

    elements = self._decoded(needed, 1, lambda *image: image)
    try:
      pixels, labels, _ = zip(*elements.as_numpy_iterator())
    except tf.errors.OpError as e:
      raise ValueError(self.find_failure() or reading.plain(e)) from e
    known = self._images.labels is not None or self._images.parse is not None
    return Images(
      np.concatenate(pixels), np.concatenate(labels) if known else None
    )

  def find_failure(self) -> Optional[str]:
    """Returns why no more batches come, `None` if it is not for the images.

    TensorFlow does not say which of them it could not take, so those that it
    was given last are looked at again.
    """
    if self._failure is None and self._handed:
      rows = np.concatenate(self._handed)[::-1]
      look = flaws.Look(self._blocks, self._num_classes)
      self._failure = next(filter(None, map(look, rows)), None)
    return self._failure

  def meter(self) -> Dict[str, float]:
    """Returns what the readers do, for the logs; nothing if none runs."""
    buffers = [ref() for ref in self._running]
    meters = [buffer.meter() for buffer in buffers if buffer is not None]
    if not meters:
      return {}
    last = meters[-1]
    return {
      "input/readers": last.plan.num_readers,
      "input/depth": last.plan.depth,
      "input/megabytes": last.num_bytes / 1e6,
      "input/waited_seconds": last.waited,
      "input/hedged": last.num_hedged,
      "input/retries": self._blocks.read_fn.num_retries,
    }

  def _decoded(self, needed, batch_size: int, finish) -> tf.data.Dataset:
    spec = (
      tf.TensorSpec([None], tf.string),
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([None], tf.int64),
    )
    most = max(1, _MOST_AT_ONCE // batch_size)
    data = tf.data.Dataset.from_generator(
      lambda: self._payloads(needed(), most), output_signature=spec
    )
    data = data.map(self._parsed).unbatch()
    # Finished one by one: a whole batch would not stay in the core's cache.
    data = data.map(
      lambda *encoded: finish(*self._image(*encoded)),
      num_parallel_calls=os.cpu_count(),
      deterministic=True,
    )
    return data.batch(batch_size, drop_remainder=True)

  def _payloads(self, needed, most: int):
    """Yields the bytes, labels and places of up to `most` elements' images."""
    blocks = self._blocks
    buffer = prefetch_buffer.PrefetchBuffer(
      blocks.fetch,
      needed,
      self._streaming.bounds,
      self._streaming.adaptive,
    )
    self._running = [ref for ref in self._running if ref() is not None]
    self._running.append(weakref.ref(buffer))
    chunks = buffer.chunks(
      most, lambda element: blocks.num_bytes(*_contents(element))
    )
    try:
      for chunk in chunks:
        yield self._joined(chunk)
    except Exception as e:
      self._failure = str(e)
      raise
    finally:
      chunks.close()

  def _joined(self, chunk: List[prefetch_buffer.Element]):
    cut = [self._blocks.cut(*_contents(element)) for element in chunk]
    rows, places = map(np.concatenate, zip(*(need.tag for need, _ in chunk)))
    self._handed.append(rows)
    labels = np.zeros(len(rows), np.int32)
    if self._images.labels is not None:
      labels = self._images.labels[rows]
    return np.concatenate(cut), labels, places

  def _parsed(self, encoded, labels, places):
    if self._images.parse is not None:
      encoded, inside = self._images.parse(encoded)
      if self._images.labels is None:
        labels = flaws.checked_labels(inside, self._num_classes)
    return encoded, labels, places

  def _image(self, encoded, label, place):
    image = self._transform.decode(
      encoded, self._resolution, self._images.channels, self._seed, place
    )
    return image, label, place


def _contents(
  element: prefetch_buffer.Element,
) -> Tuple[Dict[int, bytes], np.ndarray]:
  """Returns the blocks of an element by their numbers, and its rows."""
  need, payloads = element
  rows, _ = need.tag
  keys: Sequence[Any] = need.keys
  return {block: x for (_, block), x in zip(keys, payloads)}, rows
