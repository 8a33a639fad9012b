"""A folder of images: which there are, of which class, and which are broken.

folder/a.jpg                   images without labels
folder/cat/a.jpg, dog/b.png    each sub-folder is a class
"""

import collections
import concurrent.futures
import os
import struct
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from paragan_tf.data import flaws

_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_PNG_END = b"IEND\xaeB`\x82"
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
_NUM_THREADS = 16
_NUM_NAMED = 3


class Listing(NamedTuple):
  """The images of a folder.

  Attributes:
    files: Full paths, sorted.
    labels: int32 class ids of `files`, or `None` if there are no sub-folders.
    label_names: Names of the sub-folders with images, sorted.
    broken: `(file, reason)` of images that were left out.
  """

  files: Tuple[str, ...]
  labels: Optional[np.ndarray]
  label_names: Tuple[str, ...]
  broken: Tuple[Tuple[str, str], ...]


def list_images(
  path: str, broken: str = "refuse", decode: bool = False
) -> Listing:
  """Lists JPEG, PNG, WebP and BMP files and looks at both ends of each.

  Files of a class may lie deeper than its folder. Hidden files are left out.

  Args:
    path: The folder.
    broken: `refuse` (an error) or `skip` (left out) images that are cut short
      or something else; the content decides, not the ending.
    decode: Whether to decode each of them, too: damage in the middle shows in
      no other way. It takes as long as an epoch without training.
  """
  if broken not in ("refuse", "skip"):
    raise ValueError(f"`broken` must be 'refuse' or 'skip', got {broken!r}.")
  if not os.path.isdir(path):
    raise ValueError(f"`path` must be a folder, got '{path}': not there.")
  root = os.path.abspath(path)
  files = _images(root)
  reasons = _reasons(files, decode)
  bad = tuple((f, r) for f, r in zip(files, reasons) if r is not None)
  good = tuple(f for f, r in zip(files, reasons) if r is None)
  if bad and (broken == "refuse" or not good):
    raise ValueError(_refusal(root, bad, len(files)))
  labels, names = _labels(root, good)
  return Listing(good, labels, names, bad)


def _images(root: str) -> List[str]:
  """Returns the sorted paths of what is called an image."""
  files = sorted(_walk(root))
  images = [f for f in files if f.lower().endswith(_ENDINGS)]
  if not images:
    raise ValueError(
      f"'{root}' must hold images ({', '.join(_ENDINGS)}), found "
      f"{_summary(files)}: name the folder of the images or of the classes."
    )
  direct = [f for f in images if os.path.dirname(f) == root]
  if 0 < len(direct) < len(images):
    raise ValueError(
      f"'{root}' must hold images or folders of images, not both: move "
      f"'{os.path.basename(direct[0])}' into a class or away."
    )
  return images


def _walk(root: str) -> Iterator[str]:
  """Yields files; links to folders lead on from the top folder only."""
  for entry in os.scandir(root):
    if entry.name.startswith("."):
      continue
    if not entry.is_dir():
      yield entry.path
      continue
    for folder, folders, names in os.walk(entry.path):
      folders[:] = [name for name in folders if not name.startswith(".")]
      yield from (
        os.path.join(folder, name) for name in names if not name.startswith(".")
      )


def _summary(files: Sequence[str]) -> str:
  """Says what kinds of files there are."""
  endings = collections.Counter(
    os.path.splitext(file)[1].lower() or "no ending" for file in files
  )
  kinds = (f"{num} of {ending}" for ending, num in endings.most_common(3))
  return (
    f"{len(files)} other files ({', '.join(kinds)})" if files else "nothing"
  )


def _labels(
  root: str, files: Sequence[str]
) -> Tuple[Optional[np.ndarray], Tuple[str, ...]]:
  """Returns the class ids and the names that they stand for."""
  parts = [os.path.relpath(file, root).split(os.sep) for file in files]
  if len(parts[0]) == 1:
    return None, ()
  names = sorted({part[0] for part in parts})
  ids = {name: i for i, name in enumerate(names)}
  return np.array([ids[part[0]] for part in parts], np.int32), tuple(names)


def named(bad: Sequence[Tuple[str, str]], root: str = "") -> str:
  """Returns the first of some files with their reasons, and counts the rest."""
  first = (
    f"'{os.path.relpath(file, root) if root else file}' ({reason})"
    for file, reason in bad[:_NUM_NAMED]
  )
  more = len(bad) - _NUM_NAMED
  return ", ".join(first) + (f" and {more:,} more" if more > 0 else "")


def _refusal(root: str, bad: Sequence[Tuple[str, str]], total: int) -> str:
  if len(bad) == total:
    remedy = "copy them again"
  else:
    remedy = "mend them, or leave them out with `broken='skip'`"
  return (
    f"{len(bad):,} of {total:,} images in '{root}' are broken: "
    f"{named(bad, root)}; {remedy}."
  )


def _reasons(files: Sequence[str], decode: bool) -> List[Optional[str]]:
  # Threads, because each look waits for the disk.
  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    return list(pool.map(lambda file: _reason(file, decode), files))


def _reason(file: str, decode: bool) -> Optional[str]:
  """Returns why a file is no whole image, or `None` if it looks like one."""
  try:
    with open(file, "rb") as f:
      flaw = _flaw(f, os.fstat(f.fileno()).st_size)
      return flaws.of_bytes(_all(f)) if decode and flaw is None else flaw
  except OSError as e:
    return f"cannot be read: {e.strerror}"


def _flaw(f, size: int) -> Optional[str]:
  head = f.read(12)
  if not head:
    return "empty"
  if head.startswith(b"\xff\xd8\xff"):
    return _jpeg_flaw(f, size)
  if head.startswith(b"\x89PNG\r\n\x1a\n"):
    f.seek(-min(size, len(_PNG_END)), os.SEEK_END)
    whole = f.read() == _PNG_END or _PNG_END in _all(f)
    return None if whole else "cut short: PNG without IEND"
  if head[:4] == b"RIFF" and head[8:] == b"WEBP":
    return _length_flaw("WebP", struct.unpack_from("<I", head, 4)[0] + 8, size)
  if head[:2] == b"BM" and len(head) >= 6:
    return _length_flaw("BMP", struct.unpack_from("<I", head, 2)[0], size)
  return f"no JPEG, PNG, WebP or BMP: begins with {head[:4].hex(' ')}"


def _length_flaw(kind: str, length: int, size: int) -> Optional[str]:
  """Compares the length that a file says with its own; it may be longer."""
  if size >= length:
    return None
  return f"cut short: {kind} of {length:,} bytes has {size:,}"


def _jpeg_flaw(f, size: int) -> Optional[str]:
  f.seek(size - 2)
  # Something may follow the image, so only a file that ends otherwise is read.
  if f.read() == b"\xff\xd9" or _has_end(_all(f)):
    return None
  return "cut short: JPEG without its end marker"


def _has_end(data: bytes) -> bool:
  """Tells whether an end marker follows the first scan of a JPEG.

  One before it is a preview's, in a segment of its own; within a scan the byte
  0xff is escaped.
  """
  place = 2
  while place + 4 <= len(data) and data[place] == 0xFF:
    marker, length = struct.unpack_from(">xBH", data, place)
    if marker == _JPEG_SCAN:
      return data.find(bytes([0xFF, _JPEG_END]), place) >= 0
    place += 1 if marker == 0xFF else 2 + length  # 0xff may be repeated.
  return False


def _all(f) -> bytes:
  f.seek(0)
  return f.read()
