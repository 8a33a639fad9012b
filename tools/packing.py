"""The folder that sharded TFRecords are written to, one file at a time.

arguments.json              of the first start; others are refused
parts/FILE.json             the content of FILE, saved when FILE is complete
manifest.json, index.npz    at the end, in place of `parts`
"""

import hashlib
import json
import os
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from tools import cli, encoded_images

# The content of a file: count, bytes, sha256, lists of offsets, sizes, labels,
# and of names and reasons of broken images, which are left out.
Content = Dict[str, Any]

_HEADER_BYTES, _FOOTER_BYTES = 12, 4


def check_arguments(output: str, arguments: Dict[str, Any]) -> None:
  """Refuses a folder with other files, or one begun with other arguments."""
  path = os.path.join(output, "arguments.json")
  if not _gfile().exists(path):
    if _gfile().exists(output) and _gfile().glob(os.path.join(output, "*")):
      raise ValueError(
        f"`--output` must be a new or empty folder, or one to resume, got "
        f"'{output}': name another."
      )
    return
  begun = _read_json(path)
  differences = [
    f"`{name}` must be {begun[name]} as it was then, got {value}"
    for name, value in arguments.items()
    if name in begun and begun[name] != value
  ]
  if differences:
    raise ValueError(
      f"'{output}' was begun with other arguments: {'; '.join(differences)}; "
      "give the same ones or name another `--output`."
    )


def save_arguments(output: str, arguments: Dict[str, Any]) -> None:
  """Checks the arguments, and saves them for the next start."""
  check_arguments(output, arguments)
  _write_json(os.path.join(output, "arguments.json"), arguments)


def save_content(output: str, file: str, content: Content) -> None:
  """Saves the content of a file, for the next start."""
  _write_json(_part_path(output, file), content)


def load_content(output: str, file: str) -> Optional[Content]:
  """Returns the saved content of a file, `None` if the file is incomplete."""
  path, part = os.path.join(output, file), _part_path(output, file)
  if not _gfile().exists(path) or not _gfile().exists(part):
    return None
  content = _read_json(part)
  return content if _gfile().stat(path).length == content["bytes"] else None


def write_shard(
  output: str, file: str, images: encoded_images.Images
) -> Content:
  """Writes one file, completely or not at all."""
  tf = cli.import_quietly("tensorflow")
  path = os.path.join(output, file)
  part = f"{path}.part"
  try:
    sizes, labels, broken = _write_records(tf, part, images)
    sha256 = _sha256(part)
    tf.io.gfile.rename(part, path, overwrite=True)
  except (OSError, tf.errors.OpError) as e:
    # TensorFlow's errors do not pass between processes.
    raise ValueError(
      f"'{path}' cannot be written ({e}): fix that and start again."
    ) from None
  sizes_of_records = np.array(sizes, np.int64) + _HEADER_BYTES + _FOOTER_BYTES
  ends = np.cumsum(sizes_of_records)
  return {
    "count": len(sizes),
    "bytes": int(sizes_of_records.sum()),
    "sha256": sha256,
    "offsets": (ends - sizes_of_records + _HEADER_BYTES).tolist(),
    "sizes": sizes,
    "labels": labels,
    "broken": broken,
  }


def finish(
  output: str, images: encoded_images.Images, contents: Dict[str, Content]
) -> None:
  """Writes the manifest of all files, and deletes the parts."""
  shards = cli.import_quietly("paragan_tf.data.shards")

  def column(name):
    return [x for content in contents.values() for x in content[name]]

  counts = [content["count"] for content in contents.values()]
  has_labels = None not in column("labels")
  index = shards.Index(
    tuple(contents),
    np.repeat(np.arange(len(counts), dtype=np.int32), counts),
    np.array(column("offsets"), np.int64),
    np.array(column("sizes"), np.int64),
    np.array(column("labels"), np.int32) if has_labels else None,
    images.label_names if has_labels else (),
    shards.Features(),
  )
  files = tuple(
    shards.Shard(file, *(content[x] for x in ("count", "bytes", "sha256")))
    for file, content in contents.items()
  )
  shards.write_manifest(output, shards.Manifest(images.title, files, index))
  _gfile().rmtree(os.path.dirname(_part_path(output, "")))


def _write_records(tf, path: str, images: encoded_images.Images):
  """Returns the size of each record, the labels, and the broken images."""
  image_errors = cli.import_quietly("paragan_tf.data.image_errors")
  sizes: List[int] = []
  labels: List[Optional[int]] = []
  broken: List[Tuple[str, str]] = []
  with tf.io.TFRecordWriter(path) as writer:
    for image in images:
      flaw = image_errors.find_decode_error(image.data)
      if flaw is not None:
        broken.append((image.name, flaw))
        continue
      record = _make_record(tf, image)
      writer.write(record)
      sizes.append(len(record))
      labels.append(None if image.label is None else int(image.label))
  return sizes, labels, broken


def _make_record(tf, image: encoded_images.Image) -> bytes:
  def make_feature(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

  features = {
    "image": make_feature(image.data),
    "name": make_feature(os.fsencode(image.name)),
  }
  if image.label is not None:
    features["label"] = tf.train.Feature(
      int64_list=tf.train.Int64List(value=[image.label])
    )
  example = tf.train.Example(features=tf.train.Features(feature=features))
  # Otherwise the order of features, and so the files, differ between runs.
  return example.SerializeToString(deterministic=True)


def _sha256(path: str) -> str:
  digest = hashlib.sha256()
  with _gfile().GFile(path, "rb") as f:
    while block := f.read(1 << 24):
      digest.update(block)
  return digest.hexdigest()


def _part_path(output: str, file: str) -> str:
  return os.path.join(output, "parts", f"{file}.json")


def _read_json(path: str) -> Dict[str, Any]:
  with _gfile().GFile(path, "rb") as f:
    return json.loads(f.read())


def _write_json(path: str, content: Dict[str, Any]) -> None:
  data = json.dumps(content).encode()
  try:
    cli.import_quietly("paragan_tf.outputs.records").write_file(path, data)
  except (OSError, cli.import_quietly("tensorflow").errors.OpError) as e:
    raise ValueError(
      f"`--output` must be a folder that can be written, and '{path}' cannot "
      f"({str(e).splitlines()[0]}): name another."
    ) from e


def _gfile():
  return cli.import_quietly("tensorflow").io.gfile
