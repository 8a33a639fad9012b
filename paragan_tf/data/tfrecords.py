"""Where the records of TFRecord files lie, read off their headers.

A record is its length (8 bytes), a checksum of the length (4), the payload and
a checksum of that (4), all little endian. From one header follows where the
next one is, so a file is walked through without looking at its payloads.
"""

import contextlib
import functools
import mmap
import os
import struct
from typing import Callable, Iterator, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_BLOCK_BYTES = 1 << 24
_PACKED = {b"\x1f\x8b": "gzip", b"\x78\x9c": "zlib", b"\x28\xb5": "zstd"}


def scan(paths: Sequence[str]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns where each record lies: `(shard, offset, size)`, each `[n]`.

  `shard` is the place of its file in `paths` (int32), `offset` where its
  payload begins in that file, and `size` the bytes of the payload (int64).
  """
  files = [_scan_file(path) for path in paths]
  nothing = np.zeros([2, 0], np.int64)
  starts, sizes = np.concatenate([nothing, *files], 1)
  counts = [file.shape[1] for file in files]
  shard = np.repeat(np.arange(len(files), dtype=np.int32), counts)
  return shard, starts + _HEADER.size, sizes


def _scan_file(path: str) -> np.ndarray:
  """Returns where the headers begin and what lengths they say, `[2, n]`."""
  parts = [np.zeros([2, 0], np.int64)]
  with _opened(path) as (read, end):
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
      parts.append(np.array([starts, lengths], np.int64))
      at = after
  return np.concatenate(parts, 1)


def _walk(
  block: memoryview, at: int
) -> Tuple[List[int], List[int], List[int], int]:
  """Goes from header to header in the block that begins `at` this byte.

  Returns where they begin, their lengths, their checksums, and where the next
  one begins.
  """
  starts: List[int] = []
  lengths: List[int] = []
  checksums: List[int] = []
  beyond = _HEADER.size + _FOOTER_BYTES
  place, last, unpack = 0, len(block) - _HEADER.size, _HEADER.unpack_from
  # The speed is that of this loop, so checksums wait until they are an array.
  while place <= last:
    length, checksum = unpack(block, place)
    starts.append(at + place)
    lengths.append(length)
    checksums.append(checksum)
    place += length + beyond
  return starts, lengths, checksums, at + place


def _check_headers(path, starts, lengths, checksums) -> None:
  expected = _masked_crc(np.array(lengths, "<u8"))
  wrong = np.flatnonzero(expected != np.array(checksums, np.uint32))
  if not len(wrong):
    return
  start = starts[wrong[0]]
  remedy = "it is damaged; copy it again" if start else _not_one(path)
  raise ValueError(
    f"'{path}' has no TFRecord header at byte {start:,}: {remedy}."
  )


def _not_one(path: str) -> str:
  """Says what a file may be whose very first bytes are wrong."""
  with _opened(path) as (read, _):
    packed = _PACKED.get(bytes(read(0)[:2]))
  if packed:
    return f"it is compressed with {packed}; unpack it first"
  return "it is another kind of file or damaged; match TFRecord files only"


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Tuple[Callable[[int], memoryview], int]]:
  """Gives a function from a place to the block from there on, and the size."""
  try:
    if os.path.isfile(path):
      with open(path, "rb") as f:
        yield _mapped(f)
    else:
      with tf.io.gfile.GFile(path, "rb") as f:
        yield functools.partial(_fetched, f), f.size()
  except (OSError, tf.errors.OpError) as e:
    raise ValueError(f"'{path}' cannot be read ({e}): check its path.") from e


def _mapped(file) -> Tuple[Callable[[int], memoryview], int]:
  size = os.fstat(file.fileno()).st_size
  if not size:  # Which cannot be mapped.
    return lambda at: memoryview(b""), 0
  mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  if hasattr(mmap, "MADV_RANDOM"):  # Else the payloads are read, too.
    mapped.madvise(mmap.MADV_RANDOM)
  view = memoryview(mapped)
  return lambda at: view[at : at + _BLOCK_BYTES], size


def _fetched(file, at: int) -> memoryview:
  file.seek(at)
  return memoryview(file.read(_BLOCK_BYTES))


def _masked_crc(values: np.ndarray) -> np.ndarray:
  """Returns TFRecord's checksum of each 8 bytes: a CRC-32C, turned and moved.

  The CRC is linear over bits: each byte's part stands in a table of its place.
  """
  tables = _tables()
  rows = values.view(np.uint8).reshape([-1, 8])
  # A CRC-32C begins with 32 ones, which the first four bytes meet.
  crc = functools.reduce(
    np.bitwise_xor,
    (tables[i][rows[:, i] ^ (0xFF if i < 4 else 0)] for i in range(8)),
  )
  crc = ~crc
  return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


@functools.cache
def _tables() -> List[np.ndarray]:
  """Returns for each place of 8 what a byte there adds to the CRC-32C."""
  table = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    table = (table >> 1) ^ np.where(table & 1, 0x82F63B78, 0).astype(np.uint32)
  tables = [table]
  for _ in range(7):  # One more byte behind it.
    last = tables[0]
    tables.insert(0, table[last & 0xFF] ^ (last >> 8))
  return tables
