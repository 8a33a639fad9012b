"""Finds the records of TFRecord files by their headers.

A record is its length (8 bytes), a checksum of the length (4), the payload and
a checksum of the payload (4), all little endian. Each header leads to the next,
so a scan does not read the payloads.
"""

import contextlib
import functools
import mmap
import os
import struct
from typing import Callable, Iterator, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf import array_files
from paragan_tf.data import crc32c

_HEADER = struct.Struct("<QI")
HEADER_BYTES, FOOTER_BYTES = _HEADER.size, 4
_BLOCK_BYTES = 1 << 24
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x78\x9c": "zlib", b"\x28\xb5": "zstd"}


def scan(paths: Sequence[str]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns `(shard, offset, size)` of all records, each `[n]`.

  `shard` is the index of a record's file in `paths` (int32), `offset` the first
  byte of its payload in that file, and `size` the payload's bytes (int64).
  """
  files = [_scan_file(path) for path in paths]
  empty = np.zeros([2, 0], np.int64)
  starts, sizes = np.concatenate([empty, *files], 1)
  counts = [file.shape[1] for file in files]
  shard = np.repeat(np.arange(len(files), dtype=np.int32), counts)
  return shard, starts + HEADER_BYTES, sizes


def _scan_file(path: str) -> np.ndarray:
  """Returns the offsets of the headers and their lengths, `[2, n]`."""
  chunks = [np.zeros([2, 0], np.int64)]
  with _open_file(path) as (read, end):
    at = 0
    while at < end:
      starts, lengths, checksums, after = _walk(read(at), at)
      _check_headers(path, starts, lengths, checksums)
      if not starts or after > end:
        raise ValueError(
          f"'{path}' ends at byte {end:,}, within the record that begins at "
          f"byte {(starts or [at])[-1]:,}: it was copied or written in part; "
          "copy or make it again."
        )
      chunks.append(np.array([starts, lengths], np.int64))
      at = after
  return np.concatenate(chunks, 1)


def _walk(
  block: memoryview, at: int
) -> Tuple[List[int], List[int], List[int], int]:
  """Walks the headers of a block that begins at byte `at` of the file.

  Returns their offsets, lengths and checksums, and the offset of the next one.
  """
  starts: List[int] = []
  lengths: List[int] = []
  checksums: List[int] = []
  beyond = HEADER_BYTES + FOOTER_BYTES
  position, last, unpack = 0, len(block) - HEADER_BYTES, _HEADER.unpack_from
  # This loop determines the speed, so checksums are compared later, at once.
  while position <= last:
    length, checksum = unpack(block, position)
    starts.append(at + position)
    lengths.append(length)
    checksums.append(checksum)
    position += length + beyond
  return starts, lengths, checksums, at + position


def _check_headers(path, starts, lengths, checksums) -> None:
  expected = crc32c.masked_numbers(np.array(lengths, "<u8"))
  wrong = np.flatnonzero(expected != np.array(checksums, np.uint32))
  if not len(wrong):
    return
  start = starts[wrong[0]]
  remedy = "it is damaged; copy it again" if start else _guess_format(path)
  raise ValueError(
    f"'{path}' has no TFRecord header at byte {start:,}: {remedy}."
  )


def _guess_format(path: str) -> str:
  """Returns what a file may be that does not begin with a header."""
  with _open_file(path) as (read, _):
    compression = _COMPRESSED.get(bytes(read(0)[:2]))
  if compression:
    return f"it is compressed with {compression}; unpack it first"
  return "it is another kind of file or damaged; match TFRecord files only"


@contextlib.contextmanager
def _open_file(path: str) -> Iterator[Tuple[Callable[[int], memoryview], int]]:
  """Yields a function from an offset to the block there, and the file size."""
  array_files.check_regular(path)
  try:
    if os.path.isfile(path):
      with open(path, "rb") as f:
        yield _map_file(f)
    else:
      with tf.io.gfile.GFile(path, "rb") as f:
        yield functools.partial(_read_block, f), f.size()
  except (OSError, tf.errors.OpError) as e:
    raise ValueError(f"'{path}' cannot be read ({e}): check its path.") from e


def _map_file(file) -> Tuple[Callable[[int], memoryview], int]:
  size = os.fstat(file.fileno()).st_size
  if not size:  # An empty file cannot be mapped.
    return lambda at: memoryview(b""), 0
  mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  if hasattr(mmap, "MADV_RANDOM"):  # Otherwise payloads are read, too.
    mapped.madvise(mmap.MADV_RANDOM)
  view = memoryview(mapped)
  return lambda at: view[at : at + _BLOCK_BYTES], size


def _read_block(file, at: int) -> memoryview:
  file.seek(at)
  return memoryview(file.read(_BLOCK_BYTES))
