"""Reads an encoded set by `tf.data` ops alone, for hosts without Python.

    for each lane of the global batch that the pipeline feeds:
      epochs -> windows: rows and positions -> bytes -> images, prefetched
    all lanes in step -> one vector of encoded images for each global step

Python on another machine can make this pipeline on a TPU host, which runs a
TensorFlow server only. The batches are those of the threads in `stream.py`.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.data import reading
from paragan_tf.data.batch_shard import BatchShard
from paragan_tf.data.encoded import WHOLE, EncodedImages, ReadAhead
from paragan_tf.data.order import Epoch, Lane, Order, Span
from paragan_tf.data.step_timing import Pipeline
from paragan_tf.data.tfrecords import FOOTER_BYTES, HEADER_BYTES

_NEVER = np.iinfo(np.int64).max
_WHERE = (
  "on TPUs, and with `Streaming.reader = 'graph'` or `InputFn.prefetch = "
  "'step_timing'`"
)
_CHANGED = "A record has another size than when the files were indexed: "


class _Columns(NamedTuple):
  """The columns of a set, as tensors of the pipeline's graph."""

  paths: tf.Tensor
  path_index: tf.Tensor
  start: tf.Tensor
  size: tf.Tensor
  labels: tf.Tensor
  blocks: tf.Tensor
  ordinals: tf.Tensor

  def path(self, rows: tf.Tensor) -> tf.Tensor:
    """Returns the files of some rows."""
    return tf.gather(self.paths, tf.gather(self.path_index, rows))


def check_readable(images: EncodedImages) -> None:
  """Raises a `ValueError` if TensorFlow's ops cannot read or decode a set."""
  remote = [x for x in images.paths if x.startswith(("http://", "https://"))]
  if remote:
    raise ValueError(
      "Images must be local or on gs:// where TensorFlow's ops read them "
      f"({_WHERE}), got '{remote[0]}': copy the set there."
    )
  webp = [x for x in images.paths if x.lower().endswith(".webp")]
  if webp:
    raise ValueError(
      "Images must be JPEG, PNG, BMP or GIF where TensorFlow's ops decode them "
      f"({_WHERE}), got '{webp[0]}': convert them to PNG."
    )
  if images.ordinal is None and not np.all(images.size == WHOLE):
    raise ValueError(
      "Images must be whole files, or all records of TFRecord files, where "
      f"TensorFlow's ops read them ({_WHERE}), and the index of "
      f"'{images.paths[0]}' skips some: make it again with "
      "`tools.make_tfrecords`."
    )


