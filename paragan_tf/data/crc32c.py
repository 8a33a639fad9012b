"""TFRecord's checksums, of many records at once.

A CRC is linear over bits, but for what it starts with. So each byte adds a term
that depends on its distance from the end, and of two halves

    crc(a + b) = shift(crc(a), len(b)) ^ crc(b)

Records are cut into chunks of one length, aligned at their ends: zeros before a
record add nothing.
"""

import functools
from typing import Sequence

import numpy as np

_CHUNK = 256
_ONES = np.uint32(0xFFFFFFFF)  # What a CRC starts with.


def masked(data: bytes, starts: Sequence[int], sizes: Sequence[int]):
  """Returns TFRecord's checksum of each range of `data`, uint32 `[n]`."""
  lengths = np.asarray(sizes, np.int64)
  counts = (lengths + _CHUNK - 1) // _CHUNK
  ends = np.cumsum(counts)
  chunks = np.zeros([ends[-1] * _CHUNK], np.uint8)
  array = np.frombuffer(data, np.uint8)
  for start, size, end in zip(starts, lengths, ends):
    chunks[end * _CHUNK - size : end * _CHUNK] = array[start : start + size]
  crc = _combine(_plain(chunks.reshape([-1, _CHUNK])), counts)
  return _mask(~(crc ^ _shift_ones(lengths)))


def masked_numbers(values: np.ndarray) -> np.ndarray:
  """Returns the checksum of each number of 8 bytes."""
  tables = _tables()[-8:]
  rows = values.view(np.uint8).reshape([-1, 8])
  # A CRC-32C starts with 32 ones, which are added to the first four bytes.
  crc = functools.reduce(
    np.bitwise_xor,
    (tables[i][rows[:, i] ^ (0xFF if i < 4 else 0)] for i in range(8)),
  )
  return _mask(~crc)


def _mask(crc: np.ndarray) -> np.ndarray:
  return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


def _plain(chunks: np.ndarray) -> np.ndarray:
  """Returns the CRC of each chunk, `[n, _CHUNK]`, that starts with zero."""
  tables = _tables()
  crc = np.zeros([len(chunks)], np.uint32)
  for column, table in zip(np.ascontiguousarray(chunks.T), tables):
    crc ^= table[column]
  return crc


def _combine(crc: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Returns the CRC of each record from those of its chunks."""
  width = 1 << int(max(counts.max() - 1, 0)).bit_length()
  aligned = np.zeros([len(counts), width], np.uint32)
  aligned[np.arange(width) >= width - counts[:, None]] = crc
  level = 0
  while aligned.shape[1] > 1:
    first = _apply(_shift_chunks(level), aligned[:, 0::2])
    aligned = first ^ aligned[:, 1::2]
    level += 1
  return aligned[:, 0]


def _shift_ones(sizes: np.ndarray) -> np.ndarray:
  """Returns what the start adds to the CRC of each record."""
  crc = np.full([len(sizes)], _ONES)
  for bit in range(int(sizes.max()).bit_length()):
    shifted = _apply(_shift_bytes(bit), crc)
    crc = np.where(sizes >> bit & 1, shifted, crc)
  return crc


def _apply(tables: np.ndarray, crc: np.ndarray) -> np.ndarray:
  """Applies a linear map, as a table for each byte, to CRCs."""
  parts = (tables[i][crc >> (8 * i) & 0xFF] for i in range(4))
  return functools.reduce(np.bitwise_xor, parts)


@functools.cache
def _shift_bytes(power: int) -> np.ndarray:
  """Returns the map that appends `2 ** power` zero bytes, `[4, 256]`."""
  if power:
    half = _shift_bytes(power - 1)
    return _apply(half, half)
  numbers = np.arange(256, dtype=np.uint32)
  values = np.stack([numbers << (8 * i) for i in range(4)])
  return _tables()[-1][values & 0xFF] ^ (values >> 8)


def _shift_chunks(level: int) -> np.ndarray:
  return _shift_bytes(level + (_CHUNK - 1).bit_length())


@functools.cache
def _tables() -> np.ndarray:
  """Returns for each position in a chunk the terms of its byte."""
  table = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    table = (table >> 1) ^ np.where(table & 1, 0x82F63B78, 0).astype(np.uint32)
  tables = [table]
  for _ in range(_CHUNK - 1):  # One more byte behind it.
    tables.append(table[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
  return np.stack(tables[::-1])
