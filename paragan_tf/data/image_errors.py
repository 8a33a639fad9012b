"""Why an image cannot be used: its bytes, or the label in its record."""

import io
from typing import Dict, Optional

import numpy as np
import PIL.Image
import tensorflow as tf

from paragan_tf.data import image_headers, reading, transforms
from paragan_tf.data.encoded import WHOLE, BlockReader

# Bits for many blocks of a JPEG, whatever its codes are.
_FILLER = bytes(range(1, 251)) * 40
_REMEDY = "the run resumes from its last checkpoint"


def find_decode_error(
  content: bytes, channels: int = 3, python: bool = True
) -> Optional[str]:
  """Returns why bytes cannot be decoded, or `None` if they can."""
  if len(content) < image_headers.MIN_BYTES:
    return f"no image: {len(content)} bytes"
  try:
    image_headers.check_size(content)
    image = transforms.decode_image(tf.constant(content), channels, python)
    if _may_end_early(content, image.numpy()) and _ends_early(content):
      return "ends early: its last part is blank"
  except (tf.errors.OpError, OSError, ValueError, SyntaxError) as e:
    return f"cannot be decoded: {reading.clean_message(e).rstrip('.')}"
  return None


def _may_end_early(content: bytes, image: np.ndarray) -> bool:
  """Returns whether a JPEG may have an end marker and too little before it.

  Decoders then leave the rest gray, and do not say so. A progressive one has
  lost details only.
  """
  if not image_headers.is_jpeg(content):
    return False
  corner = image[-4:, -4:].astype(int)
  is_gray = bool(np.all(np.abs(corner - 128) <= 1))
  return is_gray or image_headers.is_progressive(content)


def _ends_early(content: bytes) -> bool:
  """Returns whether bytes before the end marker would become pixels."""
  # By Pillow, which does not write warnings to the terminal.
  images = (content, image_headers.insert_before_end(content, _FILLER))
  first, second = (PIL.Image.open(io.BytesIO(x)).tobytes() for x in images)
  return first != second


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
