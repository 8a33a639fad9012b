"""Images that stay encoded in files, read in blocks while the run goes on."""

import dataclasses
import sys
import threading
from typing import (
  Callable,
  Dict,
  Iterator,
  Mapping,
  Optional,
  Tuple,
)

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import reading
from paragan_tf.data.batch_shard import Shard
from paragan_tf.data.congestion import Bounds, Plan
from paragan_tf.data.order import Order
from paragan_tf.data.prefetch_buffer import Need

WHOLE = -1  # The size of a file that is one image.


@dataclasses.dataclass(frozen=True)
class Encoded:
  """Where each image is.

  Attributes:
    paths: The files.
    path: The file of each image, an index, shape `[n]`.
    start: Its first byte there.
    size: Its bytes; -1 where the file is the image.
    labels: int32 class ids, shape `[n]`, or `None` if unknown or in the bytes.
    channels: Colors of an image.
    parse: From bytes `[b]` to encoded images and labels `[b]`, in a graph,
      where bytes are more than the image.
  """

  paths: Tuple[str, ...]
  path: np.ndarray
  start: np.ndarray
  size: np.ndarray
  labels: Optional[np.ndarray] = None
  channels: int = 3
  parse: Optional[Callable[[tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]] = None

  def __len__(self) -> int:
    return len(self.path)

  def part(self, rows: np.ndarray) -> "Encoded":
    """Returns some of the images."""
    labels = None if self.labels is None else self.labels[rows]
    return dataclasses.replace(
      self,
      path=self.path[rows],
      start=self.start[rows],
      size=self.size[rows],
      labels=labels,
    )

  def with_labels(self, labels: np.ndarray) -> "Encoded":
    """Returns the same images, numbered otherwise."""
    return dataclasses.replace(self, labels=labels)

  def blocks(self, num_bytes: int) -> np.ndarray:
    """Returns the block of each image: neighbors in a file, read at once."""
    end = self.start + self.size
    whole = self.size == WHOLE
    apart = np.ones(len(self), bool)
    # A gap, as an image that is left out, is read with its neighbors.
    apart[1:] = (
      (np.diff(self.path) != 0) | whole[1:] | (np.diff(self.start) < 0)
    )
    run = np.cumsum(apart) - 1
    origin = self.start[apart][run]
    piece = np.where(whole, 0, (end - 1 - origin) // num_bytes)
    apart[1:] |= np.diff(piece) != 0
    return np.cumsum(apart) - 1


@gin.register
@dataclasses.dataclass(frozen=True)
class Streaming:
  """How files are read.

  Attributes:
    window: Images among which to shuffle.
    num_lanes: Into how many parts a global batch is cut that share no bytes; at
      best a multiple of the number of processes.
    block_bytes: What is read at once, if there are several images in a file.
    max_readers: Reads at the same time, at most.
    max_depth: Batches to be ahead, at most.
    max_bytes: Bytes to hold, at most.
    cache_bytes: Bytes of files to keep once read, so that later epochs need not
      read them again; what does not fit is read again.
    adaptive: Whether readers and depth follow the congestion; if not, they stay
      at `min_readers` and `min_depth`.
    min_readers: Reads at the same time, at least.
    min_depth: Batches to be ahead, at least.
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
    _ = self.bounds  # Says what is wrong with them.

  @property
  def bounds(self) -> Bounds:
    """Returns the bounds of the plan."""
    return Bounds(
      Plan(self.min_readers, self.min_depth),
      Plan(self.max_readers, self.max_depth),
      self.max_bytes,
    )


class Blocks:
  """Reads blocks of an encoded set, and cuts images out of them.

  Args:
    images: The set.
    streaming: How to read.
    read_fn: What reads; tries again by itself.
  """

  def __init__(
    self,
    images: Encoded,
    streaming: Streaming,
    read_fn: Optional[reading.Patient] = None,
  ):
    _check_window(images, streaming)
    self.images = images
    self.of_row = images.blocks(streaming.block_bytes)
    self.read_fn = read_fn or reading.Patient()
    numbers = np.arange(self.of_row[-1] + 2)
    self._first = np.asarray(np.searchsorted(self.of_row, numbers))
    self._cache: Dict[int, bytes] = {}
    self._room = streaming.cache_bytes
    self._lock = threading.Lock()

  def fetch(self, key: Tuple[int, int]) -> bytes:
    """Returns the bytes of a block; `key` is its epoch and its number."""
    _, block = key
    if block in self._cache:
      return self._cache[block]
    first, last = self._first[block], self._first[block + 1] - 1
    images = self.images
    path, start = images.paths[images.path[first]], int(images.start[first])
    size: Optional[int] = None
    if images.size[first] != WHOLE:
      size = int(images.start[last] + images.size[last]) - start
    content = self.read_fn(path, start, size)
    self._keep(block, content)
    return content

  def cut(self, contents: Mapping[int, bytes], rows: np.ndarray) -> np.ndarray:
    """Returns images' bytes out of those of their blocks, as objects."""
    blocks = self.of_row[rows]
    starts = self.images.start[rows] - self.images.start[self._first[blocks]]
    sizes = self.images.size[rows]
    ends = np.where(sizes == WHOLE, sys.maxsize, starts + sizes)
    # Not one by one out of arrays: that takes longer than to cut.
    places = zip(blocks.tolist(), starts.tolist(), ends.tolist())
    found = (contents[block][start:end] for block, start, end in places)
    return np.fromiter(found, object, len(rows))

  def num_bytes(self, contents: Mapping[int, bytes], rows: np.ndarray) -> int:
    """Returns how many bytes `cut` gives."""
    sizes = self.images.size[rows]
    if WHOLE in sizes:
      return sum(map(len, self.cut(contents, rows)))
    return int(sizes.sum())

  def _keep(self, block: int, content: bytes) -> None:
    with self._lock:
      if len(content) <= self._room and block not in self._cache:
        self._room -= len(content)
        self._cache[block] = content


def _check_window(images: Encoded, streaming: Streaming) -> None:
  """Refuses a window that alone would hold more bytes than allowed."""
  num = min(streaming.window, len(images))
  expected = num * float(np.mean(images.size))
  if expected > streaming.max_bytes:
    fits = int(streaming.max_bytes / np.mean(images.size))
    raise ValueError(
      f"`Streaming.window` must fit into `max_bytes`, {streaming.max_bytes:,}, "
      f"and {num:,} images are about {expected:,.0f} bytes: take {fits:,}, or "
      "allow more."
    )


def needs(order: Order, of_row: np.ndarray, shard: Shard) -> Iterator[Need]:
  """Yields what each element needs, without end; its tag is (rows, places)."""
  n, size = len(order), shard.batch_size
  local = len(shard.shards)
  epochs: Dict[int, Tuple[np.ndarray, np.ndarray]] = {}
  k = shard.start_step * local
  while True:
    step, turn = divmod(k, local)
    first = (step * shard.num_shards + shard.shards[turn]) * size
    places = first + np.arange(size, dtype=np.int64)
    rows, keys, uses = [], [], []
    for epoch in np.unique(places // n):
      if epoch not in epochs:
        epochs = {e: v for e, v in epochs.items() if e >= epoch - 1}
        epochs[epoch] = _epoch(order, of_row, shard, int(epoch))
      table, num_uses = epochs[epoch]
      mine = table[places[places // n == epoch] - epoch * n]
      blocks = np.unique(of_row[mine])
      rows.append(mine)
      keys += [(int(epoch), int(block)) for block in blocks]
      uses += [int(num_uses[block]) for block in blocks]
    yield Need((np.concatenate(rows), places), keys, uses)
    k += 1


def _epoch(order: Order, of_row: np.ndarray, shard: Shard, epoch: int):
  """Returns the rows of an epoch, and how many elements use each block."""
  rows, n = order.rows(epoch), len(order)
  places = epoch * n + np.arange(n)
  size, total = shard.batch_size, shard.num_shards
  element = places // size  # Counted over all shards.
  mine = np.isin(element % total, shard.shards)
  mine &= element // total >= shard.start_step
  # A shard that is given to several replicas is given several times.
  times = np.bincount(np.asarray(shard.shards), minlength=total)
  num_blocks = int(of_row[-1]) + 1
  pairs = np.unique(element[mine] * num_blocks + of_row[rows[mine]])
  weights = times[(pairs // num_blocks) % total]
  uses = np.bincount(pairs % num_blocks, weights, minlength=num_blocks)
  return rows, uses.astype(np.int64)
