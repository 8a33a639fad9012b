"""Images that stay encoded in files, read in blocks during the run."""

import dataclasses
import os
import sys
import threading
from typing import (
  Callable,
  Dict,
  Iterator,
  Mapping,
  NamedTuple,
  Optional,
  Tuple,
)

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import crc32c, reading
from paragan_tf.data.batch_shard import BatchShard
from paragan_tf.data.congestion import Bounds, Plan
from paragan_tf.data.order import Order
from paragan_tf.data.prefetch_buffer import Request
from paragan_tf.data.tfrecords import FOOTER_BYTES

WHOLE = -1  # The size of an image that is a whole file.
_READERS = ("threads", "graph")


class ReadAhead(NamedTuple):
  """How far a pipeline of `tf.data` ops reads ahead.

  Attributes:
    num_readers: Concurrent reads, at least one for each lane.
    depth: Batches to read ahead, rounded up to whole windows.
    num_decoders: Images that are decoded at the same time.
  """

  num_readers: int
  depth: int
  num_decoders: int


@dataclasses.dataclass(frozen=True)
class EncodedImages:
  """The file, position and size of each image.

  Attributes:
    paths: The files.
    path_index: The file of each image, an index into `paths`, shape `[n]`.
    start: Its first byte in the file.
    size: Its number of bytes; -1 if the file is the image.
    labels: int32 class ids, shape `[n]`, or `None` if unknown or in the bytes.
    channels: Colors of an image.
    parse_fn: Maps bytes `[b]` to encoded images and labels `[b]`, in a graph;
      for records, which hold more than the image.
    ordinal: Numbers of the records in their files, from any number on, shape
      `[n]`; `None` if there are no records.
  """

  paths: Tuple[str, ...]
  path_index: np.ndarray
  start: np.ndarray
  size: np.ndarray
  labels: Optional[np.ndarray] = None
  channels: int = 3
  parse_fn: Optional[Callable[[tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]] = None
  ordinal: Optional[np.ndarray] = None

  def __len__(self) -> int:
    return len(self.path_index)

  def select(self, rows: np.ndarray) -> "EncodedImages":
    """Returns the images of some rows."""
    labels = None if self.labels is None else self.labels[rows]
    ordinal = None if self.ordinal is None else self.ordinal[rows]
    return dataclasses.replace(
      self,
      path_index=self.path_index[rows],
      start=self.start[rows],
      size=self.size[rows],
      labels=labels,
      ordinal=ordinal,
    )

  def without_other_files(self) -> "EncodedImages":
    """Returns the same images, and only the files that they are in."""
    used, path_index = np.unique(self.path_index, return_inverse=True)
    paths = tuple(self.paths[i] for i in used)
    return dataclasses.replace(self, paths=paths, path_index=path_index)

  def with_labels(self, labels: np.ndarray) -> "EncodedImages":
    """Returns the same images with other labels."""
    return dataclasses.replace(self, labels=labels)

  def assign_blocks(self, num_bytes: int) -> np.ndarray:
    """Returns the block of each image; neighbors in a file are read at once."""
    end = self.start + self.size
    whole = self.size == WHOLE
    is_first = np.ones(len(self), bool)
    # A gap, such as a held-out image, is read together with its neighbors.
    is_first[1:] = (
      (np.diff(self.path_index) != 0) | whole[1:] | (np.diff(self.start) < 0)
    )
    run = np.cumsum(is_first) - 1
    origin = self.start[is_first][run]
    piece = np.where(whole, 0, (end - 1 - origin) // num_bytes)
    is_first[1:] |= np.diff(piece) != 0
    return np.cumsum(is_first) - 1


@gin.register
@dataclasses.dataclass(frozen=True)
class Streaming:
  """How files are read.

  Attributes:
    window: Number of images to shuffle among.
    num_lanes: Number of slices of a global batch that share no blocks; best a
      multiple of the number of processes.
    block_bytes: Bytes to read at once, if a file has several images.
    max_readers: Maximum number of concurrent reads.
    max_depth: Maximum number of batches to read ahead.
    max_bytes: Maximum number of bytes in the prefetch buffer.
    cache_bytes: Bytes of files to keep in memory for later epochs; blocks that
      do not fit are read again.
    adaptive: Whether readers and depth follow the congestion; if not, they stay
      at `min_readers` and `min_depth`.
    min_readers: Minimum number of concurrent reads.
    min_depth: Minimum number of batches to read ahead.
    reader: What reads: Python "threads", which adapt; or "graph", TensorFlow's
      ops alone, with `min_readers` and `min_depth`, without a cache. TPUs are
      always fed by ops.
    num_decoders: Images to decode at the same time; by default the number of
      cores.
    verify: Whether threads compare records with their checksums, which takes 4
      ms of a core for each MB; ops always do.
  """

  window: int = 4096
  num_lanes: int = 16
  block_bytes: int = 1 << 20
  max_readers: int = 64
  max_depth: int = 256
  max_bytes: int = 1 << 30
  cache_bytes: int = 1 << 30
  adaptive: bool = True
  min_readers: int = 4
  min_depth: int = 16
  reader: str = "threads"
  num_decoders: Optional[int] = None
  verify: bool = True

  def __post_init__(self):
    for name in ("window", "num_lanes", "block_bytes", "max_bytes"):
      if getattr(self, name) < 1:
        raise ValueError(
          f"`Streaming.{name}` must be at least 1, got {getattr(self, name)}."
        )
    if self.cache_bytes < 0:
      raise ValueError(
        f"`Streaming.cache_bytes` must be 0 or more, got {self.cache_bytes}."
      )
    if self.reader not in _READERS:
      raise ValueError(
        f"`Streaming.reader` must be one of {list(_READERS)}, got "
        f"{self.reader!r}."
      )
    if self.num_decoders is not None and self.num_decoders < 1:
      raise ValueError(
        f"`Streaming.num_decoders` must be at least 1, got {self.num_decoders}."
      )
    _ = self.bounds  # Checks them.

  @property
  def bounds(self) -> Bounds:
    """Returns the bounds of the plan."""
    return Bounds(
      Plan(self.min_readers, self.min_depth),
      Plan(self.max_readers, self.max_depth),
      self.max_bytes,
    )

  @property
  def read_ahead(self) -> ReadAhead:
    """Returns how far `tf.data` ops read ahead."""
    num_decoders = self.num_decoders or os.cpu_count() or 1
    return ReadAhead(self.min_readers, self.min_depth, num_decoders)


class BlockReader:
  """Reads blocks of an encoded set, and cuts images out of them.

  Args:
    images: The set.
    streaming: How to read.
    read_fn: Reads bytes of a file, and retries.
  """

  def __init__(
    self,
    images: EncodedImages,
    streaming: Streaming,
    read_fn: Optional[reading.RetryingReader] = None,
  ):
    _check_window(images, streaming)
    self.images = images
    self.block_ids = images.assign_blocks(streaming.block_bytes)
    self.read_fn = read_fn or reading.RetryingReader()
    numbers = np.arange(self.block_ids[-1] + 2)
    self._first = np.asarray(np.searchsorted(self.block_ids, numbers))
    self._cache: Dict[int, bytes] = {}
    self._free_cache = streaming.cache_bytes
    self._verifies = streaming.verify and images.parse_fn is not None
    self._lock = threading.Lock()

  def fetch(self, key: Tuple[int, int]) -> bytes:
    """Returns the bytes of a block; `key` is its epoch and its id."""
    _, block = key
    if block in self._cache:
      return self._cache[block]
    first, last = self._first[block], self._first[block + 1] - 1
    images = self.images
    path = images.paths[images.path_index[first]]
    start = int(images.start[first])
    size: Optional[int] = None
    if images.size[first] != WHOLE:
      size = int(images.start[last] + images.size[last]) - start
    if not self._verifies or size is None:
      content = self.read_fn(path, start, size)
    else:  # The checksum of the last record follows it.
      content = self.read_fn(path, start, size + FOOTER_BYTES)
      self._check_records(path, content, np.arange(first, last + 1))
    self._cache_block(block, content)
    return content

  def _check_records(self, path: str, content: bytes, rows) -> None:
    """Raises a `ValueError` if a record is not as it was written."""
    starts = self.images.start[rows] - self.images.start[rows[0]]
    ends = starts + self.images.size[rows]
    footers = [content[end : end + FOOTER_BYTES] for end in ends]
    written = np.frombuffer(b"".join(footers), "<u4")
    computed = crc32c.masked(content, starts, self.images.size[rows])
    wrong = np.flatnonzero(written != computed)
    if len(wrong):
      raise ValueError(
        f"The record at byte {self.images.start[rows[wrong[0]]]} of '{path}' "
        "is damaged, as its checksum says: copy the file again; the run "
        "resumes from its last checkpoint."
      )

  def cut(self, contents: Mapping[int, bytes], rows: np.ndarray) -> np.ndarray:
    """Returns the bytes of images, cut out of the bytes of their blocks."""
    blocks = self.block_ids[rows]
    starts = self.images.start[rows] - self.images.start[self._first[blocks]]
    sizes = self.images.size[rows]
    ends = np.where(sizes == WHOLE, sys.maxsize, starts + sizes)
    # Lists, because to index arrays one by one takes longer than to cut.
    slices = zip(blocks.tolist(), starts.tolist(), ends.tolist())
    found = (contents[block][start:end] for block, start, end in slices)
    return np.fromiter(found, object, len(rows))

  def num_bytes(self, contents: Mapping[int, bytes], rows: np.ndarray) -> int:
    """Returns the total size of what `cut` returns."""
    sizes = self.images.size[rows]
    if WHOLE in sizes:
      return sum(map(len, self.cut(contents, rows)))
    return int(sizes.sum())

  def _cache_block(self, block: int, content: bytes) -> None:
    with self._lock:
      if len(content) <= self._free_cache and block not in self._cache:
        self._free_cache -= len(content)
        self._cache[block] = content


def _check_window(images: EncodedImages, streaming: Streaming) -> None:
  """Refuses a shuffle window larger than `max_bytes`."""
  num = min(streaming.window, len(images))
  expected = num * float(np.mean(images.size))
  if expected > streaming.max_bytes:
    fits = int(streaming.max_bytes / np.mean(images.size))
    raise ValueError(
      f"`Streaming.window` must fit into `max_bytes`, {streaming.max_bytes:,}, "
      f"and {num:,} images are about {expected:,.0f} bytes: take {fits:,}, or "
      "allow more."
    )


def plan_requests(
  order: Order, block_ids: np.ndarray, shard: BatchShard
) -> Iterator[Request]:
  """Yields the request of each element, endlessly; tag: (rows, positions)."""
  n, size = len(order), shard.batch_size
  local = len(shard.shards)
  epochs: Dict[int, Tuple[np.ndarray, np.ndarray]] = {}
  k = shard.start_step * local
  while True:
    step, turn = divmod(k, local)
    first = (step * shard.num_shards + shard.shards[turn]) * size
    positions = first + np.arange(size, dtype=np.int64)
    rows, keys, uses = [], [], []
    for epoch in np.unique(positions // n):
      if epoch not in epochs:
        epochs = {e: v for e, v in epochs.items() if e >= epoch - 1}
        epochs[epoch] = _plan_epoch(order, block_ids, shard, int(epoch))
      table, num_uses = epochs[epoch]
      mine = table[positions[positions // n == epoch] - epoch * n]
      blocks = np.unique(block_ids[mine])
      rows.append(mine)
      keys += [(int(epoch), int(block)) for block in blocks]
      uses += [int(num_uses[block]) for block in blocks]
    yield Request((np.concatenate(rows), positions), keys, uses)
    k += 1


def _plan_epoch(
  order: Order, block_ids: np.ndarray, shard: BatchShard, epoch: int
):
  """Returns the rows of an epoch, and how many elements use each block."""
  rows, n = order.rows(epoch), len(order)
  positions = epoch * n + np.arange(n)
  size, total = shard.batch_size, shard.num_shards
  element = positions // size  # Counted over all shards.
  mine = np.isin(element % total, shard.shards)
  mine &= element // total >= shard.start_step
  # A shard that several replicas take is yielded several times.
  times = np.bincount(np.asarray(shard.shards), minlength=total)
  num_blocks = int(block_ids[-1]) + 1
  pairs = np.unique(element[mine] * num_blocks + block_ids[rows[mine]])
  weights = times[(pairs // num_blocks) % total]
  uses = np.bincount(pairs % num_blocks, weights, minlength=num_blocks)
  return rows, uses.astype(np.int64)