class GraphReader:
  """Reads an encoded set by ops.

  Args:
    images: The set: whole files, or records of TFRecord files.
    block_ids: The block of each image.
  """

  def __init__(self, images: EncodedImages, block_ids: np.ndarray):
    check_readable(images)
    self._images = images
    self._block_ids = block_ids
    self._is_whole = bool(np.all(images.size == WHOLE))

  def steps(
    self,
    order: Order,
    shard: BatchShard,
    read_ahead: ReadAhead,
    live: Optional[Pipeline] = None,
  ) -> tf.data.Dataset:
    """Returns bytes, labels and positions of a step's images, endlessly.

    Args:
      order: The order of the set.
      shard: The shards to return.
      read_ahead: How far to read ahead.
      live: Follows the timings of steps instead, if it is given.
    """
    in_batch = np.concatenate(
      [i * shard.batch_size + np.arange(shard.batch_size) for i in shard.shards]
    )
    # A shard that several replicas take is read once.
    mine, yielded = np.unique(in_batch, return_inverse=True)
    lanes, counts = choose_lanes(order.lanes, mine)
    columns, window = self._columns(), order.window * len(order.lanes)

    def count_windows(depth):
      return (depth * order.batch_size + window - 1) // window

    def read_chunk(rows, positions, num_readers):
      found = self._read(columns, rows, positions, num_readers)
      return found.get_single_element()

    def read_windows(windows: tf.data.Dataset) -> tf.data.Dataset:
      if live is None:
        num_readers = max(1, read_ahead.num_readers // len(lanes))
        return windows.flat_map(
          lambda rows, positions: self._read(
            columns, rows, positions, num_readers
          )
        ).prefetch(count_windows(read_ahead.depth))
      if self._is_whole:  # Their files are read below, step by step.
        return windows
      some = windows.filter(lambda rows, positions: tf.size(rows) > 0)
      return live.read_ahead(some, read_chunk, count_windows, len(lanes))

    @tf.autograph.experimental.do_not_convert
    def read_lane(first, width, count):
      lane = Lane(order.batch_size, first, width)
      windows = list_windows(order, lane, mine, shard.start_step)
      return read_windows(windows).unbatch().batch(count)

    parameters = [lane.first for lane in lanes], [lane.width for lane in lanes]
    images = tf.data.Dataset.from_tensor_slices(
      tuple(tf.constant(x, tf.int64) for x in (*parameters, counts))
    ).interleave(  # Traced once for all lanes.
      read_lane,
      cycle_length=len(lanes),
      num_parallel_calls=len(lanes),
      deterministic=True,
    )
    steps = images.unbatch().batch(len(mine), drop_remainder=True)
    if live is not None and self._is_whole:
      steps = live.read_ahead(steps, read_chunk, lambda depth: depth)
    if np.array_equal(yielded, np.arange(len(mine))):
      return steps
    return steps.map(lambda *x: tuple(tf.gather(v, yielded) for v in x))

  def _columns(self) -> _Columns:
    images, n = self._images, len(self._images)
    labels = np.zeros(n, np.int32) if images.labels is None else images.labels
    return _Columns(
      tf.constant(images.paths),
      tf.constant(images.path_index, tf.int32),
      tf.constant(images.start, tf.int64),
      tf.constant(images.size, tf.int64),
      tf.constant(labels, tf.int32),
      tf.constant(self._block_ids, tf.int64),
      tf.constant(np.arange(n) if self._is_whole else images.ordinal),
    )

  def _read(
    self, columns: _Columns, rows, positions, num_readers: int
  ) -> tf.data.Dataset:
    """Returns bytes, labels and positions of some rows, as one element."""
    labels = tf.gather(columns.labels, rows)
    if self._is_whole:
      files = tf.data.Dataset.from_tensor_slices(columns.path(rows))
      found = files.map(
        tf.io.read_file, num_parallel_calls=num_readers, deterministic=True
      ).batch(tf.maximum(tf.size(rows, tf.int64), 1))
    else:
      found = _read_records(columns, rows, num_readers)
    return found.map(lambda encoded: (encoded, labels, positions))


def find_damaged(images: EncodedImages, rows: np.ndarray) -> Optional[str]:
  """Returns the first of some records that ops cannot read, and why."""
  rows = rows[images.size[rows] != WHOLE]
  if not len(rows):
    return None
  start, size = images.start[rows], images.size[rows]
  ranges = (
    [images.paths[i] for i in images.path_index[rows]],
    start - HEADER_BYTES,
    size + (HEADER_BYTES + FOOTER_BYTES),
  )
  num_read = 0
  try:
    data = tf.data.Dataset.from_tensor_slices(ranges)
    for _ in data.flat_map(lambda *x: read_range(x[0], x[1], x[2], 1)):
      num_read += 1
  except tf.errors.OpError as e:
    return (
      f"The record at byte {start[num_read]} of '{ranges[0][num_read]}' cannot "
      f"be read ({reading.clean_message(e)}): copy the file again; the run "
      "resumes from its last checkpoint."
    )
  return None


def choose_lanes(
  lanes: Sequence[Lane], in_batch: np.ndarray
) -> Tuple[List[Lane], List[int]]:
  """Returns the lanes that have some of the images, and how many of them."""
  first = np.array([lane.first for lane in lanes])
  owners = np.searchsorted(first, in_batch, side="right") - 1
  used, counts = np.unique(owners, return_counts=True)
  return [lanes[i] for i in used], counts.tolist()


def list_windows(
  order: Order, lane: Lane, mine: np.ndarray, start_step: int
) -> tf.data.Dataset:
  """Returns rows and positions of each window of a lane, endlessly.

  Args:
    order: The order of the set.
    lane: A lane; its numbers may be tensors.
    mine: The images of the global batch to take.
    start_step: The first step.
  """
  start = start_step * order.batch_size
  is_mine = np.isin(np.arange(order.batch_size), mine)

  def list_epoch(number):
    epoch, span = order.epoch(number), order.span(lane, number)
    skipped = tf.maximum(lane.count(np.int64(start)) - span.before, 0)
    num = (span.count + order.window - 1) // order.window
    windows = tf.data.Dataset.range(skipped // order.window, num)
    return windows.map(lambda i: window(epoch, span, i))

  def window(epoch: Epoch, span: Span, i):
    begin = i * order.window
    size = tf.minimum(span.count - begin, order.window)
    indices = begin + tf.range(size)
    starts = tf.fill([size], span.start + begin)
    rows = order.shuffle(epoch, span.start + indices, starts)
    positions = lane.positions(span.before + indices)
    kept = tf.gather(tf.constant(is_mine), positions % order.batch_size)
    kept &= positions >= start
    return tf.boolean_mask(rows, kept), tf.boolean_mask(positions, kept)

  epochs = tf.data.Dataset.range(start // len(order), _NEVER)
  return epochs.flat_map(list_epoch)


def _read_records(
  columns: _Columns, rows: tf.Tensor, num_readers: int
) -> tf.data.Dataset:
  """Returns the bytes of some rows as one element; reads each block once."""
  ascending = tf.argsort(rows)
  ordered = tf.gather(rows, ascending)
  _, part = tf.unique(tf.gather(columns.blocks, ordered))
  first = tf.math.segment_min(ordered, part)
  last = tf.math.segment_max(ordered, part)
  ordinals = tf.gather(columns.ordinals, first)
  counts = tf.gather(columns.ordinals, last) - ordinals + 1
  begin = tf.gather(columns.start, first) - HEADER_BYTES
  end = tf.gather(columns.start, last) + tf.gather(columns.size, last)
  num_bytes = end + FOOTER_BYTES - begin
  ranges = (columns.path(first), begin, num_bytes, counts)
  records = tf.data.Dataset.from_tensor_slices(ranges).interleave(
    read_range,
    cycle_length=num_readers,
    block_length=tf.maximum(tf.reduce_max(counts), 1),
    num_parallel_calls=num_readers,
    deterministic=True,
  )
  # Between the wanted ones are others, such as held-out images.
  before = tf.cumsum(counts, exclusive=True) - ordinals
  wanted = tf.gather(before, part) + tf.gather(columns.ordinals, ordered)
  wanted = tf.gather(wanted, tf.argsort(ascending))
  sizes = tf.gather(columns.size, rows)

  def choose(found):
    return _check_sizes(tf.gather(found, wanted), sizes, columns.path(rows))

  total = tf.maximum(tf.reduce_sum(counts), 1)
  return records.batch(total, drop_remainder=True).map(choose)


def read_range(path, begin, num_bytes, count) -> tf.data.Dataset:
  """Returns `count` records from byte `begin` on, by one read."""
  records = tf.raw_ops.TFRecordDatasetV2(
    filenames=tf.reshape(path, [1]),
    compression_type="",
    buffer_size=num_bytes,
    byte_offsets=tf.reshape(begin, [1]),
  )
  spec = tf.TensorSpec([], tf.string)
  return tf.data.experimental.from_variant(records, spec).take(count)


def _check_sizes(records, sizes, paths) -> tf.Tensor:
  # Not `!=`, which compares identities in graphs of TPUEstimator.
  is_other = tf.not_equal(tf.strings.length(records), tf.cast(sizes, tf.int32))
  changed = tf.boolean_mask(paths, is_other)
  check = tf.debugging.Assert(
    tf.equal(tf.size(changed), 0), [_CHANGED, changed]
  )
  with tf.control_dependencies([check]):
    return tf.identity(records)
