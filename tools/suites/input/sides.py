"""The sides of the suite `input`: one storage, read by three pipelines.

All request the same blocks in the same order and decode in the same way, with
the same limits of concurrent reads and of bytes held. The device is a sleep.
"""

import dataclasses
import threading
import time
from typing import Any, Callable, List, NamedTuple, cast

import numpy as np

from tools import cli
from tools.suites.input.images import RESOLUTION

BATCH_SIZE, CHANNELS = 32, 3
MAX_READERS, MAX_DEPTH, MAX_BYTES = 128, 128, 64 << 20
STEP_SECONDS, LATENCY = 0.04, 0.08
_BLOCK_BYTES = 1 << 17  # About a batch.
_FRAME_BYTES = 16  # Of a record in a TFRecord file.


class Trace(NamedTuple):
  """What a device has seen, batch by batch.

  Attributes:
    times: Seconds from the start until each batch came.
    waits: Seconds for which the device waited for it.
    num_bytes: Bytes that the pipeline held: encoded images, and decoded ones.
    depths: How far the pipeline was ahead, in batches; 0 where unknown.
    readers: Its readers; 0 where unknown.
  """

  times: np.ndarray
  waits: np.ndarray
  num_bytes: np.ndarray
  depths: np.ndarray
  readers: np.ndarray

  @property
  def images_per_second(self) -> float:
    """The images that the device got in a second."""
    return BATCH_SIZE * len(self.times) / float(self.times[-1])


class CountingReader:
  """Reads files by `read`, and counts the bytes."""

  def __init__(self, read: Callable[..., bytes]):
    self._read = read
    self._lock = threading.Lock()
    self.num_bytes = 0

  def __call__(self, *args: Any) -> bytes:
    """Returns what `read` does."""
    content = self._read(*args)
    with self._lock:
      self.num_bytes += len(content)
    return content


class Side:
  """A pipeline that feeds a device: "ours", "prefetch_2" or "autotune"."""

  def __init__(self, kind: str, address: str):
    cli.import_quietly("paragan_tf.api")
    import tensorflow as tf

    from paragan_tf.data import reading, sources
    from paragan_tf.data.encoded import BlockReader, Streaming
    from paragan_tf.data.input_fn import InputFn

    self._kind = kind
    self._num_decoded = tf.Variable(0, trainable=False)
    self._transform = _make_counting_transform(self._num_decoded)
    streaming = Streaming(
      window=1,
      num_lanes=1,
      block_bytes=_BLOCK_BYTES,
      max_readers=MAX_READERS,
      max_depth=MAX_DEPTH,
      max_bytes=MAX_BYTES,
      cache_bytes=0,
    )
    self._input_fn = InputFn(
      lambda: sources.tfrecord(f"{address}/manifest.json", num_heldout=2),
      RESOLUTION,
      transform=self._transform,
      streaming=streaming,
    )
    images: Any = self._input_fn.source.train
    self._bytes_of_image = float(np.mean(images.size)) + _FRAME_BYTES
    self._read = CountingReader(reading.RetryingReader())
    # For the pipelines of `tf.data`; ours reads by itself.
    self._blocks = BlockReader(images, streaming, cast(Any, self._read))

  def run(self, warm_seconds: float, seconds: float) -> Trace:
    """Feeds the device for some seconds, after a warm-up that is not traced."""
    data = self._make_dataset()
    self._read.num_bytes = num_taken = 0
    self._num_decoded.assign(0)
    elements = iter(data)
    rows: List[List[float]] = []
    started = time.monotonic()
    warm = False
    while True:
      now = time.monotonic()
      if not warm and now - started >= warm_seconds:
        started, warm = now, True
        rows = []
      next(elements)
      num_taken += BATCH_SIZE
      came = time.monotonic()
      meter = self._input_fn.meter()
      rows.append(
        [
          came - started,
          came - now,
          self._count_bytes(num_taken),
          meter.get("input/depth", 0),
          meter.get("input/readers", 0),
        ]
      )
      if warm and came - started >= seconds:
        return Trace(*np.array(rows).T)
      time.sleep(STEP_SECONDS)

  def _count_bytes(self, num_taken: int) -> float:
    """Returns the bytes held: of encoded images, and of images as floats."""
    decoded = int(self._num_decoded)
    floats = 4.0 * CHANNELS * RESOLUTION**2 * max(decoded - num_taken, 0)
    if self._kind != "ours":
      encoded = self._read.num_bytes - decoded * self._bytes_of_image
      return floats + max(encoded, 0.0)
    # Not by bytes read: of a read and its hedge one is dropped.
    stream: Any = self._input_fn.train_set
    meter = stream.buffer_meter()
    given = meter.num_elements * BATCH_SIZE - decoded
    held = meter.num_bytes - meter.chunk_bytes
    return floats + held + max(given, 0) * self._bytes_of_image

  def _make_dataset(self):
    if self._kind == "ours":
      return self._input_fn({"batch_size": BATCH_SIZE})
    return self._make_plain_dataset(is_tuned=self._kind == "autotune")

  def _make_plain_dataset(self, is_tuned: bool):
    """Returns batches by `tf.data` alone, with a fixed or tuned prefetch."""
    import tensorflow as tf

    blocks = self._blocks
    order = np.random.RandomState(0).permutation(blocks.block_ids[-1] + 1)
    data = tf.data.Dataset.from_tensor_slices(order).repeat()
    data = data.map(
      lambda block: tf.ensure_shape(
        tf.numpy_function(self._fetch, [block], tf.string), [None]
      ),
      num_parallel_calls=tf.data.AUTOTUNE if is_tuned else MAX_READERS,
      deterministic=True,
    )
    data = data.map(self._parse).unbatch()
    data = data.map(
      self._decode,
      num_parallel_calls=tf.data.AUTOTUNE if is_tuned else 2,
      deterministic=True,
    )
    data = data.batch(BATCH_SIZE, drop_remainder=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = MAX_READERS
    if is_tuned:
      options.autotune.ram_budget = MAX_BYTES
    depth = tf.data.AUTOTUNE if is_tuned else 2
    return data.prefetch(depth).with_options(options)

  def _fetch(self, block: np.ndarray) -> np.ndarray:
    """Returns the records of a block."""
    content = self._blocks.fetch((0, int(block)))
    rows = np.flatnonzero(self._blocks.block_ids == block)
    return self._blocks.cut({int(block): content}, rows)

  def _parse(self, records):
    """Returns encoded images, with label 0 and position 0."""
    import tensorflow as tf

    zeros = tf.zeros(tf.shape(records), tf.int64)
    encoded, _ = self._blocks.images.parse_fn(records)
    return encoded, tf.cast(zeros, tf.int32), zeros

  def _decode(self, encoded, label, position):
    """Returns an image as floats, and its label."""
    seed = self._input_fn.seed
    image = self._transform.decode(
      encoded, RESOLUTION, CHANNELS, seed, position
    )
    return self._transform.to_floats(image, seed, position), label


def _make_counting_transform(num_decoded):
  """Returns the default `Transform`, which counts the images it has decoded."""
  import tensorflow as tf

  from paragan_tf.data.transforms import Transform

  @dataclasses.dataclass(frozen=True)
  class CountingTransform(Transform):
    """Counts in `to_floats`, the last thing that is done with an image."""

    def to_floats(self, images, seed, positions):
      """Returns what `Transform` does."""
      images = super().to_floats(images, seed, positions)
      with tf.control_dependencies([num_decoded.assign_add(1)]):
        return tf.identity(images)

  return CountingTransform()
