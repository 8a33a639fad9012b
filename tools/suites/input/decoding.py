"""How fast one core decodes images: our pipeline, and a bare loop."""

import glob
import os
import time
from typing import Any

from tools import cli
from tools.suites.input.images import PHOTO_SIZE

_BATCH_SIZE = 32


class Decoder:
  """Decodes without a device to feed: "ours" or "bare", on one core."""

  def __init__(self, kind: str, folder: str):
    os.sched_setaffinity(0, {0})
    cli.import_quietly("paragan_tf.api")
    from paragan_tf.data import sources
    from paragan_tf.data.encoded import Streaming
    from paragan_tf.data.input_fn import InputFn

    pattern = f"{folder}/photos-*.tfrecord"
    self._input_fn = InputFn(
      lambda: sources.tfrecord(pattern, num_classes=1, num_heldout=2),
      PHOTO_SIZE,
      streaming=Streaming(cache_bytes=0),
    )
    is_bare = kind == "bare"
    data = self._make_bare(pattern) if is_bare else self._make_ours()
    self._elements = iter(data)

  def run(self, seconds: float) -> float:
    """Decodes for some seconds; returns images a second."""
    started, num = time.monotonic(), 0
    while time.monotonic() - started < seconds:
      next(self._elements)
      num += _BATCH_SIZE
    return num / (time.monotonic() - started)

  def _make_ours(self) -> Any:
    return self._input_fn({"batch_size": _BATCH_SIZE})

  def _make_bare(self, pattern: str) -> Any:
    """Returns the dataset that one would write by hand."""
    import tensorflow as tf

    features = {
      "image": tf.io.FixedLenFeature([], tf.string),
      "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decode(record):
      found = tf.io.parse_single_example(record, features)
      image = tf.io.decode_jpeg(
        found["image"], 3, dct_method="INTEGER_ACCURATE"
      )
      image = tf.ensure_shape(image, [PHOTO_SIZE, PHOTO_SIZE, 3])
      return tf.cast(image, tf.float32) / 127.5 - 1.0, found["label"]

    data = tf.data.TFRecordDataset(sorted(glob.glob(pattern))).repeat()
    data = data.shuffle(512).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(_BATCH_SIZE, drop_remainder=True).prefetch(2)
