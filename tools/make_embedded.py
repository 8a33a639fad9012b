"""Makes the image set of the package: Fashion-MNIST's test split.

    python -m tools.make_embedded

The originals come from the Debian package `dataset-fashion-mnist`.
"""

import gzip
import os
import sys

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string(
  "source_dir",
  "/usr/share/datasets/fashion-mnist",
  "Folder of the idx .gz files; the default is where Debian's package "
  "`dataset-fashion-mnist` puts them.",
)
flags.DEFINE_string(
  "target", "paragan_tf/data/files/fashion_mnist.npz", "File to write."
)

LABEL_NAMES = (
  "T-shirt/top",
  "Trouser",
  "Pullover",
  "Dress",
  "Coat",
  "Sandal",
  "Shirt",
  "Sneaker",
  "Bag",
  "Ankle boot",
)


def read_idx(path: str) -> np.ndarray:
  """Reads a gzipped idx file of bytes.

  The format: two zero bytes, the type (8 is uint8), the number of axes, then
  the length of each axis as a big-endian int32, then the values.
  """
  with gzip.open(path, "rb") as f:
    data = f.read()
  if data[:3] != b"\x00\x00\x08":
    raise ValueError(
      f"`{path}` must be an idx file of bytes (start with 00 00 08), it starts "
      f"with {data[:3].hex(' ')}: install Debian's `dataset-fashion-mnist`."
    )
  num_axes = data[3]
  shape = np.frombuffer(data, ">i4", num_axes, offset=4)
  return np.frombuffer(data, np.uint8, offset=4 + 4 * num_axes).reshape(shape)


def read_split(source_dir: str, split: str):
  """Returns `(images, labels)` of `split`, "train" or "t10k", as uint8."""
  paths = [
    os.path.join(source_dir, f"{split}-{kind}-ubyte.gz")
    for kind in ("images-idx3", "labels-idx1")
  ]
  for path in paths:
    if not os.path.exists(path):
      raise FileNotFoundError(
        f"`--source_dir` must hold {os.path.basename(path)}, and "
        f"{source_dir!r} does not: install Debian's package "
        "`dataset-fashion-mnist`, or set the folder that has its files."
      )
  images, labels = map(read_idx, paths)
  return images, labels


def main(argv):
  """Writes `--target`, with the same bytes in every run."""
  del argv
  try:
    images, labels = read_split(FLAGS.source_dir, "t10k")
  except (EOFError, OSError, ValueError) as error:
    print(error, file=sys.stderr)
    sys.exit(2)
  # NumPy dates members 1980, so the file depends on its content only.
  np.savez_compressed(
    FLAGS.target,
    images=images,
    labels=labels,
    label_names=np.array(LABEL_NAMES),
  )
  size = os.path.getsize(FLAGS.target)
  print(f"{FLAGS.target}: {len(images)} images, {size / 1e6:.1f} MB")


if __name__ == "__main__":
  app.run(main)
