"""Lists the images of a folder, their classes, and broken files.

folder/a.jpg                   images without labels
folder/cat/a.jpg, dog/b.png    each sub-folder is a class
"""

import collections
import concurrent.futures
import os
import stat
import struct
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from paragan_tf.data import image_errors, image_headers

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_PNG_END = b"IEND\xaeB`\x82"
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
_NUM_THREADS = 16
_HEAD_BYTES = 1024  # Its size is among them, unless a preview comes first.
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
  """Lists JPEG, PNG, WebP and BMP files and checks both ends of each.

  Files of a class may be in folders within its folder. Hidden files are left
  out.

  Args:
    path: The folder.
    broken: `refuse` (an error) or `skip` files that are cut short or no images;
      the content decides, not the extension.
    decode: Whether to decode each file, too; only this finds damage in the
      middle. It takes as long as an epoch without training.
  """
  if broken not in ("refuse", "skip"):
    raise ValueError(f"`broken` must be 'refuse' or 'skip', got {broken!r}.")
  if not os.path.isdir(path):
    raise ValueError(f"`path` must be a folder, got '{path}': not there.")
  root = os.path.abspath(path)
  files = _find_images(root)
  errors = _check_files(files, decode)
  bad = tuple((f, e) for f, e in zip(files, errors) if e is not None)
  good = tuple(f for f, e in zip(files, errors) if e is None)
  if bad and (broken == "refuse" or not good):
    raise ValueError(_describe_refusal(root, bad, len(files)))
  labels, names = _find_labels(root, good)
  return Listing(good, labels, names, bad)


def _find_images(root: str) -> List[str]:
  """Returns the sorted paths of files with an image's extension."""
  files = sorted(_walk(root))
  images = [f for f in files if f.lower().endswith(_EXTENSIONS)]
  if not images:
    raise ValueError(
      f"'{root}' must hold images ({', '.join(_EXTENSIONS)}), found "
      f"{_summarize(files)}: name the folder of the images or of the classes."
    )
  direct = [f for f in images if os.path.dirname(f) == root]
  if 0 < len(direct) < len(images):
    raise ValueError(
      f"'{root}' must hold images or folders of images, not both: move "
      f"'{os.path.basename(direct[0])}' into a class or away."
    )
  return images


def _walk(root: str) -> Iterator[str]:
  """Yields files; follows links to folders in the top folder only."""
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


def _summarize(files: Sequence[str]) -> str:
  """Returns a summary of the types of some files."""
  extensions = collections.Counter(
    os.path.splitext(file)[1].lower() or "no ending" for file in files
  )
  kinds = (f"{num} of {ext}" for ext, num in extensions.most_common(3))
  return (
    f"{len(files)} other files ({', '.join(kinds)})" if files else "nothing"
  )


def _find_labels(
  root: str, files: Sequence[str]
) -> Tuple[Optional[np.ndarray], Tuple[str, ...]]:
  """Returns the class ids and the names of the classes."""
  paths = [os.path.relpath(file, root).split(os.sep) for file in files]
  if len(paths[0]) == 1:
    return None, ()
  names = sorted({path[0] for path in paths})
  ids = {name: i for i, name in enumerate(names)}
  return np.array([ids[path[0]] for path in paths], np.int32), tuple(names)


def describe_broken(bad: Sequence[Tuple[str, str]], root: str = "") -> str:
  """Returns the first broken files with reasons, and counts the rest."""
  first = (
    f"'{os.path.relpath(file, root) if root else file}' ({reason})"
    for file, reason in bad[:_NUM_NAMED]
  )
  more = len(bad) - _NUM_NAMED
  return ", ".join(first) + (f" and {more:,} more" if more > 0 else "")


def _describe_refusal(
  root: str, bad: Sequence[Tuple[str, str]], total: int
) -> str:
  if len(bad) == total:
    remedy = "copy them again"
  else:
    remedy = "fix them, or leave them out with `broken='skip'`"
  return (
    f"{len(bad):,} of {total:,} images in '{root}' are broken: "
    f"{describe_broken(bad, root)}; {remedy}."
  )


def _check_files(files: Sequence[str], decode: bool) -> List[Optional[str]]:
  # Threads, because each check waits for the disk.
  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    return list(pool.map(lambda file: _check_file(file, decode), files))


def _check_file(file: str, decode: bool) -> Optional[str]:
  """Returns why a file is broken, or `None` if it looks like an image."""
  try:
    if not stat.S_ISREG(os.stat(file).st_mode):
      return "no regular file"
    with open(file, "rb") as f:
      error = _check_ends(f, os.fstat(f.fileno()).st_size)
      if decode and error is None:
        error = image_errors.find_decode_error(_read_all(f))
      return error
  except OSError as e:
    return f"cannot be read: {e.strerror}"


def _check_ends(f, size: int) -> Optional[str]:
  head = f.read(_HEAD_BYTES)
  if not head:
    return "empty"
  try:
    image_headers.check_size(head)
  except ValueError as e:
    return str(e)
  if head.startswith(b"\xff\xd8\xff"):
    return _check_jpeg(f, size)
  if head.startswith(b"\x89PNG\r\n\x1a\n"):
    f.seek(-min(size, len(_PNG_END)), os.SEEK_END)
    whole = f.read() == _PNG_END or _PNG_END in _read_all(f)
    return None if whole else "cut short: PNG without IEND"
  if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
    return _check_length("WebP", struct.unpack_from("<I", head, 4)[0] + 8, size)
  if head[:2] == b"BM" and len(head) >= 6:
    return _check_length("BMP", struct.unpack_from("<I", head, 2)[0], size)
  return f"no JPEG, PNG, WebP or BMP: begins with {head[:4].hex(' ')}"


def _check_length(kind: str, length: int, size: int) -> Optional[str]:
  """Compares the length in a file's header with its size, the minimum."""
  if size >= length:
    return None
  return f"cut short: {kind} of {length:,} bytes has {size:,}"


def _check_jpeg(f, size: int) -> Optional[str]:
  f.seek(size - 2)
  # Bytes may follow the image, so a file that ends otherwise is read.
  if f.read() == b"\xff\xd9" or _has_end(_read_all(f)):
    return None
  return "cut short: JPEG without its end marker"


def _has_end(data: bytes) -> bool:
  """Returns whether an end marker follows the first scan of a JPEG.

  An end marker before the scan is that of a preview, in its own segment; within
  a scan the byte 0xff is escaped.
  """
  position = 2
  while position + 4 <= len(data) and data[position] == 0xFF:
    marker, length = struct.unpack_from(">xBH", data, position)
    if marker == _JPEG_SCAN:
      return data.find(bytes([0xFF, _JPEG_END]), position) >= 0
    position += 1 if marker == 0xFF else 2 + length  # 0xff may be repeated.
  return False


def _read_all(f) -> bytes:
  f.seek(0)
  return f.read()
