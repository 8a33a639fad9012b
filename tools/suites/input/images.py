"""The images that the suite `input` reads, as JPEGs in TFRecords."""

import os
from typing import List

import numpy as np

from tools import cli

RESOLUTION, LARGE_SIZE = 64, 512
IMAGES_PER_FILE = 32
_NUM_IMAGES, _NUM_LARGE = 4096, 256
PHOTO_SIZE = 128
_NUM_PHOTOS = 1024


def write_set(folder: str, size: int = RESOLUTION) -> None:
  """Writes the embedded images as JPEGs in TFRecords, with a manifest."""
  cli.import_quietly("paragan_tf.api")
  import tensorflow as tf

  from paragan_tf.data import sources

  pixels = sources.fashion().train.pixels
  num = _NUM_IMAGES if size == RESOLUTION else _NUM_LARGE
  num_files = num // IMAGES_PER_FILE
  files = [f"{folder}/fashion-{i:03d}.tfrecord" for i in range(num_files)]
  for i, path in enumerate(files):
    with tf.io.TFRecordWriter(path) as writer:
      for row in range(i, num, num_files):
        writer.write(_make_record(_encode(pixels[row], size, row)))
  _write_manifest(folder, files)


def write_photos(folder: str) -> None:
  """Writes JPEGs of 128x128, upscaled clothes and noise, as TFRecords."""
  import tensorflow as tf

  from paragan_tf.data import sources

  pixels = sources.fashion().train.pixels
  for i in range(4):
    with tf.io.TFRecordWriter(f"{folder}/photos-{i}.tfrecord") as writer:
      for row in range(i, _NUM_PHOTOS, 4):
        writer.write(_make_record(_encode(pixels[row], PHOTO_SIZE, row)))


def _encode(pixels: np.ndarray, size: int, seed: int) -> bytes:
  """Returns a JPEG with noise, so that it is as large as a photograph."""
  import tensorflow as tf

  large = tf.image.resize(pixels, [size, size], "bicubic")
  noise = np.random.RandomState(seed).randint(0, 32, [size, size, 3])
  pixels = tf.saturate_cast(0.8 * large + noise, tf.uint8)
  return tf.io.encode_jpeg(pixels).numpy()


def _make_record(image: bytes) -> bytes:
  """Returns an image with label 0 as a serialized `tf.train.Example`."""
  import tensorflow as tf

  feature = {
    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[0])),
  }
  features = tf.train.Features(feature=feature)
  return tf.train.Example(features=features).SerializeToString()


def _write_manifest(folder: str, files: List[str]) -> None:
  from paragan_tf.data import shards

  shard, offset, size = shards.scan(files)
  names = tuple(os.path.basename(path) for path in files)
  labels = np.zeros(len(shard), np.int32)
  index = shards.Index(
    names, shard, offset, size, labels, ("all",), shards.Features()
  )
  listed = tuple(
    shards.Shard(name, int((shard == i).sum()), os.path.getsize(path), "")
    for i, (name, path) in enumerate(zip(names, files))
  )
  shards.write_manifest(folder, shards.Manifest("fashion", listed, index))
