"""What is wrong with an image: its bytes, or the label in its record."""

from typing import Dict, Optional

import numpy as np
import tensorflow as tf

from paragan_tf.data import reading, transforms
from paragan_tf.data.encoded import WHOLE, Blocks

_REMEDY = "the run goes on from its last checkpoint"


def of_bytes(content: bytes) -> Optional[str]:
  """Returns why bytes are no image, or `None` if they can be decoded."""
  try:
    transforms.decoded(tf.constant(content), 3)
  except (tf.errors.OpError, OSError, ValueError, SyntaxError) as e:
    return f"cannot be decoded: {reading.plain(e).rstrip('.')}"
  return None


def checked_labels(ids: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Returns labels as int32, in a graph; one that is no class is an error."""
  if not num_classes:
    return tf.cast(ids, tf.int32)
  known = tf.reduce_all((ids >= 0) & (ids < num_classes))
  words = f"Labels must be from 0 to {num_classes - 1}, got"
  with tf.control_dependencies([tf.debugging.Assert(known, [words, ids])]):
    return tf.cast(ids, tf.int32)


class Look:
  """Looks at single images of a set, as a run would take them.

  Called with a row, it returns what is wrong there, with the file's name.
  """

  def __init__(self, blocks: Blocks, num_classes: int):
    self._blocks = blocks
    self._num_classes = num_classes
    self._held: Dict[int, bytes] = {}

  def __call__(self, row: int) -> Optional[str]:
    """Returns what is wrong with an image, `None` if nothing is."""
    try:
      content = self._content(row)
    except ValueError as e:  # It is lost by now.
      return str(e)
    images = self._blocks.images
    if images.parse is not None:
      try:
        encoded, label = (part[0].numpy() for part in images.parse([content]))
      except tf.errors.OpError as e:
        return (
          f"{self._where(row)} cannot be parsed ({reading.plain(e)}): name its "
          "features with `tfrecord.image_key` and `tfrecord.label_key`."
        )
      if images.labels is None and self._is_no_class(int(label)):
        return (
          f"{self._where(row)} must have a label from 0 to "
          f"{self._num_classes - 1}, got {label}: mend it, or `num_classes`; "
          f"{_REMEDY}."
        )
      content = encoded
    flaw = of_bytes(content)
    if flaw is None:
      return None
    return f"{self._where(row)} {flaw}; mend or remove it: {_REMEDY}."

  def _content(self, row: int) -> bytes:
    block = int(self._blocks.of_row[row])
    if block not in self._held:  # Neighbors are often of the same.
      self._held = {block: self._blocks.fetch((0, block))}
    (content,) = self._blocks.cut(self._held, np.array([row])).tolist()
    return content

  def _where(self, row: int) -> str:
    images = self._blocks.images
    path = images.paths[images.path[row]]
    if images.size[row] == WHOLE:
      return f"'{path}'"
    return f"The record at byte {images.start[row]} of '{path}'"

  def _is_no_class(self, label: int) -> bool:
    return bool(self._num_classes) and not 0 <= label < self._num_classes
