"""What the header of an encoded image says, before it is decoded."""

import struct
from typing import Iterator, Optional, Tuple

# As many as Pillow allows; a bomb of few bytes may declare far more.
MAX_PIXELS = 178_956_970
MIN_BYTES = 24  # The smallest image, a GIF, has more.
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_END, _SCAN = 0xD9, 0xDA
_NO_FRAMES = (0xC4, 0xC8, 0xCC)  # Tables among the markers of frames.


def is_jpeg(data: bytes) -> bool:
  """Returns whether this is the begin of a JPEG."""
  return data[:3] == _JPEG


def read_size(data: bytes) -> Optional[Tuple[int, int]]:
  """Returns width and height, `None` where the header does not say them."""
  if is_jpeg(data):
    frame = _find_frame(data)
    if frame is None:
      return None
    height, width = struct.unpack_from(">HH", data, frame[1] + 5)
    return width, height
  if data[:8] == _PNG and len(data) >= 24:
    return struct.unpack_from(">II", data, 16)
  if data[:2] == b"BM" and len(data) >= 26:
    width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height)
  if data[:3] == b"GIF" and len(data) >= 10:
    return struct.unpack_from("<HH", data, 6)
  if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
    return _read_webp_size(data)
  return None


def check_size(data: bytes) -> None:
  """Raises a `ValueError` if an image has more pixels than memory is for."""
  size = read_size(data)
  if size is not None and size[0] * size[1] > MAX_PIXELS:
    raise ValueError(
      f"{size[0]}x{size[1]} pixels, more than {MAX_PIXELS:,} are refused"
    )


def is_progressive(data: bytes) -> bool:
  """Returns whether a JPEG has several scans of the whole image."""
  frame = _find_frame(data)
  return frame is not None and frame[0] in (0xC2, 0xC6, 0xCA, 0xCE)


def insert_before_end(data: bytes, filler: bytes) -> bytes:
  """Returns a JPEG with bytes before its end marker, if it has one."""
  end = data.rfind(bytes([0xFF, _END]))
  return data if end < 0 else data[:end] + filler + data[end:]


def _find_frame(data: bytes) -> Optional[Tuple[int, int]]:
  for marker, position in _segments(data):
    if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
      return (marker, position) if position + 9 <= len(data) else None
  return None


def _segments(data: bytes) -> Iterator[Tuple[int, int]]:
  """Yields markers and positions of a JPEG's segments before its pixels."""
  position = 2
  while position + 4 <= len(data) and data[position] == 0xFF:
    marker, length = struct.unpack_from(">xBH", data, position)
    if marker == 0xFF:  # It may be repeated.
      position += 1
      continue
    yield marker, position
    if marker == _SCAN:
      return
    position += 2 + length


def _read_webp_size(data: bytes) -> Optional[Tuple[int, int]]:
  kind = data[12:16]
  if kind == b"VP8 ":
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF
  if kind == b"VP8L":
    (bits,) = struct.unpack_from("<I", data, 21)
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
  if kind == b"VP8X":
    width = int.from_bytes(data[24:27], "little")
    return width + 1, int.from_bytes(data[27:30], "little") + 1
  return None
