"""Sides of suite `input`: one storage, read by three pipelines.

All of them ask for the same blocks in the same order, decode in the same way,
may have as many reads open and hold as many bytes. The device is a sleep.
"""

import os
import threading
import time
from typing import Any, Callable, List, NamedTuple

import numpy as np

from tools import cli

BATCH_SIZE, RESOLUTION, CHANNELS = 32, 64, 3
MAX_READERS, MAX_DEPTH, MAX_BYTES = 128, 128, 64 << 20
STEP_SECONDS, LATENCY = 0.04, 0.08
_BLOCK_BYTES = 1 << 17  # About a batch.
_NUM_FILES, _NUM_IMAGES = 4, 4096


class Trace(NamedTuple):
  """What a device saw, batch by batch.

  Attributes:
    times: Seconds since the start at which each batch was there.
    waits: Seconds for which it was waited for.
    num_bytes: Bytes that were held: encoded images, and decoded ones.
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
    """How fast the device was fed."""
    return BATCH_SIZE * len(self.times) / float(self.times[-1])


def write_set(folder: str) -> None:
  """Writes the embedded images as JPEGs in TFRecords, with a manifest."""
  cli.import_quietly("paragan_tf.api")
  import tensorflow as tf

  from paragan_tf.data import sources

  images = sources.fashion().train
  files = [f"{folder}/fashion-{i}.tfrecord" for i in range(_NUM_FILES)]
  for i, path in enumerate(files):
    with tf.io.TFRecordWriter(path) as writer:
      for row in range(i, _NUM_IMAGES, _NUM_FILES):
        writer.write(example(photo(images.pixels[row], RESOLUTION, row), 0))
  _write_manifest(folder, files)


def photo(pixels: np.ndarray, side: int, seed: int) -> bytes:
  """Returns a JPEG with noise, so that it is as large as a photograph."""
  import tensorflow as tf

  large = tf.image.resize(pixels, [side, side], "bicubic")
  noise = np.random.RandomState(seed).randint(0, 32, [side, side, 3])
  pixels = tf.saturate_cast(0.8 * large + noise, tf.uint8)
  return tf.io.encode_jpeg(pixels).numpy()


def example(image: bytes, label: int) -> bytes:
  """Returns a record."""
  import tensorflow as tf

  feature = {
    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
  }
  features = tf.train.Features(feature=feature)
  return tf.train.Example(features=features).SerializeToString()


def _write_manifest(folder: str, files: List[str]) -> None:
  from paragan_tf.data import shards

  shard, offset, size = shards.scan(files)
  names = tuple(os.path.basename(path) for path in files)
  labels = np.zeros(len(shard), np.int32)
  index = shards.Index(
    names, shard, offset, size, labels, ("all",), shards.Features()
  )
  listed = tuple(
    shards.Shard(name, int((shard == i).sum()), os.path.getsize(path), "")
    for i, (name, path) in enumerate(zip(names, files))
  )
  shards.write_manifest(folder, shards.Manifest("fashion", listed, index))


class Counted:
  """Reads, and counts the bytes."""

  num_retries = 0

  def __init__(self, read: Callable[..., bytes]):
    self._read = read
    self._lock = threading.Lock()
    self.num_bytes = 0

  def __call__(self, *args: Any) -> bytes:
    """Reads as `read` does."""
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
    from paragan_tf.data.encoded import Streaming
    from paragan_tf.data.input_fn import InputFn

    self._kind = kind
    self._input_fn = InputFn(
      lambda: sources.tfrecord(f"{address}/manifest.json", num_heldout=2),
      RESOLUTION,
      streaming=Streaming(
        window=1,
        num_lanes=1,
        block_bytes=_BLOCK_BYTES,
        max_readers=MAX_READERS,
        max_depth=MAX_DEPTH,
        max_bytes=MAX_BYTES,
        cache_bytes=0,
      ),
    )
    self._stream = self._input_fn._train
    self._blocks = self._stream._blocks
    images = self._blocks.images
    self._bytes_of_image = float(np.mean(images.size)) + 16  # And its frame.
    self._num_decoded = tf.Variable(0, trainable=False)
    self._finish = self._counting(self._input_fn._finished)
    self._input_fn._finished = self._finish  # type: ignore[method-assign]
    self._read = Counted(reading.Patient())
    self._blocks.read_fn = self._read

  def run(self, warm_seconds: float, seconds: float) -> Trace:
    """Feeds the device for so long, after a warm-up that does not count."""
    data = self._data()
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
      there = time.monotonic()
      meter = self._stream.meter()
      rows.append(
        [
          there - started,
          there - now,
          self._num_bytes(num_taken),
          meter.get("input/depth", 0),
          meter.get("input/readers", 0),
        ]
      )
      if warm and there - started >= seconds:
        return Trace(*np.array(rows).T)
      time.sleep(STEP_SECONDS)

  def _num_bytes(self, num_taken: int) -> float:
    """Returns the bytes that are held: encoded ones, and images as floats."""
    decoded = int(self._num_decoded)
    floats = 4.0 * CHANNELS * RESOLUTION**2 * max(decoded - num_taken, 0)
    if self._kind != "ours":
      encoded = self._read.num_bytes - decoded * self._bytes_of_image
      return floats + max(encoded, 0.0)
    # Of two answers to one question one is dropped, so what is held counts.
    meter = self._stream._running[-1]().meter()
    given = meter.num_given * BATCH_SIZE - decoded
    held = meter.num_bytes - meter.num_lent
    return floats + held + max(given, 0) * self._bytes_of_image

  def _counting(self, finish: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `finish`, the last thing done with an image, and counts those."""
    import tensorflow as tf

    def counted(image, label, place):
      image, label = finish(image, label, place)
      with tf.control_dependencies([self._num_decoded.assign_add(1)]):
        return tf.identity(image), label

    return counted

  def _data(self):
    if self._kind == "ours":
      return self._input_fn({"batch_size": BATCH_SIZE})
    return self._plain()

  def _plain(self):
    import tensorflow as tf

    blocks = self._blocks
    auto = self._kind == "autotune"
    parallel = tf.data.AUTOTUNE if auto else MAX_READERS

    def fetch(block):
      content = blocks.fetch((0, int(block)))
      rows = np.flatnonzero(blocks.of_row == block)
      return blocks.cut({int(block): content}, rows)

    order = np.random.RandomState(0).permutation(blocks.of_row[-1] + 1)
    data = tf.data.Dataset.from_tensor_slices(order).repeat()
    data = data.map(
      lambda block: tf.ensure_shape(
        tf.numpy_function(fetch, [block], tf.string), [None]
      ),
      num_parallel_calls=parallel,
      deterministic=True,
    )

    def numbered(content):
      nothing = tf.zeros(tf.shape(content), tf.int64)
      return self._stream._parsed(content, tf.cast(nothing, tf.int32), nothing)

    data = data.map(numbered).unbatch()
    data = data.map(
      lambda *encoded: self._finish(*self._stream._image(*encoded)),
      num_parallel_calls=tf.data.AUTOTUNE if auto else 2,
      deterministic=True,
    )
    data = data.batch(BATCH_SIZE, drop_remainder=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = MAX_READERS
    if auto:
      options.autotune.ram_budget = MAX_BYTES
    return data.prefetch(tf.data.AUTOTUNE if auto else 2).with_options(options)
