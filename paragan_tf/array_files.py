"""Reads arrays from npz and npy files, and no more than their size allows.

What a header declares is compared with the bytes that are there before memory
is taken, and nothing is ever unpickled:

    arrays = read("photos.npz")       # or an open file; {name: array}
    array = read_one("photos.npy")
"""

import io
import math
import os
import stat
import tokenize
import zipfile
import zlib
from typing import Any, BinaryIO, Dict, Tuple, Union

import numpy as np

File = Union[str, BinaryIO, Any]
_UNREADABLE = (
  zipfile.BadZipFile,
  zlib.error,
  ArithmeticError,
  AttributeError,
  EOFError,
  LookupError,
  MemoryError,
  NotImplementedError,
  OSError,
  RuntimeError,
  SyntaxError,
  TypeError,
  tokenize.TokenError,
)
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def read(file: File) -> Dict[str, np.ndarray]:
  """Returns the arrays of an npz file; what is wrong is a `ValueError`."""
  return _read(file, _read_members)


def read_one(file: File) -> np.ndarray:
  """Returns the array of an npy file; what is wrong is a `ValueError`."""
  return _read(file, _read_array)


def check_regular(path: str) -> None:
  """Raises a `ValueError` for a pipe or device, which may never end.

  Folders, addresses and what does not exist pass: others name them better.
  """
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError):
    return
  if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
    raise ValueError(
      f"'{path}' must be a regular file, and it is a pipe, socket or device: "
      "copy its content into a file."
    )


def _read(file: File, read_fn) -> Any:
  try:
    if not isinstance(file, str):
      return read_fn(file)
    check_regular(file)
    with open(file, "rb") as f:
      return read_fn(f)
  except _UNREADABLE as e:
    words = " ".join(str(e).split()) or type(e).__name__
    raise ValueError(words) from e


def _read_members(file: BinaryIO) -> Dict[str, np.ndarray]:
  if file.read(6) == b"\x93NUMPY":
    raise ValueError("it is a single array, npy, and no npz file")
  file.seek(0)
  with zipfile.ZipFile(file) as members:
    left = _memory()
    for info in members.infolist():
      with members.open(info) as member:
        left -= _check(member, info.file_size, info.filename, left)
    found = {}
    for name in members.namelist():
      with members.open(name) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        found[name[:-4] if name.endswith(".npy") else name] = array
  return found


def _read_array(file: BinaryIO) -> np.ndarray:
  if file.read(4) == b"PK\x03\x04":
    raise ValueError("it is an npz file, of several arrays")
  num_bytes = file.seek(0, io.SEEK_END)
  file.seek(0)
  _check(file, num_bytes, "the array", _memory())
  file.seek(0)
  return np.lib.format.read_array(file, allow_pickle=False)


def _check(file: Any, num_bytes: int, name: str, left: int) -> int:
  """Returns the bytes of an array, whose header must be true."""
  shape, dtype, num_header = _read_header(file)
  declared = math.prod(shape) * dtype.itemsize
  if dtype.hasobject:
    raise ValueError(f"'{name}' holds Python objects, which are never loaded")
  if declared != num_bytes - num_header:
    raise ValueError(
      f"'{name}' declares {dtype.name}{list(shape)}, {declared:,} bytes, and "
      f"has {num_bytes - num_header:,}"
    )
  if declared > left:
    raise ValueError(
      f"'{name}' needs {declared / 1e9:,.1f} GB, more than this machine has"
    )
  return declared


def _read_header(file: Any) -> Tuple[Tuple[int, ...], np.dtype, int]:
  version = np.lib.format.read_magic(file)
  if version not in _HEADERS:
    raise ValueError(f"npy files of version {version} are not read")
  shape, _, dtype = _HEADERS[version](file)
  if any(size < 0 for size in shape):
    raise ValueError(f"its shape is {list(shape)}")
  return shape, dtype, file.tell()


def _memory() -> int:
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
