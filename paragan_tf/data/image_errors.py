"""Why an image cannot be used: its bytes, or the label in its record."""

from typing import Dict, Optional

import numpy as np
import tensorflow as tf

from paragan_tf.data import reading, transforms
from paragan_tf.data.encoded import WHOLE, BlockReader

_REMEDY = "the run resumes from its last checkpoint"


def find_decode_error(
  content: bytes, channels: int = 3, python: bool = True
) -> Optional[str]:
  """Returns why bytes cannot be decoded, or `None` if they can."""
  try:
    transforms.decode_image(tf.constant(content), channels, python)
  except (tf.errors.OpError, OSError, ValueError, SyntaxError) as e:
    return f"cannot be decoded: {reading.clean_message(e).rstrip('.')}"
  return None


def assert_labels(ids: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Returns labels as int32; in a graph, asserts that each is a class id."""
  if not num_classes:
    return tf.cast(ids, tf.int32)
  in_range = tf.reduce_all((ids >= 0) & (ids < num_classes))
  message = f"Labels must be from 0 to {num_classes - 1}, got"
  with tf.control_dependencies([tf.debugging.Assert(in_range, [message, ids])]):
    return tf.cast(ids, tf.int32)


class ImageChecker:
  """Reads and decodes single images of a set, as a run would.

  Called with a row, it returns the error of that image, with the file's name.
  Without `python`, images must be decoded by TensorFlow's ops alone.
  """

  def __init__(self, blocks: BlockReader, num_classes: int, python=True):
    self._blocks = blocks
    self._num_classes = num_classes
    self._python = python
    self._cached: Dict[int, bytes] = {}

  def __call__(self, row: int) -> Optional[str]:
    """Returns the error of an image, or `None`."""
    try:
      content = self._read(row)
    except ValueError as e:  # Its file cannot be read.
      return str(e)
    images = self._blocks.images
    if images.parse_fn is not None:
      try:
        encoded, label = (x[0].numpy() for x in images.parse_fn([content]))
      except reading.OP_ERRORS as e:
        return (
          f"{self._describe(row)} cannot be parsed "
          f"({reading.clean_message(e)}): name its features with "
          "`tfrecord.image_key` and `tfrecord.label_key`."
        )
      if images.labels is None and self._is_bad_label(int(label)):
        return (
          f"{self._describe(row)} must have a label from 0 to "
          f"{self._num_classes - 1}, got {label}: fix it, or `num_classes`; "
          f"{_REMEDY}."
        )
      content = encoded
    error = find_decode_error(content, images.channels, self._python)
    if error is None:
      return None
    return f"{self._describe(row)} {error}; fix or remove it: {_REMEDY}."

  def _read(self, row: int) -> bytes:
    block = int(self._blocks.block_ids[row])
    if block not in self._cached:  # Neighbors are often in one block.
      self._cached = {block: self._blocks.fetch((0, block))}
    (content,) = self._blocks.cut(self._cached, np.array([row])).tolist()
    return content

  def _describe(self, row: int) -> str:
    images = self._blocks.images
    path = images.paths[images.path_index[row]]
    if images.size[row] == WHOLE:
      return f"'{path}'"
    return f"The record at byte {images.start[row]} of '{path}'"

  def _is_bad_label(self, label: int) -> bool:
    return bool(self._num_classes) and not 0 <= label < self._num_classes
