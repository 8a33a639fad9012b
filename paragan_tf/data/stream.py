"""Batches of an encoded set: read ahead, cut, decode, batch.

    threads: PrefetchBuffer(blocks) -> generator of bytes -+
                                                           |-> decode -> batches
    graph:   GraphReader -> dataset of bytes --------------+

Both give the same batches. The generator yields several batches at once if they
are ready: each switch between Python and TensorFlow takes as long as to decode
an image or two.
"""

import collections
import functools
import weakref
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.data import (
  graph_stream,
  image_errors,
  prefetch_buffer,
  reading,
)
from paragan_tf.data.batch_shard import BatchShard, FinishFn
from paragan_tf.data.encoded import (
  BlockReader,
  EncodedImages,
  Streaming,
  plan_requests,
)
from paragan_tf.data.order import Order
from paragan_tf.data.sources import Images
from paragan_tf.data.step_timing import Pipeline
from paragan_tf.data.transforms import Transform

_MAX_CHUNK = 128  # Images that the generator yields at once.
_NUM_CHUNKS = 64  # More chunks are never in the pipeline.


class Stream:
  """A set on disk, for `InputFn`.

  If labels are in the records, a label that is no class id ends the stream with
  an error; with `num_classes` 0, labels are not checked.

  Attributes:
    read_ahead: How far `tf.data` ops read ahead. A change takes effect when
      `dataset` is called next, say at the present step.
  """

  def __init__(
    self,
    images: EncodedImages,
    resolution: int,
    transform: Transform,
    streaming: Streaming,
    seed: int,
    num_classes: int = 0,
  ):
    self._failure: Optional[str] = None
    self.preprocessing = transform.description
    self._images = images
    self._resolution = resolution
    self._transform = transform
    self._streaming = streaming
    self._seed = seed
    self._num_classes = num_classes
    self._recent_rows: Deque[np.ndarray] = collections.deque(maxlen=_NUM_CHUNKS)
    self._blocks = BlockReader(images, streaming)
    self._buffers: List[weakref.ref] = []
    self._graph_order: Optional[Order] = None  # Of the newest graph, if any.
    self.read_ahead = streaming.read_ahead
    if streaming.reader == "graph":
      graph_stream.check_readable(images)

  def __len__(self) -> int:
    return len(self._images)

  def dataset(
    self,
    shard: BatchShard,
    finish: FinishFn,
    python: bool = True,
    live: Optional[Pipeline] = None,
  ) -> tf.data.Dataset:
    """Returns `finish(images, labels, positions)`, endlessly.

    Args:
      shard: The shards to return.
      finish: Makes the elements.
      python: Whether the pipeline may call Python; a remote host cannot.
      live: Reads and decodes ahead as step timings say, by ops alone.
    """
    python = python and live is None
    python = python and self._streaming.reader == "threads"
    order = Order(
      self._blocks.block_ids,
      shard.batch_size * shard.num_shards,
      self._seed,
      self._streaming.window,
      self._streaming.num_lanes,
    )
    self._graph_order = None if python else order
    if python:
      requests_fn = functools.partial(
        plan_requests, order, self._blocks.block_ids, shard
      )
      encoded = self._generate(requests_fn, shard.batch_size)
    else:
      reader = graph_stream.GraphReader(self._images, self._blocks.block_ids)
      encoded = reader.steps(order, shard, self.read_ahead, live)
    return self._decode(encoded, shard.batch_size, finish, python, live)

  def images(self, rows: np.ndarray) -> Images:
    """Returns the images of some rows, decoded, in memory."""
    # Sorted, so that each block is read once, and only the needed ones.
    order = np.argsort(rows, kind="stable")
    subset = Stream(
      self._images.select(rows[order]),
      self._resolution,
      self._transform,
      self._streaming,
      self._seed,
      self._num_classes,
    )
    return subset._load_all().select(np.argsort(order))

  def _load_all(self) -> Images:
    """Returns all images in the order of the set."""
    block_ids = self._blocks.block_ids
    num_uses = np.bincount(block_ids)

    def plan():
      for row in np.arange(len(self)):
        block, rows = int(block_ids[row]), np.array([row])
        yield prefetch_buffer.Request(
          (rows, rows), [(0, block)], [int(num_uses[block])]
        )

    encoded = self._generate(plan, 1)
    elements = self._decode(encoded, 1, lambda *image: image)
    try:
      pixels, labels, _ = zip(*elements.as_numpy_iterator())
    except reading.OP_ERRORS as e:
      raise ValueError(self.find_failure() or reading.clean_message(e)) from e
    images = self._images
    has_labels = images.labels is not None or images.parse_fn is not None
    return Images(
      np.concatenate(pixels), np.concatenate(labels) if has_labels else None
    )

  def find_failure(self, step: int = 0) -> Optional[str]:
    """Returns why the stream ended, `None` if the images are not the reason.

    TensorFlow does not name the image that it failed on, so the most recent
    images are checked again.

    Args:
      step: Steps that were completed. If TensorFlow's ops read, the images of
        the next step are checked first, then all that are read with them.
    """
    if self._failure is None:
      python, rows = self._graph_order is None, self._suspects(step)
      check = image_errors.ImageChecker(self._blocks, self._num_classes, python)
      self._failure = next(filter(None, map(check, rows)), None)
      # Ops compare checksums, too.
      if self._failure is None and not python:
        self._failure = graph_stream.find_damaged(self._images, rows)
    return self._failure

  def _suspects(self, step: int) -> np.ndarray:
    """Returns the rows that may have ended the stream, likely ones first."""
    order = self._graph_order
    if order is not None:
      count = order.batch_size + order.window * len(order.lanes)
      rows = order.rows_from(step * order.batch_size, count)
      # Sorted, so that a block is read once.
      parts = np.split(rows, [order.batch_size])
      return np.concatenate([np.sort(part) for part in parts])
    if self._recent_rows:
      return np.concatenate(self._recent_rows)[::-1]
    return np.zeros([0], np.int64)

  def meter(self) -> Dict[str, float]:
    """Returns statistics of the readers for the logs; nothing if none runs."""
    if self._graph_order is not None:
      return {
        "input/readers": self.read_ahead.num_readers,
        "input/depth": self.read_ahead.depth,
      }
    last = self.buffer_meter()
    if last is None:
      return {}
    return {
      "input/readers": last.plan.num_readers,
      "input/depth": last.plan.depth,
      "input/megabytes": last.num_bytes / 1e6,
      "input/waited_seconds": last.wait_seconds,
      "input/hedged": last.num_hedged,
      "input/retries": self._blocks.read_fn.num_retries,
    }

  def buffer_meter(self) -> Optional[prefetch_buffer.Meter]:
    """Returns all that the newest prefetch buffer counts, if one runs."""
    buffers = [ref() for ref in self._buffers]
    meters = [buffer.meter() for buffer in buffers if buffer is not None]
    return meters[-1] if meters else None

  def _generate(self, requests_fn, batch_size: int) -> tf.data.Dataset:
    """Returns bytes, labels and positions that Python threads have read."""
    spec = (
      tf.TensorSpec([None], tf.string),
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([None], tf.int64),
    )
    max_elements = max(1, _MAX_CHUNK // batch_size)
    return tf.data.Dataset.from_generator(
      lambda: self._payloads(requests_fn(), max_elements), output_signature=spec
    )

  def _decode(
    self,
    encoded: tf.data.Dataset,
    batch_size: int,
    finish: FinishFn,
    python: bool = True,
    live: Optional[Pipeline] = None,
  ) -> tf.data.Dataset:
    # One by one, because a whole batch would not fit into the core's cache.
    def decode(*image):
      return finish(*self._decode_image(*image, python=python))

    parsed = encoded.map(self._parse)
    if live is not None:
      return live.map_rows(parsed, decode, batch_size)
    data = parsed.unbatch().map(
      decode,
      num_parallel_calls=self.read_ahead.num_decoders,
      deterministic=True,
    )
    return data.batch(batch_size, drop_remainder=True)

  def _payloads(self, requests, max_elements: int):
    """Yields bytes, labels and positions of the images of several elements."""
    blocks = self._blocks
    buffer = prefetch_buffer.PrefetchBuffer(
      blocks.fetch,
      requests,
      self._streaming.bounds,
      self._streaming.adaptive,
    )
    self._buffers = [ref for ref in self._buffers if ref() is not None]
    self._buffers.append(weakref.ref(buffer))
    chunks = buffer.chunks(
      max_elements, lambda element: blocks.num_bytes(*_contents(element))
    )
    try:
      for chunk in chunks:
        yield self._join(chunk)
    except Exception as e:
      self._failure = str(e)
      raise
    finally:
      chunks.close()

  def _join(self, chunk: List[prefetch_buffer.Element]):
    cut = [self._blocks.cut(*_contents(element)) for element in chunk]
    tags = (request.tag for request, _ in chunk)
    rows, positions = map(np.concatenate, zip(*tags))
    self._recent_rows.append(rows)
    labels = np.zeros(len(rows), np.int32)
    if self._images.labels is not None:
      labels = self._images.labels[rows]
    return np.concatenate(cut), labels, positions

  def _parse(self, encoded, labels, positions):
    if self._images.parse_fn is not None:
      encoded, parsed_labels = self._images.parse_fn(encoded)
      if self._images.labels is None:
        labels = image_errors.assert_labels(parsed_labels, self._num_classes)
    return encoded, labels, positions

  def _decode_image(self, encoded, label, position, *, python: bool):
    image = self._transform.decode(
      encoded,
      self._resolution,
      self._images.channels,
      self._seed,
      position,
      python,
    )
    return image, label, position


def _contents(
  element: prefetch_buffer.Element,
) -> Tuple[Dict[int, bytes], np.ndarray]:
  """Returns the blocks of an element by their ids, and its rows."""
  request, payloads = element
  rows, _ = request.tag
  keys: Sequence[Any] = request.keys
  return {block: x for (_, block), x in zip(keys, payloads)}, rows
