"""The sides of the suite `input`: one storage, read by several pipelines.

All request the same blocks and decode in the same way, with the same limits of
concurrent reads and of bytes held; but "autotune_default" has no more threads
than TensorFlow gives it. The device is a sleep.
"""

import contextlib
import dataclasses
import threading
import time
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, cast
from unittest import mock

import numpy as np

from tools import cli
from tools.suites.input.images import IMAGES_PER_FILE, RESOLUTION

BATCH_SIZE, CHANNELS = 32, 3
MAX_READERS, MAX_DEPTH, MAX_BYTES = 128, 128, 64 << 20
STEP_SECONDS, LATENCY = 0.04, 0.08
LOOP_STEPS = 20  # Of an inner loop, after which the depth may change.
_BLOCK_BYTES = 1 << 30  # A file, which is a batch.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # Of a record in a TFRecord file.
_FRAME_BYTES = _HEADER_BYTES + _FOOTER_BYTES
_LATE_SECONDS = 0.002


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
  """A pipeline that feeds a device.

  Args:
    kind: "step_timing", "threads", "prefetch_2", "autotune", or
      "autotune_default", which has the threads that TensorFlow gives it.
    address: Of the storage.
  """

  def __init__(self, kind: str, address: str):
    cli.import_quietly("paragan_tf.api")
    import tensorflow as tf

    from paragan_tf.data import reading
    from paragan_tf.data.encoded import BlockReader, Streaming
    from paragan_tf.data.input_fn import InputFn
    from paragan_tf.data.step_timing import StepTiming

    self._kind = kind
    self._num_decoded = tf.Variable(0, trainable=False)
    self._transform = _make_counting_transform(self._num_decoded)
    is_timed = kind == "step_timing"
    streaming = Streaming(
      # Ops read a window at once; threads read blocks as they are needed.
      window=BATCH_SIZE if is_timed else 1,
      num_lanes=1,
      block_bytes=_BLOCK_BYTES,
      max_readers=MAX_READERS,
      max_depth=MAX_DEPTH,
      max_bytes=MAX_BYTES,
      cache_bytes=0,
    )
    self._read = CountingReader(reading.RetryingReader())
    with self._ops_over_http():
      self._input_fn = InputFn(
        lambda: _make_source(address),
        RESOLUTION,
        transform=self._transform,
        streaming=streaming,
        prefetch="step_timing" if is_timed else 2,
        timing=StepTiming(
          max_depth=MAX_DEPTH, max_readers=MAX_READERS, max_bytes=MAX_BYTES
        ),
      )
    images: Any = self._input_fn.source.train
    self._bytes_of_image = float(np.mean(images.size)) + _FRAME_BYTES
    # For the pipelines of `tf.data`; ours read by themselves.
    self._blocks = BlockReader(images, streaming, cast(Any, self._read))
    self._control: Optional[Any] = None

  def run(self, warm_seconds: float, seconds: float) -> Trace:
    """Feeds the device for some seconds, after a warm-up that is not traced."""
    data = self._make_dataset()
    self._read.num_bytes = num_taken = 0
    self._num_decoded.assign(0)
    elements = iter(data)
    rows: List[List[float]] = []
    waits: List[float] = []
    started = loop_started = time.monotonic()
    warm = False
    while True:
      now = time.monotonic()
      if not warm and now - started >= warm_seconds:
        started, warm = now, True
        rows = []
      next(elements)
      num_taken += BATCH_SIZE
      came = time.monotonic()
      waits.append(came - now)
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
      if len(waits) == LOOP_STEPS:
        self._follow(num_taken, waits, time.monotonic() - loop_started)
        loop_started, waits = time.monotonic(), []

  def _follow(self, num_taken: int, waits: List[float], seconds: float) -> None:
    """Lets the depth follow the timings, as an inner loop does."""
    if self._control is None:
      return
    logs = {
      "images_per_second": LOOP_STEPS * BATCH_SIZE / seconds,
      "input_wait": sum(waits) / seconds,
      "input_late": float(np.mean(np.array(waits) > _LATE_SECONDS)),
    }
    self._control.update(num_taken // BATCH_SIZE, logs)

  def _count_bytes(self, num_taken: int) -> float:
    """Returns the bytes held: of encoded images, and of images as floats."""
    decoded = int(self._num_decoded)
    floats = 4.0 * CHANNELS * RESOLUTION**2 * max(decoded - num_taken, 0)
    if self._kind != "threads":
      encoded = self._read.num_bytes - decoded * self._bytes_of_image
      return floats + max(encoded, 0.0)
    # Not by bytes read: of a read and its hedge one is dropped.
    stream: Any = self._input_fn.train_set
    meter = stream.buffer_meter()
    given = meter.num_elements * BATCH_SIZE - decoded
    held = meter.num_bytes - meter.chunk_bytes
    return floats + held + max(given, 0) * self._bytes_of_image

  def _make_dataset(self):
    if self._kind == "threads":
      return self._input_fn({"batch_size": BATCH_SIZE})
    if self._kind == "step_timing":
      self._control = self._input_fn.make_control(0, BATCH_SIZE)
      params = {"batch_size": BATCH_SIZE, "control": self._control}
      with self._ops_over_http():
        return self._input_fn(params)
    return self._make_plain_dataset(is_tuned=self._kind != "prefetch_2")

  @contextlib.contextmanager
  def _ops_over_http(self) -> Iterator[None]:
    """Lets ops read over HTTP, which TensorFlow does not know."""
    from paragan_tf.data import graph_stream

    with (
      mock.patch.object(graph_stream, "check_readable", lambda images: None),
      mock.patch.object(graph_stream, "read_range", self._read_range),
    ):
      yield

  def _read_range(self, path, begin, num_bytes, count):
    """Returns `count` records of a file as a dataset, by one request."""
    import tensorflow as tf

    def read(*args):
      found = tf.numpy_function(self._fetch_records, args, tf.string)
      return tf.ensure_shape(found, [None])

    ranges = tf.data.Dataset.from_tensors((path, begin, num_bytes))
    return ranges.map(read).unbatch().take(count)

  def _fetch_records(self, path: bytes, begin: int, num_bytes: int):
    """Returns the records in some bytes of a file."""
    content = self._read(path.decode(), int(begin), int(num_bytes))
    found, start = [], 0
    while start < len(content):
      size = int.from_bytes(content[start : start + 8], "little")
      start += _HEADER_BYTES
      found.append(content[start : start + size])
      start += size + _FOOTER_BYTES
    return np.array(found, object)

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
    if self._kind != "autotune_default":
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


def _make_source(address: str) -> Any:
  """Returns the images of all files that have none held out: whole batches."""
  from paragan_tf.data import sources

  found = sources.tfrecord(f"{address}/manifest.json", num_heldout=2)
  images: Any = found.train
  counts = np.bincount(images.path_index, minlength=len(images.paths))
  rows = np.flatnonzero(counts[images.path_index] == IMAGES_PER_FILE)
  return found._replace(train=images.select(rows))


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
